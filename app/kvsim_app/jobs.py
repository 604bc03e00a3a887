"""Work beside the page: a few worker processes, a queue, and what was made kept by the hash of what was asked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from kvsim.errors import InputError
from kvsim.scenario import Scenario
from kvsim.simulate import check
from kvsim_app.store import Store

WORKERS = max(1, min(2, os.cpu_count() or 1))


@dataclass(eq=False)
class Job:
    """One task for a scenario (tasks.py), and where what it makes will be. `state` is waiting, running, done, failed or
    cancelled; `share` is how much of it is done."""

    task: str
    scenario: Scenario
    options: dict[str, str]
    place: Path
    state: str = "waiting"
    share: float = 0.0
    error: str = ""
    process: subprocess.Popen[str] | None = None

    @property
    def ended(self) -> bool:
        return self.state in ("done", "failed", "cancelled")


def _refusal(scenario: Scenario) -> str:
    """Why no worker need begin with it, if so."""
    try:
        check(scenario)
    except InputError as error:
        return str(error)
    return ""


@dataclass
class Pool:
    """Does tasks for one store, `WORKERS` at a time. What is asked for twice is done once."""

    store: Store
    _queue: deque[Job] = field(default_factory=deque)
    _jobs: dict[Path, Job] = field(default_factory=dict)
    _news: threading.Condition = field(default_factory=threading.Condition)

    def __post_init__(self) -> None:
        for _ in range(WORKERS):
            threading.Thread(target=self._serve, daemon=True).start()

    def submit(self, scenario: Scenario, task: str = "run", **options: str) -> Job:
        """The job of a scenario: done at once where what it makes is kept, cancelled where it was stopped and nobody
        has said `resume`. Raises InputError where it may not run here."""
        scenario = self.store.admit(scenario)
        place = self.store.place(scenario, task, options)
        with self._news:
            kept = (place / "run.json").is_file() if task == "run" else place.is_file()
            job = self._jobs.get(place)
            if job is None or job.state == "failed" or (job.state == "done" and not kept):
                job = self._jobs[place] = Job(task, scenario, options, place)
                if kept:
                    job.state, job.share = "done", 1.0
                elif error := _refusal(scenario):
                    job.state, job.error = "failed", error
                else:
                    self._queue.append(job)
                    self._news.notify()
            return job

    def cancel(self, jobs: Iterable[Job]) -> None:
        """Stop jobs that have not ended. Their worker is killed: it loses nothing, runs are written whole or not."""
        with self._news:
            for job in jobs:
                if not job.ended:
                    job.state = "cancelled"
                    if job.process is not None:
                        job.process.kill()

    def resume(self) -> None:
        """What was cancelled may be asked for again."""
        with self._news:
            for place in [place for place, job in self._jobs.items() if job.state == "cancelled"]:
                del self._jobs[place]

    def _serve(self) -> None:
        process = _start()
        while True:
            with self._news:
                while not self._queue:
                    self._news.wait()
                job = self._queue.popleft()
                if job.ended:
                    continue
                if process.poll() is not None:
                    process = _start()
                job.state, job.process = "running", process
            answer = _talk(process, job)
            if answer is None:
                process.wait()
                answer = {"error": "the process ended without an answer: was it out of memory?"}
            with self._news:
                job.process = None
                if job.state != "cancelled":
                    job.error = answer.get("error", "")
                    job.state, job.share = ("failed" if job.error else "done"), 1.0


def _start() -> subprocess.Popen[str]:
    # Not multiprocessing: under Streamlit `__main__` is the page, which a spawned child would run again.
    return subprocess.Popen(
        [sys.executable, "-m", "kvsim_app.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def _talk(process: subprocess.Popen[str], job: Job) -> dict[str, str] | None:
    """Send a job and follow it to its end; None where the process died."""
    assert process.stdin and process.stdout
    question = {
        "task": job.task, "scenario": job.scenario.model_dump(mode="json"), "options": job.options,
        "place": str(job.place),
    }  # fmt: skip
    try:
        process.stdin.write(json.dumps(question) + "\n")
        process.stdin.flush()
        for line in process.stdout:
            message = json.loads(line)
            if "done" not in message:
                return dict(message)
            job.share = message["done"]
    except OSError:
        pass
    return None
