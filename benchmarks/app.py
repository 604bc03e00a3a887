"""How fast the app is, in Debian's Chromium: python benchmarks/app.py [--requests 20000]

First paint, two clicks to a comparison, and a switch to every page: wall time, CPU time of the server and of the
browser (this script's own in it), and bytes sent. Goals: paint in 3 s, a switch in 1 s, the first comparison in 5 s, no
chart over 2 MB. On a busy machine only the CPU times mean something.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from kvsim_app.serving import SETTLED, serving
from playwright.sync_api import sync_playwright

PAGES = ("Compare", "Memory anatomy", "Memory map", "Timeline", "Operations", "Cost and calibration", "How it works",
         "Calculator", "Trace explorer")  # fmt: skip
CURVES = ("Answer", "Load curve", "Pareto")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]


def cpu_s(root: int) -> float:
    """CPU time of a process and of all that descend from it."""
    parents, times = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(path.parent.name)
        parents[pid], times[pid] = int(fields[1]), (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    family, total = {root}, times.get(root, 0.0)
    for pid in sorted(parents):
        if parents[pid] in family:
            family.add(pid)
            total += times[pid]
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=0, help="look at a run of so many requests instead")
    requests = parser.parse_args().requests
    results = tempfile.mkdtemp()
    try:
        with serving(results) as (address, process), sync_playwright() as playwright:
            measure(playwright, address, process, requests)
    finally:
        shutil.rmtree(results)


def measure(playwright: Any, url: str, server: int, requests: int) -> None:
    browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(300_000)
    frames: list[int] = []
    page.on("websocket", lambda socket: socket.on("framereceived", lambda data: frames.append(len(data))))
    print(f"{'':22}{'wall s':>8}{'server CPU':>12}{'browser CPU':>13}{'largest KB':>12}{'all KB':>8}")

    def step(name: str, act: Any) -> None:
        frames.clear()
        before = cpu_s(server), cpu_s(os.getpid()), time.monotonic()
        act()
        after = cpu_s(server), cpu_s(os.getpid()), time.monotonic()
        served, all_, wall = (b - a for a, b in zip(before, after, strict=True))
        print(f"{name:22}{wall:8.2f}{served:12.2f}{all_ - served:13.2f}{max(frames, default=0) / 1e3:12.0f}"
              f"{sum(frames) / 1e3:8.0f}", flush=True)  # fmt: skip

    def switch(name: str) -> None:
        page.get_by_test_id("stSidebarNav").get_by_role("link", name=name, exact=True).click()
        page.get_by_test_id("stMain").get_by_role("heading", name=name, exact=True, level=3).wait_for()
        page.wait_for_function(SETTLED)

    def compare() -> None:
        page.get_by_test_id("stMain").get_by_role("button", name="Compare").first.click()
        page.get_by_text("has the first token out within").wait_for()

    def large() -> None:
        trace = {"trace": f"synth:chat?requests={requests}", "rate": 12, "model": "llama-3.1-8b", "device": "h100-sxm",
                 "max_model_len": 16384, "interval": "false", "policies": "contiguous,paged"}  # fmt: skip
        page.goto(f"{url}/compare?{urlencode(trace)}")
        page.wait_for_selector("[data-testid=stMain] h4")
        page.wait_for_function(SETTLED)

    step("first visit", lambda: (page.goto(url), page.wait_for_selector("h1")))
    paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    print(f"{'  first paint':22}{paint / 1e3:8.2f}")
    if requests:
        step(f"{requests} requests", large)
    else:
        step("first comparison", compare)
        page.wait_for_function(SETTLED)
    names = PAGES if requests else (*PAGES, *CURVES)
    for name in (*names[1:], names[0]):
        step(name, lambda name=name: switch(name))
    print("again")
    for name in (*names[1:], names[0]):
        step(name, lambda name=name: switch(name))
    browser.close()


if __name__ == "__main__":
    main()
