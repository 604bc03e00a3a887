"""`kvsim list`: everything that is known by name, with its facts and where they come from."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer

from kvsim.commands.output import show, show_json
from kvsim.errors import InputError
from kvsim.registry import unknown

Entry = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of list: its entries (what --json prints) and the columns of its table."""

    entries: Callable[[], list[Entry]]
    columns: dict[str, Callable[[Entry], str]]
    """header → cell; a header that ends in ">" is right-aligned"""


def command(
    what: Annotated[str, typer.Argument(metavar="KIND", help="models, devices, engines, policies, schedulers, routers "
                                                             "or trace-formats")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON list on stdout")] = False,
    accuracy: Annotated[bool, typer.Option("--accuracy", help="policies: what they cost in quality, as measured on a "
                                                              "small model, and as published")] = False,
) -> None:  # fmt: skip
    """Names that other commands take, with their facts. `--json` has all facts and the provenance of each.

    Example: kvsim list models
    """
    if what not in KINDS:
        raise unknown("kind of list", what, list(KINDS))
    if accuracy:
        _accuracy(what, as_json)
        return
    kind = KINDS[what]
    entries = kind.entries()
    if as_json:
        show_json(entries)
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for header in kind.columns:
        side: Literal["left", "right"] = "right" if header.endswith(">") else "left"
        table.add_column(header.rstrip(">"), justify=side, no_wrap=header not in ("about", "device"))
    for entry in entries:
        table.add_row(*(cell(entry) for cell in kind.columns.values()))
    show(table)


def _accuracy(what: str, as_json: bool) -> None:
    if what != "policies":
        raise InputError(f"--accuracy is about policies; {what} have none")
    if as_json:
        from kvsim.accuracy import accuracy_table

        show_json(accuracy_table())
    else:
        from kvsim.report.quality import shipped

        show(shipped())


def _models() -> list[Entry]:
    from kvsim.model import load_model, model_names
    from kvsim.model.catalogue import entry

    found = []
    for name in model_names():
        spec, published = load_model(name), entry(name)
        found.append({
            "name": name, "family": spec.family, "parameters": spec.parameters,
            "active_parameters": spec.active_parameters, "published_parameters": published["published_parameters"],
            "published_in": published["published_in"], "layers": spec.layers, "hidden": spec.hidden,
            "heads": spec.heads, "kv_heads": spec.kv_heads, "head_dim": spec.head_dim, "mla": spec.mla is not None,
            "vocab": spec.vocab, "max_model_len": spec.max_model_len,
            "attention_groups": [{"window": g.window, "layers": g.layers} for g in spec.attention_groups],
            "kv_bytes_per_token": spec.kv_bytes_per_token(), "weights_dtype": spec.weights_dtype,
            "weights_bytes": spec.weights_bytes(), "aliases": published.get("aliases", []),
            "provenance": spec.provenance,
        })  # fmt: skip
    return found


def _heads(entry: Entry) -> str:
    return "MLA" if entry["mla"] else f"{entry['heads']}/{entry['kv_heads']}"


def _window(entry: Entry) -> str:
    windows = [group["window"] for group in entry["attention_groups"] if group["window"]]
    return str(windows[0]) if windows else "–"


def _context(entry: Entry) -> str:
    length = entry["max_model_len"]
    return f"{length // 1024}k" if length >= 1024 else str(length)


def _devices() -> list[Entry]:
    from kvsim.device import catalogue, load_device

    found = []
    for name in catalogue():
        profile = load_device(name)
        found.append({
            "name": name, "device": profile.name, "tier": profile.tier, **profile.facts.model_dump(mode="json"),
            "provenance": "; ".join(p.source for p in profile.provenance.values()) or "; ".join(profile.facts.sources),
        })  # fmt: skip
    return found


def _engines() -> list[Entry]:
    from kvsim.engine_profile import engine_names, load_engine

    return [
        {"name": name, **profile.model_dump(mode="json", exclude={"id", "name"}), "engine": profile.name,
         "provenance": profile.provenance}
        for name, profile in ((name, load_engine(name)) for name in engine_names())
    ]  # fmt: skip


def _policies() -> list[Entry]:
    importlib.import_module("kvsim.cache.policies")
    return [
        {"name": name, "about": spec.about, **spec.facts(), "provenance": "kvsim.cache.policies"}
        for name, spec in _registered("kvsim.cache.policies", "POLICIES")
    ]


def _described(module: str, registry: str) -> Callable[[], list[Entry]]:
    """Entries of a registry whose items say what they are: by `about`, or the first sentence of their docstring."""

    def entries() -> list[Entry]:
        return [
            {"name": name, "about": getattr(item, "about", "") or _sentence(item.__doc__),
             "provenance": item.__module__}
            for name, item in _registered(module, registry)
        ]  # fmt: skip

    return entries


def _sentence(doc: str | None) -> str:
    return " ".join((doc or "").split()).partition(". ")[0].rstrip(".")


def _registered(module: str, registry: str) -> list[tuple[str, Any]]:
    return list(getattr(importlib.import_module(module), registry).items())


_NAME: dict[str, Callable[[Entry], str]] = {"name": lambda e: str(e["name"])}
_ABOUT: dict[str, Callable[[Entry], str]] = {**_NAME, "about": lambda e: str(e["about"])}

KINDS = {
    "models": Kind(_models, {
        **_NAME,
        "10⁹>": lambda e: f"{e['parameters'] / 1e9:.2f}",
        "active>": lambda e: f"{e['active_parameters'] / 1e9:.2f}",
        "heads>": _heads,
        "window>": _window,
        "KiB/tok>": lambda e: f"{e['kv_bytes_per_token'] / 1024:.1f}",
        "ctx>": _context,
    }),
    "devices": Kind(_devices, {
        **_NAME,
        "device": lambda e: str(e["device"]),
        "GiB>": lambda e: f"{e['memory_bytes'] / 2**30:.1f}",
        "TB/s>": lambda e: f"{e['bandwidth'] / 1e12:.2f}",
        "TFLOP/s>": lambda e: f"{e['flops']['bf16'] / 1e12:.0f}",
        "tier": lambda e: str(e["tier"]),
    }),
    "engines": Kind(_engines, {
        **_NAME,
        "models": lambda e: f"{e['engine']} {e['version']}",
        "scheduler": lambda e: str(e["scheduler"]),
        "about": lambda e: str(e["about"]),
    }),
    "policies": Kind(_policies, _ABOUT),
    "schedulers": Kind(_described("kvsim.sched", "SCHEDULERS"), _ABOUT),
    "routers": Kind(_described("kvsim.cluster", "ROUTERS"), _ABOUT),
    "trace-formats": Kind(_described("kvsim.trace.formats", "FORMATS"), _ABOUT),
}  # fmt: skip
