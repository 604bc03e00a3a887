"""Mooncake traces (kvcache-ai/Mooncake, Apache-2.0): milliseconds, and one chained id per 512-token block.

The last, partial block has an id of its own (rule `ceil`), so blocks × 512 exceeds the prompt. Arrivals come in ticks
of about 3 s; within a tick the order is the file's. Other tools write this format with other block sizes: an option.
"""

from __future__ import annotations

import re

import numpy as np

from kvsim.errors import InputError
from kvsim.trace.build import Rows, finish
from kvsim.trace.chain import Blocks
from kvsim.trace.files import Source
from kvsim.trace.formats.base import FORMATS, ReadOptions, TraceFormat
from kvsim.trace.formats.jsonlines import JsonLines, has_keys
from kvsim.trace.types import Trace
from kvsim.units import NS_PER_MS

_BLOCK = 512
_COMPONENTS = re.compile(r'"hash_ids"\s*:\s*\{')  # RAGPulse's are an object of lists
_KEYS = ("timestamp", "input_length", "output_length", "hash_ids")


@FORMATS("mooncake")
class Mooncake(TraceFormat):
    about = "Mooncake traces (JSON lines: timestamp in ms, input_length, output_length, hash_ids of 512-token blocks)"
    columns = _KEYS

    @staticmethod
    def sniff(source: Source) -> bool:
        member = source.only()
        return source.single and has_keys(member, _KEYS) and not _COMPONENTS.search(member.first_line())

    @staticmethod
    def read(source: Source, options: ReadOptions) -> Trace:
        lines = JsonLines(source.only())
        prompt = lines.tokens("input_length")
        ids, start = lines.lists("hash_ids")
        size = options.block_size or _BLOCK
        blocks = -(-prompt // size)
        wrong = np.flatnonzero(np.diff(start) != blocks)
        if len(wrong):
            row = int(wrong[0])
            raise InputError(
                f"{lines.where(row)}: {start[row + 1] - start[row]} hash_ids for {prompt[row]} prompt tokens, it must "
                f"be {blocks[row]}, one per {size}-token block and one for the rest (?block_size= chooses)"
            )
        rows = Rows(
            lines.times("timestamp", NS_PER_MS),
            prompt,
            lines.tokens("output_length"),
            blocks=Blocks.of_size(ids, start, size, "ceil", prompt),
        )
        return finish(rows, source.name, "mooncake", where=lines.where)
