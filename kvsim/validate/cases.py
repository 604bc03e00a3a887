"""Reads files of published cases: JSON lines, one measured figure each (its README describes the fields)."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from kvsim.errors import InputError

Case = dict[str, Any]


def read_cases(path: Path, kind: str) -> list[Case]:
    """The cases of one kind. Raises InputError that names file and line for what is no case."""
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
            wanted = case["kind"] == kind
            missing = {"id", "metric_id", "value_si", "workload", "checkable"} - set(case)
        except (ValueError, KeyError, TypeError):
            raise InputError(f"{path}, line {number} is not a case: it must be a JSON object with a kind") from None
        if missing:
            raise InputError(f"{path}, line {number} is not a case: it lacks {', '.join(sorted(missing))}")
        if wanted:
            found.append(case)
    return found
