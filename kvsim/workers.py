"""Worker processes that may die: `plan` and `sweep` hand tasks to them and take answers as they come.

A worker is a Python of its own that runs `main`, fed by pickles over its pipes, so a program that calls `plan` needs no
`if __name__ == "__main__"` and a worker that is killed takes one task with it, not the pool (as
concurrent.futures does). A worker ends when its parent does.
"""

from __future__ import annotations

import os
import pickle
import selectors
import signal
import subprocess
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Any, Protocol

Work = Callable[[Any, Any], Any]
"""(what all tasks share, task) → answer; a function of a module, pickled by name"""


@dataclass(frozen=True, slots=True)
class Failure:
    """A task without an answer."""

    message: str
    """one line"""
    detail: str = ""
    """the worker's traceback"""
    died: bool = False
    """the worker is gone: killed, out of memory, crashed"""


class Executor(Protocol):
    """Where tasks run. Answers come in any order."""

    def run(self, work: Work, shared: Any, tasks: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        """(number of the task, its answer or a Failure) of every task, as they finish."""
        ...


@dataclass(frozen=True, slots=True)
class InProcess:
    """No workers: one task after the other, here."""

    def run(self, work: Work, shared: Any, tasks: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        for number, task in enumerate(tasks):
            yield number, attempt(work, shared, task)


@dataclass
class Local:
    """`count` worker processes on this machine. A task whose worker died is tried again `retries` times."""

    count: int = field(default_factory=lambda: os.cpu_count() or 1)
    retries: int = 2

    def run(self, work: Work, shared: Any, tasks: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        todo = deque((number, task, 0) for number, task in enumerate(tasks))
        first = pickle.dumps((list(sys.path), work, shared))
        with selectors.DefaultSelector() as ready:
            busy: dict[_Worker, tuple[int, Any, int]] = {}
            try:
                for _ in range(min(self.count, len(todo))):
                    self._next(_Worker(first), todo, busy, ready)
                while busy:
                    for key, _ in ready.select():
                        worker = key.data
                        number, task, deaths = busy.pop(worker)
                        answer = worker.answer()
                        if isinstance(answer, Failure) and answer.died:
                            ready.unregister(worker.output)
                            worker.close()
                            worker = _Worker(first)
                            if deaths < self.retries:
                                todo.appendleft((number, task, deaths + 1))
                                self._next(worker, todo, busy, ready)
                                continue
                            answer = Failure(f"{answer.message}, {deaths + 1} times", died=True)
                        self._next(worker, todo, busy, ready)
                        yield number, answer
            finally:
                for worker in busy:
                    worker.close()

    @staticmethod
    def _next(
        worker: _Worker, todo: deque[tuple[int, Any, int]], busy: dict[_Worker, tuple[int, Any, int]],
        ready: selectors.BaseSelector,
    ) -> None:
        """Give `worker` a task, or its leave."""
        if not todo:
            if worker.output in ready.get_map():
                ready.unregister(worker.output)
            worker.close()
            return
        busy[worker] = todo.popleft()
        worker.give(busy[worker][1])
        if worker.output not in ready.get_map():
            ready.register(worker.output, selectors.EVENT_READ, worker)


class _Worker:
    """One process, seen from its parent."""

    def __init__(self, first: bytes) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from kvsim.workers import main; main()"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "POLARS_MAX_THREADS": "1"},
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input: IO[bytes] = self._process.stdin
        self.output: IO[bytes] = self._process.stdout
        self._write(first)

    def give(self, task: Any) -> None:
        self._write(pickle.dumps(task))

    def _write(self, message: bytes) -> None:
        with suppress(BrokenPipeError):  # where it is dead `answer` will say so
            self._input.write(len(message).to_bytes(8, "little") + message)
            self._input.flush()

    def answer(self) -> Any:
        message = _read(self.output)
        if message is None:
            code = self._process.wait()
            how = f"signal {-code}" if code < 0 else f"exit {code}"
            return Failure(f"its worker died ({how})", died=True)
        return pickle.loads(message)

    def close(self) -> None:
        for pipe in (self._input, self.output):
            with suppress(BrokenPipeError):
                pipe.close()
        self._process.kill()
        self._process.wait()


def attempt(work: Work, shared: Any, task: Any) -> Any:
    """The answer, or what went wrong as a Failure: one bad task stops no other."""
    try:
        return work(shared, task)
    except Exception as error:
        return Failure(f"{type(error).__name__}: {error}", traceback.format_exc())


def _read(pipe: IO[bytes]) -> bytes | None:
    """One message; None where the other side is gone."""
    head = pipe.read(8)
    if len(head) < 8:
        return None
    size = int.from_bytes(head, "little")
    message = pipe.read(size)
    return message if len(message) == size else None


def main() -> None:
    """The worker's side: read what all tasks share, then answer tasks until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends its workers
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # answers only
    message = _read(source)
    if message is None:
        return
    path, work, shared = pickle.loads(message)
    sys.path[:] = path
    while (message := _read(source)) is not None:
        answer = pickle.dumps(attempt(work, shared, pickle.loads(message)))
        sink.write(len(answer).to_bytes(8, "little") + answer)
        sink.flush()

