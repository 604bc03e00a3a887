"""The rung `schedule`: recordings of real engines' schedulers against ours, step by step.

A recording says by its fields whose it is: vLLM's has `num_blocks` in its limits, SGLang's `pool_tokens`.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from kvsim.errors import InputError
from kvsim.validate import sglang_schedule, vllm_schedule

Json = dict[str, Any]

VLLM = ("scheduled", "free_blocks", "running", "waiting", "preempted", "cached_at_admission")
SGLANG = ("kind", "scheduled", "from", "running", "waiting", "retracted", "chunked", "new_token_ratio", "tree",
          "evictable", "protected", "free", "finished", "after", "evicted")  # fmt: skip
VLLM_LIMITS = {"block_size", "num_blocks", "max_num_seqs", "max_num_batched_tokens", "max_model_len", "prefix_caching",
               "long_prefill_token_threshold"}  # fmt: skip
SGLANG_LIMITS = {"page_size", "pool_tokens", "max_running", "chunk_tokens", "max_prefill_tokens", "ignore_eos"}
REQUEST = {"id", "arrival_step", "prompt", "output_tokens"}


@dataclass(frozen=True, slots=True)
class Comparison:
    """One recording: how many of its steps ours equal, and where the first difference is."""

    file: str
    engine: str
    steps: int
    identical: int
    first_difference: Json | None = None
    """{"step", "theirs", "ours"}: of the fields that differ"""

    def to_json(self) -> Json:
        return {"file": self.file, "engine": self.engine, "steps": self.steps, "identical": self.identical,
                "first_difference": self.first_difference}  # fmt: skip


def compare(path: Path) -> Comparison:
    """Replay one recording. Raises InputError where the file is none."""
    recording = read(path)
    vllm = "num_blocks" in recording["limits"]
    ours = vllm_schedule.steps(recording) if vllm else sglang_schedule.steps(recording)
    fields = VLLM if vllm else SGLANG
    recorded = recording["steps"] if vllm else [sglang_schedule.with_evicted(step) for step in recording["steps"]]
    identical, first = 0, None
    for number, (theirs, mine) in enumerate(zip_longest(recorded, ours)):
        difference = _difference(theirs, mine, fields)
        if not difference:
            identical += 1
        elif first is None:
            first = {"step": number, **difference}
    steps = max(len(recorded), len(ours))
    return Comparison(path.name, "vllm-1" if vllm else "sglang", steps, identical, first)


def _difference(theirs: Json | None, mine: Json | None, fields: Iterable[str]) -> Json | None:
    if theirs is None or mine is None:
        return {"theirs": theirs, "ours": mine}
    fields = [*fields, *(["held"] if "held" in theirs else [])]
    if not theirs["scheduled"] and not mine["scheduled"] and "kind" not in theirs:
        return None  # nothing ran: vLLM's recordings keep such steps, and their block counts are those of the last one
    wrong = [name for name in fields if name in theirs and _plain(name, theirs[name]) != _plain(name, mine.get(name))]
    if not wrong:
        return None
    return {"theirs": {name: theirs[name] for name in wrong}, "ours": {name: mine.get(name) for name in wrong}}


def _plain(name: str, value: Any) -> Any:
    """What has to be equal: preempted requests as a set, since recorders differ in the order they list them."""
    return sorted(value) if name == "preempted" else value


def read(path: Path) -> Json:
    """A recording, gzipped or not."""
    try:
        raw = path.read_bytes()
        text = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
        recording = json.loads(text)
    except (OSError, EOFError, ValueError) as error:
        raise InputError(f"{path} can't be read as a recording: {error}") from None
    if not isinstance(recording, dict) or not {"limits", "requests", "steps"} <= recording.keys():
        raise InputError(f"{path} is no recording: it needs limits, requests and steps (docs/validation.md)")
    limits, requests, steps = recording["limits"], recording["requests"], recording["steps"]
    vllm = isinstance(limits, dict) and "num_blocks" in limits
    _has(path, "limits", limits, VLLM_LIMITS if vllm else SGLANG_LIMITS)
    for name, rows, needed in (("requests", requests, REQUEST), ("steps", steps, {"scheduled"})):
        if not isinstance(rows, list):
            raise InputError(f"{path} is no recording: its {name} are no list (docs/validation.md)")
        for number, row in enumerate(rows):
            _has(path, f"{name}[{number}]", row, needed)
    return recording


def _has(path: Path, name: str, found: Any, needed: set[str]) -> None:
    """Raises InputError where a part of a recording lacks one of the keys that it needs."""
    if missing := sorted(needed - (found.keys() if isinstance(found, dict) else set())):
        raise InputError(f"{path} is no recording: {name} has no {missing[0]} (docs/validation.md)")
