"""A Llama-architecture forward: RMS norm, rotary positions, grouped-query attention, SwiGLU. With it,

    model = Llama.random(Dims.of(load_model("smollm2-135m")), seed=0)          # or Llama(dims, weights)
    cache = Contiguous(model.rows(), sequences=4, capacity=1024)
    logits = model(tokens, Batch(sequences=[7], counts=[len(tokens)], contexts=[0]), cache)      # a prompt
    logits = model(next_token, Batch([7], [1], [len(tokens)]), cache)                            # a decode step

computes one sequence or many: tokens of all sequences of a `Batch` lie one after the other and share every matrix
product; only attention is per sequence, and that is the cache's (caches/base.py says what a cache has to do, and how a
policy is plugged in). No state is kept here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from kvsim.errors import InputError
from kvsim.model import ModelSpec
from kvsim_calibration.engine import ops
from kvsim_calibration.engine.caches.base import Batch, Cache
from kvsim_calibration.engine.caches.store import Rows

Tensor = torch.Tensor
FAMILIES = ("llama", "mistral", "qwen2")
"""whose layers are Llama's (Qwen 2 adds biases to q, k and v)"""


@dataclass(frozen=True)
class Dims:
    """Shapes and constants of the architecture."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inter: int
    vocab: int
    tied: bool = False
    """the head is the embedding"""
    theta: float = 10_000.0
    """base of the rotary frequencies"""
    eps: float = 1e-5

    @classmethod
    def of(cls, spec: ModelSpec, config: Mapping[str, Any] | None = None) -> Dims:
        """From a kvsim model; `config`: its Hugging Face config, for rotary base and epsilon.

        Raises InputError for what is not Llama's architecture."""
        config = config or {}
        if spec.family not in FAMILIES or len(spec.attention_groups) > 1 or spec.attention_groups[0].window:
            raise InputError(f"the reference engine runs Llama's architecture ({', '.join(FAMILIES)}, full attention); "
                             f"{spec.name} is {spec.family}")
        rotary = config.get("rope_parameters") or config.get("rope_scaling") or {}  # Transformers 5, and before it
        if rotary.get("rope_type", rotary.get("type", "default")) != "default":
            raise InputError(f"the reference engine has no scaled rotary embeddings, {spec.name} asks for them")
        return cls(
            layers=spec.layers, hidden=spec.hidden, heads=spec.heads, kv_heads=spec.kv_heads, head_dim=spec.head_dim,
            inter=spec.inter, vocab=spec.vocab, tied=spec.tied_embeddings,
            theta=float(rotary.get("rope_theta", config.get("rope_theta", cls.theta))),
            eps=float(config.get("rms_norm_eps", cls.eps)),
        )  # fmt: skip

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Hugging Face's names of all weights → their shapes."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab, self.hidden)}
        for i in range(self.layers):
            layer = f"model.layers.{i}."
            for name, rows in (("q", q), ("k", kv), ("v", kv)):
                found[f"{layer}self_attn.{name}_proj.weight"] = (rows, self.hidden)
            found[layer + "self_attn.o_proj.weight"] = (self.hidden, q)
            found[layer + "mlp.gate_proj.weight"] = found[layer + "mlp.up_proj.weight"] = (self.inter, self.hidden)
            found[layer + "mlp.down_proj.weight"] = (self.hidden, self.inter)
            found[layer + "input_layernorm.weight"] = (self.hidden,)
            found[layer + "post_attention_layernorm.weight"] = (self.hidden,)
        found["model.norm.weight"] = (self.hidden,)
        if not self.tied:
            found["lm_head.weight"] = (self.vocab, self.hidden)
        return found


def random_weights(
    dims: Dims, seed: int = 0, dtype: torch.dtype = torch.float32, scale: float = 1.0
) -> dict[str, Tensor]:
    """Normal weights of variance scale² / inputs, norms of one. Larger `scale`: sharper attention."""
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for name, shape in dims.shapes().items():
        if len(shape) == 1:
            found[name] = torch.ones(shape, dtype=dtype)
        else:
            found[name] = torch.randn(shape, generator=generator).mul_(scale * shape[1] ** -0.5).to(dtype)
    return found


