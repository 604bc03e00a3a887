"""Reads files of published cases: JSON lines, one measured figure each (its README describes the fields)."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

from kvsim.engine_profile import EngineProfile, load_engine
from kvsim.errors import InputError
from kvsim.validate.report import split_of

Case = dict[str, Any]


def read_cases(path: Path, kind: str) -> list[Case]:
    """The cases of one kind. Raises InputError that names file and line for what is no case."""
    return [case for case in read_all(path) if case["kind"] == kind]


def read_all(path: Path) -> list[Case]:
    """Every case of a file. Raises InputError that names file and line for what is no case."""
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise InputError(f"{path} can't be read: {error}") from None
    found: list[Case] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            case = json.loads(line)
            missing = {"id", "kind", "metric_id", "value_si", "workload", "checkable"} - set(case)
        except (ValueError, TypeError):
            raise InputError(f"{path}, line {number} is not a case: it must be a JSON object with a kind") from None
        if missing:
            raise InputError(f"{path}, line {number} is not a case: it lacks {', '.join(sorted(missing))}")
        found.append(case)
    return found


def engine_of(case: Case) -> EngineProfile:
    """The case's engine at its version. A research system's log follows vLLM of its time (DistServe: early 2024)."""
    engine = case.get("engine_id") or "other"
    if engine == "other":
        return load_engine("vllm-0@0.3")
    if engine == "vllm-0" and not case.get("engine_version") and "splitwise" in str(case.get("source")).lower():
        return load_engine("vllm-0@0.2")  # its profile is of 2023
    version = re.match(r"\d+(\.\d+)*", case.get("engine_version") or "")
    return load_engine(f"{engine}@{version[0]}" if version else engine)


def split(case: Case) -> str:
    """How its model is spread over GPUs."""
    return split_of(**{name: case.get(name) or 1 for name in ("tp", "pp", "dp", "ep")})


def rounding(case: Case) -> float:
    """Half a unit of the published figure's last digit: a smaller difference is none."""
    true = float(case["value_si"])
    ends = [float(end) for end in (case.get("value_si_min"), case.get("value_si_max")) if end is not None]
    return max((abs(end - true) for end in ends), default=0.0)
