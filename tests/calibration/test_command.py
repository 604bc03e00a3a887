"""`kvsim calibrate` and `kvsim validate kernel` as a user runs them."""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import altair as alt
import numpy as np
import pytest
from kvsim_calibration.plots import Points, race, residuals, roofline, scatter
from kvsim_calibration.validate_kernel import GroupErrors, KernelReport

from kvsim.cli import main
from kvsim.device import catalogue, load_device
from kvsim.report.svg import WIDTH, svg

SHIPPED = [name for name in catalogue() if load_device(name).curves_from is None and load_device(name).provenance]


def layer_tables(root: Path) -> Path:
    """A small LLMServingSim folder: decode times that a form can follow."""
    folder = root / "RTX4090" / "meta-llama" / "Llama-3.1-8B" / "bf16" / "tp1"
    folder.mkdir(parents=True)
    rows = [f"0,0,{n},{kv},{10 + n * kv * 4096 / 1e12 * 1.1e6:.3f}" for n in (1, 2, 4, 8, 16, 32)
            for kv in (16, 64, 256, 1024, 4096, 16384)]
    (folder / "attention.csv").write_text("\n".join(["prefill_chunk,kv_prefill,n_decode,kv_decode,time_us", *rows]))
    return root


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tables")
    out = root / "made.json"
    assert main(["calibrate", "import", "llmservingsim", str(layer_tables(root)), "--system", "rtx-4090", "--out",
                 str(out)]) == 0
    return out


def test_an_import_writes_a_profile_that_says_how_it_was_made(profile: Path) -> None:
    device = load_device(profile)
    (provenance,) = device.provenance.values()
    assert device.tier == "imported" and provenance.licence == "MIT" and "LLMServingSim" in provenance.source
    assert provenance.made_by is not None and provenance.made_by.startswith("kvsim calibrate import llmservingsim")
    assert "--out made.json" in provenance.made_by
    assert not list(profile.parent.glob("*.new"))


