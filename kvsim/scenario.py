"""A Scenario: everything one run depends on, frozen and validated. Every flag of `kvsim simulate` is a field here.

The command line reads names, defaults and help from the fields; `--scenario file.toml` holds the same keys, and
`--set key=value` overrides one. Later wins: defaults, file, --set, flags.
"""

from __future__ import annotations

import hashlib
import json
import math
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from kvsim.errors import InputError
from kvsim.registry import unknown
from kvsim.units import parse_duration_ns


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError("must be a finite number")
    return value


def _duration(text: str) -> str:
    parse_duration_ns(text)
    return text


def _field(help: str, panel: str, default: Any = None, *, by: str | None = None, value: str | None = None) -> Any:
    """A field that is a flag too: help, panel of `--help`, who chooses where it is None, what its value is called."""
    return Field(default, description=help, json_schema_extra={"panel": panel, "default": by, "value": value})


Positive = Annotated[float, Field(gt=0), AfterValidator(_finite)]
Count = Annotated[int, Field(ge=1, le=10**12)]
Copies = Annotated[int, Field(ge=1, le=10_000)]
Duration = Annotated[str, AfterValidator(_duration)]

_WHAT, _TRAFFIC, _CACHE, _ENGINE, _RUN = "What", "Traffic", "Cache policy axes", "Engine and cluster", "Run"


class Scenario(BaseModel):
    """One run's input. None means "as the trace, the policy or the engine profile says"."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    trace: str = _field("Trace file or folder, sample, or synth:PRESET", _WHAT, ..., value="NAME|FILE")
    model: str = _field("Model by name, or a Hugging Face config.json", _WHAT, ..., value="NAME|FILE")
    device: str = _field("Device by name, or a profile JSON", _WHAT, ..., value="NAME|FILE")
    policy: str | None = _field("Cache policy by name", _WHAT, by="the engine's")

    trace_format: str | None = _field("Format of the trace file", _TRAFFIC, by="found by content")
    arrivals: str | None = _field("Arrivals for a trace without times: poisson:RATE, gamma:RATE:CV …", _TRAFFIC)
    rate: Positive | None = _field("Scale arrivals to this mean rate, in requests a second", _TRAFFIC)
    rate_scale: Positive = _field("Multiply the arrival rate by this", _TRAFFIC, 1.0)
    scale_lengths: Positive = _field("Multiply prompt and output lengths by this", _TRAFFIC, 1.0)
    start: Duration | None = _field("Leave out what arrives before this time, such as 10m", _TRAFFIC, value="TIME")
    duration: Duration | None = _field("Keep what arrives within this time, such as 1h", _TRAFFIC, value="TIME")
    samples: Count = _field("Answers sampled for each prompt (parallel sampling)", _TRAFFIC, 1)
    limit: Count | None = _field("Keep the first so many requests", _TRAFFIC)

    layout: str | None = _field("none, reserve, oracle, fit, best-fit, buddy or paged", _CACHE)
    block_size: Count | None = _field("Tokens in a block, or a piece of growth", _CACHE)
    prefix: str | None = _field("Prefix sharing: off, hash or radix", _CACHE)
    eviction: str | None = _field("Order in which idle prefix blocks go: lru, lfu, fifo, belady", _CACHE)
    retention: str | None = _field("Tokens kept: full, window:sinks=4,recent=1020, heavy_hitter, snapkv", _CACHE)
    kv_dtype: str | None = _field("Precision of the cache: bf16, fp16, fp8, int8 or int4", _CACHE)
    tier: str | None = _field("Second level behind the GPU: none, or host:64GiB", _CACHE)
    on_pressure: str | None = _field("What preemption does: recompute or swap", _CACHE)
    attention: Literal["flash", "naive"] | None = _field("Attention kernel: flash, or naive with an S×S matrix", _CACHE)

    engine: str | None = _field("Engine profile: whose rules and overheads are modelled", _ENGINE)
    scheduler: str | None = _field("Scheduler", _ENGINE, by="the engine's")
    tp: Count = _field("GPUs that share one copy of the model (tensor parallel)", _ENGINE, 1)
    pp: Count = _field("Pipeline stages", _ENGINE, 1)
    ep: Count = _field("GPUs that share the experts; ep ÷ tp replicas of the attention feed them", _ENGINE, 1)
    replicas: Copies = _field("Copies of the model behind the router", _ENGINE, 1)
    router: str = _field("Router between replicas", _ENGINE, "round-robin")
    mix: str | None = _field("Replicas by device: h100-sxm:2,l40s:4", _ENGINE, value="D:N,…")
    prefill_replicas: Count | None = _field("Of the replicas, so many only prefill; the others only decode", _ENGINE)
    transfer: str | None = _field("Link from prefill to decode: 50GB,latency=20us", _ENGINE, by="the device's")
    failures: str | None = _field("Replicas that fail and return: 1@60s-2m,3@5m", _ENGINE, value="R@A-B")
    on_failure: Literal["retry", "lose"] = _field("What a failed replica had: retry or lose", _ENGINE, "retry")
    autoscale: str | None = _field("Replicas by load: 1-8,target=32,startup=60s", _ENGINE, value="A-B,…")
    max_num_seqs: Count | None = _field("Most sequences in a batch", _ENGINE, by="the engine's")
    max_num_batched_tokens: Count | None = _field("Most tokens in a step", _ENGINE, by="the engine's")
    long_prefill_token_threshold: Annotated[int, Field(ge=0)] | None = _field(
        "Most tokens of one prompt in a step; 0: no limit", _ENGINE, by="the engine's"
    )
    scheduling_policy: Literal["fcfs", "priority"] = _field(
        "Order of the queue: first come first served, or by the trace's priorities", _ENGINE, "fcfs"
    )
    max_model_len: Count | None = _field("Longest request in tokens", _ENGINE, by="the model's")
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = _field(
        "Share of GPU memory the engine may use", _ENGINE, by="the engine's"
    )
    speculative: str | None = _field("Speculative decoding: refused, because it is not modelled", _ENGINE)
    weights_dtype: str | None = _field("Precision of the weights", _ENGINE, by="the model's")

    seed: Annotated[int, Field(ge=0)] = _field("Seed of everything random", _RUN, 0)
    max_stride: Count | None = _field("Most steps simulated at once; 1: every step by itself", _RUN)
    interval: bool = _field("Run twice more, for 90 % intervals", _RUN, True)

    @property
    def start_ns(self) -> int:
        """Start of the slice, from the first arrival."""
        return parse_duration_ns(self.start) if self.start else 0

    @property
    def duration_ns(self) -> int | None:
        """Length of the slice; None: to the end."""
        return parse_duration_ns(self.duration) if self.duration else None

    @property
    def key(self) -> str:
        """A hash of the content: equal scenarios, equal keys."""
        text = json.dumps(self.model_dump(exclude_defaults=True), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def replace(self, **changes: Any) -> Scenario:
        """A validated copy with some fields changed."""
        return make(self.model_dump() | changes)

    @staticmethod
    def build(
        flags: Mapping[str, Any] | None = None, file: Path | None = None, sets: Iterable[str] = ()
    ) -> Scenario:
        """A Scenario from a TOML file, `key=value` overrides and flags (None: not given), in that order.

        Raises InputError that names the flag, or the file and key, with what would be right.
        """
        values: dict[str, Any] = {}
        origin: dict[str, str] = {}
        for key, value in _read(file).items() if file else ():
            values[key], origin[key] = value, f"{file}: {key}"
        for text in sets:
            key, value = _setting(text)
            values[key], origin[key] = value, f"--set {key}"
        for key, value in (flags or {}).items():
            if value is not None:
                values[key], origin[key] = value, flag(key)
        return make(values, origin)


def make(values: Mapping[str, Any], origin: Mapping[str, str] | None = None) -> Scenario:
    """A validated Scenario; `origin` says for messages where a value was written."""
    try:
        return Scenario.model_validate(values)
    except ValidationError as error:
        raise _explain(error, origin or {}) from None


def flag(field: str) -> str:
    """The command line's name of a field."""
    return "--" + field.replace("_", "-")


