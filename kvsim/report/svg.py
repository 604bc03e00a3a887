"""A chart as static SVG for a page: no script, the page's font and colours on light and dark, a hint on every point."""

from __future__ import annotations

import re
from html import escape
from typing import Any, TypeAlias
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

import altair as alt
import vl_convert

from kvsim.report.charts.style import FREE, GREY
from kvsim.report.palette import SERIES

WIDTH, FULL = 540, 1090
"""of a chart, in pixels: two in a row, and one"""
Chart: TypeAlias = alt.Chart | alt.LayerChart

COLOURS = {colour.lower(): f"var(--s{number})" for number, colour in enumerate(SERIES)}
COLOURS |= {GREY.lower(): "var(--soft)", FREE.lower(): "var(--free)"}
"""colour of a chart → the page's own (page.css), which knows light and dark"""
LOOK: dict[str, Any] = {
    "view": {"stroke": None},
    "axis": {"labelColor": "var(--soft)", "titleColor": "var(--soft)", "gridColor": "var(--grid)", "domain": False,
             "domainColor": "var(--rule)", "ticks": False, "labelFontSize": 12, "titleFontSize": 12,
             "titleFontWeight": "normal", "titlePadding": 8, "labelPadding": 6, "labelFlush": False},
    "axisX": {"domain": True},
}  # fmt: skip
_DROPPED = ("class", "role", "aria-label", "aria-roledescription", "aria-hidden", "pointer-events", "font-family",
            "clip-path")  # fmt: skip
"""The font is the page's. A clip has a name, which would be another chart's on the same page; scales hold all that is
drawn."""
_NAME = re.compile(r"(?:^|; )(?:run|category|part|kind): ([^;]+)")
_DIGITS = re.compile(r"-?\d*\.\d{2,}(?:e-\d+)?")


def svg(chart: Chart, label: str, height: int | None = None, width: int = WIDTH) -> str:
    """The chart as an inline `<svg>` that is as wide as its place; it has no legend, for the page has one for all.
    `label` is for those who do not see it, `height` in pixels where it is not the chart's own."""
    sized = chart.properties(width=width, **({"height": height} if height else {}))
    with alt.data_transformers.enable("default", max_rows=None):
        spec = sized.to_dict(validate=False)
    _without_legends(spec)
    spec |= {"background": None, "padding": 2, "autosize": {"type": "fit-x", "contains": "padding"}, "config": LOOK}
    known = vl_convert.get_vegalite_versions()
    version = alt.SCHEMA_VERSION.removeprefix("v").rpartition(".")[0]
    drawn = vl_convert.vegalite_to_svg(spec, vl_version=version if version in known else known[-1])
    root = ElementTree.fromstring(drawn.replace(' xmlns="http://www.w3.org/2000/svg"', "", 1))
    _tidy(root)
    inner = "".join(ElementTree.tostring(child, encoding="unicode") for child in root)
    return f'<svg viewBox="{root.get("viewBox")}" role="img" aria-label="{escape(label)}">{inner}</svg>'


def _without_legends(spec: Any) -> None:
    if isinstance(spec, dict):
        if "legend" in spec:
            spec["legend"] = None
        for name, part in spec.items():
            if name != "datasets":
                _without_legends(part)
    elif isinstance(spec, list):
        for part in spec:
            _without_legends(part)


def _tidy(element: Element) -> None:
    """What Vega writes for its scripts and for screen readers, mark by mark, goes; digits that nobody sees too."""
    for child in list(element):
        _tidy(child)
        if _is_empty(child):
            element.remove(child)
    if element.get("class", "").startswith("mark-rect"):
        _join(element)
    said, kind = element.get("aria-label", ""), element.get("aria-roledescription", "")
    for name in _DROPPED:
        element.attrib.pop(name, None)
    if element.get("opacity") == "1":
        del element.attrib["opacity"]
    for name, value in element.attrib.items():
        colour = COLOURS.get(value.lower())
        element.attrib[name] = colour or _DIGITS.sub(lambda digits: f"{float(digits[0]):.1f}", value)
    if hint := _hint(kind, said):
        SubElement(element, "title").text = hint


def _is_empty(element: Element) -> bool:
    if element.tag in ("g", "defs", "clipPath"):
        return element.tag != "g" or not len(element)
    unseen = "fill" not in element.attrib and "stroke" not in element.attrib
    return element.tag == "path" and (unseen or element.get("display") == "none" or not element.get("d"))


def _hint(kind: str, said: str) -> str:
    """What is shown over a mark: all of a point or a bar, the name of a line or an area."""
    if kind in ("point", "bar"):
        return said
    found = _NAME.search(said) if kind in ("line mark", "area mark") else None
    return found[1] if found else ""


def _join(group: Element) -> None:
    """Rectangles that look alike become one path: a memory map has thousands."""
    first: dict[tuple[tuple[str, str], ...], Element] = {}
    for child in list(group):
        look = tuple(sorted((name, value) for name, value in child.attrib.items() if name != "d"))
        like = first.setdefault(look, child)
        if child is not like and child.tag == "path" and not len(child):
            like.set("d", like.get("d", "") + child.get("d", ""))
            group.remove(child)
