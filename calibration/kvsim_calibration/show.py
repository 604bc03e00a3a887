"""The table of `kvsim calibrate show`: a line a source and dtype."""

from __future__ import annotations

import re
from typing import Any

from kvsim.commands.output import show
from kvsim.device import DeviceProfile, HeldOutError
from kvsim.device.provenance import Provenance


def lines(profile: DeviceProfile) -> list[dict[str, Any]]:
    """One object a provenance: curve, dtype, keys, knots, rows, errors, tier, source."""
    found = []
    for name, provenance in sorted(profile.provenance.items(), key=lambda item: _order(item[0])):
        curve, dtype = name_parts(name)
        curves = [c for family in type(profile.curves).model_fields for c in getattr(profile.curves, family)
                  if c.source == name]
        found.append({
            "name": name, "curve": curve, "dtype": dtype, "keys": sum(len(getattr(c, "shapes", "1")) for c in curves),
            "rows": provenance.rows, "dropped": sum(provenance.dropped.values()), "tier": provenance.tier,
            "points": _error(provenance.points), "keys_error": _error(provenance.keys),
            "fallback": {rung: _error(error) for rung, error in provenance.fallback},
            "source": provenance.source, "versions": provenance.versions, "licence": provenance.licence,
            "made_by": provenance.made_by})
    return found


def name_parts(name: str) -> tuple[str, str]:
    """`aic-decode-bf16` → ("decode", "bf16")."""
    parts = name.split("-")
    return (parts[1], parts[2]) if len(parts) == 3 else (name, "")


def _order(name: str) -> tuple[int, str]:
    families = ("decode", "prefill", "mixed", "skew", "linear", "moe", "memory", "collective")
    curve = name_parts(name)[0]
    return (families.index(curve) if curve in families else len(families), name)


def _error(error: HeldOutError | None) -> dict[str, float | int] | None:
    return None if error is None else {"median": error.median, "p95": error.p95, "bias": error.bias,
                                       "rows": error.rows}


def as_json(profile: DeviceProfile) -> dict[str, Any]:
    """The object of `--json`."""
    return {"id": profile.id, "name": profile.name, "tier": profile.tier, "date": profile.date.isoformat(),
            "curves_from": profile.curves_from, "curves": lines(profile)}


def print_table(profile: DeviceProfile) -> None:
    """A table for people."""
    from rich import box
    from rich.table import Table

    show(f"[bold]{profile.name}[/]  ({profile.id}), tier {profile.tier}, {profile.date}")
    if not profile.provenance:
        show("no curves: every cost is the physical form with the datasheet's numbers")
        return
    if profile.curves_from:
        show(f"ratios of {profile.curves_from} over this device's facts")
    table = Table("curve", "keys", "rows", "points\nmedian p95 bias", "whole keys\nmedian p95", "from", box=box.SIMPLE,
                  pad_edge=False, title="held-out errors in percent", title_justify="left")
    for column in table.columns[1:5]:
        column.justify = "right"
    for line in lines(profile):
        table.add_row(f"{line['curve']} {line['dtype']}", str(line["keys"]), f"{line['rows']:,}",
                      _percents(line["points"], ("median", "p95", "bias")),
                      _percents(line["keys_error"], ("median", "p95")), line["name"].split("-")[0])
    show(table)
    for source in dict.fromkeys(map(_source, profile.provenance.items())):
        show(source)


def _percents(error: dict[str, Any] | None, names: tuple[str, ...]) -> str:
    if error is None:
        return "–"
    return "  ".join(f"{100 * error[name]:{'+' if name == 'bias' else ''}.1f}" for name in names)


def _source(item: tuple[str, Provenance]) -> str:
    name, provenance = item
    versions = ", ".join(f"{library} {version}" for library, version in provenance.versions.items())
    source = re.split(r",|/\w+_perf", provenance.source)[0]
    return f"{name.split('-')[0]}: {source} ({versions}; {provenance.licence or 'licence unknown'})"
