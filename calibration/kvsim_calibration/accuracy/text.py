"""The text that perplexity is measured on: Python's own documentation, or a file."""

from __future__ import annotations

import hashlib
import platform
from dataclasses import dataclass
from pathlib import Path

from kvsim.errors import InputError


@dataclass(frozen=True, slots=True)
class Text:
    """`source` says which text it is, so that a number can be measured again."""

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
    return Text(text, f"pydoc_data.topics of Python {platform.python_version()}, each paragraph once, {_digest(text)}")


def read(path: Path) -> Text:
    """A UTF-8 file. Raises InputError where it is none."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"--text {path}: is not UTF-8 (byte {error.start}); give a plain text file") from error
    except OSError as error:
        raise InputError(f"--text {path}: {error.strerror}") from error
    return Text(text, f"{path.name}, {_digest(text)}")


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
