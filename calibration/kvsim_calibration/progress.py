"""One line on stderr that says what is being fitted; nothing where stderr is no terminal."""

from __future__ import annotations

from types import TracebackType


class Steps:
    """`with Steps() as steps: steps("reading")`."""

    def __enter__(self) -> Steps:
        from rich.console import Console

        console = Console(stderr=True)
        self._status = console.status("", spinner="dots") if console.is_terminal else None
        if self._status:
            self._status.start()
        return self

    def __call__(self, text: str) -> None:
        if self._status:
            self._status.update(text)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
                 ) -> None:
        if self._status:
            self._status.stop()
