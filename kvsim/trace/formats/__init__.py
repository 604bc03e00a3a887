"""Trace formats, one file each. Importing this package registers them; no two claim the same content."""

from kvsim.trace.formats import (  # noqa: F401
    azure,
    burstgpt,
    claude_code,
    generic,
    lengths,
    measured,
    mooncake,
    ragpulse,
    servegen,
    vidur,
)
from kvsim.trace.formats.base import FORMATS, ReadOptions, TraceFormat

__all__ = ["FORMATS", "ReadOptions", "TraceFormat"]
