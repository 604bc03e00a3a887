"""RAGPulse (flashserve/RAGPulse, MIT): a retrieval service. Ids are whole components of unequal length, not blocks.

A prompt is its components in the listed order: system prompt, passages, history, web search, question. Their ids stand
for contents, so they are chained here: the same id after a different beginning becomes a different one. Lengths are
in five tables beside the trace. `input_length` exceeds the sum of its components by 6 to 12 tokens of template, and
nobody says where they stand: they are spread over all components of the file in proportion (rule `extent`).
"""

from __future__ import annotations

import numpy as np

from kvsim.errors import InputError
from kvsim.trace import build
from kvsim.trace.build import Rows, finish
from kvsim.trace.chain import Blocks, chain
from kvsim.trace.files import Member, Source
from kvsim.trace.formats.base import FORMATS, ReadOptions, TraceFormat
from kvsim.trace.formats.jsonlines import JsonLines, has_keys
from kvsim.trace.types import Int, Trace
from kvsim.units import NS_PER_S

_PARTS = {  # key of the trace, key of its table
    "sys_prompt": "sys_prompt_id",
    "passages_ids": "passage_id",
    "history": "history_id",
    "web_search": "web_search_id",
    "user_input": "user_input_id",
}
_KEYS = ("timestamp", "input_length", "output_length", "hash_ids", "session_id")


@FORMATS("ragpulse")
class RAGPulse(TraceFormat):
    about = "RAGPulse (a folder or tar: the trace's JSON lines and the five tables of component lengths)"

    @staticmethod
    def sniff(source: Source) -> bool:
        return any(_is_trace(member) for member in source.members)

    @staticmethod
    def read(source: Source, options: ReadOptions) -> Trace:
        traces = [member for member in source.members if _is_trace(member)]
        if len(traces) > 1:
            raise InputError(f"{source.path} holds several RAGPulse traces: name one, like {traces[0].label}")
        lines = JsonLines(traces[0])
        prompt = lines.tokens("input_length")
        rows = Rows(
            build.times(_seconds(lines), NS_PER_S, "timestamp", lines.where),
            prompt,
            lines.tokens("output_length"),
            session=np.unique([str(s) for s in lines.column("session_id")], return_inverse=True)[1].astype(np.int64),
            blocks=_components(lines, _tables(source), prompt),
        )
        return finish(rows, source.name, "ragpulse", where=lines.where)


def _is_trace(member: Member) -> bool:
    return has_keys(member, _KEYS) and '"sys_prompt"' in member.first_line()


def _seconds(lines: JsonLines) -> list[object]:
    """Timestamps, which are numbers in strings."""
    seconds: list[object] = []
    for row, text in enumerate(lines.column("timestamp")):
        try:
            seconds.append(float(text))
        except (TypeError, ValueError):
            raise InputError(f"{lines.where(row)}: timestamp is {text!r}, it must be seconds") from None
    return seconds


def _tables(source: Source) -> dict[tuple[str, int], int]:
    """(part, id) → tokens."""
    lengths: dict[tuple[str, int], int] = {}
    for part, key in _PARTS.items():
        table = next((member for member in source.members if has_keys(member, (key, "token_length"))), None)
        if table is None:
            raise InputError(
                f"{source.path} lacks the table of {key}: a RAGPulse trace is a folder or tar that holds the trace "
                "and the five tables of component lengths"
            )
        lines = JsonLines(table)
        tokens = lines.tokens("token_length").tolist()
        numbers = build.whole(lines.column(key), key, lines.where).tolist()
        lengths.update(zip(((part, number) for number in numbers), tokens, strict=True))
    return lengths


def _components(lines: JsonLines, lengths: dict[tuple[str, int], int], prompt: Int) -> Blocks:
    known: dict[tuple[str, int], int] = {}
    ids: list[int] = []
    sums: list[int] = []
    start = [0]
    totals = 0
    for row, parts in enumerate(lines.column("hash_ids")):
        total = 0
        for part in _PARTS:
            listed = parts.get(part, []) if isinstance(parts, dict) else None
            if not isinstance(listed, list):
                raise InputError(f"{lines.where(row)}: hash_ids must be an object of lists, such as {part}")
            for number in listed:
                if type(number) is not int or (part, number) not in lengths:
                    raise InputError(f"{lines.where(row)}: the table of {_PARTS[part]} has no id {number!r}")
                ids.append(known.setdefault((part, number), len(known)))
                total += lengths[part, number]
                sums.append(total)
        totals += total
        start.append(len(ids))
    bounds = np.asarray(start, np.int64)
    # One ratio for the whole file, so that equal beginnings end at the same token in every row.
    spread = np.asarray(sums, np.int64) * int(prompt.sum()) // max(totals, 1)
    ends = np.minimum(spread, np.repeat(prompt, np.diff(bounds)))
    return Blocks(chain(np.asarray(ids, np.int64), bounds), bounds, ends, 0, "extent")
