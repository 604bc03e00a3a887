"""`kvsim validate kernel`: held-out microbenchmarks against the shipped profiles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from kvsim.errors import InputError

WORST = 20
"""rows a group that are listed"""
Statistics = dict[str, float | int | None]


def command(
    path: Annotated[str | None, typer.Argument(metavar="PATH", help="Folder of the published tables, or raw rows of "
                    "kvsim calibrate; without it the errors are those stored in the profiles")] = None,
    device: Annotated[list[str] | None, typer.Option(help="Only this device or profile JSON (may be repeated)")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout")] = False,
) -> int:
    """Kernel times of the profiles with curves, against measurements that no fit has seen.

    Groups are device/curve/dtype; `decode` means points of known kernels, `decode-keys` whole kernels that were held
    out and answered by a fallback. Exit 1 where a goal is missed.

    Example: kvsim validate kernel ../kernel_data --device h100-sxm
    """
    from kvsim.commands.output import show, show_json
    from kvsim.device import catalogue, load_device

    names = device or [name for name in catalogue() if load_device(name).tier != "datasheet"]
    report = KernelReport(recomputed=path is not None)
    for name in names:
        profile = load_device(name)
        if profile.tier == "datasheet":
            raise InputError(f"{name} has no curves of its own to validate: it is a datasheet profile")
        for group in recompute(profile, path) if path else stored(profile):
            report.groups[group.name] = group
    if as_json:
        show_json(report.to_json())
    else:
        if not path:
            show("No PATH of published tables: these are the held-out errors that the profiles were shipped with.")
        show(report.table())
        for goal, reached in report.goals():
            show(f"[green]met[/]     {goal}" if reached is None else f"[red]missed[/]  {goal}, reached {reached}")
    return 1 if any(reached for _, reached in report.goals()) else 0


@dataclass(slots=True)
class GroupErrors:
    """Errors of one device/curve/dtype."""

    name: str
    source: str
    statistics: Statistics
    errors: Sequence[float] = ()
    rows: list[dict[str, Any]] = field(default_factory=list)
    """the worst"""


def stored(profile: Any) -> Iterator[GroupErrors]:
    """What the profile says about itself."""
    from kvsim_calibration.show import name_parts

    for name, provenance in profile.provenance.items():
        curve, dtype = name_parts(name)
        for suffix, error in (("", provenance.points), ("-keys", provenance.keys)):
            if error:
                yield GroupErrors(_group(profile.id, name, curve + suffix, dtype), provenance.source, {
                    "cases": error.rows, "median_abs": error.median, "p90_abs": None, "p95_abs": error.p95,
                    "bias": error.bias, "coverage90": None})


def recompute(profile: Any, path: str) -> Iterator[GroupErrors]:
    """The held-out rows of the profile's sources, predicted again."""
    from kvsim_calibration.build import FAR, groups_of, held_out_keys, held_out_points
    from kvsim_calibration.show import name_parts
    from kvsim_calibration.sources import read_again

    for tag, rows in read_again(profile, path).items():
        layers = []
        for group in groups_of(tag, rows):
            if group.name not in profile.provenance:
                continue
            curve, dtype = name_parts(group.name)
            tried = [("", held_out_points(group, profile))]
            if group.family in FAR and profile.provenance[group.name].keys:
                tried.append(("-keys", held_out_keys(group, profile)))
            for suffix, frame in tried:
                if frame.height:
                    found = _summarised(_group(profile.id, group.name, curve + suffix, dtype), group, frame, profile)
                    yield found
                    if tag == "lss" and not suffix and curve != "skew":
                        layers.append(found)
        if layers:
            yield _pooled(f"{profile.id}/layers/bf16", layers)


def _pooled(name: str, groups: list[GroupErrors]) -> GroupErrors:
    """All tables of a source as one group; their rows are listed by their own."""
    from kvsim_calibration.evaluate import quantiles

    errors = [error for group in groups for error in group.errors]
    return GroupErrors(name, groups[0].source, {"cases": len(errors), **quantiles(errors)})


def _group(device: str, name: str, curve: str, dtype: str) -> str:
    """device/curve/dtype; layer tables beside another source's get a curve name of their own."""
    layers = name.startswith("lss-") and curve.removesuffix("-keys") in ("decode", "prefill", "linear", "moe")
    return f"{device}/{'layers-' if layers else ''}{curve}/{dtype}"


