"""Raw rows → Rows, as the fits take them, and the profile without curves that they belong to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np
import polars as pl

from kvsim.device import DeviceProfile
from kvsim_calibration.backends import machine
from kvsim_calibration.backends.clock import of_visits
from kvsim_calibration.backends.store import Store
from kvsim_calibration.lines import Row
from kvsim_calibration.rows import KEYS, POINTS, Rows

KERNELS = {
    "torch": {"decode": "scaled_dot_product_attention", "prefill": "scaled_dot_product_attention", "linear": "linear",
              "memory": "torch's elementwise operators"},
    "cuda": {"decode": "kvsim_kernels decode_attention", "prefill": "kvsim_kernels prefill_attention",
             "linear": "torch's linear", "memory": "kvsim_kernels, torch's elementwise operators"},
}


@dataclass(frozen=True, slots=True)
class Spread:
    """How far measurements of one case lie apart, relative, median over the cases."""

    samples: float
    """(p80 − p20) ÷ median within a visit"""
    visits: float | None
    """(most − least) ÷ median between visits; None where no case has two"""
    least: float | None
    """(second least − least) ÷ least of the visits' 20th percentiles; None where no case has two"""


TIMES = {"ns": "p20", "ns_mean": "ns_mean_p20", "ns_longest": "ns_longest_p20"}
"""columns of a raw row: the median of a visit's samples → their 20th percentile"""


def merged(store: Store) -> list[Row]:
    """One row a case: the median of its visits. On a CPU, which is never this program's alone, the least of their 20th
    percentiles: whatever else runs there only ever adds time."""
    shared = store.machine is not None and store.machine["device"] == "cpu"
    found: dict[str, list[Row]] = {}
    for row in store.rows:
        if "failed" not in row:
            found.setdefault(row["case"], []).append(row)
    return [{**visits[0], **{column: _time(visits, column, shared) for column in TIMES if column in visits[0]}}
            for visits in found.values()]


def _time(visits: list[Row], column: str, shared: bool) -> float:
    return of_visits([visit.get(TIMES[column], visit[column]) if shared else visit[column] for visit in visits], shared)


def spread(rows: list[Row]) -> Spread:
    """The spread of raw rows."""
    good = [row for row in rows if "failed" not in row]
    cases: dict[str, list[Row]] = {}
    for row in good:
        cases.setdefault(row["case"], []).append(row)
    apart, repeats = [], []
    for visits in cases.values():
        if len(visits) > 1:
            ns, least = sorted(row["ns"] for row in visits), sorted(row["p20"] for row in visits)
            apart.append((ns[-1] - ns[0]) / float(np.median(ns)))
            repeats.append(least[1] / least[0] - 1)
    within = float(np.median([(row["p80"] - row["p20"]) / row["ns"] for row in good])) if good else 0.0
    return Spread(within, *(float(np.median(each)) if each else None for each in (apart, repeats)))


def rows_of(store: Store) -> list[Rows]:
    """The families that a profile has curves for."""
    assert store.machine is not None
    about, found = store.machine, []
    merged_rows = merged(store)
    for family in KEYS:
        columns = [*KEYS[family], *POINTS[family], *(("ns_mean", "ns_longest") if family == "skew" else ()), "ns"]
        data = [{column: row[column] for column in columns} for row in merged_rows if row["family"] == family]
        if not data:
            continue
        noise = spread([row for row in store.rows if row["family"] == family])
        between = "" if noise.visits is None or noise.least is None else (
            f", visits by {100 * noise.visits:.1f} %, the two fastest by {100 * noise.least:.1f} %")
        failed = {row["case"] for row in store.rows if row["family"] == family and "failed" in row}
        found.append(Rows(
            family, pl.DataFrame(data, infer_schema_length=None),
            source=f"measured on {about['name']} ({about['cores']} cores or multiprocessors), {store.path.name}",
            licence="own measurement", kernels=(KERNELS[about["backend"]].get(family, f"{about['backend']} backend"),),
            versions={"torch": about["torch"]}, dropped={"did not run": len(failed)} if failed else {},
            notes=f"samples of a visit differ by {100 * noise.samples:.1f} % (p80 − p20, median){between}. "
                  f"Activations are {about['dtypes'][0]}; bytes of kernels that move bytes count 2 a number",
        ).distinct())
    return found


def ceilings(store: Store) -> dict[str, float]:
    """The best of all visits. read, copy: bytes/s · gemm <dtype>: FLOP/s · launch: ns."""
    best: dict[str, float] = {}
    for name, value in _ceilings(store.rows):
        best[name] = min(best.get(name, value), value) if name == "launch" else max(best.get(name, 0.0), value)
    return best


def _ceilings(rows: list[Row]) -> Iterator[tuple[str, float]]:
    for row in rows:
        if row["family"] == "ceiling" and "failed" not in row:
            if row["what"] == "launch":
                yield "launch", row["p20"]
            elif row["what"] == "gemm":
                yield f"gemm {row['dtype']}", 2.0 * row["side"] ** 3 / row["p20"] * 1e9
            else:
                yield row["what"], (2 if row["what"] == "copy" else 1) * row["bytes"] / row["p20"] * 1e9


def base_profile(store: Store) -> DeviceProfile:
    """Facts alone. Raises InputError where the ceilings were not reached."""
    assert store.machine is not None
    about: dict[str, Any] = store.machine
    threads = f", {about['cores']} threads" if about["device"] == "cpu" else ""
    return DeviceProfile(id=machine.identifier(about), name=f"{about['name']}{threads}, measured",
                         facts=machine.facts(about, ceilings(store)), date=date.today())
