"""The texts that perplexity is measured on: Python's own documentation and a book, or a file."""

from __future__ import annotations

import gzip
import hashlib
import platform
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from kvsim.errors import InputError


@dataclass(frozen=True, slots=True)
class Text:
    """`source` says which text it is, so that a number can be measured again; `name` is short."""

    name: str
    text: str
    source: str


def documentation() -> Text:
    """The language reference's topics, as `help("topics")` shows them (module pydoc_data.topics), in order of name.

    Topics overlap, neighbours too (`typesseq`, `typesseq-mutable`): each paragraph comes once, since a model that sees
    one again only has to copy it. Each Python version has its own text; `source` names version and hash.
    """
    from pydoc_data.topics import topics

    paragraphs = (paragraph for name in sorted(topics) for paragraph in topics[name].split("\n\n"))
    text = "\n\n".join(dict.fromkeys(paragraphs))
    source = f"pydoc_data.topics of Python {platform.python_version()}, each paragraph once, {_digest(text)}"
    return Text("Python's docs", text, source)


def book() -> Text:
    """Isaac Newton's Opticks, fourth edition (1730), continuous English prose of 145,000 of SmolLM2's tokens.

    Streams are measured on it because StreamingLLM's are on such books (PG19: Project Gutenberg's). In the public
    domain, produced by Suzanne Lybarger, Steve Harris, Josephine Paolucci and the Online Distributed Proofreading Team
    (http://www.pgdp.net); as libbacktrace, and with it GCC and the package apache-tvm-ffi, ships it for tests.
    """
    packed = files("kvsim_calibration.accuracy").joinpath("opticks.txt.gz").read_bytes()
    text = gzip.decompress(packed).decode()
    return Text("Newton's Opticks", text, f"Newton's Opticks (1730), {_digest(text)}")


def read(path: Path) -> Text:
    """A UTF-8 file. Raises InputError where it is none."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"--text {path}: is not UTF-8 (byte {error.start}); give a plain text file") from error
    except OSError as error:
        raise InputError(f"--text {path}: {error.strerror}") from error
    return Text(path.name, text, f"{path.name}, {_digest(text)}")


def chunks(tokens: list[int], count: int, length: int) -> list[list[int]]:
    """At most `count` pieces of `length` tokens that share none, spread evenly over the text.

    Raises InputError where the text has not one piece.
    """
    fitting = min(count, len(tokens) // length)
    if fitting == 0:
        raise InputError(f"the text has {len(tokens):,} tokens; one chunk needs {length:,}: "
                         "give a longer one with --text, or a smaller --context")
    stride = len(tokens) // fitting
    return [tokens[i * stride : i * stride + length] for i in range(fitting)]


def _digest(text: str) -> str:
    return f"sha256 {hashlib.sha256(text.encode()).hexdigest()[:16]}"