def test_show_prints_and_answers_json(profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", "show", str(profile)]) == 0
    assert "decode bf16" in capsys.readouterr().out
    assert main(["calibrate", "show", str(profile), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["curves"][0]["curve"] == "decode" and shown["curves"][0]["keys"] == 1


def test_show_of_a_datasheet_device_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", "show", "mi300x"]) == 0
    assert "datasheet" in capsys.readouterr().out


def test_the_report_is_one_file(profile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = tmp_path / "report.html"
    monkeypatch.setattr("kvsim_calibration.build.held_out", lambda frame, *_: frame["n"].to_numpy() == 4)
    assert main(["calibrate", "show", str(profile), "--html", str(report), "--data", str(profile.parent)]) == 0
    page = report.read_text(encoding="utf-8")
    assert page.count("<svg") >= 3 and "Roofline" in page and "made by" in page
    assert "http://" not in page and "https://" not in page and "<script" not in page


def test_a_report_without_data_has_no_plots_and_says_why(profile: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    assert main(["calibrate", "show", str(profile), "--html", str(report)]) == 0
    assert "--data" in report.read_text(encoding="utf-8") and "<svg" not in report.read_text(encoding="utf-8")


@pytest.mark.parametrize(("arguments", "says"), [
    (["import", "llmservingsim", "nowhere", "--system", "rtx-4090", "--out", "x.json"], "has no folder RTX4090"),
    (["import", "aiconfigurator", "nowhere", "--system", "h100-sxm", "--out", "x.json"], "neither a folder nor"),
    (["import", "vidur", "nowhere", "--system", "h100-sxm", "--out", "x.json"], "no table of h100"),
    (["import", "vidur", ".", "--system", "h100", "--out", "x.json"], "h100-sxm"),
    (["import", "vidur", ".", "--system", "h100-sxm", "--out", "x.toml"], "ends in .json"),
    (["show", "no-such-device"], "no-such-device"),
])
def test_bad_input_is_one_sentence(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", *arguments]) == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1


def test_validate_kernel_without_data_quotes_the_profiles(capsys: pytest.CaptureFixture[str]) -> None:
    main(["validate", "kernel", "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert answer["rung"] == "kernel" and answer["recomputed"] is False and answer["skipped"] == {}
    assert answer["groups"]["h100-sxm/decode/bf16"]["median_abs"] < 0.03
    assert all(len(name.split("/")) == 3 for name in answer["groups"])


def test_validate_kernel_refuses_a_device_without_curves(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "kernel", "--device", "mi300x"]) == 2
    assert "mi300x has no curves" in capsys.readouterr().err


def test_a_missed_goal_is_named() -> None:
    def group(name: str, median: float) -> GroupErrors:
        return GroupErrors(name, "x", {"cases": 10, "median_abs": median, "p95_abs": 0.1, "bias": 0.0,
                                       "p90_abs": 0.1, "coverage90": None})

    report = KernelReport(True, {name: group(name, median) for name, median in (
        ("h100-sxm/decode/bf16", 0.02), ("h200-sxm/decode/fp8", 0.04), ("b200/decode/bf16", 0.5))})
    assert [reached for _, reached in report.goals()] == [None, "4.0 %, 10.0 %"]
    assert len(report.to_json()["missed"]) == 1


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_profiles_are_small_and_say_where_they_come_from(name: str) -> None:
    import kvsim

    path = Path(kvsim.__file__).parent / "data" / "profiles" / f"{name}.json"
    assert path.stat().st_size < 300_000
    for provenance in load_device(name).provenance.values():
        assert provenance.tier == "imported" and provenance.licence in ("Apache-2.0", "MIT")
        assert provenance.made_by and provenance.made_by.startswith("kvsim calibrate import") and provenance.rows
        assert "shared" not in provenance.made_by


def drawn(chart: alt.LayerChart) -> Element:
    """The chart as a page has it: every mark inside its picture, no colour that a dark page does not know."""
    text = svg(chart, "a plot", 230)
    root = ElementTree.fromstring(text)
    assert "nan" not in text.lower() and "NaN" not in text and not re.search(r'(?:fill|stroke)="#', text)
    width, height = (float(part) for part in root.attrib["viewBox"].split()[2:])
    assert 0 < width <= WIDTH + 1 and 0 < height < 400
    return root


def test_plots_are_drawn_with_the_pages_colours() -> None:
    cloud = drawn(scatter([1e3, 1e6], [2e3, 9e5]))
    assert sum(path.get("d", "").count("M") for path in cloud.iter("path") if path.get("fill") == "var(--s0)") == 2
    band = drawn(residuals(np.array([0.0, 1, 2, 64]), np.array([0.1, -0.2, 0, 0.01]), "tokens"))
    said = {text.text for text in band.iter("text")}
    assert {"tokens", "-20%", "+20%", "0%"} <= {(text or "").replace("−", "-") for text in said}
    race_said = {text.text for text in drawn(race({"a": [1.0, 2, 3], "b": [3.0, 3, 3]}, 2, "ahead")).iter("text")}
    assert "ahead" in race_said


def test_a_roofline_has_a_roof_a_dtype_and_all_points_below_the_highest() -> None:
    clouds = {"decode": Points([1.0, 2.0], [1e11, 2e12]), "linear": Points([400.0], [9e13])}
    root = drawn(roofline(clouds, 1e12, {"bf16": 1e14, "fp8": 2e14}))
    assert {"bf16 peak", "fp8 peak", "FLOP a byte"} <= {text.text for text in root.iter("text")}
    fills = [path.get("fill") for path in root.iter("path") if path.get("fill", "").startswith("var(--s")]
    assert sorted(fills) == ["var(--s0)", "var(--s1)"]
    drawn(roofline({}, 1e12, {"bf16": 1e14}))


def test_a_report_looks_like_every_other_page(profile: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    assert main(["calibrate", "show", str(profile), "--html", str(report)]) == 0
    page = report.read_text(encoding="utf-8")
    assert page.count("<style>") == 1 and resources.files("kvsim.report").joinpath("page.css").read_text() in page
    assert '<p class="banner imported">' in page
