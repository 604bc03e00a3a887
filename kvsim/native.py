"""The compiled inner loop, used where there is one that was made of exactly the sources that are here.

`pip install` compiles the modules that run for every step (hatch_build.py) into kvsim/_native. As soon as one of their
sources differs, all of them run as plain Python again until they are compiled anew: what runs is always what is read.
KVSIM_PURE=1 in the environment asks for plain Python.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any
from zlib import crc32

HERE = Path(__file__).parent
FOLDER = HERE / "_native"


class Finder:
    """Finds kvsim's compiled modules before Python finds their sources."""

    def __init__(self, suffix: str) -> None:
        self._files = {file.name.removesuffix(suffix): file for file in FOLDER.iterdir() if file.name.endswith(suffix)}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = self._files.get(name)
        if file is None:
            return None
        return spec_from_file_location(name, file, loader=ExtensionFileLoader(name, str(file)))


def digest(source: Path) -> int:
    """What tells a source from an edited one."""
    return crc32(source.read_bytes())


def manifest() -> dict[str, Any]:
    """What was compiled: the suffix of its files (this Python and platform) and the digest of every source."""
    found: dict[str, Any] = json.loads((FOLDER / "manifest.json").read_text())
    return found


def up_to_date() -> bool:
    """Whether there are compiled modules for this Python, of the sources that are here."""
    try:
        made = manifest()
        return made["suffix"] == EXTENSION_SUFFIXES[0] and all(
            digest(HERE / source) == value for source, value in made["sources"].items()
        )
    except (OSError, ValueError, KeyError):  # none, or one whose making was cut off
        return False


def use() -> bool:
    """Let imports find the compiled modules; whether there are any to find."""
    if os.environ.get("KVSIM_PURE") or not up_to_date():
        return False
    sys.meta_path.insert(0, Finder(EXTENSION_SUFFIXES[0]))
    return True
