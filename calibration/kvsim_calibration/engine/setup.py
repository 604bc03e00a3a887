"""From names to a running engine: the model with its weights, the memory, and what the Result says about them."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from kvsim import __version__
from kvsim.cache.base import Allocator
from kvsim.cache.none import NoCache
from kvsim.cache.policies import POLICIES
from kvsim.cache.reserve import Reserve
from kvsim.cache.spec import CacheSpec
from kvsim.engine_profile import load_engine
from kvsim.errors import InputError
from kvsim.model import ModelSpec, load_model
from kvsim.precision import kv_bytes
from kvsim.record import Recorder
from kvsim.result import Result
from kvsim.sched.base import Limits, Plan
from kvsim.trace import Trace
from kvsim_calibration.engine.blocks import BlockPool
from kvsim_calibration.engine.caches import Cache, Contiguous, Paged, Uncached
from kvsim_calibration.engine.engine import Engine, Progress
from kvsim_calibration.engine.memory import steady_memory
from kvsim_calibration.engine.model import Dims, Llama

Tensor = torch.Tensor
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SERVED = ("uncached", "contiguous", "paged", "paged-prefix", "paged-fp8", "paged-int8", "paged-int4")
"""policies that the engine serves with; evicting caches are for `generate` and for measuring quality"""


@dataclass(frozen=True)
class Options:
    """What to serve, how. The limits are the reference engine profile's unless given."""

    model: str
    policy: str = "paged-prefix"
    kv_tokens: int = 32_768
    """tokens that the KV pool has room for"""
    max_model_len: int = 4096
    dtype: str = "fp32"
    """of weights and activations"""
    device: str = "cpu"
    block_size: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    seed: int = 0

    @property
    def limits(self) -> Limits:
        own = load_engine("reference").limits
        return Limits(
            sequences=self.max_num_seqs or own.max_num_seqs,
            tokens=self.max_num_batched_tokens or own.max_num_batched_tokens,
        )

    @property
    def spec(self) -> CacheSpec:
        if self.policy not in SERVED:
            raise InputError(f"the reference engine does not serve with policy {self.policy}: {', '.join(SERVED)}")
        return POLICIES.get(self.policy).override(block_size=self.block_size)

    @property
    def kv_dtype(self) -> str:
        return self.dtype if self.spec.precision == "auto" else self.spec.precision

    def token_bytes(self, spec: ModelSpec) -> int:
        """Bytes of one token's keys and values over all layers, with the scales that the engine's own formats have."""
        own = "int8" if self.kv_dtype == "fp8" else self.kv_dtype  # fp8 has a scale for each token and head here, too
        return spec.layers * kv_bytes(own, spec.kv_heads, spec.head_dim)


def build(options: Options, weights: Mapping[str, Tensor] | None = None, spec: ModelSpec | None = None) -> Engine:
    """An engine with `weights`, or random ones. `spec`: the model, where it is no name in kvsim's catalogue."""
    spec = spec or load_model(options.model)
    dims, dtype = Dims.of(spec), DTYPES[options.dtype]
    steady_memory()
    model = Llama.random(dims, options.seed, dtype, options.device) if weights is None else Llama(dims, weights)
    cache, kv = memory(options, model, spec)
    return Engine(model, cache, kv, options.limits, options.max_model_len)


def memory(options: Options, model: Llama, spec: ModelSpec) -> tuple[Cache, Allocator]:
    """The real cache, and the account of it that the scheduler works on."""
    policy, token_bytes, rows = options.spec, options.token_bytes(spec), model.rows()
    format: Any = "plain" if policy.precision == "auto" else policy.precision
    if policy.layout == "none":
        return Uncached(), NoCache(pool_bytes=options.kv_tokens * token_bytes, token_bytes=token_bytes)
    if policy.layout == "reserve":
        sequences = options.kv_tokens // options.max_model_len
        pool = sequences * options.max_model_len * token_bytes
        return Contiguous(rows, sequences, options.max_model_len, format), Reserve(
            pool_bytes=pool, token_bytes=token_bytes, max_model_len=options.max_model_len)  # fmt: skip
    size = policy.block_size
    blocks = options.kv_tokens // size
    kv = BlockPool(blocks=blocks, block_size=size, token_bytes=token_bytes, share=policy.prefix == "hash")
    return _paged(options.device)(rows, blocks, size, kv.tables, format), kv


