"""The public namespace: pinned, and lazy."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import kvsim


def test_the_public_names() -> None:
    assert kvsim.__all__ == ["InputError", "Result", "Scenario", "run"]
    for name in kvsim.__all__:
        assert getattr(kvsim, name).__name__ == name
        assert name in dir(kvsim)
    with pytest.raises(AttributeError, match="no attribute 'runs'"):
        kvsim.runs  # noqa: B018


def test_one_version() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["version"] == kvsim.__version__
