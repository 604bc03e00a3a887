"""The end of a calibration: what was measured, at which share of the ceilings, and how far off the fit is."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from kvsim.commands.output import show, show_json
from kvsim.device import DeviceProfile
from kvsim_calibration import show as view
from kvsim_calibration.backends import beside, measured
from kvsim_calibration.backends.hosttime import host_time
from kvsim_calibration.backends.session import Outcome
from kvsim_calibration.backends.store import Store
from kvsim_calibration.evaluate import attention_key

UNSTEADY = 0.10
"""spread from which the profile is not to be trusted: on a CPU between the two fastest visits to a case, elsewhere
between the samples of a visit"""


def report(profile: DeviceProfile, store: Store, outcome: Outcome | None, out: Path, as_json: bool) -> None:
    """Print the tables, or one JSON object."""
    spread, ceilings = measured.spread(store.rows), measured.ceilings(store)
    speeds = achieved(store, ceilings)
    failed = len({row["case"] for row in store.rows if "failed" in row})
    known = beside.published(profile)
    ours = beside.compared(measured.rows_of(store), known) if known else []
    host = host_time(profile, store)
    shared = store.machine is not None and store.machine["device"] == "cpu"
    unsteady = (spread.samples if not shared or spread.least is None else spread.least) > UNSTEADY
    if as_json:
        show_json({**view.as_json(profile), "profile": str(out), "rows": str(store.path), "ceilings": ceilings,
                   "achieved": speeds, "spread": asdict(spread),
                   "unsteady": unsteady, "beside": {"published": known.id, "curves": ours} if known else None,
                   "host": asdict(host) if host else None,
                   "raw_rows": len(store.rows), "failed": failed, "left": outcome.left if outcome else None})
        return
    view.print_table(profile)
    show(_table(speeds, ceilings))
    between = "" if spread.visits is None or spread.least is None else (
        f", visits to a case by {100 * spread.visits:.1f} %, the two fastest of them by {100 * spread.least:.1f} %")
    show(f"samples of a visit differ by {100 * spread.samples:.1f} %{between}")
    if unsteady:
        show("[yellow]The machine was busy or its clock unsteady: these times, and what they predict, are too long. "
             "Measure again when nothing else runs, into another --out.[/]")
    if host:
        show(f"{host.steps} whole decode steps took {100 * host.share:+.0f} % of the sum of their kernels (median), "
             f"{host.ns_per_layer / 1e3:+.0f} µs a layer: an engine's constants, in no curve")
    for line in ours:
        show(f"{line['curve']} {line['dtype']}: our time is {line['median']:.2f} × that of the published profile "
             f"({line['p10']:.2f} to {line['p90']:.2f} in 80 % of {line['points']} points)")
    if failed:
        show(f"{failed} cases did not run on this device: the raw rows say why")
    if outcome and outcome.left:
        show(f"{outcome.left:,} visits of the grid are left: more --budget with --resume makes the profile finer")
    show(f"{out}: {out.stat().st_size / 1000:.0f} kB; raw rows: {store.path}, {len(store.rows):,}")


def achieved(store: Store, ceilings: dict[str, float]) -> list[dict[str, Any]]:
    """For each kernel the best speed reached (every byte once, in bytes/s, or FLOP/s) and its share of the ceiling."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row in measured.merged(store):
        if row["family"] in _WORK:
            name, work, unit, ceiling = _WORK[row["family"]](row, ceilings)
            speed = work / row["ns"] * 1e9
            entry = found.setdefault((row["family"], name), {
                "curve": row["family"], "kernel": name, "points": 0, "best": 0.0, "unit": unit, "share": None})
            entry["points"] += 1
            if speed > entry["best"]:
                entry.update(best=speed, share=speed / ceiling if ceiling else None)
    return [found[key] for key in sorted(found)]


Work = tuple[str, float, str, float]
"""kernel, work of a launch, its unit a second, ceiling"""


def _layout(row: dict[str, Any]) -> str:
    return f"{row['kv_dtype']}, {'blocks of ' + str(row['block_size']) if row['block_size'] else 'contiguous'}"


def _bandwidth(ceilings: dict[str, float]) -> float:
    return max((ceilings[name] for name in ("read", "copy") if name in ceilings), default=0.0)


def _gemm(ceilings: dict[str, float], dtype: str) -> float:
    any_ = max((value for name, value in ceilings.items() if name.startswith("gemm")), default=0.0)
    return ceilings.get(f"gemm {dtype}", any_)


def _decode(row: dict[str, Any], ceilings: dict[str, float]) -> Work:
    read = row["n"] * row["attended"] * attention_key(row).read_bytes_per_token
    return _layout(row), read, "B/s", _bandwidth(ceilings)


def _prefill(row: dict[str, Any], ceilings: dict[str, float]) -> Work:
    pairs = row["chunks"] * (row["tokens"] * row["context"] + row["tokens"] * (row["tokens"] + 1) / 2)
    return _layout(row), pairs * attention_key(row).flops_per_pair, "FLOP/s", _gemm(ceilings, row["kv_dtype"])


def _linear(row: dict[str, Any], ceilings: dict[str, float]) -> Work:
    return row["dtype"], 2.0 * row["n"] * row["k"] * row["m"], "FLOP/s", _gemm(ceilings, row["dtype"])


def _memory(row: dict[str, Any], ceilings: dict[str, float]) -> Work:
    return f"{row['op']} {row['dtype']}", row["bytes"], "B/s", _bandwidth(ceilings)


_WORK = {"decode": _decode, "prefill": _prefill, "linear": _linear, "memory": _memory}


def _table(speeds: list[dict[str, Any]], ceilings: dict[str, float]) -> Any:
    from rich import box
    from rich.table import Table

    tops = ", ".join(f"{name} {_speed(value, 'FLOP/s' if name.startswith('gemm') else 'B/s')}"
                     for name, value in ceilings.items() if name != "launch")
    table = Table("curve", "kernel", "points", "best", "of ceiling", box=box.SIMPLE, title_justify="left",
                  title=f"speed reached; ceilings: {tops}", pad_edge=False)
    for column in table.columns[2:]:
        column.justify = "right"
    for row in speeds:
        share = "–" if row["share"] is None else f"{100 * row['share']:.0f} %"
        table.add_row(row["curve"], row["kernel"], str(row["points"]), _speed(row["best"], row["unit"]), share)
    return table


def _speed(value: float, unit: str) -> str:
    return f"{value / 1e9:.3g} G{unit}" if value < 1e12 else f"{value / 1e12:.3g} T{unit}"
