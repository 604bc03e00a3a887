"""Results on disk: one JSON line a point, written when it is measured, so that a run that is cut short goes on.

A line is also written when a point is begun: one that was begun twice and has no row has ended the process twice (or
hung), and is not tried again.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from .. import build

Row = dict[str, Any]


class Record:
    """The file of one device and state of the kernels; rows of another are kept, but not reused."""

    def __init__(self, path: Path, environment: Row) -> None:
        self.path = path
        self.environment = environment
        self.key = hashlib.blake2b(json.dumps(environment, sort_keys=True).encode(), digest_size=8).hexdigest()

    def rows(self) -> dict[tuple[str, str], Row]:
        """Rows of this environment by (kernel, case), those that `failed` or were `skipped` too."""
        found: dict[tuple[str, str], Row] = {}
        begun: Counter[tuple[str, str]] = Counter()
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        for line in lines:
            try:
                row = json.loads(line)
            except json.JSONDecodeError:  # a line that was cut off
                continue
            if row.get("environment") != self.key:
                continue
            if "begun" in row:
                begun[row["begun"], row["case"]] += 1
            elif "kernel" in row:
                found[row["kernel"], row["case"]] = row
            else:  # the line of `again`
                found = {what: old for what, old in found.items() if not {"failed", "skipped"} & set(old)}
                begun.clear()
        for (kernel, case), times in begun.items():
            if times > 1 and (kernel, case) not in found:
                lost = "ended or hung the process twice"
                found[kernel, case] = {"kernel": kernel, "case": case, "ok": False, "failed": lost}
        return found

    def begin(self, kernel: str, case: str) -> None:
        """Say that a point is tried."""
        self.add({"begun": kernel, "case": case})

    def again(self) -> None:
        """From here on, what failed or was skipped is tried again."""
        self.add({"again": True})

    def add(self, row: Row) -> None:
        """Append a row (the first time with what the environment is) and wait until it is on disk."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        before = self.path.read_text() if self.path.exists() else ""
        with self.path.open("a") as file:
            if before and not before.endswith("\n"):
                file.write("\n")  # after a line that was cut off
            if f'"describes": "{self.key}"' not in before:
                file.write(json.dumps({"describes": self.key, **self.environment}) + "\n")
            file.write(json.dumps({"environment": self.key, **row}) + "\n")
            file.flush()
            os.fsync(file.fileno())


def environment(device: torch.device) -> Row:
    """What a result depends on: the GPU, its driver, the libraries, the kernels' sources."""
    digest = hashlib.blake2b(digest_size=8)
    for source in sorted(build.CSRC.iterdir()):
        digest.update(source.read_bytes())
    if device.type == "cpu":
        return {"gpu": "none: the CPU runner", "torch": torch.__version__, "sources": digest.hexdigest()}
    about = torch.cuda.get_device_properties(device)
    return {
        "gpu": about.name,
        "capability": f"{about.major}.{about.minor}",
        "multiprocessors": about.multi_processor_count,
        "memory_bytes": about.total_memory,
        "l2_bytes": about.L2_cache_size,
        "torch": torch.__version__,
        "torch_cuda": torch.version.cuda,
        "nvrtc": ".".join(map(str, build.nvrtc_version())),
        "sources": digest.hexdigest(),
        **dict(smi("driver_version", "power.limit", "clocks.max.sm", "clocks.max.mem")),
    }


def smi(*fields: str) -> list[tuple[str, str]]:
    """Fields of the first GPU by nvidia-smi; nothing where it is missing."""
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader", "--id=0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return []
    return list(zip(fields, (value.strip() for value in done.stdout.strip().split(",")), strict=False))
