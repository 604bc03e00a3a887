"""One HTML file of a profile: where the kernels lie under the roofline, measured against predicted, residuals by axis.

Self-contained: inline SVG (`plots`), no script, no font or image from elsewhere; light and dark as the reader's
system is."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from kvsim.device import DeviceProfile
from kvsim.device.dtypes import element_bytes
from kvsim.report.files import write_text
from kvsim_calibration.evaluate import attention_key, groups, moe_key
from kvsim_calibration.generation import Generation
from kvsim_calibration.plots import Points, race, residuals, roofline, scatter
from kvsim_calibration.rows import KEYS, POINTS
from kvsim_calibration.show import lines, name_parts

SHOWN = 500
"""points of a plot: evenly drawn from more, they make the file large and the plot no clearer"""
TITLES = {"decode": "Decode attention", "prefill": "Prefill attention", "mixed": "Prefill and decode in one step",
          "skew": "Unequal lengths", "linear": "Linear layers", "moe": "Experts", "memory": "Kernels that move bytes",
          "collective": "All-reduce"}
AXES = {"n": "sequences", "attended": "attended tokens", "length": "context", "chunks": "chunks",
        "tokens": "chunk tokens", "context": "tokens before the chunk", "m": "rows m", "bytes": "bytes",
        "mean": "mean length", "longest": "longest"}


def write_report(
    profile: DeviceProfile, path: Path, data: str | None, generation: Generation | None = None
) -> None:
    """Write the report; `data` names the source's folder, without it there is no measured against predicted.
    `generation`: answers timed with and without a cache on this device."""
    body = [_head(profile), _table(profile)]
    if data:
        tried = list(_tried(profile, data))
        body += [_roofline(profile, tried), *_beside(profile, data), *(_group(name, rows) for name, rows in tried)]
    else:
        body.append("<p class=note>Pass <code>--data</code> with the folder of the published tables, or the raw rows, "
                    "to see the roofline and measured against predicted: a profile holds curves, not rows.</p>")
    if generation:
        body.append(_generation(generation))
    body.append(_sources(profile))
    page = ("<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
            f"<title>{escape(profile.name)}: calibration</title><style>{STYLE}</style>"
            f"<main>{''.join(body)}</main></html>")
    write_text(path, page)


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


def _beside(profile: DeviceProfile, data: str) -> Iterator[str]:
    """Our own measurements beside the published curves of the same card."""
    from kvsim_calibration.backends.beside import compared, published
    from kvsim_calibration.sources import read_again

    known = published(profile)
    if known is None:
        return
    for rows in read_again(profile, data).values():
        cells = "".join(
            f"<tr><td>{TITLES[line['curve']]}<td>{line['dtype']}<td>{line['points']:,}<td>{line['median']:.2f}"
            f"<td>{line['p10']:.2f}<td>{line['p90']:.2f}</tr>" for line in compared(rows, known))
        yield ("<h2>Our kernels beside the published curves of this card</h2><div class=wide><table><tr><th>curve"
               f"<th>dtype<th>points<th>median<th>p10<th>p90</tr>{cells}</table></div><p class=note>Our time ÷ the "
               f"time that the profile {escape(known.id)} predicts; below 1 ours is faster.</p>")


def _head(profile: DeviceProfile) -> str:
    facts = profile.facts
    items = {"memory": f"{facts.memory_bytes / 2**30:.1f} GiB", "bandwidth": f"{facts.bandwidth / 1e12:.2f} TB/s",
             "bf16": f"{facts.peak_flops('bf16') / 1e12:,.0f} TFLOP/s", "L2": f"{facts.l2_bytes / 2**20:.0f} MiB",
             "tier": profile.tier, "made": profile.date.isoformat()}
    cells = "".join(f"<div><span>{name}</span><b>{escape(value)}</b></div>" for name, value in items.items())
    return (f"<h1>{escape(profile.name)}</h1><p class=lead>How fast its kernels are, and how far off the fitted curves "
            f"are on measurements that no fit has seen.</p><section class=facts>{cells}</section>")


def _table(profile: DeviceProfile) -> str:
    rows = []
    for line in lines(profile):
        points, keys = line["points"], line["keys_error"]
        cells = [TITLES.get(line["curve"], line["curve"]), line["dtype"], f"{line['keys']:,}", f"{line['rows']:,}",
                 _percent(points, "median"), _percent(points, "p95"), _percent(points, "bias"),
                 _percent(keys, "median"), _percent(keys, "p95"), line["tier"]]
        rows.append("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in cells) + "</tr>")
    head = "".join(f"<th>{name}</th>" for name in (
        "curve", "dtype", "kernels", "rows", "median", "p95", "bias", "median", "p95", "tier"))
    return ("<h2>Curves and their held-out errors</h2><div class=wide><table><tr><th colspan=4></th><th colspan=3>"
            f"held-out points</th><th colspan=2>held-out kernels</th><th></th></tr><tr>{head}</tr>"
            f"{''.join(rows)}</table></div>"
            "<p class=note>A fifth of the points was seen by no fit (left); a fifth of the kernels was answered by a "
            "fallback, their own tables removed (right).</p>")


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
    return ("<h2>Roofline</h2><figure>" + roofline(series, facts.bandwidth, peaks) + "<figcaption>Measured, held-out "
            "rows. The ceilings are the data sheet's.</figcaption></figure>")


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
    plots = [f"<figure>{scatter(shown['ns'].to_list(), shown['predicted'].to_list())}"
             "<figcaption>predicted over measured, µs</figcaption></figure>"]
    plots += [f"<figure>{residuals(frame[axis].to_numpy().astype(float), frame['error'].to_numpy())}"
              f"<figcaption>error over {AXES.get(axis, axis)}</figcaption></figure>" for axis in axes]
    layers = ", layer tables" if name.startswith("lss-") else ""
    return (f"<h2>{TITLES.get(curve, curve)} <small>{dtype}{layers} · {frame.height:,} held-out rows · median "
            f"{100 * np.median(size):.1f} %, p95 {100 * np.percentile(size, 95):.1f} %</small></h2>"
            f"<div class=plots>{''.join(plots)}</div>")


def _generation(found: Generation) -> str:
    series = {name: [ns / 1e9 for ns in times] for name, times in (
        ("everything computed again for every token", found.uncached_ns), ("with a KV cache", found.cached_ns))}
    plot = race(series, found.crossover, f"cached is ahead from here: {found.crossover} tokens")
    where = escape(f"{found.model}, {found.dtype}, random weights, {found.machine}, {found.date}")
    return (f"<h2>A whole answer, without a cache and with one <small>{where}</small></h2><figure>{plot}<figcaption>"
            f"time to generate so many tokens, measured</figcaption></figure><p class=note>{escape(found.sentence())}"
            "</p>")


def _sources(profile: DeviceProfile) -> str:
    items = []
    for name, p in profile.provenance.items():
        dropped = "; ".join(f"{number:,} {reason}" for reason, number in p.dropped.items()) or "none"
        versions = ", ".join(f"{library} {version}" for library, version in p.versions.items())
        items.append(f"<details><summary><b>{escape(name)}</b> {escape(p.source)}</summary><dl><dt>made by<dd><code>"
                     f"{escape(p.made_by or 'unknown')}</code><dt>licence<dd>{escape(p.licence or 'unknown')}"
                     f"<dt>versions<dd>{escape(versions or 'unknown')}"
                     f"<dt>kernels<dd>{escape(', '.join(p.kernels) or 'unknown')}"
                     f"<dt>rows left out<dd>{escape(dropped)}{'<dt>note<dd>' + escape(p.notes) if p.notes else ''}</dl>"
                     "</details>")
    return f"<h2>Where the numbers come from</h2>{''.join(items)}"


STYLE = """
:root{--bg:#fbfaf7;--ink:#1d2530;--soft:#667080;--line:#dcd9d0;--card:#fff;--accent:#1f6f78;--bad:#b3462f;
--c0:#1f6f78;--c1:#d08a1d;--c2:#7a4fa3;--c3:#b3462f;--c4:#4a7a2c;--c5:#3b6fc2;--c6:#a14a7a;--c7:#6b6b6b}
@media(prefers-color-scheme:dark){:root{--bg:#12161c;--ink:#e6e8eb;--soft:#97a1b0;--line:#2c333d;--card:#1a2028;
--accent:#58b5bf;--bad:#e2795f;--c0:#58b5bf;--c1:#e8ae55;--c2:#b491dd;--c3:#e2795f;--c4:#8dc06a;--c5:#7fa8ee;--c6:#dd8fb7;--c7:#a9a9a9}}
body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:1120px;margin:0 auto;padding:2.5rem 1.25rem 4rem}
h1{font-size:1.9rem;margin:0;letter-spacing:-.01em}h2{font-size:1.15rem;margin:2.6rem 0 .8rem}
h2 small{color:var(--soft);font-weight:400;font-size:.85rem;margin-left:.4rem}
.lead{color:var(--soft);margin:.3rem 0 1.4rem}.note{color:var(--soft);font-size:.87rem}
.facts{display:flex;flex-wrap:wrap;gap:.6rem}.facts div{background:var(--card);border:1px solid var(--line);
border-radius:8px;padding:.5rem .9rem}.facts span{display:block;color:var(--soft);font-size:.75rem}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:.9rem}
th,td{padding:.32rem .7rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th{color:var(--soft);font-weight:500}td:first-child,th:first-child,td:nth-child(2),th:nth-child(2){text-align:left}
figure{margin:0;background:var(--card);border:1px solid var(--line);border-radius:10px;padding:.7rem .8rem}
figcaption{color:var(--soft);font-size:.8rem;text-align:center}
.plots{display:grid;grid-template-columns:repeat(auto-fill,minmax(320px,1fr));gap:.9rem}
svg{width:100%;height:auto;display:block}svg text{fill:var(--soft);font:11px system-ui,sans-serif}
.grid{stroke:var(--line);stroke-width:1}.edge{stroke:var(--soft);stroke-width:1.2;fill:none}
.unity{stroke:var(--soft);stroke-dasharray:4 3}.band{fill:var(--accent);opacity:.16}.mid{stroke:var(--accent);
stroke-width:2;fill:none}.dot{fill:var(--accent);opacity:.45}
details{border-bottom:1px solid var(--line);padding:.45rem 0}summary{cursor:pointer}
dl{display:grid;grid-template-columns:7rem 1fr;gap:.2rem .8rem;font-size:.87rem;margin:.6rem 0}dt{color:var(--soft)}
dd{margin:0;overflow-wrap:anywhere}code{font-size:.85em}
"""
