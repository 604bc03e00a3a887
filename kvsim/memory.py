"""Where a GPU's bytes go before the first request: weights, activations, the engine's own, and the KV pool.

`device = weights + activations + workspace + other + unmanaged + pool`, exactly, in integer bytes of one GPU.
What an engine counts, and of what its share is, stands in its profile (kvsim.engine_profile.Memory).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import isqrt

from kvsim.device import DeviceProfile
from kvsim.engine_profile import EngineProfile
from kvsim.errors import InputError
from kvsim.model import ModelSpec
from kvsim.units import format_bytes

_TP = (2, 4, 8, 16, 32)


@dataclass(frozen=True, slots=True)
class Stated:
    """Parts that are known, from a start-up log for one, in bytes per GPU; the others are computed."""

    weights: int | None = None
    activations: int | None = None
    """peak beside the weights, the sampler's share included"""
    non_torch: int | None = None
    graphs: int | None = None
    """CUDA graphs; they matter where the engine counts them"""
    pool: int | None = None
    """what is left for the cache: nothing else matters then"""

    def whole_budget(self, engine: EngineProfile) -> bool:
        """Whether nothing has to be assumed once the device and the share are known."""
        parts = [self.weights, self.activations, self.non_torch]
        parts += [self.graphs] if engine.memory.graphs_in_budget else []
        return self.pool is not None or None not in parts


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes of one GPU. Where the model doesn't fit, `reason` says so and `pool` is 0."""

    total: int
    weights: int
    activations: int
    """peak of a forward pass over max_num_batched_tokens"""
    workspace: int
    """more at the peak: logits and sampling, and the score matrix of naive attention"""
    other: int
    """CUDA context and libraries, communication buffers, CUDA graphs where the engine counts them"""
    unmanaged: int
    """outside the engine's share, and the part of the pool too small for a block (negative: what is missing)"""
    pool: int
    budget: int
    """what the engine may use: total − unmanaged"""
    block_size: int
    windows: tuple[int, ...]
    """one entry a group of layers with equal bytes a token: tokens it attends (0: all). Each draws its own blocks"""
    group_token_bytes: int
    """bytes of one token in one such group"""
    blocks: int
    """in the pool, any of them for any group"""
    unusable_blocks: int
    """of these, never given out (vLLM's null block)"""
    tokens: int
    """that fit; with sliding windows: max_concurrency × max_model_len, as vLLM prints it"""
    kv_bytes_per_token: int
    """over all layers, windows not applied"""
    max_concurrency: float
    """requests of max_model_len that fit at the same time"""
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    spread: int
    """half-width of the pool's 90 % interval"""
    reason: str | None = None

    @property
    def fits(self) -> bool:
        return self.reason is None

    def require(self) -> MemoryPlan:
        """Itself, or InputError where the model doesn't fit."""
        if self.reason is not None:
            raise InputError(self.reason)
        return self

    def to_json(self) -> dict[str, int | float]:
        """The object of `kvsim memory --json`."""
        return {
            "total_bytes": self.total, "budget_bytes": self.budget, "weights_bytes": self.weights,
            "activation_bytes": self.activations + self.workspace, "other_bytes": self.other,
            "kv_bytes": self.pool, "kv_bytes_per_token": self.kv_bytes_per_token, "kv_blocks": self.blocks,
            "kv_tokens": self.tokens, "max_concurrency": round(self.max_concurrency, 3),
            "unmanaged_bytes": self.unmanaged, "kv_bytes_spread": self.spread, "block_size": self.block_size,
            "max_model_len": self.max_model_len, "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.max_num_batched_tokens,
        }  # fmt: skip


