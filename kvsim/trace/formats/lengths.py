"""Files of lengths without arrival times, such as vidur's ShareGPT lengths. Arrivals come from a chosen process.

The column `pd_ratio` means output ÷ input in some of these files and the inverse in others, so it is not read.
"""

from __future__ import annotations

import numpy as np

from kvsim.errors import InputError
from kvsim.trace.build import Rows, finish
from kvsim.trace.files import Source
from kvsim.trace.formats.base import FORMATS, ReadOptions, TraceFormat
from kvsim.trace.formats.table import Table, header
from kvsim.trace.types import Trace

_NAMES = (("num_prefill_tokens", "num_decode_tokens"), ("prompt_tokens", "output_tokens"))
_CLOCKS = {"arrived_at", "arrival_s", "arrival_ms", "arrival_ns", "parent"}


@FORMATS("lengths")
class Lengths(TraceFormat):
    about = "lengths without times (CSV: num_prefill_tokens, num_decode_tokens); needs an arrival process"
    untimed = True
    columns = _NAMES[0]

    @staticmethod
    def sniff(source: Source) -> bool:
        names = set(header(source.only()))
        return source.single and not names & _CLOCKS and any(set(pair) <= names for pair in _NAMES)

    @staticmethod
    def read(source: Source, options: ReadOptions) -> Trace:
        names = header(source.only())
        prompt, output = _NAMES[1] if _NAMES[1][0] in names else _NAMES[0]
        table = Table(source.only(), (prompt, output))
        if options.arrivals is None:
            raise InputError(
                f"{source.path} has lengths and no arrival times: choose an arrival process, "
                f"such as {source.path}?arrivals=poisson:2 (requests per second) or ?arrivals=at-once"
            )
        arrival = options.arrivals.times(len(table), np.random.default_rng(options.seed))
        rows = Rows(arrival, table.tokens(prompt), table.tokens(output))
        return finish(rows, source.name, "lengths", where=table.where, clock=False)
