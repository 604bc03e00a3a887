"""Rows of one or several sources and a device's facts → a profile with held-out errors.

A fifth of the points is seen by no table and no form; a fifth of the keys, by no form. The first gives the error of a
known kernel; the second, tried on a profile without their tables, the error of each fallback."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any

import numpy as np
import polars as pl

from kvsim.device import (
    Curves,
    DeviceProfile,
    FallbackErrors,
    HeldOutError,
    LinearTable,
    Provenance,
    Ragged,
)
from kvsim.device.provenance import Tier
from kvsim_calibration.evaluate import answered, attention_key, groups, moe_key, predict, summary
from kvsim_calibration.fit import attention, mixed, tabulated
from kvsim_calibration.keys import is_served, served_shapes
from kvsim_calibration.rows import KEYS, POINTS, Rows
from kvsim_calibration.split import Mask, held_out

KEY_SEED = 8
"""of the split over whole keys; the one over points is split.SEED"""
FAR = {"decode": ("attended", 8192, 8192), "prefill": ("tokens", 4096, 2048), "linear": ("m", 4096, 4096),
       "moe": ("m", 2048, 2048)}
"""to try what lies beyond a grid: column, value beyond which rows are tried, knot at which tables are cut"""
MANY = 2000
"""rows that are enough to know an error"""
FEW = 15
"""rows under which no error is quoted"""


@dataclass(frozen=True, slots=True)
class Options:
    """How fine the tables are."""

    tolerance: float = 0.05
    """relative miss that a left-out knot may cost; 1.4 × as much for prefill, whose tables are larger and noisier"""
    m_knots: int = 80
    """values of m of a table of linear layers, at most"""
    m_knots_of: Mapping[str, int] = field(default_factory=dict)
    """the same for a dtype of its own"""
    all_shapes: bool = False
    """keep every measured shape of linear layers, also those between others"""
    wanted: bool = True
    """keep only kernels that models of the catalogue run (`keys`); the others serve as held-out keys"""
    tier: Tier = "imported"


DEFAULTS = Options()


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of one family and dtype: one form, one provenance."""

    name: str
    """key of the provenance: source, family, dtype"""
    family: str
    frame: pl.DataFrame
    points: Mask
    """rows held out inside keys"""
    keys: Mask
    """rows of held-out keys"""
    rows: Rows
    warm: Mask
    """rows that a warm L2 made too fast: they bound a table from below, and are no trial of it"""

    def train(self) -> pl.DataFrame:
        """What tables may see."""
        return self.frame.filter(~self.points)

    def holes(self) -> pl.DataFrame:
        """Where the held-out rows lie, without what was measured there."""
        return self.frame.filter(self.points).drop("ns")

    def form_train(self) -> pl.DataFrame:
        """What forms may see."""
        return self.frame.filter(~self.points & ~self.keys & ~self.warm)


def groups_of(tag: str, sources: Iterable[Rows]) -> Iterator[Group]:
    """The rows of a source (`tag` names it), by family and dtype, with their splits."""
    for rows in sources:
        column = next((c for c in ("kv_dtype", "dtype") if c in rows.frame.columns), None)
        for dtype in sorted(rows.frame[column].unique()) if column else ["bf16"]:
            frame = rows.frame.filter(pl.col(column) == dtype) if column else rows.frame
            by = KEYS[rows.family]
            points, keys = held_out(frame, [*by, *POINTS[rows.family]]), held_out(frame, by, KEY_SEED)
            warm = frame["warm"].to_numpy() if "warm" in frame.columns else np.zeros_like(points)
            if keys.all() or not (~points & ~keys & ~warm).any():  # so few kernels that none is left to fit a form to
                keys = np.zeros_like(keys)
            yield Group(f"{tag}-{rows.family}-{dtype}", rows.family, frame, points & ~warm, keys, rows, warm)


def build(base: DeviceProfile, tag: str, sources: Iterable[Rows], made_by: str, options: Options = DEFAULTS,
          tell: Callable[[str], None] = lambda _: None) -> DeviceProfile:
    """`base` with the curves of one source added; what its curves already hold stays and is preferred where a kernel
    is in both."""
    order = ("decode", "prefill", "mixed", "skew", "linear", "moe", "memory", "collective")
    found = sorted(groups_of(tag, sources), key=lambda group: order.index(group.family))
    alone = base.model_copy(update={"curves": Curves(), "provenance": {}, "date": date.today()})
    for group in found:
        tell(f"fitting {group.name}: {group.frame.height:,} rows")
        curves = _FIT[group.family](group, alone, options)
        alone = _with(alone, group, curves, made_by, options)
        alone.provenance[group.name] = _errors(group, alone)
    return _joined(alone, base)


