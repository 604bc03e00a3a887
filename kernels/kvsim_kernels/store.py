"""Built artefacts on disk: cubins and host libraries, one file each, found by a hash of everything that went in.

Safe under several processes at once: a file is written under another name and renamed, so a reader sees none or a
whole one. Each file ends in a digest of what precedes it; one that does not match (torn, edited) is built again.
(An ELF file may have bytes after its end, so a host library with a digest can be loaded where it lies.)
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

DIGEST = 16


def folder() -> Path:
    """Where artefacts are kept: `$KVSIM_KERNELS_CACHE`, else the user's cache folder."""
    given = os.environ.get("KVSIM_KERNELS_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvsim" / "kernels"


def key(*parts: str | bytes) -> str:
    """A name for what is made of these parts, in this order."""
    digest = hashlib.blake2b(digest_size=DIGEST)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def fetch(name: str, make: Callable[[], bytes]) -> Path:
    """The file `name` in the cache folder, made by `make()` if it is missing or damaged."""
    path = folder() / name
    if read(path) is not None:
        return path
    data = make()
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data + hashlib.blake2b(data, digest_size=DIGEST).digest())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return path


def read(path: Path) -> bytes | None:
    """What `fetch` was given to store at `path`; None if there is no such file or it is damaged."""
    try:
        stored = path.read_bytes()
    except FileNotFoundError:
        return None
    data, digest = stored[:-DIGEST], stored[-DIGEST:]
    return data if hashlib.blake2b(data, digest_size=DIGEST).digest() == digest else None
