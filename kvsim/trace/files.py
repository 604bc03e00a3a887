"""Files, folders and tars seen alike: a Source is a name and its members, decompressed by content, not by suffix."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kvsim.errors import InputError
from kvsim.registry import either, nearest

ALIKE = 0.7
"""likeness from which another file may have been meant: there may be many"""
HEAD = 1 << 16
"""bytes of a file that its format is told from"""
_GZIP, _XZ, _BZIP2, _ZSTD = b"\x1f\x8b", b"\xfd7zXZ\x00", b"BZh", b"\x28\xb5\x2f\xfd"
_DAMAGED = (EOFError, OSError, zlib.error, lzma.LZMAError, tarfile.TarError)


@dataclass(frozen=True)
class Member:
    """One file: alone, in a folder or in a tar. `label` is what error messages call it."""

    label: str
    name: str
    """path within its folder or tar; the file name of a file alone"""
    raw: Callable[[int], bytes]
    """the first n stored bytes (−1: all)"""

    def bytes(self) -> bytes:
        """The whole content, decompressed. Raises InputError where it is damaged."""
        return _inflate(self.raw(-1), self.label)

    def text(self) -> str:
        """The whole content as text, without a byte order mark."""
        return _decode(self.bytes(), self.label)

    def lines(self) -> Iterator[tuple[int, str]]:
        """Number (from 1) and text of each line that is not blank."""
        for number, line in enumerate(io.StringIO(self.text()), 1):
            if not line.isspace():
                yield number, line.rstrip("\r\n")

    def head(self) -> str:
        """The first lines as text, empty for what is not text. A damaged end does not matter here."""
        try:
            return _inflate_head(self.raw(HEAD))[:HEAD].decode("utf-8-sig", "ignore")
        except _DAMAGED:
            return ""

    def first_line(self) -> str:
        return self.head().lstrip().split("\n", 1)[0].rstrip("\r")


@dataclass(frozen=True)
class Source:
    """Where a trace is read from."""

    path: str
    members: tuple[Member, ...]
    single: bool
    """one file, rather than a folder or a tar"""

    @property
    def name(self) -> str:
        """The file name without suffixes."""
        stem = Path(self.path.split("::")[-1]).name
        for suffix in (".gz", ".xz", ".bz2", ".tar", ".csv", ".jsonl", ".json"):
            stem = stem.removesuffix(suffix)
        return stem

    def only(self) -> Member:
        return self.members[0]


def open_source(path: str) -> Source:
    """A file, a folder, a tar (`.gz`, `.xz`, `.bz2` by content), or `ARCHIVE::MEMBER`, a file or folder inside one.

    Raises InputError where there is nothing, or nothing readable.
    """
    whole, _, inner = path.partition("::")
    place = place_of(path)
    source = _folder(place) if place.is_dir() else _file(place)
    if not inner:
        return source
    inside = inner.strip("/")
    chosen = tuple(m for m in source.members if m.name == inside or m.name.startswith(inside + "/"))
    if not chosen:
        names = ", ".join(m.name for m in source.members[:5]) + (", …" if len(source.members) > 5 else "")
        raise InputError(f"{whole} holds nothing called {inside!r}: it holds {names}")
    return Source(path, chosen, single=len(chosen) == 1 and chosen[0].name == inside)


def place_of(path: str) -> Path:
    """The file or folder on disk. Raises InputError where there is nothing, with what may have been meant."""
    from kvsim.trace.presets import PRESETS

    whole = path.partition("::")[0]
    place = Path(whole)
    if place.exists():
        return place
    beside = sorted(place.parent.iterdir()) if place.parent.is_dir() else []
    known = {"sample": "sample", **{name: f"synth:{name}" for name in PRESETS}} if place.name == whole else {}
    known |= {one.name: str(one) for one in beside if not one.name.startswith(".")}
    close = [known[name] for name in nearest(place.name, known, ALIKE)]
    hint = f"did you mean {either(close)}?" if close else "give a file, a folder, a preset (synth:NAME) or sample"
    raise InputError(f"no trace at {whole!r}: {hint}")


def _folder(place: Path) -> Source:
    files = sorted(p for p in place.rglob("*") if p.is_file() and not p.name.startswith("."))
    if not files:
        raise InputError(f"{place} is an empty folder: give one that holds trace files")
    return Source(str(place), tuple(_stored(p, str(p.relative_to(place))) for p in files), single=False)


def _file(place: Path) -> Source:
    stored = _stored(place, place.name)
    try:
        first = stored.raw(HEAD)
    except OSError as error:
        raise InputError(f"{place} cannot be read: {error.strerror}") from None
    if not first:
        raise InputError(f"{place} is empty: a trace has a header or an object on its first line")
    if first.startswith(_ZSTD):
        raise InputError(f"{place} is compressed with zstd: decompress it, or use gzip, xz or bzip2")
    try:
        archive = _inflate_head(first)[257:262] == b"ustar"
    except _DAMAGED:
        archive = False
    return Source(str(place), _tar(place) if archive else (stored,), single=not archive)


def _stored(place: Path, name: str) -> Member:
    def raw(n: int) -> bytes:
        with place.open("rb") as file:
            return file.read(n)

    return Member(str(place), name, raw)


def _tar(place: Path) -> tuple[Member, ...]:
    try:
        with tarfile.open(place, "r:*") as tar:
            found = [(entry.name, file.read()) for entry in tar if entry.isfile() and (file := tar.extractfile(entry))]
    except _DAMAGED as error:
        raise InputError(f"{place} is a truncated or damaged archive ({error}): fetch it again") from None
    return tuple(
        Member(f"{place}::{name}", name, lambda n, data=data: data if n < 0 else data[:n])  # type: ignore[misc]
        for name, data in sorted(found)
    )


def _inflate(data: bytes, label: str) -> bytes:
    kind = "gzip" if data.startswith(_GZIP) else "xz" if data.startswith(_XZ) else "bzip2"
    try:
        if data.startswith(_GZIP):
            return gzip.decompress(data)
        if data.startswith(_XZ):
            return lzma.decompress(data)
        if data.startswith(_BZIP2):
            return bz2.decompress(data)
    except (*_DAMAGED, ValueError):
        raise InputError(f"{label} is a truncated or damaged {kind} file: fetch it again") from None
    return data


def _inflate_head(data: bytes) -> bytes:
    if data.startswith(_GZIP):
        return zlib.decompressobj(wbits=31).decompress(data, HEAD)
    if data.startswith(_XZ):
        return lzma.LZMADecompressor().decompress(data, HEAD)
    if data.startswith(_BZIP2):
        return bz2.BZ2Decompressor().decompress(data, HEAD)
    return data


def _decode(data: bytes, label: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{label} is not UTF-8 text (byte {error.start}): convert it to UTF-8") from None