def _with(profile: DeviceProfile, group: Group, curves: list[Any], made_by: str, options: Options) -> DeviceProfile:
    rows = group.rows
    seen = Provenance(
        tier=options.tier, source=rows.source, licence=rows.licence, made_by=made_by, date=profile.date,
        kernels=rows.kernels, versions=rows.versions, rows=int((~group.points).sum()), dropped=rows.dropped,
        notes=rows.notes)
    family = "decode" if group.family == "skew" else group.family
    kept = () if group.family == "skew" else getattr(profile.curves, family)
    return profile.model_copy(update={
        "curves": profile.curves.model_copy(update={family: (*kept, *curves)}),
        "provenance": {**profile.provenance, group.name: seen}})


def _decode(group: Group, profile: DeviceProfile, options: Options) -> list[Any]:
    form = attention.decode_form(group.form_train(), profile.facts)
    curves = attention.decode_curves(group.train(), group.holes(), form, profile.facts, group.name, options.tolerance)
    return _served(curves, options)


def _prefill(group: Group, profile: DeviceProfile, options: Options) -> list[Any]:
    form = attention.prefill_form(group.form_train(), profile.facts)
    tolerance = 1.4 * options.tolerance
    curves = attention.prefill_curves(group.train(), group.holes(), form, profile.facts, group.name, tolerance)
    return _served(curves, options)


def _mixed(group: Group, profile: DeviceProfile, options: Options) -> list[Any]:
    return mixed.mixed_curves(group.train(), profile, group.name, options.tolerance)


def _skew(group: Group, profile: DeviceProfile, _: Options) -> list[Any]:
    """Decode curves again, with their tables of unequal lengths."""
    tables = {attention_key(key): (rows.filter(pl.col("tokens") == 0), rows.filter(pl.col("tokens") > 0))
              for key, rows in groups(group.train(), KEYS["skew"])}
    curves = []
    for curve in profile.curves.decode:
        if curve.key in tables:
            pure, fused = (mixed.skew_table(rows) if rows.height else None for rows in tables[curve.key])
            curve = curve.model_copy(update={"skew": pure, "skew_mixed": fused})
        curves.append(curve)
    return curves


def _linear(group: Group, profile: DeviceProfile, options: Options) -> list[Any]:
    form = tabulated.linear_form(group.form_train(), profile.facts)
    shapes = served_shapes(group.frame) if options.wanted and not options.all_shapes else None
    knots = options.m_knots_of.get(group.frame["dtype"][0], options.m_knots)
    return [tabulated.linear_table(group.train(), form, profile.facts, group.name, knots, shapes)]


def _moe(group: Group, profile: DeviceProfile, options: Options) -> list[Any]:
    form = tabulated.moe_form(group.form_train(), profile.facts)
    curves = tabulated.moe_curves(group.train(), form, profile.facts, group.name, options.tolerance)
    return _served(curves, options)


def _memory(group: Group, profile: DeviceProfile, options: Options) -> list[Any]:
    tolerance = 2 * options.tolerance  # layers of several models share these curves: they differ by more
    return tabulated.memory_curves(group.train(), profile.facts, group.name, tolerance)


def _collective(group: Group, profile: DeviceProfile, options: Options) -> list[Any]:
    return tabulated.collective_curves(group.train(), profile.facts, group.name, options.tolerance)


_FIT: dict[str, Callable[[Group, DeviceProfile, Options], list[Any]]] = {
    "decode": _decode, "prefill": _prefill, "mixed": _mixed, "skew": _skew, "linear": _linear, "moe": _moe,
    "memory": _memory, "collective": _collective,
}


def _served(curves: list[Any], options: Options) -> list[Any]:
    """The curves that stay in the profile: those of kernels that models of the catalogue run, or all if it has none."""
    served = [curve for curve in curves if is_served(curve.key)] if options.wanted else curves
    return served or curves


def held_out_points(group: Group, profile: DeviceProfile) -> pl.DataFrame:
    """Held-out rows of the keys that the profile holds, with `error` (signed, relative)."""
    return _tried(group, profile, group.frame.filter(group.points), known=True)


def held_out_keys(group: Group, profile: DeviceProfile) -> pl.DataFrame:
    """All rows of held-out keys, tried on the profile without their tables; `how` names the fallback."""
    frame = group.frame.filter(group.keys & ~group.warm)
    gone = {_place(group.family, key) for key, _ in groups(frame, KEYS[group.family])}
    return _tried(group, _without(profile, group, gone), frame, known=False)


def _tried(group: Group, profile: DeviceProfile, frame: pl.DataFrame, known: bool) -> pl.DataFrame:
    """The rows with `predicted`, `error` and `how`: of the keys that this group's own tables answer (`known`), or of
    those that only a fallback does. What another source's table answers exactly is no trial of this one."""
    parts = []
    for key, rows in groups(frame, KEYS[group.family]):
        rung, source = answered(profile, group.family, key)
        if (rung == "exact" and source in ("", group.name)) if known else rung != "exact":
            parts.append(rows.with_columns(how=pl.lit(rung)))
    if not parts:
        return frame.clear().with_columns(error=pl.lit(0.0), predicted=pl.lit(0.0), how=pl.lit(""))
    answers = pl.concat(parts)
    predicted = predict(profile, group.family, answers)
    return answers.with_columns(predicted=predicted, error=predicted / answers["ns"].to_numpy() - 1)


