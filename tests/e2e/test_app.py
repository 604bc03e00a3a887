"""The app in a real browser (Debian's Chromium): what a visitor does, with no console error and no exception box."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from kvsim_app.serving import SETTLED, serving

pytestmark = pytest.mark.e2e
pytest.importorskip("streamlit")
sync_api = pytest.importorskip("playwright.sync_api")

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip
QUERY = {"trace": "sample", "duration": "20s", "model": "llama-3.1-8b", "device": "h100-sxm", "interval": "false",
         "policies": "contiguous,paged"}  # fmt: skip
PAGES = ("answer", "load_curve", "pareto", "compare", "anatomy", "memory_map", "timeline", "operations", "cost",
         "calculator", "how_it_works", "trace_explorer")  # fmt: skip
PATIENCE_MS = 60_000
# On a page's own address Streamlit first asks below it for its endpoints, and finds them at the root.
EXPECTED = ("/_stcore/health", "/_stcore/host-config")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("results")) as (address, _):
        yield address


@pytest.fixture(scope="module")
def context() -> Iterator[Any]:
    chromium = shutil.which("chromium")
    if chromium is None:
        warnings.warn("no chromium: the app is not tested in a browser (apt-get install chromium)", stacklevel=1)
        pytest.skip("needs Debian's chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield browser.new_context(viewport={"width": 1280, "height": 900})  # one, so that scripts are compiled once
        browser.close()


@pytest.fixture
def page(context: Any) -> Iterator[Any]:
    """A page that fails the test on a console error or an exception that nobody expects."""
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    wrong: list[str] = []

    def heard(message: Any) -> None:
        url = (message.location or {}).get("url", "")
        local = not url or url.startswith("http://127.0.0.1")
        if message.type == "error" and local and not url.endswith(EXPECTED):
            wrong.append(f"{message.text} {url}")

    page.on("console", heard)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    yield page
    assert not page.locator("[data-testid=stException]").count()
    page.close()
    assert not wrong


def settled(page: Any) -> None:
    page.wait_for_selector("[data-testid=stMain] h4, [data-testid=stMain] h1")
    page.wait_for_function(SETTLED)


def test_a_newcomer_compares_policies_in_two_clicks_downloads_and_comes_back(server: str, page: Any) -> None:
    page.goto(server)
    page.get_by_test_id("stMain").get_by_role("button", name="Compare").first.click()
    page.get_by_text("has the first token out within").wait_for()
    settled(page)
    with page.expect_download() as waiting:
        page.get_by_role("button", name="CSV", exact=True).click()
    text = Path(waiting.value.path()).read_text()
    assert text.startswith("metric,contiguous,paged,paged-prefix") and "TTFT p99" in text
    address, finding = page.url, page.locator("[data-testid=stMain] h4").first.inner_text()
    assert "policies=contiguous" in address and "model=llama-3.1-8b" in address
    page.goto("about:blank")
    page.goto(address)
    settled(page)
    assert page.locator("[data-testid=stMain] h4").first.inner_text() == finding


@pytest.mark.parametrize("query", ["", "?" + urlencode(QUERY)])
def test_the_start_page_has_a_name_as_the_others_have(server: str, page: Any, query: str) -> None:
    """A link to /start leads to /, what it asks for kept, without Streamlit's box that no such page exists."""
    page.goto(f"{server}/start{query}")
    page.wait_for_url(lambda url: url.removeprefix(server).split("?")[0] == "/")
    settled(page)
    assert page.get_by_test_id("stMain").locator("h1").inner_text().endswith("GPU?")
    assert not page.get_by_role("dialog").count()
    assert ("device=h100-sxm" in page.url) is bool(query)
    assert page.get_by_test_id("stSidebarNav").get_by_role("link", name="Start", exact=True).count() == 1


@pytest.mark.parametrize("name", PAGES)
def test_page_shows_finding_tier_and_charts(server: str, page: Any, name: str) -> None:
    page.goto(f"{server}/{name}?{urlencode(QUERY)}")
    settled(page)
    page.locator("[data-testid=stVegaLiteChart] canvas, [data-testid=stVegaLiteChart] svg").first.wait_for()
    assert not page.locator("[data-testid=stAlertContentError]").count()


def test_a_brush_zooms_the_timeline(server: str, page: Any) -> None:
    page.goto(f"{server}/timeline?{urlencode(QUERY)}")
    settled(page)
    chart = page.locator("[data-testid=stVegaLiteChart]").first
    chart.wait_for()
    chart.scroll_into_view_if_needed()
    page.wait_for_timeout(500)
    before, box = chart.screenshot(), chart.bounding_box()
    low = box["y"] + box["height"] - 75
    page.mouse.move(box["x"] + box["width"] * 0.4, low)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, low, steps=5)
    page.mouse.up()
    page.wait_for_timeout(500)
    assert chart.screenshot() != before


def test_a_form_compares_two_runs(server: str, page: Any) -> None:
    """The sidebar's form: another device and one policy less make another address and another comparison."""
    page.goto(f"{server}/compare?{urlencode(QUERY | {'policies': 'contiguous,paged,paged-prefix'})}")
    settled(page)
    sidebar = page.get_by_test_id("stSidebar")
    sidebar.get_by_role("button", name="Remove paged-prefix").click()
    sidebar.get_by_test_id("stBaseButton-primaryFormSubmit").click()
    page.wait_for_url(lambda url: url.endswith("policies=contiguous%2Cpaged"))
    settled(page)
    page.get_by_text("What differs").wait_for()


def test_a_click_on_the_pareto_front_opens_its_scenario(server: str, page: Any) -> None:
    page.goto(f"{server}/pareto?{urlencode(QUERY)}")
    settled(page)
    page.locator("[data-testid=stVegaLiteChart] .mark-symbol.role-mark path").last.click()  # the topmost
    page.get_by_role("button", name="requests/s").click()
    page.wait_for_url("**/compare?**")
    settled(page)
    assert "rate_scale=" in page.url and page.url.endswith("policies=paged")


def test_what_is_stopped_stays_stopped_until_run_is_pressed(server: str, page: Any) -> None:
    long = QUERY | {"trace": "synth:chat?requests=90000", "rate": "12", "policies": "uncached"}
    del long["duration"]
    page.goto(f"{server}/compare?{urlencode(long)}")
    stop = page.get_by_test_id("stMain").get_by_role("button", name="Stop")
    stop.click()
    page.get_by_text("Stopped.").wait_for()
    page.wait_for_function(SETTLED)
    assert not stop.count()
    page.get_by_test_id("stSidebar").get_by_test_id("stBaseButton-primaryFormSubmit").click()
    stop.click()
    page.get_by_text("Stopped.").wait_for()


def test_a_bad_file_is_refused_in_a_sentence(server: str, page: Any, tmp_path: Path) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text("arrival_s,prompt_tokens,output_tokens\n0,many,3\n")
    page.goto(f"{server}/trace_explorer")
    settled(page)
    page.locator("input[type=file]").set_input_files(bad)
    alert = page.get_by_text("This file was not taken")
    alert.wait_for()
    assert "bad.csv line 2" in alert.inner_text()
