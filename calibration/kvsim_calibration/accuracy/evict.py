"""Decode attention of many steps at once, as if each step had evicted before the next.

In one layer the queries of all steps are known at once when the text is given, so a layer is computed for all steps
before the next layer; only H2O, whose choice depends on the scores so far, walks through the steps. Every policy evicts
after a step: the step itself sees what was kept, and its own token. A test holds each equal to a cache that really
drops tokens, one step after the other.

Positions. Window: as in StreamingLLM, a key's position is its place within the cache. Recent keys are as far from the
query as before, so only the sinks move closer: their scores are taken with the query rotated back to the cache's end.
H2O and SnapKV: keys stay rotated for the positions they had in the text, as in their published code, and as
`kv_compact` leaves them.

Shapes: q [steps, heads, head size]; keys and values [prompt + steps, kv heads, head size], rotated; out as q.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from kvsim_kernels.reference import select

from kvsim.cache.retention import Full, HeavyHitter, Retention, SnapKV, Window
from kvsim.errors import InputError
from kvsim_calibration.engine.ops import attention, causal_mask, rotate, rotations

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Scores:
    """Attention that the prompt's tokens received within the prompt, in one layer, summed over the heads of a group."""

    received: Tensor
    """[kv heads, prompt]: from all queries of the prompt"""
    observed: Tensor
    """[kv heads, last queries, prompt]: from each of the last ones"""


def attend(
    retention: Retention, q: Tensor, keys: Tensor, values: Tensor, scores: Scores | None, theta: float
) -> Tensor:
    """Attention of all decode steps under a retention. `scores`: for those that choose by them. `theta`: base of the
    rotary frequencies."""
    return _of(retention)(retention, q, keys, values, scores, theta)


def check(retention: Retention) -> None:
    """Raises InputError for a retention that has no implementation here."""
    _of(retention)


def _of(retention: Retention) -> Callable[..., Tensor]:
    for kind, function in _ATTEND.items():
        if isinstance(retention, kind):
            return function
    raise InputError(f"retention {type(retention).__name__} cannot be measured: kvsim accuracy knows "
                     + ", ".join(kind.__name__ for kind in _ATTEND))  # fmt: skip


def _full(_: Full, q: Tensor, keys: Tensor, values: Tensor, scores: Scores | None, theta: float) -> Tensor:
    return attention(q, keys, values, causal_mask(len(q), len(keys), q.dtype, q.device))


def _window(kept: Window, q: Tensor, keys: Tensor, values: Tensor, scores: Scores | None, theta: float) -> Tensor:
    steps, _, size = q.shape
    prompt, sinks = len(keys) - steps, min(kept.sinks, len(keys))
    oldest = max(sinks, prompt - kept.recent)  # no step sees what lies between the sinks and this
    used = torch.cat([torch.arange(sinks), torch.arange(oldest, len(keys))])
    now = torch.arange(prompt, len(keys))
    place = now.clamp(max=kept.cap)
    back = rotate(q, *rotations(place - now, size, theta, q.dtype))
    # Twice as many channels: recent keys meet the query where it is, sinks where the cache puts it.
    wide_q = torch.cat([q, back], -1) * 2**0.5  # attention divides by the root of its channels
    wide_keys = F.pad(keys[used], (0, size))
    wide_keys[:sinks] = wide_keys[:sinks].roll(size, -1)
    at, query = used[None, :], now[:, None]
    seen = (at <= query) & ((at < kept.sinks) | (at >= query - kept.recent))
    mask = torch.zeros(seen.shape, dtype=q.dtype).masked_fill_(~seen, -torch.inf)
    return attention(wide_q, wide_keys, F.pad(values[used], (0, size)), mask)[..., :size]


def _snapkv(kept: SnapKV, q: Tensor, keys: Tensor, values: Tensor, scores: Scores, theta: float) -> Tensor:
    steps, prompt = len(q), len(keys) - len(q)
    last = scores.observed[:, -kept.observe :].sum(1)
    chosen = _indices(select.snapkv(last.numpy(), kept.budget, min(kept.observe, kept.budget)))
    kept_keys, kept_values = (torch.cat([_gather(x[:prompt], chosen), x[prompt:]]) for x in (keys, values))
    return attention(q, kept_keys, kept_values, causal_mask(steps, len(kept_keys), q.dtype, q.device))


def _heavy_hitter(kept: HeavyHitter, q: Tensor, keys: Tensor, values: Tensor, scores: Scores, theta: float) -> Tensor:
    steps, _, size = q.shape
    prompt, kv_heads = len(keys) - steps, keys.shape[1]
    chosen = _indices(select.heavy_hitters(scores.received.numpy(), kept.budget, kept.recent))
    held, slots = chosen.shape[1], kept.budget + 1
    k, v = q.new_zeros(kv_heads, slots, size), q.new_zeros(kv_heads, slots, size)
    k[:, :held], v[:, :held] = (_gather(x[:prompt], chosen).transpose(0, 1) for x in (keys, values))
    position = torch.full((kv_heads, slots), len(keys))
    position[:, :held] = chosen
    received = q.new_zeros(kv_heads, slots)
    received[:, :held] = scores.received.gather(1, chosen)
    empty = q.new_full((slots,), -torch.inf)
    empty[:held] = 0
    rows, out = torch.arange(kv_heads), torch.empty_like(q)
    free = torch.full((kv_heads,), held)
    queries = q.view(steps, kv_heads, -1, size) * size**-0.5
    for step in range(steps):
        now = prompt + step
        k[rows, free], v[rows, free] = keys[now], values[now]
        position[rows, free], received[rows, free] = now, 0.0
        empty[free[0] if held < slots else 0] = 0
        weights = (queries[step] @ k.transpose(1, 2) + empty).softmax(-1)
        out[step] = (weights @ v).flatten(0, 1)
        received += weights.sum(1)
        held = min(held + 1, slots)
        if held < slots:
            free = torch.full((kv_heads,), held)
        else:  # over budget: the one that received least, of those that are not recent
            free = received.masked_fill(position > now - kept.recent, torch.inf).argmin(-1)
    return out


def _indices(chosen: np.ndarray[Any, Any]) -> Tensor:
    return torch.from_numpy(chosen.astype(np.int64))


def _gather(x: Tensor, chosen: Tensor) -> Tensor:
    """Of x [tokens, kv heads, head size] the tokens `chosen` [kv heads, kept] of each head."""
    return x.gather(0, chosen.T[:, :, None].expand(-1, -1, x.shape[2]))


_ATTEND: dict[type[Any], Callable[..., Tensor]] = {
    Full: _full, Window: _window, HeavyHitter: _heavy_hitter, SnapKV: _snapkv,
}  # fmt: skip
