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
_BLOCK, _FULL_BLOCK = 256, 1024
"""steps whose attention is computed at a time: a smaller block masks less that it does not see, under a window of few
tokens, a larger one costs fewer calls"""


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
    steps, prompt = len(q), len(keys) - len(q)
    out = []
    for start in range(0, steps, _FULL_BLOCK):
        block = q[start : start + _FULL_BLOCK]
        seen = prompt + start + len(block)
        out.append(attention(block, keys[:seen], values[:seen], causal_mask(len(block), seen, q.dtype, q.device)))
    return torch.cat(out)


def _window(kept: Window, q: Tensor, keys: Tensor, values: Tensor, scores: Scores | None, theta: float) -> Tensor:
    steps, _, size = q.shape
    prompt, sinks = len(keys) - steps, min(kept.sinks, len(keys))
    now = torch.arange(prompt, len(keys))
    back = rotate(q, *rotations(now.clamp(max=kept.cap) - now, size, theta, q.dtype))
    # Recent keys meet the query where it is, sinks where the cache puts it: a sink's score is taken beforehand and
    # handed to attention as a channel in which only that sink's key has a one.
    width = size + sinks
    scores = torch.einsum("nkgd,skd->nkgs", back.unflatten(1, (keys.shape[1], -1)), keys[:sinks]).flatten(1, 2)
    queries = torch.cat([q, scores], -1) * (width / size) ** 0.5  # attention divides by the root of its channels
    keys, values = F.pad(keys, (0, sinks)), F.pad(values, (0, sinks))
    keys[:sinks] = torch.eye(sinks, width).roll(size, -1)[:, None]
    out = []
    for start in range(0, steps, _BLOCK):
        query = now[start : start + _BLOCK, None]
        end = int(query[-1]) + 1
        oldest = max(sinks, prompt + start - kept.recent)  # the block sees nothing between the sinks and this
        used = torch.cat([torch.arange(sinks), torch.arange(oldest, max(oldest, end))])
        seen = (used <= query) & ((used < sinks) | (used >= query - kept.recent))
        mask = torch.zeros(seen.shape, dtype=q.dtype).masked_fill_(~seen, -torch.inf)
        out.append(attention(queries[start : start + _BLOCK], keys[used], values[used], mask)[..., :size])
    return torch.cat(out)


def _snapkv(kept: SnapKV, q: Tensor, keys: Tensor, values: Tensor, scores: Scores, theta: float) -> Tensor:
    steps, prompt = len(q), len(keys) - len(q)
    last = scores.observed[:, -kept.observe :].sum(1)
    chosen = _indices(select.snapkv(last.numpy(), kept.budget, min(kept.observe, kept.budget)))
    kept_keys, kept_values = (torch.cat([_gather(x[:prompt], chosen), x[prompt:]]) for x in (keys, values))
    return attention(q, kept_keys, kept_values, causal_mask(steps, len(kept_keys), q.dtype, q.device))


def _heavy_hitter(kept: HeavyHitter, q: Tensor, keys: Tensor, values: Tensor, scores: Scores, theta: float) -> Tensor:
    steps, heads, size = q.shape
    prompt, kv_heads = len(keys) - steps, keys.shape[1]
    chosen = _indices(select.heavy_hitters(scores.received.numpy(), kept.budget, kept.recent))
    held = chosen.shape[1]
    # All that any step can see, oldest first: the recent ones are always the last.
    k, v = (torch.cat([_gather(x[:prompt], chosen), x[prompt:]]).transpose(0, 1) for x in (keys, values))
    received = torch.cat([scores.received.gather(1, chosen), q.new_zeros(kv_heads, steps)], 1)
    queries = q.view(steps, kv_heads, -1, size).transpose(0, 1).flatten(1, 2) * size**-0.5
    weights = (queries @ k.transpose(1, 2)).unflatten(1, (steps, -1))  # [kv heads, steps, group, held + steps]
    gone = q.new_zeros(kv_heads, 1, held + steps)
    rows = torch.arange(kv_heads)
    for step in range(steps):
        seen = held + step + 1
        weights[:, step, :, seen:] = 0
        now = weights[:, step, :, :seen]
        torch.softmax(now + gone[:, :, :seen], -1, out=now)
        received[:, :seen] += now.sum(1)
        if seen > kept.budget:  # the one that received least, of those that are not recent
            least = received[:, : seen - kept.recent].argmin(-1)
            gone[rows, 0, least] = -torch.inf
            received[rows, least] = torch.inf
    out = weights.flatten(1, 2) @ v
    return out.view(kv_heads, steps, -1, size).transpose(0, 1).reshape(steps, heads, size)


def _indices(chosen: np.ndarray[Any, Any]) -> Tensor:
    return torch.from_numpy(chosen.astype(np.int64))


def _gather(x: Tensor, chosen: Tensor) -> Tensor:
    """Of x [tokens, kv heads, head size] the tokens `chosen` [kv heads, kept] of each head."""
    return x.gather(0, chosen.T[:, :, None].expand(-1, -1, x.shape[2]))


_ATTEND: dict[type[Any], Callable[..., Tensor]] = {
    Full: _full, Window: _window, HeavyHitter: _heavy_hitter, SnapKV: _snapkv,
}  # fmt: skip
