"""Trace formats, one file each. Importing this package registers them, in the order in which they are tried."""

from kvsim.trace.formats import (  # noqa: F401
    azure,
    burstgpt,
    vidur,
    mooncake,
    claude_code,
    ragpulse,
    measured,
    servegen,
    generic,
    lengths,
)
from kvsim.trace.formats.base import FORMATS, ReadOptions, TraceFormat

__all__ = ["FORMATS", "ReadOptions", "TraceFormat"]
