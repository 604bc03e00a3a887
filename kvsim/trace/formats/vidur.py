"""vidur's processed traces (microsoft/vidur, MIT): seconds since the first request, prefill and decode tokens."""

from __future__ import annotations

from kvsim.trace.build import Rows, finish
from kvsim.trace.files import Source
from kvsim.trace.formats.base import FORMATS, ReadOptions, TraceFormat
from kvsim.trace.formats.table import Table, has_columns
from kvsim.trace.types import Trace
from kvsim.units import NS_PER_S

_COLUMNS = ("arrived_at", "num_prefill_tokens", "num_decode_tokens")


@FORMATS("vidur")
class Vidur(TraceFormat):
    about = "vidur traces (CSV: arrived_at, num_prefill_tokens, num_decode_tokens)"
    columns = _COLUMNS

    @staticmethod
    def sniff(source: Source) -> bool:
        return source.single and has_columns(source.only(), _COLUMNS)

    @staticmethod
    def read(source: Source, options: ReadOptions) -> Trace:
        table = Table(source.only(), _COLUMNS)
        rows = Rows(
            table.times("arrived_at", NS_PER_S), table.tokens("num_prefill_tokens"), table.tokens("num_decode_tokens")
        )
        return finish(rows, source.name, "vidur", where=table.where)
