"""Files appear whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from kvsim.errors import InputError


def write_text(file: Path, text: str) -> None:
    """Write a file whole or not at all; where `file` is a link, what it leads to. A device or a pipe is written to, not
    replaced. Raises InputError where it is a folder."""
    if file.is_dir():
        raise InputError(f"{file} is a folder: name a file")
    if file.exists() and not file.is_file():
        file.write_text(text, encoding="utf-8")
        return
    file = file.resolve()
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        new.write_text(text, encoding="utf-8")
        new.replace(file)
    except OSError as error:
        error.filename = str(file)
        raise
    finally:
        new.unlink(missing_ok=True)
