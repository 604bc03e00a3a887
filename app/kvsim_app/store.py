"""The results folder: the only place the app reads files from and writes files to.

`<results>/<name>/` are Result folders of the command line; the app keeps its own runs in `cache/`, named by the hash
of their scenario, and uploaded traces in `uploads/`. Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kvsim import __version__
from kvsim.device import catalogue
from kvsim.engine_profile import engine_names
from kvsim.errors import InputError
from kvsim.model import model_names
from kvsim.registry import either, nearest, unknown
from kvsim.result import Result
from kvsim.scenario import Scenario
from kvsim.trace import load
from kvsim.trace.presets import PRESETS
from kvsim.trace.synth import PREFIX

UPLOAD_MB = 64
UNPACKED_MB = 512
"""a small compressed file can hold a very large text"""
_GENERATED = re.compile(r"(sample|synth:[a-z0-9-]+)(\?[\w.=&:-]*)?")
_UPLOADED = re.compile(r"uploads/[\w.-]+")


@dataclass(frozen=True)
class Store:
    """One results folder. Every path that is opened comes from `inside`, which refuses what leads out of it."""

    root: Path

    def inside(self, name: str) -> Path:
        """The path of `name` below the root. Raises InputError where it leads elsewhere."""
        path = (self.root / name).resolve()
        if not path.is_relative_to(self.root.resolve()):
            raise InputError(f"{name!r} is outside the results folder: the app reads only what is inside {self.root}")
        return path

    def runs(self) -> list[str]:
        """Names of the Result folders, newest first; the app's own cache is not among them."""
        found = [p for pattern in ("*/run.json", "*/*/run.json") for p in self.root.glob(pattern)]
        names = {path.parent.relative_to(self.root).as_posix(): path.stat().st_mtime for path in found}
        hidden = ("cache/", "uploads/", ".")
        return sorted((name for name in names if not name.startswith(hidden)), key=lambda name: -names[name])

    def load(self, name: str) -> Result:
        return Result.load(self.inside(name))

    def uploads(self) -> list[str]:
        """Uploaded traces as the scenario names them."""
        return sorted(f"uploads/{p.name}" for p in (self.root / "uploads").glob("*") if not p.name.startswith("."))

    def keep(self, name: str, data: bytes) -> str:
        """Store an uploaded trace and return its name. Raises InputError, and keeps nothing, unless it can be read."""
        if len(data) > UPLOAD_MB << 20:
            raise InputError(f"{name} is larger than {UPLOAD_MB} MB: use `kvsim trace convert --limit` to cut it")
        _check_unpacked(name, data)
        suffix = "".join(Path(re.sub(r"[^\w.-]", "_", name)).suffixes[-2:])
        stem = re.sub(r"[^\w-]", "_", name.split(".")[0])[:40].strip("_") or "trace"
        kept = f"uploads/{stem}-{hashlib.sha256(data).hexdigest()[:8]}{suffix}"
        path = self.inside(kept)
        path.parent.mkdir(parents=True, exist_ok=True)
        new = not path.exists()
        path.write_bytes(data)
        try:
            load(path, untimed="at-once")
        except InputError as error:
            if new:
                path.unlink()
            raise InputError(str(error).replace(str(path), name)) from None
        return kept

    def admit(self, scenario: Scenario) -> Scenario:
        """The scenario with its upload's path filled in. Raises InputError where it names a file of the machine."""
        if scenario.model not in model_names():
            raise unknown("model", scenario.model, model_names())
        if scenario.device not in catalogue():
            raise unknown("device", scenario.device, catalogue())
        if scenario.engine and scenario.engine.partition("@")[0] not in engine_names():
            raise unknown("engine", scenario.engine, engine_names())
        if _UPLOADED.fullmatch(scenario.trace):
            path = self.inside(scenario.trace)
            if not path.is_file():
                raise InputError(f"{scenario.trace} is not in the results folder: upload it on the Trace explorer page")
            return scenario.replace(trace=str(path))
        # `synth:chat?prompt=trace:FILE` would read a file too
        if not _GENERATED.fullmatch(scenario.trace) or "trace:" in scenario.trace:
            close = nearest(scenario.trace, ["sample", *(f"{PREFIX}{name}" for name in PRESETS)])
            raise InputError(
                f"trace {scenario.trace!r} can't be opened here: the app takes sample, synth:PRESET and "
                "traces uploaded on the Trace explorer page" + (f"; did you mean {either(close)}?" if close else "")
            )
        return scenario

    def place(self, scenario: Scenario, task: str = "run", options: Mapping[str, str] | None = None) -> Path:
        """Where what a task makes of an admitted scenario is kept, a run's folder or a file: another version, or a
        changed trace, is another place."""
        file = Path(scenario.trace)
        stamp = f"{file.stat().st_mtime_ns}" if file.is_file() else ""
        asked = "" if task == "run" else f" {task} {sorted((options or {}).items())}"
        mark = hashlib.sha256(f"{scenario.key} {__version__} {stamp}{asked}".encode()).hexdigest()[:20]
        return self.inside(f"cache/{mark}" if task == "run" else f"cache/{mark}.{task}.json")


def _check_unpacked(name: str, data: bytes) -> None:
    """Refuse a gzip file that unpacks to more than UNPACKED_MB, without unpacking it whole."""
    if not data.startswith(b"\x1f\x8b"):
        return
    unpacker, size, rest = zlib.decompressobj(wbits=31), 0, data
    try:
        while rest and size <= UNPACKED_MB << 20:
            size += len(unpacker.decompress(rest, 1 << 22))
            rest = unpacker.unconsumed_tail
    except zlib.error as error:
        raise InputError(f"{name} is damaged: {error}") from None
    if size > UNPACKED_MB << 20:
        raise InputError(f"{name} unpacks to more than {UNPACKED_MB} MB: cut it with `kvsim trace convert --limit`")
