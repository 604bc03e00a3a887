"""One piece of text under many policies, each compared with the full bf16 cache on the same tokens."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F

from kvsim.cache.retention import HeavyHitter, SnapKV
from kvsim_calibration.accuracy.basis import Basis
from kvsim_calibration.accuracy.caches import Decode, Prefill, Prompt
from kvsim_calibration.accuracy.policies import FULL_CACHE, Policy
from kvsim_calibration.engine.caches.base import Batch
from kvsim_calibration.engine.model import Llama

Tensor = torch.Tensor
_BLOCK = 64
"""steps whose distributions are compared at a time"""


@dataclass(frozen=True, slots=True)
class Row:
    """What one policy did on one item; sums over its scored tokens."""

    policy: str
    tokens: int
    nll: float
    """negative log-likelihood of the true next tokens, nats"""
    nll_all: float
    """the same of all tokens behind the prompt, those that do not count too"""
    agree: int
    """tokens whose most likely successor is the full cache's"""
    kl: float
    """Kullback–Leibler divergence from the full cache's distribution, nats"""
    exact: bool
    """every true token was the most likely one: what a greedy answer would have said"""
    attention_error: list[float]
    """per layer, norm of the difference of attention outputs ÷ norm of the full cache's, errors of earlier layers
    included"""
    seconds: float

    def facts(self) -> dict[str, Any]:
        return asdict(self)


def compare(model: Llama, tokens: Sequence[int], prompt: int, policies: Sequence[Policy],
            bases: Sequence[Basis] = (), scored: int | None = None) -> Iterator[Row]:  # fmt: skip
    """A row for the full cache, then one for each policy.

    The first `prompt` tokens are prefilled, the others are decode steps; each of those but the last predicts the next.
    `bases`: for precisions that store keys in one, a layer's each. `scored`: how many steps count, the last ones; all
    if it is not said.
    """
    began = time.perf_counter()
    scored = scored or len(tokens) - 1 - prompt
    inputs, targets = torch.tensor(tokens[:-1]), torch.tensor(tokens[prompt + 1 :])
    left = prefill(model, inputs[:prompt], policies)
    reference = decode(model, inputs[prompt:], left, FULL_CACHE, (), scored, targets)
    for policy in (FULL_CACHE, *policies):
        if policy is FULL_CACHE:
            answer = reference
        else:
            began = time.perf_counter()
            answer = decode(model, inputs[prompt:], left, policy, bases, scored, targets)
        yield _row(policy, reference, answer, targets[-scored:], began)


def prefill(model: Llama, inputs: Tensor, policies: Sequence[Policy]) -> Prompt:
    """The prompt's keys, values and scores, inputs int64 [prompt]."""
    observe = max([p.retention.observe for p in policies if isinstance(p.retention, SnapKV)], default=0)
    cache = Prefill(observe, scored=any(isinstance(p.retention, HeavyHitter | SnapKV) for p in policies))
    model(inputs, Batch([0], [len(inputs)], [0]), cache, slice(len(inputs) - 1, None))
    return cache.prompt


@dataclass(frozen=True, slots=True)
class Answer:
    """Of the steps that count: logarithms of probabilities [steps, vocabulary] and each layer's attention output."""

    log_probs: Tensor
    outputs: list[Tensor]
    nll_before: float
    """negative log-likelihood of the tokens of the steps before those, nats; 0 where they were not given"""


def decode(model: Llama, inputs: Tensor, prompt: Prompt, policy: Policy, bases: Sequence[Basis] = (),
           scored: int = 0, targets: Tensor | None = None) -> Answer:  # fmt: skip
    """Every step behind a prompt, teacher-forced, inputs int64 [steps]; the last `scored` count, all if it is 0. Of the
    others only the likelihood of `targets` int64 [steps] is asked, where they are given."""
    cache = Decode(prompt, policy, model.dims.theta, bases, scored)
    batch = Batch([0], [len(inputs)], [len(prompt.keys[0])])
    logits = model(inputs, batch, cache, slice(-scored if targets is None else 0, None))
    before = len(logits) - (scored or len(logits))
    nll_before = 0.0
    for at in range(0, before, _BLOCK):
        step = slice(at, min(at + _BLOCK, before))
        assert targets is not None
        nll_before += float(F.cross_entropy(logits[step].float(), targets[step], reduction="sum"))
    return Answer(F.log_softmax(logits[before:].float(), -1), cache.outputs, nll_before)


def _row(policy: Policy, reference: Answer, answer: Answer, targets: Tensor, began: float) -> Row:
    pairs = zip(torch.split(reference.log_probs, _BLOCK), torch.split(answer.log_probs, _BLOCK), strict=True)
    best = answer.log_probs.argmax(-1)
    kl = sum(float((true.exp() * (true - ours)).sum(-1).double().sum()) for true, ours in pairs)
    errors = [float((ours - true).norm() / true.norm())
              for ours, true in zip(answer.outputs, reference.outputs, strict=True)]  # fmt: skip
    nll = float(F.nll_loss(answer.log_probs, targets, reduction="sum"))
    return Row(
        policy.name, len(targets), nll, answer.nll_before + nll,
        int((best == reference.log_probs.argmax(-1)).sum()), kl, bool((best == targets).all()),
        errors, round(time.perf_counter() - began, 3),
    )  # fmt: skip
