"""Text to token ids: by the tokenizer.json of a Hugging Face folder, or by byte-level BPE, as GPT-2 and SmolLM2 use it,
from the vocabulary and merges of a GGUF file.

BPE: text is cut into words, a word's UTF-8 bytes become printable characters (GPT-2's table), and the pair with the
lowest merge rank is joined until none is left. SmolLM2 cuts every digit apart first. (Sennrich et al. 2016,
arXiv:1508.07909; GPT-2's encoder.)
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, Protocol

from kvsim.errors import InputError

# Python's re has no \p{L}; numerals are cut off before, so what is left of \w without _ are letters.
_WORD = re.compile(r"'(?:s|t|re|ve|m|ll|d)| ?[^\W_]+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+")
_KINDS = ("smollm",)


class Tokenizer(Protocol):
    """Text to token ids."""

    @property
    def begin(self) -> list[int]:
        """What the model expects before every text: its begin token, or nothing."""
        ...

    def encode(self, text: str) -> list[int]: ...


class BytePairs:
    """`encode` gives the ids that the model was trained on, without `begin`."""

    def __init__(self, tokens: Sequence[str], merges: Sequence[str], begin: Sequence[int] = ()) -> None:
        self.begin = list(begin)
        self._ids = {token: number for number, token in enumerate(tokens)}
        self._tokens = list(tokens)
        self._ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
        self._characters = _byte_characters()
        self._encode_word = lru_cache(maxsize=1 << 16)(self._merge)

    @classmethod
    def from_gguf(cls, metadata: dict[str, Any], path: object) -> BytePairs:
        kind = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
        if kind[0] != "gpt2" or kind[1] not in _KINDS:
            raise InputError(f"{path}: its tokenizer is {kind[0]}/{kind[1]}; kvsim reads gpt2/smollm from a GGUF file, "
                             "others from a Hugging Face folder with tokenizer.json")  # fmt: skip
        begin = [metadata["tokenizer.ggml.bos_token_id"]] if metadata.get("tokenizer.ggml.add_bos_token") else []
        return cls(metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.merges"], begin)

    def encode(self, text: str) -> list[int]:
        return [token for word in _words(text) for token in self._encode_word(word)]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; bytes that are no UTF-8 become U+FFFD."""
        byte = {character: number for number, character in enumerate(self._characters)}
        return bytes(byte[c] for i in ids for c in self._tokens[i]).decode("utf-8", errors="replace")

    def _merge(self, word: str) -> list[int]:
        parts = [self._characters[byte] for byte in word.encode()]
        while len(parts) > 1:
            ranks = [self._ranks.get(pair, len(self._ranks)) for pair in pairwise(parts)]
            best = min(ranks)
            if best == len(self._ranks):
                break
            at = ranks.index(best)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        return [self._ids[part] for part in parts]


class HuggingFace:
    """tokenizer.json of a folder, read by the package `tokenizers`. ModuleNotFoundError without it."""

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer as Reader

        self._reader = Reader.from_file(str(folder / "tokenizer.json"))
        path = folder / "tokenizer_config.json"
        try:
            self.begin = self._begin(json.loads(path.read_text()) if path.is_file() else {})
        except ValueError as error:
            raise InputError(f"{path}: is no JSON ({error})") from error

    def encode(self, text: str) -> list[int]:
        return list(self._reader.encode(text, add_special_tokens=False).ids)

    def _begin(self, config: dict[str, Any]) -> list[int]:
        """The begin token if the configuration asks for it; where it does not say, what tokenizer.json's own template
        puts before a text."""
        if (asked := config.get("add_bos_token")) is None:
            bare, whole = self.encode("a"), list(self._reader.encode("a").ids)
            return whole[: next((i for i in range(len(whole)) if whole[i : i + len(bare)] == bare), 0)]
        token = config.get("bos_token") if asked else None
        number = self._reader.token_to_id(token["content"] if isinstance(token, dict) else token) if token else None
        return [] if number is None else [number]


def _words(text: str) -> Iterator[str]:
    """GPT-2's cut, after SmolLM2's: a numeral stands alone and takes no space before it."""
    for numerals, letters in groupby(text, str.isnumeric):
        piece = "".join(letters)
        yield from piece if numerals else _WORD.findall(piece)


def _byte_characters() -> list[str]:
    """One printable character a byte: Latin-1 where that is printable, else from U+0100 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = iter(range(256, 512))
    return [chr(byte if byte in printable else next(hidden)) for byte in range(256)]