class _Layer:
    """One layer's weights, those that share an input fused."""

    def __init__(self, weights: Mapping[str, Tensor], name: str) -> None:
        def take(*parts: str) -> Tensor:
            return torch.cat([weights[f"{name}{part}.weight"] for part in parts]).contiguous()

        projections = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        self.qkv = take(*projections)
        biases = [weights.get(f"{name}{part}.bias") for part in projections]
        self.qkv_bias = None if biases[0] is None else torch.cat([bias for bias in biases if bias is not None])
        self.o, self.down = take("self_attn.o_proj"), take("mlp.down_proj")
        self.gate_up = take("mlp.gate_proj", "mlp.up_proj")
        self.norm, self.mlp_norm = take("input_layernorm"), take("post_attention_layernorm")


class Llama:
    """The model: weights and `__call__`."""

    def __init__(self, dims: Dims, weights: Mapping[str, Tensor]) -> None:
        """`weights`: Hugging Face's names → tensors of one dtype on one device. Raises InputError where one is missing
        or has another shape."""
        for name, shape in dims.shapes().items():
            if name not in weights:
                raise InputError(f"the weights lack {name}")
            if tuple(weights[name].shape) != shape:
                raise InputError(f"{name} has shape {list(weights[name].shape)}, the model needs {list(shape)}")
        self.dims = dims
        self.embedding = weights["model.embed_tokens.weight"]
        self.head = self.embedding if dims.tied else weights["lm_head.weight"]
        self.norm = weights["model.norm.weight"]
        self.layers = [_Layer(weights, f"model.layers.{i}.") for i in range(dims.layers)]

    @classmethod
    def random(cls, dims: Dims, seed: int = 0, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Llama:
        """With seeded random weights."""
        weights = {name: tensor.to(device) for name, tensor in random_weights(dims, seed, dtype).items()}
        return cls(dims, weights)

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""
        own = [self.embedding, self.norm] + ([] if self.dims.tied else [self.head])
        for layer in self.layers:
            own += [tensor for tensor in vars(layer).values() if tensor is not None]
        return sum(tensor.nbytes for tensor in own)

    def rows(self) -> Rows:
        """What a cache has to keep a token."""
        d = self.dims
        return Rows(d.layers, d.kv_heads, d.head_dim, self.dtype, self.device)

    @torch.inference_mode()
    def __call__(self, tokens: Tensor, batch: Batch, cache: Cache, rows: list[int] | slice | None = None) -> Tensor:
        """Logits [rows, vocab] after each sequence's last token (or of the given `rows` of the batch's tokens).

        tokens int64 [batch.tokens]: the new tokens of all sequences, one after the other."""
        d = self.dims
        q_size, kv_size = d.heads * d.head_dim, d.kv_heads * d.head_dim
        cos, sin = ops.rotations(batch.positions(self.device), d.head_dim, d.theta, self.dtype)
        cache.begin(batch)
        x, residual = self.embedding[tokens], None
        for index, layer in enumerate(self.layers):
            x, residual = ops.add_norm(x, residual, layer.norm, d.eps)
            qkv = ops.linear(x, layer.qkv, layer.qkv_bias)
            turned = ops.rotate(qkv[:, : q_size + kv_size].view(len(x), -1, d.head_dim), cos, sin)
            v = qkv[:, q_size + kv_size :].view(len(x), d.kv_heads, d.head_dim)
            out = cache.attend(index, turned[:, : d.heads], turned[:, d.heads :], v)
            x = ops.linear(out.reshape(len(x), q_size), layer.o)
            x, residual = ops.add_norm(x, residual, layer.mlp_norm, d.eps)
            x = ops.linear(ops.gated(ops.linear(x, layer.gate_up)), layer.down)
        cache.end()
        picked = batch.last() if rows is None else rows
        x, residual = x[picked], None if residual is None else residual[picked]
        return ops.linear(ops.add_norm(x, residual, self.norm, d.eps)[0], self.head)