def _paged(device: str) -> type[Paged]:
    """kvsim's own kernels on a GPU, torch's operators elsewhere."""
    if not device.startswith("cuda"):
        return Paged
    from kvsim_calibration.engine.caches.kernels import KernelPaged

    return KernelPaged


def serve(
    options: Options, trace: Trace, device_id: str, progress: Progress | None = None,
    watch: Callable[[Plan], None] | None = None,
) -> Result:
    """Run `trace` in real time → what was measured. `device_id` names the machine in the Result; `watch` sees every
    plan."""
    engine = build(options)
    warm_up(engine, options)
    recorder = engine.run(trace, options.seed, progress, watch)
    return result(engine, options, trace, recorder, device_id)


def warm_up(engine: Engine, options: Options) -> None:
    """Every kind of step once, on a cache of its own, before the clock starts."""
    from kvsim_calibration.engine.generate import generate

    prompt = list(range(min(256, options.max_model_len // 2)))
    prompt = [token % engine.model.dims.vocab for token in prompt]
    generate(engine.model, prompt, 4, Contiguous(engine.model.rows(), 1, len(prompt) + 4))


def result(engine: Engine, options: Options, trace: Trace, recorder: Recorder, device_id: str) -> Result:
    """A Result in the simulator's format, tier measured."""
    held = {"weights_bytes": engine.model.nbytes, "cache_bytes": engine.cache.nbytes(),
            "peak_bytes": _peak_bytes(engine)}  # fmt: skip
    run = about(options, trace, device_id, "measured") | {"memory_measured": held}
    run["provenance"]["run"] = "the reference engine"
    return recorded(run, trace, recorder, getattr(engine.kv, "evicted_blocks", 0))


def about(options: Options, trace: Trace, device_id: str, tier: str) -> dict[str, Any]:
    """What a Result of this engine, run or simulated, says about itself."""
    limits = options.limits
    return {
        "scenario": {"trace": trace.name, "model": options.model, "device": device_id, "engine": "reference",
                     "policy": options.policy, "max_model_len": options.max_model_len,
                     "max_num_seqs": limits.sequences, "max_num_batched_tokens": limits.tokens},
        "provenance": {"device": device_id, "tier": tier, "engine": f"reference@{__version__}",
                       "model": options.model, "seed": options.seed, "version": __version__},
        "policy": options.spec.facts(),
        "notes": list(trace.notes), "dropped": dict(trace.dropped),
    }  # fmt: skip


def recorded(run: dict[str, Any], trace: Trace, recorder: Recorder, evicted_blocks: int) -> Result:
    """The Result of what was recorded, whoever recorded it."""
    counters = {"prefill": recorder.prefill_tokens, "decode": recorder.decode_tokens,
                "evicted_blocks": evicted_blocks, "swapped_bytes": 0}  # fmt: skip
    requests = recorder.request_columns() | {
        "id": np.arange(len(trace)), "session": trace.session, "prompt_tokens": trace.prompt_tokens,
        "output_tokens": trace.output_tokens,
    }  # fmt: skip
    return Result.from_columns(
        run | {"counters": counters}, requests, recorder.timeline_columns(), recorder.step_columns(), recorder.itl(),
        recorder.reasons, recorder.map_columns(),
    )  # fmt: skip


def _peak_bytes(engine: Engine) -> int:
    """Most memory of the process so far: of the GPU where there is one, else resident."""
    if engine.gpu:
        return torch.cuda.max_memory_allocated(engine.model.device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def free_bytes(device: str) -> int:
    """Memory that is free on a torch device; of the host all, where the system does not say what is free."""
    if device.startswith("cuda"):
        return torch.cuda.mem_get_info(device)[0]
    pages = "SC_AVPHYS_PAGES" if "SC_AVPHYS_PAGES" in os.sysconf_names else "SC_PHYS_PAGES"
    return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")
