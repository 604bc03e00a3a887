"""The two caches of a measurement, behind the reference engine's interface (engine/caches/base.py).

`Prefill` computes a prompt once, with every policy's cache still empty: attention is over the prompt's own keys and
values, as a prefill kernel does it. It leaves a `Prompt`, from which each policy's `Decode` starts: it stores the
prompt in its own format, drops what it drops, and answers all later tokens as decode steps, which read what it stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from kvsim_calibration.accuracy.evict import Scores, attend
from kvsim_calibration.accuracy.policies import Policy
from kvsim_calibration.accuracy.stored import IN_BASIS, REFERENCE, stored
from kvsim_calibration.engine.caches.base import Cache
from kvsim_calibration.engine.ops import attention, probabilities

if TYPE_CHECKING:
    from kvsim_calibration.accuracy.basis import Basis

Tensor = torch.Tensor
_BLOCK = 256
"""queries whose attention weights are in memory at a time"""


@dataclass
class Prompt:
    """What the prefill of one sequence left, a tensor [prompt, kv heads, head size] a layer."""

    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    scores: list[Scores | None] = field(default_factory=list)
    """None where nothing asks for them"""


class _One(Cache):
    """A cache of one sequence, forgotten as a whole."""

    def drop(self, sequence: int) -> None:
        raise NotImplementedError("it ends with its measurement")

    def nbytes(self) -> int:
        raise NotImplementedError("bytes are the policy's (Policy.token_bytes), not those of this implementation")


class Prefill(_One):
    """A whole prompt in one forward, full attention. `prompt` is what it leaves."""

    def __init__(self, observe: int, precision: str = REFERENCE, scored: bool = True) -> None:
        """`observe`: last queries whose attention is kept one by one. Without `scored` none is, which is faster."""
        self.prompt = Prompt()
        self._observe, self._precision, self._scored = observe, precision, scored

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = stored(k, self._precision), stored(v, self._precision)
        self.prompt.keys.append(k)
        self.prompt.values.append(v)
        self.prompt.scores.append(self._scores(q, k) if self._scored else None)
        return attention(q, k, v)

    def _scores(self, q: Tensor, k: Tensor) -> Scores:
        tokens, kv_heads = len(k), k.shape[1]
        received = q.new_zeros(kv_heads, tokens)
        observed = q.new_zeros(kv_heads, min(self._observe, tokens), tokens)
        for start in range(0, tokens, _BLOCK):
            end = min(start + _BLOCK, tokens)
            weights = probabilities(q[start:end], k[:end]).unflatten(0, (kv_heads, -1)).sum(1)
            received[:, :end] += weights.sum(1)
            late = end - (tokens - observed.shape[1])  # of this block's queries, those among the last
            if late > 0:
                late = min(late, end - start)
                at = end - tokens + observed.shape[1]
                observed[:, at - late : at, :end] = weights[:, -late:]
        return Scores(received, observed)


class Decode(_One):
    """What follows a prompt, one step after the other, under a policy. `outputs`: each layer's attention, in the last
    `scored` steps."""

    def __init__(self, prompt: Prompt, policy: Policy, theta: float, bases: Sequence[Basis] = (), scored: int = 0
                 ) -> None:  # fmt: skip
        """`theta`: base of the rotary frequencies. `bases`: a layer's each, for a precision that stores keys in one."""
        self.outputs: list[Tensor] = []
        self._prompt, self._policy, self._theta, self._bases, self._scored = prompt, policy, theta, bases, scored

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        before = self._prompt
        keys = self._keys(layer, torch.cat([before.keys[layer], k]))
        values = stored(torch.cat([before.values[layer], v]), self._policy.precision)
        out = attend(self._policy.retention, q, keys, values, before.scores[layer], self._theta)
        self.outputs.append(out[-self._scored :].clone())
        return out

    def _keys(self, layer: int, keys: Tensor) -> Tensor:
        precision = self._policy.precision
        if not precision.endswith(IN_BASIS):
            return stored(keys, precision)
        basis = self._bases[layer]
        return basis.seen(stored(basis.keys(stored(keys, REFERENCE)), precision))
