"""What a visitor of the app sees and can move, read from Streamlit's AppTest."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kvsim_app
from streamlit.testing.v1 import AppTest
from streamlit.testing.v1.element_tree import Block, ButtonGroup, Selectbox, SelectSlider, UnknownElement, Widget

MAIN = Path(kvsim_app.__file__).with_name("main.py")
QUERY = {
    "trace": "sample", "duration": "20s", "model": "llama-3.1-8b", "device": "h100-sxm", "interval": "false",
    "policies": "contiguous,paged",
}  # fmt: skip
"""the address that tests open the app at"""
WIDGETS = ("button", "checkbox", "data_editor", "date_input", "download_button", "feedback", "file_uploader",
           "form_submit_button", "multiselect", "number_input", "pills", "radio", "segmented_control", "select_slider",
           "selectbox", "slider", "text_area", "text_input", "time_input", "toggle")  # fmt: skip


@dataclass(frozen=True)
class Seen:
    """The main part of a page, as values to compare."""

    charts: tuple[str, ...]
    """specification and data of each"""
    tables: tuple[str, ...]
    numbers: tuple[str, ...]
    finding: tuple[str, ...]
    """headlines"""
    text: tuple[str, ...]
    """everything else that is written"""
    address: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, app: AppTest) -> Seen:
        written = [str(m.value) for m in (*app.main.markdown, *app.main.caption, *app.main.info)]
        return cls(
            tuple(_chart(element) for element in app.main.get("vega_lite_chart")),
            tuple(str(table.value.to_csv()) for table in (*app.main.dataframe, *app.main.table)),
            tuple(f"{metric.label}: {metric.value}" for metric in app.main.metric),
            tuple(text for text in written if text.startswith("#### ")),
            tuple(text for text in written if not text.startswith("#### ")),
            tuple(sorted(address(app).items())),
        )


def address(app: AppTest) -> dict[str, str]:
    """The query part of the page's address."""
    return {key: value if isinstance(value, str) else value[-1] for key, value in app.query_params.items()}


def _chart(element: UnknownElement) -> str:
    proto = element.proto
    data = [proto.data.data, *(each.data.data for each in proto.datasets)]
    return proto.spec + "".join(part.hex() for part in data)


def controls(block: Block) -> dict[str, Any]:
    """Everything in a block that can be moved, by key: widgets, and charts and tables that can be selected in."""
    found = {}
    for element in _walk(block):
        if isinstance(element, Widget) or (isinstance(element, UnknownElement) and getattr(element.proto, "id", "")):
            assert element.key, f"{element.type} {getattr(element, 'label', '')!r} has no key: tests find it by that"
            found[element.key] = element
    return found


def every(element: Any) -> list[Any]:
    """Where a control can be moved: every option as it is written, both ends of a slider, the other state, a click."""
    if options := getattr(element, "options", None):
        return [options[0], options[-1]] if element.type == "select_slider" else list(options)
    if element.type in ("slider", "number_input"):
        return [element.min, element.max]
    return [True] if element.type in ("button", "download_button") else [not element.value]


def start_of(element: Any) -> Any:
    """Where a control is, as `every` says it."""
    return str(element.format_func(element.value)) if getattr(element, "options", None) else element.value


def _written(kind: Any) -> None:
    """Let a widget's value be one of its options as a visitor reads it, whatever object stands behind."""
    own = kind.format_func.fget

    def format_func(self: Any) -> Any:
        return lambda value: value if value in self.options else own(self)(value)

    kind.format_func = property(format_func)


for _kind in (ButtonGroup, Selectbox, SelectSlider):
    _written(_kind)


def _walk(block: Block) -> Iterator[Any]:
    for child in block.children.values():
        if isinstance(child, Block):
            yield from _walk(child)
        yield child


def source_keys() -> dict[str, str]:
    """Every widget in the app's source: its key, with * for what is known only later → where it is."""
    found = {}
    for file in sorted(MAIN.parent.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in WIDGETS:
                key = next((keyword.value for keyword in node.keywords if keyword.arg == "key"), None)
                where = f"{file.name}:{node.lineno}"
                found[_pattern(key) if key else f"{node.func.attr} without a key at {where}"] = where
    return found


def _pattern(key: ast.expr) -> str:
    if isinstance(key, ast.Constant):
        return str(key.value)
    parts = key.values if isinstance(key, ast.JoinedStr) else [key]
    return re.sub(r"\*+", "*", "".join(part.value if isinstance(part, ast.Constant) else "*" for part in parts))
