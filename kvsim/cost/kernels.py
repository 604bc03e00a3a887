"""ModelSpec → Geometry: which kernels a step of this model runs on one device."""

from __future__ import annotations

from dataclasses import replace

from kvsim.cost.geometry import Attention, Experts, Geometry, Linear, Memory
from kvsim.device.forms import ACTIVATION_BYTES
from kvsim.device.keys import AttentionKernel, AttentionKey, MoeKey
from kvsim.model import AttentionGroup, LinearOp, ModelSpec
from kvsim.precision import canonical, row_bytes

LOGIT_BYTES = 4
SCORE_BYTES = 8
"""read and written for an accumulated fp32 score, per KV head and token"""


def geometry(model: ModelSpec, *, tp: int = 1, ep: int = 1, dp: int = 1, weights_dtype: str | None = None,
             kv_dtype: str = "bf16", attention: AttentionKernel = "flash", block_size: int = 16,
             repeated_reads: float = 0.0) -> Geometry:
    """The kernels of one step on one device.

    `ep` devices share the experts; where `dp` replicas of the attention feed them, a device's experts also get the
    tokens of the others, as many as it has itself. `repeated_reads`: see EngineProfile.
    Raises InputError where the model can't be split that way."""
    weights = canonical(weights_dtype or model.weights_dtype)
    ops = model.linear_ops(tp, ep)
    heads = [op for op in ops if op.kind == "head"]
    routed = _experts(model, ops, weights, ep, dp)
    groups = tuple(_attention(model, group, tp, canonical(kv_dtype), attention, block_size)
                   for group in model.attention_groups)
    moe_layers = sum(experts.times for experts in routed)
    return Geometry(
        attention=tuple(replace(group, decode=_ungrouped(group.decode, repeated_reads)) for group in groups),
        linear=tuple(Linear(op.name, op.n, op.k, _dtype(op, weights, model), op.layers)
                     for op in ops if op.kind in ("dense", "router")),
        head=Linear("lm_head", heads[0].n, heads[0].k, _plain(weights), 1),
        sample_bytes_per_row=float(model.vocab * LOGIT_BYTES),
        experts=routed,
        memory=_memory(model, groups, ops),
        score_bytes_per_token=sum(
            group.layers * group.decode.kv_heads * (row_bytes(group.decode.head_dim, kv_dtype) + SCORE_BYTES)
            for group in groups),
        reductions=2 * model.layers if tp > 1 else 2 * moe_layers if ep > 1 else 0,
        reduce_bytes_per_token=float(model.hidden * ACTIVATION_BYTES),
        gpus=max(tp, ep),
    )


def _plain(weights: str) -> str:
    """The format of what stays 16-bit when the rest is quantised (ModelSpec.weights_bytes)."""
    return weights if weights in ("fp32", "bf16", "fp16") else "bf16"


def _dtype(op: LinearOp, weights: str, model: ModelSpec) -> str:
    experts_only = weights == "mxfp4" and model.moe is not None
    return _plain(weights) if op.kind == "router" or experts_only else weights


def _experts(model: ModelSpec, ops: tuple[LinearOp, ...], weights: str, ep: int, dp: int) -> tuple[Experts, ...]:
    down = next((op for op in ops if op.name == "expert_down"), None)
    if down is None or model.moe is None:
        return ()
    top_k = min(max(1, -(-model.moe.top_k * dp // ep)), down.experts)
    key = MoeKey(hidden=model.hidden, inter=down.k, experts=down.experts, top_k=top_k)
    return (Experts(key, weights, down.layers),)


def _attention(model: ModelSpec, group: AttentionGroup, tp: int, kv_dtype: str, kernel: AttentionKernel,
               block_size: int) -> Attention:
    heads, kv_heads = group.heads_per_gpu(tp), group.kv_heads_per_gpu(tp)
    decode = AttentionKey(heads=heads, kv_heads=kv_heads, head_dim=group.head_dim, value_dim=group.value_dim,
                          kv_dtype=kv_dtype, block_size=block_size, window=group.window, latent=group.latent,
                          kernel=kernel)
    prefill = decode
    if model.mla:  # prompts run on keys and values expanded from the latent rows, one for every head
        prefill = AttentionKey(heads=heads, kv_heads=heads, head_dim=model.mla.query_dim, value_dim=model.mla.value_dim,
                               kv_dtype=kv_dtype, block_size=block_size, window=group.window, kernel=kernel)
    return Attention(decode, prefill, group.layers)


def _ungrouped(key: AttentionKey, repeated: float) -> AttentionKey:
    """The kernel that reads a KV head again for the other query heads of its group, `repeated` of it from memory: seen
    from there it has more KV heads."""
    seen = round(key.kv_heads + repeated * (key.heads - key.kv_heads))
    return key if key.latent or seen == key.kv_heads else AttentionKey(**{**key.model_dump(), "kv_heads": seen})


def _memory(model: ModelSpec, groups: tuple[Attention, ...], ops: tuple[LinearOp, ...]) -> tuple[Memory, ...]:
    """Elementwise kernels and the append; bytes as `kvsim.device.curves.MemoryOp` counts them."""
    row = model.hidden * ACTIVATION_BYTES
    found = [Memory("norm", 4.0 * row, 2 * model.layers + 1), Memory("embed", 2.0 * row, 1)]
    for group in groups:
        key = group.decode
        if model.rotary_channels:
            turned = (key.heads + key.kv_heads) * key.head_dim
            found.append(Memory("rope", 2.0 * ACTIVATION_BYTES * turned, group.layers))
        width = key.kv_heads * (key.head_dim + (0 if key.latent else key.value_dim))
        found.append(Memory("append", float(width * ACTIVATION_BYTES + key.read_bytes_per_token), group.layers,
                            key.kv_dtype))
    rows = 3 if model.gated else 2
    found += [Memory("act", float(rows * op.k * ACTIVATION_BYTES), op.layers)
              for op in ops if op.kind == "dense" and op.name.endswith("down")]
    return tuple(found)
