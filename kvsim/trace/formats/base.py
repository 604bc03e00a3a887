"""What a trace format is, and the registry of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from kvsim.registry import Registry
from kvsim.trace.arrivals import Arrivals
from kvsim.trace.files import Source
from kvsim.trace.types import Trace


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a reader may need to know that the file does not say."""

    arrivals: Arrivals | None = None
    """for files without arrival times, and conversations that have clocks of their own"""
    seed: int = 0
    block_size: int | None = None
    """tokens a block, where block ids are computed from token ids, or where the file does not say"""
    start_ns: int | None = None
    end_ns: int | None = None
    """the part wanted of what is generated from distributions; of other files `load` cuts it"""


class TraceFormat(ABC):
    """One format, in one file of this folder: a class that is registered itself, never an instance."""

    about: ClassVar[str]
    """one line for `kvsim list trace-formats`"""
    columns: ClassVar[tuple[str, ...]] = ()
    """columns of its CSV, or keys of its JSON lines, that it cannot do without; empty for other kinds"""

    untimed: ClassVar[bool] = False
    """it has no common clock, and takes beginnings from `ReadOptions.arrivals` itself"""

    @staticmethod
    @abstractmethod
    def sniff(source: Source) -> bool:
        """Whether the content is of this format. Looks at heads only, and never at a name alone."""

    @staticmethod
    @abstractmethod
    def read(source: Source, options: ReadOptions) -> Trace:
        """The trace. Raises InputError with file and line."""


FORMATS: Registry[type[TraceFormat]] = Registry("trace format")
"""No two formats claim the same content, so their order does not matter."""
