"""BurstGPT (HPMLL/BurstGPT, CC-BY-4.0): campus use of ChatGPT and GPT-4. Whole seconds; failures are rows of zeros.

Release 3 has `Session ID` and `Elapsed time` as its second and third columns, so columns go by name.
"""

from __future__ import annotations

from kvsim.trace.build import Rows, finish
from kvsim.trace.files import Source
from kvsim.trace.formats.base import FORMATS, ReadOptions, TraceFormat
from kvsim.trace.formats.table import Table, has_columns
from kvsim.trace.types import Trace
from kvsim.units import NS_PER_S

_COLUMNS = ("Timestamp", "Request tokens", "Response tokens")


@FORMATS("burstgpt")
class BurstGPT(TraceFormat):
    about = "BurstGPT, all releases (CSV: Timestamp, Request tokens, Response tokens, optional Session ID)"
    columns = _COLUMNS

    @staticmethod
    def sniff(source: Source) -> bool:
        return source.single and has_columns(source.only(), _COLUMNS)

    @staticmethod
    def read(source: Source, options: ReadOptions) -> Trace:
        table = Table(source.only(), _COLUMNS)
        rows = Rows(
            table.times("Timestamp", NS_PER_S),
            table.tokens("Request tokens"),
            table.tokens("Response tokens"),
            session=table.groups("Session ID") if "Session ID" in table else None,
        )
        return finish(rows, source.name, "burstgpt", where=table.where)
