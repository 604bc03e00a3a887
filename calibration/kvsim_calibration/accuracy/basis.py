"""Keys in another basis, in which a quantizer errs less; fitted once for a model, and no kernel changes.

Attention sees keys only through products with queries, and softmax does not see what all products have in common. So
for any vector c and invertible matrix A of a KV head a cache may store A (k − c) instead of k, if queries come as
A⁻ᵀ q: (A⁻ᵀ q) · (A (k − c)) = q · k − q · c. `append` and decode attention are as before; a matrix [head size, head
size] more is applied to each new key and query. Hadamard matrices (QuaRot, arXiv:2404.00456) and scales of channels
(QServe, arXiv:2405.04532) are special cases. vLLM, SGLang and LMDeploy store plain keys.

Which A? A code with a mantissa errs in proportion to its number, so the errors of a product add up to
Σ_d E[k_d²] E[q_d²] in whatever basis. With the second moments K of keys and Q of queries the least over all A is
(tr (K Q)^½)² / D, where both have become the same diagonal matrix, spread evenly over the D channels by an orthogonal
one. Tokens count by the attention that they receive: an error of the first ones, which often get half of it, moves
every answer.
"""

from __future__ import annotations

import inspect
import json.decoder
import json.encoder
import math
from dataclasses import dataclass

import torch

from kvsim_calibration.accuracy.caches import Prefill
from kvsim_calibration.accuracy.tokenizer import Tokenizer
from kvsim_calibration.engine.caches.base import Batch
from kvsim_calibration.engine.model import Llama

Tensor = torch.Tensor

TOKENS = 2048
"""of the text that a basis is fitted on"""
_RIDGE = 1e-2
"""part of the mean variance that each direction has at least: directions hardly seen stay tame"""


@dataclass(frozen=True, slots=True)
class Basis:
    """Of one layer."""

    center: Tensor
    """c [kv heads, head size]"""
    matrix: Tensor
    """A [kv heads, head size, head size]"""
    inverse: Tensor

    def keys(self, k: Tensor) -> Tensor:
        """A (k − c), k [tokens, kv heads, head size], rotated: what the cache stores."""
        return torch.einsum("hij,thj->thi", self.matrix, k - self.center)

    def seen(self, stored: Tensor) -> Tensor:
        """Stored keys as the model's own queries see them, A⁻¹ stored + c."""
        return torch.einsum("hij,thj->thi", self.inverse, stored) + self.center

    def queries(self, q: Tensor) -> Tensor:
        """A⁻ᵀ q, q [tokens, heads, head size], rotated: what attends to stored keys."""
        grouped = q.unflatten(1, (len(self.matrix), -1))
        return torch.einsum("hji,thgj->thgi", self.inverse, grouped).flatten(1, 2)


def fit(model: Llama, tokens: list[int]) -> list[Basis]:
    """A basis for each layer, from one pass over a text."""
    cache = _Moments(observe=0)
    model(torch.tensor(tokens), Batch([0], [len(tokens)], [0]), cache, slice(len(tokens) - 1, None))
    left = zip(cache.prompt.keys, cache.prompt.scores, cache.queries, strict=True)
    return [_fit(keys.double().transpose(0, 1), scores.received.double(), queries)
            for keys, scores, queries in left if scores]  # fmt: skip


def text() -> str:
    """What bases are fitted on: Python's module json, code that is no part of the documentation that is measured."""
    return "\n\n".join(inspect.getsource(part) for part in (json, json.decoder, json.encoder))


def fitted(model: Llama, tokenizer: Tokenizer) -> list[Basis]:
    """A basis for each layer, from `text`."""
    return fit(model, (tokenizer.begin + tokenizer.encode(text()))[:TOKENS])


class _Moments(Prefill):
    """Keeps E[q qᵀ] of each layer and KV head, over tokens and the heads of a group."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if layer == 0:
            self.queries: list[Tensor] = []
        grouped = q.double().unflatten(1, (k.shape[1], -1)).transpose(0, 1).flatten(1, 2)
        self.queries.append(grouped.transpose(1, 2) @ grouped / grouped.shape[1])
        return super().attend(layer, q, k, v)


def _fit(keys: Tensor, received: Tensor, queries: Tensor) -> Basis:
    """keys [kv heads, tokens, head size], attention received [kv heads, tokens], E[q qᵀ] [kv heads, head size, …]."""
    weights = (received / received.sum(1, keepdim=True))[:, :, None]
    center = (weights * keys).sum(1)
    apart = keys - center[:, None]
    root = torch.linalg.cholesky(_ridged((weights * apart).transpose(1, 2) @ apart))  # K = root rootᵀ
    size, turn = torch.linalg.eigh(root.transpose(1, 2) @ _ridged(queries) @ root)
    # A K Aᵀ = A⁻ᵀ Q A⁻¹ = diag(√size) before the orthogonal matrix that spreads it.
    matrix = _spread(keys.shape[2]) @ (turn * size[:, None] ** 0.25).transpose(1, 2) @ torch.linalg.inv(root)
    return Basis(center.float(), matrix.float(), torch.linalg.inv(matrix).float())


def _ridged(moments: Tensor) -> Tensor:
    mean = moments.diagonal(dim1=1, dim2=2).mean(1)
    return moments + _RIDGE * mean[:, None, None] * torch.eye(moments.shape[1], dtype=moments.dtype)


def _spread(size: int) -> Tensor:
    """An orthogonal matrix whose entries are all of about one magnitude, for any size: Hartley's, cos + sin of
    2π i j / size. (Hadamard matrices are evener, where they exist.)"""
    at = torch.arange(size, dtype=torch.float64)
    angle = torch.outer(at, at) * (2 * math.pi / size)
    return (angle.cos() + angle.sin()) * size**-0.5
