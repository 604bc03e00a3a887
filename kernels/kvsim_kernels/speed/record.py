"""Results on disk: one JSON line a point, written when it is measured, so that a run that is cut short goes on."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
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
        """Rows of this environment by (kernel, case); a last line that was cut off is left out."""
        found = {}
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        for line in lines:
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                continue
            if row.get("environment") == self.key and "kernel" in row:
                found[row["kernel"], row["case"]] = row
        return found

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
    """What a timing depends on: the GPU, its driver, the libraries, the kernels' sources."""
    about = torch.cuda.get_device_properties(device)
    digest = hashlib.blake2b(digest_size=8)
    for source in sorted(build.CSRC.iterdir()):
        digest.update(source.read_bytes())
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