def _summarised(name: str, group: Any, frame: Any, profile: Any) -> GroupErrors:
    import numpy as np

    from kvsim.cost.error import P95_TO_90
    from kvsim_calibration.rows import KEYS, POINTS

    errors = frame["error"].to_numpy()
    provenance = profile.provenance[group.name]
    quoted = (provenance.keys if "-keys/" in name else provenance.points) or provenance.points
    width = quoted.p95 * P95_TO_90 if quoted else None
    inside = None if width is None else float(np.mean((errors >= 1 / (1 + width) - 1) & (errors <= width)))
    size = np.abs(errors)
    worst = frame[np.argsort(-size, kind="stable")[:WORST].tolist()]
    rows = [{"id": " ".join(f"{c}={row[c]}" for c in (*KEYS[group.family], *POINTS[group.family])), "metric": "ns",
             "predicted": row["predicted"], "true": row["ns"], "error": row["error"], "group": name, "note": row["how"],
             "interval": [row["predicted"] / (1 + width), row["predicted"] * (1 + width)] if width else None}
            for row in worst.iter_rows(named=True)]
    return GroupErrors(name, provenance.source, {
        "cases": len(errors), "median_abs": float(np.median(size)), "p90_abs": float(np.percentile(size, 90)),
        "p95_abs": float(np.percentile(size, 95)), "bias": float(np.median(errors)), "coverage90": inside},
        errors.tolist(), rows)


GOALS: tuple[tuple[tuple[str, ...], str, str, float, float], ...] = (
    (("h100-sxm", "h200-sxm"), "decode", "*", 0.03, 0.12), (("a100-80-sxm",), "decode", "*", 0.03, 0.13),
    (("l40s",), "decode", "*", 0.05, 0.14), (("*",), "prefill", "*", 0.05, 0.25),
    (("*",), "linear", "bf16", 0.04, 0.18), (("*",), "linear", "fp8", 0.03, 0.40),
    (("h100-sxm", "h200-sxm", "l40s"), "linear-keys", "fp8", 0.05, 0.20),
    (("rtx-4090", "rtx-pro-6000"), "layers", "*", 0.03, 0.12),
)
"""(devices, curve, dtype, median, p95); `*` is any"""
CPU_GOAL = (0.05, 0.20)
"""of every curve of a CPU that `kvsim calibrate` measured; its id begins with cpu"""
FEW = 15
"""held-out rows under which a curve measured on the user's machine is shown, not judged"""


def goals_of(device: str, curve: str, dtype: str) -> list[tuple[float, float]]:
    """(median, p95) that a group must reach."""
    if device.split("-")[0] == "cpu":
        return [] if curve.endswith("-keys") else [CPU_GOAL]
    return [(median, p95) for devices, wanted, kind, median, p95 in GOALS
            if curve == wanted and kind in ("*", dtype) and {"*", device} & set(devices)]


@dataclass(slots=True)
class KernelReport:
    """All groups, what they must reach, and the JSON of the rung."""

    recomputed: bool
    groups: dict[str, GroupErrors] = field(default_factory=dict)

    def goals(self) -> list[tuple[str, str | None]]:
        """(goal in words, what was reached instead or None)."""
        found = []
        for name, group in self.groups.items():
            device, curve, dtype = name.split("/")
            if device.startswith("cpu") and (group.statistics["cases"] or 0) < FEW:
                continue
            for median, p95 in goals_of(device, curve, dtype):
                reached = (group.statistics["median_abs"] or 0.0, group.statistics["p95_abs"] or 0.0)
                met = reached[0] <= median and reached[1] <= p95
                found.append((f"{name}: median ≤ {100 * median:.0f} %, p95 ≤ {100 * p95:.0f} %",
                              None if met else f"{100 * reached[0]:.1f} %, {100 * reached[1]:.1f} %"))
        return found

    def to_json(self) -> dict[str, Any]:
        """The object of `kvsim validate kernel --json`; `rows` are the worst of each group."""
        from kvsim_calibration.evaluate import quantiles

        errors = [error for group in self.groups.values() for error in group.errors]
        cases = sum(int(group.statistics["cases"] or 0) for group in self.groups.values())
        return {"rung": "kernel", "recomputed": self.recomputed, "cases": cases, **quantiles(errors),
                "groups": {name: group.statistics for name, group in self.groups.items()},
                "rows": [row for group in self.groups.values() for row in group.rows], "skipped": {},
                "missed": [f"{goal}, reached {reached}" for goal, reached in self.goals() if reached]}

    def table(self) -> Any:
        """For people."""
        from rich import box
        from rich.table import Table

        from kvsim.commands.output import names_give_way

        table = Table("group", "cases", "median", "p95", "bias", "in interval", box=box.SIMPLE, show_edge=False,
                      pad_edge=False, title="validate kernel: held-out relative errors", title_justify="left")
        for column in table.columns[1:]:
            column.justify = "right"
        names_give_way(table)
        for name, group in self.groups.items():
            s = group.statistics
            table.add_row(name, f"{s['cases']:,}", _percent(s["median_abs"]), _percent(s["p95_abs"]),
                          _percent(s["bias"], "+"), _percent(s["coverage90"]))
        return table


def _percent(value: float | int | None, sign: str = "") -> str:
    return "–" if value is None else f"{100 * value:{sign}.1f} %"