def fields() -> dict[str, FieldInfo]:
    """Every field by name, in the order `--help` shows them."""
    return dict(Scenario.model_fields)


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except FileNotFoundError:
        raise InputError(f"--scenario {file}: no such file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{file} is not TOML: {error}") from None


def _setting(text: str) -> tuple[str, Any]:
    """`"rate=2.5"` → ("rate", 2.5). The value is read as TOML, and as a bare string where it is none."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise InputError(f"--set {text!r} is not understood: write key=value, such as block_size=32")
    try:
        return key.strip(), tomllib.loads(f"x = {value}")["x"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()


def _explain(error: ValidationError, origin: Mapping[str, str]) -> InputError:
    """The first of pydantic's complaints as one sentence."""
    first = error.errors()[0]
    key = str(first["loc"][0])
    where = origin.get(key, flag(key))
    if first["type"] == "extra_forbidden":
        return InputError(f"{where}: {unknown('scenario key', key, list(Scenario.model_fields))}")
    if first["type"] == "missing":
        return InputError(f"{where} is missing: {Scenario.model_fields[key].description}")
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, InputError):
        return InputError(f"{where}: {cause}")
    message = str(first["msg"]).removeprefix("Value error, ").removeprefix("Input ")
    return InputError(f"{where} is {first['input']!r}; it {message}".replace("it should", "it must"))
