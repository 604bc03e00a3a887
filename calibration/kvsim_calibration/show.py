"""The table of `kvsim calibrate show`: a line a source and dtype."""

from __future__ import annotations

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
                  if c.source == name]  # fmt: skip
        found.append({
            "name": name, "curve": curve, "dtype": dtype, "keys": sum(len(getattr(c, "shapes", "1")) for c in curves),
            "rows": provenance.rows, "dropped": sum(provenance.dropped.values()), "tier": provenance.tier,
            "points": _error(provenance.points), "keys_error": _error(provenance.keys),
            "fallback": {rung: _error(error) for rung, error in provenance.fallback},
            "source": provenance.source, "versions": provenance.versions, "licence": provenance.licence,
            "made_by": provenance.made_by})  # fmt: skip
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
                                       "rows": error.rows}  # fmt: skip


def as_json(profile: DeviceProfile) -> dict[str, Any]:
    """The object of `--json`."""
    return {"id": profile.id, "name": profile.name, "tier": profile.tier, "date": profile.date.isoformat(),
            "curves_from": profile.curves_from, "curves": lines(profile)}  # fmt: skip


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
    table = Table("curve", "dtype", "keys", "rows", "held-out points", "", "", "whole held-out keys", "", "tier",
                  "source", box=box.SIMPLE)  # fmt: skip
    for column in table.columns[2:9]:
        column.justify = "right"
    table.add_row("", "", "", "", "median", "p95", "bias", "median", "p95", "", "", style="dim")
    for line in lines(profile):
        points, keys = line["points"], line["keys_error"]
        table.add_row(
            line["curve"], line["dtype"], str(line["keys"]), f"{line['rows']:,}", _percent(points, "median"),
            _percent(points, "p95"), _percent(points, "bias"), _percent(keys, "median"), _percent(keys, "p95"),
            line["tier"], _source(profile.provenance[line["name"]]))  # fmt: skip
    show(table)


def _percent(error: dict[str, Any] | None, name: str) -> str:
    return "–" if error is None else f"{100 * error[name]:{'+' if name == 'bias' else ''}.1f} %"


def _source(provenance: Provenance) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in provenance.versions.items())
    return provenance.source.split(",")[0] + (f" ({versions})" if versions else "")
