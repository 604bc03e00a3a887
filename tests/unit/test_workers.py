"""Worker processes: answers, failures, and workers that die."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from kvsim.workers import Failure, InProcess, Local


def work(shared: Path, task: int) -> int:
    """Answers but for 3 (wrong), 5 (dies once) and 7 (dies always)."""
    if task == 3:
        raise ValueError("three is wrong")
    if task == 7 or (task == 5 and not (shared / "died").exists()):
        (shared / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return task * task


def nap(shared: None, seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


@pytest.mark.parametrize("workers", [1, 3])
def test_one_bad_task_stops_no_other(tmp_path: Path, workers: int) -> None:
    found: dict[int, Any] = dict(Local(workers).run(work, tmp_path, range(12)))
    assert set(found) == set(range(12))
    assert [found[i] for i in range(12) if i not in (3, 7)] == [i * i for i in range(12) if i not in (3, 7)]
    assert isinstance(found[3], Failure) and found[3].message == "ValueError: three is wrong" and not found[3].died
    assert found[7].died and "signal 9" in found[7].message and "3 times" in found[7].message


def test_without_workers_the_answers_are_the_same() -> None:
    assert list(InProcess().run(nap, None, [0.0, 0.0])) == [(0, os.getpid()), (1, os.getpid())]


def test_workers_share_the_tasks_and_end() -> None:
    pids = {pid for _, pid in Local(2).run(nap, None, [0.2] * 4)}
    assert len(pids) == 2 and os.getpid() not in pids
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_answers_that_nobody_wants_end_the_workers() -> None:
    answers = Local(2).run(nap, None, [0.0] * 50)
    _, pid = next(answers)
    answers.close()  # type: ignore[attr-defined]
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
