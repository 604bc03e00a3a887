"""Engine profiles: whose rules and overheads are modelled. One TOML file an engine in `kvsim/data/engines`.

A file states the version it models, its scheduler and default cache policy, the limits it sets when the user sets none,
how it divides the GPU's memory, and what its host adds to a step. Constants that changed between versions stand under
`[versions."X"]`, which overrides the rest from version X on: `load_engine("vllm-1@0.32")`.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kvsim.errors import InputError
from kvsim.registry import unknown

Count = Annotated[int, Field(ge=1)]
Bytes = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(gt=0, le=1)]
NotNegative = Annotated[float, Field(ge=0)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class LargeDevice(_Frozen):
    """Limits for devices of at least `min_device_bytes`."""

    min_device_bytes: Bytes
    except_devices: tuple[str, ...] = ()
    """device ids that begin with one of these keep the ordinary limits"""
    max_num_seqs: Count
    max_num_batched_tokens: Count


class Limits(_Frozen):
    """What bounds a batch where the user doesn't say."""

    max_num_seqs: Count
    max_num_batched_tokens: Count
    whole_prompts: bool = False
    """prompts aren't cut: a step takes at least one prompt of the longest length"""
    chunk_from_model_len: int = 0
    """whole_prompts only up to this context length; longer ones are cut (vLLM 0.4 to 0.8); 0: never cut"""
    block_size: Count = 16
    long_prefill_token_threshold: Annotated[int, Field(ge=0)] = 0
    """most tokens of one prompt in a step; 0: no such limit"""
    large: tuple[LargeDevice, ...] = ()
    """the first that applies is taken"""
    source: str


class Memory(_Frozen):
    """How the GPU's memory is divided. All bytes are per GPU.

    `base` says what the share is of:
    * total: pool = share × device − weights − activations − other (vLLM)
    * after_weights: pool = share × (device − weights − other) (LMDeploy)
    * after_engine: pool = share × (device − weights − activations − other) (TensorRT-LLM)
    * static: pool = share × device − weights, the rest is for activations and other (SGLang)
    """

    base: Literal["total", "after_weights", "after_engine", "static"]
    share: Share | None = None
    """None: by `static_reserve`"""
    reserve_bytes: Bytes = 0
    """static without share: kept free of weights and cache …"""
    reserve_bytes_per_batched_token: Bytes = 0
    reserve_bytes_per_sequence: Bytes = 0
    reserve_at_least: Bytes = 0
    reserve_at_least_from: Bytes = 0
    """… and at least reserve_at_least on devices with this much memory"""
    non_torch_bytes: Bytes
    """CUDA context growth, libraries' workspaces: what the engine finds used beside its tensors"""
    non_torch_bytes_amd: Bytes
    non_torch_bytes_per_tp: Bytes = 0
    """more with tensor parallelism (NCCL, custom all-reduce buffers)"""
    hidden_vectors: NotNegative
    """activation peak of a token: vectors of `hidden` …"""
    inter_vectors: NotNegative
    """… and of the MLP's inner size after TP, 16-bit each"""
    logit_bytes: NotNegative
    """peak bytes for a logit of a sequence that samples (float32 copies, sort, probabilities)"""
    count_non_torch: bool = True
    """whether non-torch bytes come out of the budget (not in vLLM before 0.4)"""
    graph_bytes: Bytes = 0
    """CUDA graphs"""
    graphs_in_budget: bool = False
    rotary_table: bool = True
    """the rotary table (max_model_len rows) is counted with the weights"""
    mxfp4_pad: tuple[Count, Count] = (1, 1)
    """experts in mxfp4 are padded to multiples of this in (hidden, inter)"""
    null_blocks: Annotated[int, Field(ge=0)] = 0
    """blocks that are counted but never given out"""
    spread: Share
    """half-width of 90 % of activations + workspace + other, as a share of them"""
    source: str


class Host(_Frozen):
    """What the host adds to a step, as in kvsim.cost.host: step = max(device, overlapped) + exposed."""

    exposed_ns: NotNegative = 0.0
    exposed_per_gpu_ns: NotNegative = 0.0
    """more for each GPU of a tensor-parallel group, where a driver process feeds its workers"""
    exposed_lockstep_ns: NotNegative = 0.0
    """more where replicas share experts and so agree on every step"""
    exposed_per_sequence_ns: NotNegative = 0.0
    exposed_prefill_ns: NotNegative = 0.0
    overlapped_ns: NotNegative = 0.0
    asynchronous: bool = False
    """whether a step is planned while the one before it runs: new arrivals and freed slots act a step later"""
    prompt_factor: Annotated[float, Field(ge=1)] = 1.0
    """on the device time of steps with prompts: kernels of the engine's time, against those that were measured"""
    decode_factor: Annotated[float, Field(gt=0)] = 1.0
    """on the device time of steps without prompts: kernels of the engine's own, against those that were measured"""
    launch_layer_ns: NotNegative = 0.0
    """to launch the kernels of a layer one by one, in steps with prompts: beside the device, where it is the longer"""
    spread: NotNegative
    """half-width of 90 % as a share"""
    kernel_spread: NotNegative = 0.0
    """half-width of 90 % of this engine's kernels against those the device profiles were measured with"""
    source: str

    def exposed_with(self, tp: int) -> float:
        """exposed_ns of a tensor-parallel group of `tp`."""
        return self.exposed_ns + (tp * self.exposed_per_gpu_ns if tp > 1 else 0.0)


