"""Report: the data of the charts, and a page that is whole, valid and self-contained."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import polars as pl
import pytest
from fakes import fake_result
from rich.console import Console

from kvsim.metrics import latencies, memory_means, span_ns
from kvsim.report import axes, data
from kvsim.report.charts import latency, load, memory
from kvsim.report.charts.load import Tried
from kvsim.report.charts.style import IDLE
from kvsim.report.charts.sweep import scatter
from kvsim.report.page import page, write_page
from kvsim.report.side_by_side import side_by_side
from kvsim.report.svg import COLOURS, svg
from kvsim.report.terminal import brief, overview, span
from kvsim.result import MEMORY, MEMORY_MAP, Result
from kvsim.units import NS_PER_S


def test_whoever_waits_for_a_page_is_told_before_every_section(runs: dict[str, Result]) -> None:
    told: list[tuple[float, float]] = []
    page(runs, lambda done, total: told.append((done, total)))
    assert len(told) == told[0][1] and [done for done, _ in told] == list(range(len(told)))


@pytest.fixture(scope="module")
def runs() -> dict[str, Result]:
    return {name: fake_result(300, seed, name) for seed, name in enumerate(("contiguous", "paged"))}


def test_cdf_is_the_quantile_function() -> None:
    result = fake_result(300)
    curve = data.cdf(result, "ttft")
    values = latencies(result.requests)["ttft"].to_numpy()
    assert curve.value[[0, -1]].tolist() == [values.min(), values.max()]
    assert np.interp(0.5, curve.share, curve.value) == pytest.approx(np.median(values))
    assert (np.diff(curve.value) >= 0).all()
    assert set(data.cdf(result, "itl").value) == {0.012}


def test_bins_keep_the_integral() -> None:
    result = fake_result(300)
    series = data.load_over_time(result, bins=37)
    width = np.diff(series.time)
    rows = result.timeline.sort("t_ns")
    gaps = np.diff(rows["t_ns"].to_numpy()) / NS_PER_S
    for name in ("running", "waiting"):
        assert (series.values[name] * width).sum() == pytest.approx((rows[name].to_numpy()[:-1] * gaps).sum())


def test_memory_shares_add_up_and_agree_with_the_summary() -> None:
    result = fake_result(300)
    series = data.memory_over_time(result)
    np.testing.assert_allclose(sum(series.values.values()), 1.0)
    assert span_ns(result) is not None
    means, pool = memory_means(result), 4 << 30
    for name in MEMORY:
        assert series.values[name].mean() == pytest.approx(means[name] / pool, abs=0.01)


def test_memory_map_draws_every_piece_and_nothing_outside() -> None:
    gib = 1 << 30
    pieces = pl.DataFrame(
        [(0, 0, 0, gib, 3), (0, 0, gib, 2 * gib, -1), (NS_PER_S, 0, 0, gib, 4), (0, 1, 0, gib, 9)],
        schema=list(MEMORY_MAP), orient="row",
    )  # fmt: skip
    result = replace(fake_result(20), memory_map=pieces)
    found = data.memory_map(result)
    assert found.owner.tolist() == [3, -1, 4], "the first replica only"
    assert (found.begin.tolist(), found.until.tolist()) == ([0, 0, 1], [1, 1, 2])
    drawn = memory.address_map(result, end_s=2.0)
    assert drawn is not None
    fills = re.findall(r'fill="([^"]+)" opacity', svg(drawn, "map"))
    assert sorted(fills) == [IDLE, "var(--s3)", "var(--s4)"], "a path a colour"


def test_memory_maps_of_a_page_reach_to_the_same_pool() -> None:
    """However little of its 4 GiB a run used, so that they are compared by eye; without that, up to what was used."""
    gib = 1 << 30
    used = {"little": gib // 4, "much": 3 * gib}
    runs = {
        name: replace(
            fake_result(20), memory_map=pl.DataFrame([(0, 0, 0, top, 3)], schema=list(MEMORY_MAP), orient="row")
        )
        for name, top in used.items()
    }
    for name, high, top in (("little", None, gib // 4), ("little", 4.0 * gib, 4 * gib), ("much", 2.0 * gib, 3 * gib)):
        drawn = memory.address_map(runs[name], high=high)
        assert drawn is not None and drawn.to_dict()["encoding"]["y"]["scale"]["domain"] == [0, top]
    grid = memory.block_grid(runs["little"], 0.0, data.pool_bytes(runs["little"])).to_dict()
    taken = [cell["who"] for cell in next(iter(grid["datasets"].values()))].count("request 3")
    assert taken == 64 * 24 // 16, "a sixteenth of the pool"
    cards = page(runs).split("<h2>Memory map</h2>")[1].split("</section>")[0].split("<figure")[1:]
    ticks = [re.findall(r">([\d.]+ GiB)<", card) for card in cards]
    assert len(ticks) == 2 and ticks[0] == ticks[1] and "4 GiB" in ticks[0]
    bare = replace(runs["much"], timeline=runs["much"].timeline.clear())
    assert data.pool_bytes(bare) == 0


@pytest.mark.parametrize("high", [0.3, 1.0, 7.0, 59.0, 333.0, 1e4])
def test_ticks_are_few_and_inside(high: float) -> None:
    for ticks in (axes.linear_ticks(high), axes.clock_ticks(high), axes.log_ticks(high / 50, high)):
        assert 2 <= len(ticks) <= 9
        assert all(0 <= value <= high * 1.002 for value in ticks)
        assert len(set(ticks)) == len(ticks)


class _Closed(HTMLParser):
    """Checks that every tag is closed in order."""

    VOID = frozenset({"meta", "br", "link", "img"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page_is_whole_and_needs_no_network(runs: dict[str, Result]) -> None:
    text = page(runs)
    parser = _Closed()
    parser.feed(text)
    assert parser.open == []
    assert not re.search(r"https?:|<script|@import|url\(|xlink|font-family=", text)
    colours = {colour.lower() for colour in re.findall(r'(?:fill|stroke)="(#\w+)"', text)}
    assert not colours & set(COLOURS), "colours are the page's: they follow light and dark"
    assert "Datasheet only" in text
    for drawn in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        assert "nan" not in ElementTree.tostring(ElementTree.fromstring(drawn), encoding="unicode")
    assert text.count("<svg") == 4 + 2 + 1 + 2


def test_names_are_escaped() -> None:
    text = page({"<b>&": fake_result(50), "other": fake_result(50)})
    assert "<b>&<" not in text
    assert "&lt;b&gt;&amp;" in text


def test_page_of_runs_without_anything(tmp_path: Path) -> None:
    result = fake_result(50)
    frames = (result.requests, result.timeline, result.steps, result.itl, result.memory_map)
    bare = Result({}, *(frame.clear() for frame in frames))
    write_page(tmp_path / "deep" / "r.html", {"bare": bare})
    assert "Speed" in (tmp_path / "deep" / "r.html").read_text()
    assert len(list((tmp_path / "deep").iterdir())) == 1


def test_page_stays_small() -> None:
    many = {f"p{i}": fake_result(20_000, i) for i in range(4)}
    assert len(page(many).encode()) < 500_000


def test_degenerate_latencies_have_a_chart(runs: dict[str, Result]) -> None:
    chart = latency.cdf(runs, "itl")
    assert chart is not None
    drawn = svg(chart, "ITL")
    assert "NaN" not in drawn and drawn.count("<title>contiguous</title>") == 1
    assert len(re.findall("<title>value: 0.012; share: [^<]*at: p(?:50|99)</title>", drawn)) == 4, "two dots a run"


@pytest.mark.parametrize("n", [1, 300])
def test_terminal_tables_fit_80_columns(n: int) -> None:
    names = ("contiguous", "paged-prefix", "paged-int8")
    several = {name: fake_result(n, seed, name) for seed, name in enumerate(names)}
    for table in (overview(several["contiguous"]), side_by_side(several)):
        console = Console(width=80, record=True, force_terminal=False)
        with console.capture() as capture:
            console.print(table)
        lines = capture.get().splitlines()
        assert max(map(len, lines)) <= 80
        assert "…" not in capture.get(), "nothing is cut off"


@pytest.mark.parametrize(("low", "high"), [(0.0113, 0.0133), (0.009, 0.012), (1.0, 1.5), (0.06, 0.4)])
def test_a_narrow_logarithmic_axis_has_labels(low: float, high: float) -> None:
    ticks = axes.log_ticks(low, high)
    assert 3 <= len(ticks) <= 7
    assert all(low * 0.998 <= value <= high * 1.002 for value in ticks)


def test_span() -> None:
    assert span((0.020, 0.0305), brief) == "20.0–30.5 ms"
    assert span((0.9, 1.5), brief) == "900 ms–1.50 s"
    assert span((100.0, 200.0), brief) == "100 s–3.3 min"
    assert span(None, brief) == ""


def test_points_say_what_they_are() -> None:
    tried = [Tried("a", 1.0, 50.0, 100.0), Tried("a", 2.0, 40.0, 180.0, "ttft_p99")]
    drawn = svg(load.pareto(tried), "front")
    assert "objectives missed: ttft_p99" in drawn and drawn.count("<title>") == 3, "two points and their line"
    drawn = svg(load.curve({"a": [(1.0, 0.1), (2.0, 0.4)]}, "ttft_p99", 0.2, {"a": 1.5}), "curve")
    assert drawn.count("stroke-dasharray") == 2, "the limit and the rate held"
    assert "run: tp 2" in svg(scatter([0.1, 0.2], [100.0, 150.0], ["tp 1", "tp 2"]), "sweep")


def test_one_module_writes_svg() -> None:
    """Charts are functions that return Altair, for the app too; nothing draws beside them."""
    sources = {file.name: file.read_text(encoding="utf-8") for file in Path(axes.__file__).parent.rglob("*.py")}
    assert [name for name, text in sources.items() if "<svg " in text or "<path" in text] == ["svg.py"]


def test_only_a_page_needs_the_chart_library() -> None:
    asked = ["--trace", "sample", "--limit", "3", "--model", "llama-3.1-8b", "--device", "h100-sxm", "--policy",
             "paged", "--no-interval", "--json"]  # fmt: skip
    script = f"""
import sys
from kvsim.cli import main
sys.argv = ["kvsim", "simulate", *{asked}]
try:
    main()
except SystemExit as end:
    assert not end.code
import kvsim.commands.compare, kvsim.commands.plan, kvsim.commands.sweep
from kvsim.report import capacity, files, quality, side_by_side, swept
assert not {{"altair", "vl_convert"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