def plan_memory(
    model: ModelSpec,
    device: DeviceProfile | int,
    engine: EngineProfile,
    *,
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    weights_dtype: str | None = None,
    kv_dtype: str = "auto",
    gpu_memory_utilization: float | None = None,
    max_model_len: int | None = None,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    block_size: int | None = None,
    attention: str = "flash",
    stated: Stated | None = None,
    advise: bool = True,
) -> MemoryPlan:
    """The division of one GPU's memory (of the heaviest pipeline stage) among `tp` × `pp` GPUs that share a model.

    `device` may be plain bytes. `gpu_memory_utilization` is the engine's share, whatever the engine calls it and takes
    it of. Raises InputError for a split that the model can't have; a model that is too large is `plan.reason`, which
    names what would fit if `advise`.
    """
    total, device_id, amd = _device(device)
    rules, known = engine.memory, stated or Stated()
    length = max_model_len or model.max_model_len
    seqs, batch = engine.limits_for(total, device_id, length, max_num_seqs=max_num_seqs,
                                    max_num_batched_tokens=max_num_batched_tokens)  # fmt: skip
    block = block_size or engine.limits.block_size

    weights = known.weights
    if weights is None:
        stored = weights_dtype or model.weights_dtype
        pad = rules.mxfp4_pad if stored == "mxfp4" else (1, 1)
        weights = model.weights_bytes(stored, tp, pp, ep, pad)
        weights += 2 * model.max_model_len * model.rotary_channels if rules.rotary_table else 0
    forward = forward_bytes(model, engine, batch, tp)
    sampler = int(rules.logit_bytes * min(seqs, batch) * model.vocab) + 2 * batch * model.hidden
    activations, workspace = forward, max(0, sampler - forward)
    if known.activations is not None:
        activations, workspace = known.activations, 0
    if attention == "naive":
        workspace += 4 * max(g.heads_per_gpu(tp) for g in model.attention_groups) * min(batch, length) * length
    non_torch = known.non_torch
    if non_torch is None:
        non_torch = rules.non_torch_bytes_amd if amd else rules.non_torch_bytes
        non_torch += rules.non_torch_bytes_per_tp if tp > 1 else 0
    graphs = rules.graph_bytes if known.graphs is None else known.graphs
    other = (non_torch if rules.count_non_torch else 0) + (graphs if rules.graphs_in_budget else 0)

    share = gpu_memory_utilization or rules.share or 1 - _static_reserve(engine, total, seqs, batch) / total
    peak = activations + workspace
    left = {
        "total": int(total * share) - weights - peak - other,
        "after_weights": int((total - weights - other) * share),
        "after_engine": int((total - weights - peak - other) * share),
        "static": int(total * share) - weights,
    }[rules.base]
    left = min(left, total - weights - peak - other)  # a share of more than there is would run out of memory later
    if known.pool is not None:
        left = known.pool

    windows, group_bytes = _groups(model, kv_dtype, tp, pp, length)
    blocks = max(0, left // (group_bytes * block))
    per_request = sum(_blocks_per_request(window, length, batch, block) for window in windows)
    concurrency = blocks / per_request
    pool = blocks * group_bytes * block
    reason = None
    if blocks <= rules.null_blocks:
        pool = blocks = 0
        reason = _too_large(weights, peak + other, total, share, model, device, tp)
    unmanaged = total - weights - peak - other - pool
    plan = MemoryPlan(
        total=total, weights=weights, activations=activations, workspace=workspace, other=other, unmanaged=unmanaged,
        pool=pool, budget=total - unmanaged, block_size=block, windows=windows, group_token_bytes=group_bytes,
        blocks=blocks, unusable_blocks=rules.null_blocks,
        tokens=blocks * block if len(windows) == 1 and not windows[0] else int(concurrency * length),
        kv_bytes_per_token=model.kv_bytes_per_token(_cache_dtype(kv_dtype), tp, pp), max_concurrency=concurrency,
        max_model_len=length, max_num_seqs=seqs, max_num_batched_tokens=batch,
        spread=_spread(known, rules.spread, peak, other), reason=reason,
    )  # fmt: skip
    if reason is None or not advise:
        return plan
    again = partial(
        plan_memory, model, device, engine, pp=pp, ep=ep, kv_dtype=kv_dtype, max_model_len=max_model_len,
        gpu_memory_utilization=gpu_memory_utilization, max_num_seqs=max_num_seqs, block_size=block_size,
        max_num_batched_tokens=max_num_batched_tokens, attention=attention, stated=stated, advise=False,
    )  # fmt: skip
    return replace(plan, reason=reason + _what_fits(again, model, tp, weights_dtype))


def forward_bytes(model: ModelSpec, engine: EngineProfile, tokens: int, tp: int = 1) -> int:
    """Peak bytes of activations while `tokens` tokens go through one layer, on one GPU."""
    hidden, rules = model.hidden, engine.memory
    wide = model.inter
    if model.moe:
        wide = max(wide, model.moe.top_k * model.moe.inter + model.moe.shared_inter)
        hidden += model.moe.top_k * model.hidden // 3  # a token's rows are copied for each expert it goes to
    attention = max(g.heads_per_gpu(tp) * (model.head_dim + model.value_dim) for g in model.attention_groups)
    if model.mla:  # queries, and keys and values expanded to all heads
        attention += model.heads // tp * (model.mla.nope_dim + model.mla.value_dim)
    return int(2 * tokens * (rules.hidden_vectors * hidden + max(rules.inter_vectors * wide / tp, attention)))


def _device(device: DeviceProfile | int) -> tuple[int, str, bool]:
    if isinstance(device, int):
        return device, "", False
    return device.facts.memory_bytes, device.id, device.facts.vendor.upper().startswith("AMD")


def _cache_dtype(kv_dtype: str) -> str:
    return "bf16" if kv_dtype == "auto" else kv_dtype


def _static_reserve(engine: EngineProfile, total: int, seqs: int, batch: int) -> int:
    rules = engine.memory
    reserve = rules.reserve_bytes + rules.reserve_bytes_per_batched_token * batch
    reserve += rules.reserve_bytes_per_sequence * seqs
    return max(reserve, rules.reserve_at_least if total >= rules.reserve_at_least_from else 0)


def _groups(model: ModelSpec, kv_dtype: str, tp: int, pp: int, length: int) -> tuple[tuple[int, ...], int]:
    """(window of each KV group, bytes of a token in one of them), as vLLM V1 pools hybrid models.

    All groups draw pages of one size from one pool: the attention group with the fewest bytes a token is the unit, the
    others count as several groups, the last of them padded; where they differ by less than a quarter, the larger is the
    unit. A window that covers the longest request is full attention.
    """
    sizes: dict[int, int] = {}
    for group, size in zip(model.attention_groups, model.group_bytes_per_token(_cache_dtype(kv_dtype), tp, pp),
                           strict=True):  # fmt: skip
        window = group.window if group.window < length else 0
        sizes[window] = sizes.get(window, 0) + size
    least, most = min(sizes.values()), max(sizes.values())
    unit = most if 4 * most < 5 * least else least
    return tuple(window for window, size in sizes.items() for _ in range(-(-size // unit))), unit


def _blocks_per_request(window: int, length: int, batch: int, block: int) -> int:
    """Blocks that one request of `length` tokens needs in one group, at most."""
    whole = -(-length // block)
    return min(whole, -(-min(window - 1 + batch, length) // block) + 1) if window else whole


def _spread(known: Stated, share: float, peak: int, other: int) -> int:
    """Half-width of 90 % of the pool: what is assumed is off by up to `share` of itself, independently."""
    if known.pool is not None:
        return 0
    parts = (0 if known.activations is not None else peak, 0 if known.non_torch is not None else other)
    return isqrt(sum(int(part * share) ** 2 for part in parts))


def _too_large(
    weights: int, beside: int, total: int, share: float, model: ModelSpec, device: DeviceProfile | int, tp: int
) -> str:
    where = f"one of {tp} GPUs" if tp > 1 else "one GPU"
    name = device.id if isinstance(device, DeviceProfile) else "this device"
    return (f"{model.name} doesn't fit on {name}: {format_bytes(weights)} of weights and {format_bytes(beside)} beside "
            f"them leave no room for a KV cache in {share:.3g} of the {format_bytes(total)} of {where}")


def _what_fits(again: Callable[..., MemoryPlan], model: ModelSpec, tp: int, weights_dtype: str | None) -> str:
    """What would fit, as the end of a sentence."""
    stored = weights_dtype or model.weights_dtype
    options = [(wider, stored) for wider in _TP if wider > tp]
    smaller = {"fp32": ("fp8", "int4"), "bf16": ("fp8", "int4"), "fp16": ("fp8", "int4"), "fp8": ("int4",)}
    options += [(tp, dtype) for dtype in smaller.get(stored, ())]
    found: list[str] = []
    for wider, dtype in options:
        if any((wider > tp) == ("--tp" in text) for text in found):
            continue  # the smallest change of each kind is enough
        try:
            fits = again(tp=wider, weights_dtype=dtype).fits
        except InputError:
            continue
        if fits:
            found.append(f"--tp {wider}" if wider > tp else f"--weights-dtype {dtype}")
    return f"; it fits with {' or '.join(found)}" if found else "; use a larger device and more of them (--tp, --pp)"