class EngineProfile(_Frozen):
    """One engine in one version."""

    id: str
    name: str
    version: str
    """the version that is modelled"""
    about: str
    scheduler: str
    """name in the registry of schedulers"""
    policy: str
    """name of the default cache policy"""
    whole_prompt_admission: bool = False
    """a request is admitted only where its whole prompt fits in memory"""
    forks: bool = False
    """further answers to a prompt (n > 1) share its blocks by forking; otherwise they are requests of their own"""
    reserve_output: bool = False
    """… and its whole output too, so that nothing is ever preempted"""
    repeated_reads: Annotated[float, Field(ge=0, le=1)] = 0.0
    """of the times that decode attention reads a KV head again, for the other query heads of its group, the share that
    goes to memory; 0: a kernel that knows groups"""
    nccl: bool = False
    """tensor parallelism reduces by NCCL, not by a kernel such as vLLM's"""
    own_experts: tuple[str, ...] = ()
    """formats in which its kernel of routed experts has nothing to do with the one that was measured (vLLM's)"""
    on_pressure: Literal["recompute", "swap", "retract"]
    limits: Limits
    memory: Memory
    host: Host
    options: dict[str, str]
    """kvsim's name of an option → the engine's own"""
    sources: tuple[str, ...]

    @property
    def provenance(self) -> str:
        return f"models {self.name} {self.version}; {self.sources[0]}"

    def limits_for(
        self, device_bytes: int, device: str = "", max_model_len: int = 0, *, max_num_seqs: int | None = None,
        max_num_batched_tokens: int | None = None,
    ) -> tuple[int, int]:
        """(max_num_seqs, max_num_batched_tokens) on such a device; what the user set goes first."""
        limits = self.limits
        seqs, tokens = limits.max_num_seqs, limits.max_num_batched_tokens
        for rule in limits.large:
            if device_bytes >= rule.min_device_bytes and not device.startswith(rule.except_devices or ("\0",)):
                seqs, tokens = rule.max_num_seqs, rule.max_num_batched_tokens
                break
        if limits.whole_prompts and not 0 < limits.chunk_from_model_len < max_model_len:
            tokens = max(tokens, max_model_len)
        return max_num_seqs or seqs, max_num_batched_tokens or tokens


def engine_names() -> list[str]:
    """Ids of the engines that come with kvsim, the default first."""
    folder = files("kvsim") / "data" / "engines"
    found = sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))
    return sorted(found, key=lambda name: name != "vllm-1")


def load_engine(name: str) -> EngineProfile:
    """An id (`vllm-1`), an id with a version (`vllm-1@0.32`), or a path to a TOML file → the profile.

    Raises InputError for an unknown id (with the nearest ones), a file that can't be read, or values out of range."""
    if name.endswith(".toml"):
        path = Path(name)
        try:
            return _parse(path.read_text(encoding="utf-8"), path.stem, "", name)
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"engine profile {name} can't be read: {error}") from None
    engine, _, version = name.partition("@")
    if engine not in engine_names():
        raise unknown("engine", engine, engine_names())
    return _from_catalogue(engine, version)


@cache
def _from_catalogue(engine: str, version: str) -> EngineProfile:
    text = (files("kvsim") / "data" / "engines" / f"{engine}.toml").read_text(encoding="utf-8")
    return _parse(text, engine, version, f"{engine}.toml")


def _parse(text: str, engine: str, version: str, where: str) -> EngineProfile:
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"engine profile {where} is not TOML: {error}") from None
    versions: dict[str, Any] = data.pop("versions", {})
    wanted = version or str(data.get("version", ""))
    if version and not versions:
        raise InputError(f"engine {engine} has one version only, {data.get('version')}: write {engine} without @")
    for since in sorted(versions, key=_number):
        if _number(since) <= _number(wanted):
            data = _merge(data, versions[since])
    try:
        return EngineProfile.model_validate({**data, "id": engine, "version": wanted})
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"engine profile {where}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def _number(version: str) -> tuple[int, ...]:
    """`"0.19.1"` → (0, 19, 1). Raises InputError for what is no version."""
    parts = version.split(".")
    if not all(part.isdecimal() for part in parts):
        raise InputError(f"engine version {version!r} is not understood: write numbers, such as 0.19")
    return tuple(map(int, parts))


def _merge(base: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """`base` with the tables of `more` merged in."""
    result = dict(base)
    for key, value in more.items():
        result[key] = _merge(base[key], value) if isinstance(value, dict) and key in base else value
    return result
