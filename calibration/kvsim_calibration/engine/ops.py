"""The operators a step of the reference engine runs, one function each.

They are what `kvsim calibrate --backend torch` times, under the names of the profile's curves, because the
predicted step is their sum:

| curve | operator |
|---|---|
| linear (N, K) over m | `linear` with a weight [N, K] |
| norm | `add_norm`: residual add and RMS norm |
| rope | `rotate` on [m, heads + kv heads, head size] |
| act | `gated`: SwiGLU on [m, 2 · inter] |
| append | a cache's `write` of m tokens (caches/) |
| decode attention | `attention` with one query a sequence, sequence after sequence |
| prefill attention | `attention` with n queries over context + n keys |
| embed, sample | a lookup of m rows; `argmax` over rows of logits |

Attention runs one sequence at a time, so what a sequence gets does not depend on who else is in the batch.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

Tensor = torch.Tensor

linear = F.linear


def add_norm(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(RMS norm of x + residual, x + residual), each [m, hidden]. Without a residual, of x itself."""
    total = x if residual is None else x + residual
    return F.rms_norm(total, (total.shape[-1],), weight, eps), total


def rotations(positions: Tensor, head_dim: int, theta: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin [m, 1, head size] of rotary embeddings (Su et al. 2021) at positions [m], halves as in Llama."""
    half = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32) / head_dim
    angles = positions.float()[:, None] * theta**-half
    both = torch.cat((angles, angles), -1)[:, None]
    return both.cos().to(dtype), both.sin().to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x [m, heads, head size]. Rotations add up: by p and then by d is by p + d, which lets a cache
    move keys to new positions."""
    low, high = x.chunk(2, -1)
    return x * cos + torch.cat((-high, low), -1) * sin


def gated(x: Tensor) -> Tensor:
    """SwiGLU: silu(gate) · up for x [m, 2 · inter] = gate and up side by side → [m, inter]."""
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


def causal_mask(queries: int, keys: int, dtype: torch.dtype, device: torch.device) -> Tensor | None:
    """What `attention` adds to scores so that the last key is the last query's own; None where none is needed: a single
    query sees all keys, and without earlier keys the operator masks by itself."""
    if queries in (1, keys):
        return None
    return torch.full((queries, keys), -torch.inf, dtype=dtype, device=device).triu_(keys - queries + 1)


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """softmax(q kᵀ / √d) v of one sequence, causal: the last query sees every key, the one before all but the last, …

    q [n, heads, head size] of the sequence's last n tokens, k and v [t ≥ n, kv heads, head size], any strides; query
    head h reads KV head h // (heads / kv heads). `mask`: `causal_mask(n, t)`. Returns [n, heads, head size].
    """
    n, heads, size = q.shape
    keys, values = k.transpose(0, 1)[None], v.transpose(0, 1)[None]
    if n == 1:  # the heads of a group are queries of one KV head: it is read once
        out = F.scaled_dot_product_attention(q.view(1, k.shape[1], -1, size), keys, values)
        return out.reshape(1, heads, size)
    out = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None], keys, values, attn_mask=mask, is_causal=mask is None, enable_gqa=True
    )
    return out[0].transpose(0, 1)


def probabilities(q: Tensor, k: Tensor) -> Tensor:
    """softmax(q kᵀ / √d), causal as in `attention`: float32 [heads, n, t]. For policies that keep what is attended."""
    n, t = len(q), len(k)
    group = q.shape[1] // k.shape[1]
    scores = torch.einsum("nhd,thd->hnt", q.float(), k.float().repeat_interleave(group, 1)) * q.shape[2] ** -0.5
    mask = causal_mask(n, t, torch.float32, q.device) if n != t else torch.full_like(scores[0], -torch.inf).triu_(1)
    return (scores if mask is None else scores + mask).softmax(-1)
