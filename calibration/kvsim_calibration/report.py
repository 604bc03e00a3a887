"""One HTML file of a profile: where the kernels lie under the roofline, measured against predicted, residuals by axis.

It looks like every other page of kvsim (kvsim/report/page.py): no script, no font or image from elsewhere; light and
dark as the reader's system is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from kvsim.device import DeviceProfile
from kvsim.device.dtypes import element_bytes
from kvsim.progress import Update
from kvsim.report.files import write_text
from kvsim.report.page import card, document, section, series_key, table
from kvsim.report.palette import TIERS
from kvsim.report.svg import FULL, svg
from kvsim_calibration.evaluate import attention_key, groups, moe_key
from kvsim_calibration.generation import Generation
from kvsim_calibration.plots import Points, race, residuals, roofline, scatter
from kvsim_calibration.rows import KEYS, POINTS
from kvsim_calibration.show import lines, name_parts

SHOWN = 500
"""points of a plot: evenly drawn from more, they make the file large and the plot no clearer"""
_TALL = 230
"""height of charts"""
TITLES = {"decode": "Decode attention", "prefill": "Prefill attention", "mixed": "Prefill and decode in one step",
          "skew": "Unequal lengths", "linear": "Linear layers", "moe": "Experts", "memory": "Kernels that move bytes",
          "collective": "All-reduce"}
AXES = {"n": "sequences", "attended": "attended tokens", "length": "context", "chunks": "chunks",
        "tokens": "chunk tokens", "context": "tokens before the chunk", "m": "rows m", "bytes": "bytes",
        "mean": "mean length", "longest": "longest"}


def write_report(
    profile: DeviceProfile, path: Path, data: str | None, generation: Generation | None = None,
    progress: Update | None = None,
) -> None:
    """Write the report; `data` names the source's folder, without it there is no measured against predicted.
    `generation`: answers timed with and without a cache on this device."""
    body: list[Callable[[], str]] = [partial(_head, profile), partial(_table, profile, bool(data))]
    if data:
        tried = list(_tried(profile, data))
        body += [partial(_roofline, profile, tried), partial(_beside, profile, data)]
        body += [partial(_group, name, rows) for name, rows in tried]
    if generation:
        body.append(partial(_generation, generation))
    body.append(partial(_sources, profile))
    write_text(path, document(f"{profile.name}: calibration", body, progress))


def _tried(profile: DeviceProfile, data: str) -> Iterator[tuple[str, pl.DataFrame]]:
    """(provenance, held-out rows with their predictions)."""
    from kvsim_calibration.build import groups_of, held_out_points
    from kvsim_calibration.sources import read_again

    for tag, rows in read_again(profile, data).items():
        for group in groups_of(tag, rows):
            if group.name in profile.provenance:
                frame = held_out_points(group, profile)
                if frame.height:
                    yield group.name, frame


def _beside(profile: DeviceProfile, data: str) -> str:
    """Our own measurements beside the published curves of the same card."""
    from kvsim_calibration.backends.beside import compared, published
    from kvsim_calibration.sources import read_again

    known = published(profile)
    if known is None:
        return ""
    found = [line for rows in read_again(profile, data).values() for line in compared(rows, known)]
    rows = [(TITLES[line["curve"]], line["dtype"], f"{line['points']:,}",
             *(f"{line[name]:.2f}" for name in ("median", "p10", "p90"))) for line in found]
    return section("Our kernels beside the published curves of this card",
                   f"Our time ÷ the time that the profile {known.id} predicts; below 1 ours is faster.",
                   table(("curve", "dtype", "points", "median", "p10", "p90"), rows))


def _head(profile: DeviceProfile) -> str:
    facts = profile.facts
    items = {"memory": f"{facts.memory_bytes / 2**30:.1f} GiB", "bandwidth": f"{facts.bandwidth / 1e12:.2f} TB/s",
             "bf16": f"{facts.peak_flops('bf16') / 1e12:,.0f} TFLOP/s", "L2": f"{facts.l2_bytes / 2**20:.0f} MiB",
             "made": profile.date.isoformat()}
    facts_line = " · ".join(f"{name} {value}" for name, value in items.items())
    return (f'<header><h1>{escape(profile.name)}</h1><p class="lead">How fast its kernels are, and how far off the '
            f'fitted curves are on measurements that no fit has seen.</p><p class="hint">{escape(facts_line)}</p>'
            f'<p class="banner {profile.tier}">{TIERS[profile.tier]}</p></header>')


def _table(profile: DeviceProfile, data: bool) -> str:
    rows = []
    for line in lines(profile):
        points, keys = line["points"], line["keys_error"]
        cells = [TITLES.get(line["curve"], line["curve"]), line["dtype"], f"{line['keys']:,}", f"{line['rows']:,}",
                 _percent(points, "median"), _percent(points, "p95"), _percent(points, "bias"),
                 _percent(keys, "median"), _percent(keys, "p95"), line["tier"]]
        rows.append(cells)
    head = ("curve", "dtype", "kernels", "rows", "points: median", "p95", "bias", "kernels: median", "p95", "tier")
    more = "" if data else (" Pass --data with the folder of the published tables, or the raw rows, to see the "
                            "roofline and measured against predicted: a profile holds curves, not rows.")
    return section("Curves and their held-out errors",
                   "A fifth of the points was seen by no fit; a fifth of the kernels was answered by a fallback, their "
                   f"own tables removed.{more}", table(head, rows))


def _percent(error: dict[str, Any] | None, name: str) -> str:
    return "–" if error is None else f"{100 * error[name]:{'+' if name == 'bias' else ''}.1f} %"


def _roofline(profile: DeviceProfile, tried: list[tuple[str, pl.DataFrame]]) -> str:
    """Attention, linear layers and experts: FLOP/s over FLOP per byte."""
    series: dict[str, Points] = {}
    for name, frame in tried:
        curve, dtype = name_parts(name)
        if curve in ("decode", "prefill", "linear", "moe"):
            x, y = _work(curve, _sample(frame))
            label = f"{TITLES[curve]} {dtype}"
            old = series.get(label)
            series[label] = Points([*(old.x if old else ()), *x], [*(old.y if old else ()), *y])
    facts = profile.facts
    peaks = {name: value for name, value in facts.flops.items() if name in ("bf16", "fp8", "fp4")}
    drawn = svg(roofline(series, facts.bandwidth, peaks), "roofline", 380, FULL)
    return section("Roofline", "Measured, held-out rows. The ceilings are the data sheet's.", series_key(series),
                   f'<figure class="card">{drawn}</figure>')


def _work(curve: str, frame: pl.DataFrame) -> tuple[list[float], list[float]]:
    """(FLOP per byte, FLOP/s) of each row, minimal bytes: every operand once."""
    x, y = [], []
    for key, rows in groups(frame, KEYS[curve]):
        ns = rows["ns"].to_numpy()
        if curve in ("decode", "prefill"):
            kernel = attention_key(key)
            if curve == "decode":
                tokens = rows["n"].to_numpy() * rows["attended"].to_numpy()
                flops, bytes_ = tokens * kernel.flops_per_pair, tokens * kernel.read_bytes_per_token
            else:
                c, t, before = (rows[name].to_numpy().astype(float) for name in ("chunks", "tokens", "context"))
                flops = c * (t * before + t * (t + 1) / 2) * kernel.flops_per_pair
                row = kernel.heads * (kernel.head_dim + kernel.value_dim) * 2
                bytes_ = c * ((before + t) * kernel.read_bytes_per_token + t * row)
        elif curve == "linear":
            m, n, k = rows["m"].to_numpy().astype(float), key["n"], key["k"]
            flops, bytes_ = 2 * m * n * k, n * k * element_bytes(key["dtype"]) + m * (n + k) * 2
        else:
            e, m = moe_key(key), rows["m"].to_numpy().astype(float)
            active = e.experts * (1 - (1 - e.top_k / e.experts) ** m)
            flops = 6 * m * e.top_k * e.hidden * e.inter
            bytes_ = active * 3 * e.hidden * e.inter * element_bytes(key["dtype"])
        x += (flops / bytes_).tolist()
        y += (flops / (ns * 1e-9)).tolist()
    return x, y


def _sample(frame: pl.DataFrame) -> pl.DataFrame:
    return frame[:: max(1, frame.height // SHOWN)]


def _group(name: str, frame: pl.DataFrame) -> str:
    curve, dtype = name_parts(name)
    shown = _sample(frame)
    size = np.abs(frame["error"].to_numpy())
    axes = [column for column in POINTS[curve] if frame[column].n_unique() > 2]
    if "length" in axes and (frame["length"] == frame["attended"]).all():
        axes.remove("attended")
    cards = [card("Predicted over measured", scatter(shown["ns"].to_list(), shown["predicted"].to_list()), "", _TALL)]
    for axis in axes:
        name, at = AXES.get(axis, axis), frame[axis].to_numpy().astype(float)
        cards.append(card(f"Error over {name}", residuals(at, frame["error"].to_numpy(), name), "", _TALL))
    layers = ", layer tables" if name.startswith("lss-") else ""
    return section(f"{TITLES.get(curve, curve)} {dtype}{layers}",
                   f"{frame.height:,} held-out rows: median error {100 * np.median(size):.1f} %, 95 % within "
                   f"{100 * np.percentile(size, 95):.1f} %. Lines: the median; bands: 90 %.",
                   f'<div class="grid">{"".join(cards)}</div>')


def _generation(found: Generation) -> str:
    series = {name: [ns / 1e9 for ns in times] for name, times in (
        ("everything computed again for every token", found.uncached_ns), ("with a KV cache", found.cached_ns))}
    chart = race(series, found.crossover, f"cached is ahead from here: {found.crossover} tokens")
    where = f"{found.model}, {found.dtype}, random weights, {found.machine}, {found.date}."
    drawn = svg(chart, "generation time over tokens", 380, FULL)
    return section("A whole answer, without a cache and with one", f"{found.sentence()} Measured on {where}",
                   series_key(series), f'<figure class="card">{drawn}</figure>')


def _sources(profile: DeviceProfile) -> str:
    items = []
    for name, p in profile.provenance.items():
        dropped = "; ".join(f"{number:,} {reason}" for reason, number in p.dropped.items()) or "none"
        versions = ", ".join(f"{library} {version}" for library, version in p.versions.items())
        facts = {"source": p.source, "made by": p.made_by, "licence": p.licence, "versions": versions,
                 "kernels": ", ".join(p.kernels), "rows left out": dropped, **({"note": p.notes} if p.notes else {})}
        rows = "".join(f"<dt>{key}</dt><dd>{escape(value or 'unknown')}</dd>" for key, value in facts.items())
        items.append(f'<div class="card"><h3>{escape(name)}</h3><dl>{rows}</dl></div>')
    grid = f'<div class="grid">{"".join(items)}</div>'
    return section("Where the numbers come from", "The source of each curve.", grid)
