"""Models by name: `kvsim/data/models/*.json`, one file a model, in Hugging Face's own terms."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from kvsim.errors import InputError
from kvsim.model.config import from_config, read_config
from kvsim.model.spec import ModelSpec
from kvsim.registry import unknown

_VARIANT = {"instruct", "chat", "it", "hf", "base", "pt", "preview", "meta", "instruction", "thinking", "dynamic"}
"""parts of a repository's name that change no shape"""
_QUANTISED = {"fp8": "fp8", "awq": "int4", "gptq": "int4", "w4a16": "int4", "int4": "int4", "int8": "int8",
              "w8a8": "int8", "nvfp4": "nvfp4", "fp4": "nvfp4"}  # fmt: skip


def model_names() -> list[str]:
    """Every name of the catalogue, sorted."""
    folder = files("kvsim") / "data" / "models"
    return sorted(entry.name.removesuffix(".json") for entry in folder.iterdir() if entry.name.endswith(".json"))


def entry(name: str) -> dict[str, Any]:
    """The catalogue's file of a model: source, published_parameters, published_in, aliases, config."""
    text = (files("kvsim") / "data" / "models" / f"{name}.json").read_text(encoding="utf-8")
    result: dict[str, Any] = json.loads(text)
    return result


def load_model(model: str | Path) -> ModelSpec:
    """A name, a repository id (`meta-llama/Llama-3.1-8B-Instruct`), a `config.json` or its folder → ModelSpec.

    Instruct and chat variants, dates and organisation prefixes are looked through; a quantised variant's suffix
    (-FP8, -AWQ, -w8a8 …) sets `weights_dtype`. Raises InputError, for an unknown name with the nearest ones.
    """
    text = str(model).strip()
    if text in model_names():
        return _known(text)
    path = Path(text)
    if path.exists() or text.endswith(".json") or text.startswith((".", "/", "~")):
        return read_config(path.expanduser())
    plain = text.rsplit("/", 1)[-1].lower().replace("_", "-")
    parts = plain.split("-")
    dtype = next((_QUANTISED[part] for part in parts if part in _QUANTISED), None)
    short = "-".join(p for p in parts if p not in _VARIANT and p not in _QUANTISED)
    for candidate in (plain, short, re.sub(r"-\d{4}(?=-|$)", "", short)):
        if candidate in _by_any_name():
            found = _known(_by_any_name()[candidate])
            return replace(found, weights_dtype=dtype) if dtype else found
    raise unknown("model", text, model_names())


@cache
def _known(name: str) -> ModelSpec:
    item = entry(name)
    return replace(from_config(item["config"], name, f"{name}.json"), provenance=str(item["source"]))


@cache
def _by_any_name() -> dict[str, str]:
    """alias or name → name"""
    found = {name: name for name in model_names()}
    for name in model_names():
        for alias in entry(name).get("aliases", ()):
            if found.setdefault(alias, name) != name:
                raise InputError(f"the model catalogue uses {alias!r} twice")
    return found
