"""A progress bar for work over a second: on stderr, and only where a person sees it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_QUIET_S = 1.0

Update = Callable[[float, float], None]
"""(done, total): how far the work is, in any unit"""


@contextmanager
def progress(text: str) -> Iterator[Update]:
    """Yield a callback `update(done, total)` that draws a bar once the work has taken over a second.

    Silent where stderr is no terminal, so logs and pipes stay clean. Callers may call it as often as they like.
    """
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    bar = _Bar(text)
    try:
        yield bar.update
    finally:
        bar.close()


class _Bar:
    """rich's bar, started late."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._began = self._drawn = time.monotonic()
        self._close: Callable[[], None] | None = None
        self._set: Callable[[float, float], None] | None = None

    def update(self, done: float, total: float) -> None:
        now = time.monotonic()
        if now - self._began < _QUIET_S or now - self._drawn < 0.05:
            return
        self._drawn = now
        if self._set is None:
            self._start(total)
        assert self._set is not None
        self._set(done, total)

    def close(self) -> None:
        if self._close is not None:
            self._close()

    def _start(self, total: float) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        task = bar.add_task(self._text, total=total)
        bar.start()
        self._close = bar.stop
        self._set = lambda done, total: bar.update(task, completed=done, total=total)
