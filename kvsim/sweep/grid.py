"""`sweep.toml` → scenarios.

    [base]                      # keys of a Scenario, the same for all
    trace = "sample"
    model = "llama-3.1-8b"

    [grid]                      # every combination of these lists
    device = ["h100-sxm", "l40s"]
    policy = ["paged", "paged-prefix"]

    [[list]]                    # instead or besides: named variants, each with the whole grid
    max_num_seqs = 128
"""

from __future__ import annotations

import itertools
import tomllib
from pathlib import Path
from typing import Any

from kvsim.errors import InputError
from kvsim.registry import unknown
from kvsim.scenario import Scenario, make

TABLES = ("base", "grid", "list")


def read_sweep(file: Path) -> list[Scenario]:
    """The scenarios of a file, in its order, each once. Raises InputError that names file and key."""
    try:
        found = tomllib.loads(file.read_text())
    except OSError as error:
        raise InputError(f"{file}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{file} is not TOML: {error}") from None
    for name in found:
        if name not in TABLES:
            raise InputError(f"{file}: {unknown('table', name, list(TABLES))}")
    base, grid, variants = found.get("base", {}), found.get("grid", {}), found.get("list", [{}])
    if not isinstance(base, dict) or not isinstance(grid, dict):
        raise InputError(f"{file}: base and grid are tables: write [base] and [grid]")
    if not isinstance(variants, list) or not all(isinstance(variant, dict) for variant in variants):
        raise InputError(f"{file}: list is a list of tables: write [[list]] before each")
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            raise InputError(f"{file}: grid.{key} is {values!r}; it must be a list of values, such as [1, 2]")
    scenarios: dict[str, Scenario] = {}
    for variant in variants:
        for point in itertools.product(*grid.values()):
            one = {"interval": False, **base, **variant, **dict(zip(grid, point, strict=True))}
            scenario = make(one, {key: _origin(file, key, variant, grid) for key in one})
            scenarios.setdefault(scenario.key, scenario)
    return list(scenarios.values())


def _origin(file: Path, key: str, variant: dict[str, Any], grid: dict[str, Any]) -> str:
    table = "grid" if key in grid else "list" if key in variant else "base"
    return f"{file}: {table}.{key}"