def _place(family: str, key: dict[str, Any]) -> Any:
    """A key as `_without` compares it."""
    if family in ("decode", "prefill", "mixed", "skew"):
        return attention_key(key)
    if family == "moe":
        return moe_key(key)
    return (key["n"], key["k"]) if family == "linear" else tuple(key.values())


def _without(profile: DeviceProfile, group: Group, gone: set[Any]) -> DeviceProfile:
    """The profile without the tables of some keys of a group."""
    curves = getattr(profile.curves, group.family)
    if group.family == "linear":
        kept = tuple(_fewer(table, gone) if table.source == group.name else table for table in curves)
    else:
        kept = tuple(c for c in curves if c.source != group.name or c.key not in gone)
    return profile.model_copy(update={"curves": profile.curves.model_copy(update={group.family: kept})})


def _fewer(table: LinearTable, gone: set[tuple[int, int]]) -> LinearTable:
    kept = [i for i, shape in enumerate(table.shapes) if shape not in gone]
    return table.model_copy(update={"shapes": tuple(table.shapes[i] for i in kept),
                                    "ratio": tuple(table.ratio[i] for i in kept)})


def _errors(group: Group, profile: DeviceProfile) -> Provenance:
    """The group's provenance with all its held-out errors."""
    points = held_out_points(group, profile)
    update: dict[str, Any] = {"points": _summary(points)}
    if group.family in FAR and len({*map(str, groups(group.frame, KEYS[group.family]))}) > 1:
        tried = held_out_keys(group, profile)
        update["keys"] = _summary(tried)
        flat = profile.model_copy(update={"curves": Curves()})
        update["fallback"] = FallbackErrors(
            interpolated=_summary(tried.filter(pl.col("how") == "interpolated")),
            nearest=_summary(tried.filter(pl.col("how") == "nearest")),
            form=_summary(_tried(group, flat, points.drop("error", "predicted", "how"), known=False)),
            beyond=_beyond(group, profile))
    return profile.provenance[group.name].model_copy(update=update)


def _beyond(group: Group, profile: DeviceProfile) -> HeldOutError | None:
    """Tables cut short, tried on what lies beyond the cut."""
    column, value, cut = FAR[group.family]
    far = group.frame.filter(pl.col(column) > value)
    kept = tuple(c for curve in getattr(profile.curves, group.family) if (c := _cut(curve, cut)) is not None)
    if far.height < FEW or not kept:
        return None
    short = profile.model_copy(update={"curves": Curves(**{group.family: kept})})
    return _summary(_tried(group, short, far[:: max(1, far.height // MANY)], known=True))


def _cut(curve: Any, cut: float) -> Any:
    """The curve with knots up to `cut` only; None where none are left."""
    if hasattr(curve, "table"):
        old = curve.table
        rows = [(at, sum(x <= cut for x in inner)) for at, inner in zip(old.outer, old.inner, strict=True)]
        kept = [i for i, (_, knots) in enumerate(rows) if knots]
        table = Ragged(outer=tuple(rows[i][0] for i in kept),
                       inner=tuple(curve.table.inner[i][:rows[i][1]] for i in kept),
                       ratio=tuple(curve.table.ratio[i][:rows[i][1]] for i in kept)) if kept else None
        return table and curve.model_copy(update={"table": table})
    knots = sum(m <= cut for m in curve.m)
    ratio = tuple(row[:knots] for row in curve.ratio) if isinstance(curve, LinearTable) else curve.ratio[:knots]
    return curve.model_copy(update={"m": curve.m[:knots], "ratio": ratio}) if knots else None


def _summary(tried: pl.DataFrame) -> HeldOutError | None:
    errors = tried["error"].to_numpy()
    return summary(errors) if len(errors) >= FEW else None


def _joined(new: DeviceProfile, old: DeviceProfile) -> DeviceProfile:
    """Both profiles' curves; the old ones first, and alone where a kernel is in both."""
    families = {}
    for family in Curves.model_fields:
        first, second = getattr(old.curves, family), getattr(new.curves, family)
        known = {_same(curve) for curve in first}
        families[family] = (*first, *(curve for curve in second if _same(curve) not in known))
    curves = Curves(**families)
    sources = curves.sources()
    provenance = {name: p for name, p in {**old.provenance, **new.provenance}.items()
                  if name in sources or "-skew-" in name}
    return new.model_copy(update={"curves": curves, "provenance": provenance, "curves_from": None})


def _same(curve: Any) -> Any:
    """Equal for curves of one kernel: the page size does not count, every linear table is its own."""
    if isinstance(curve, LinearTable):
        return curve.source
    if hasattr(curve, "key"):
        key = curve.key.model_dump()
        return type(curve), getattr(curve, "dtype", ""), tuple(v for name, v in key.items() if name != "block_size")
    return type(curve), getattr(curve, "op", ""), getattr(curve, "gpus", 0), getattr(curve, "dtype", "")
