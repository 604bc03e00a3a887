"""Prefill chunks, preemptions and swaps of a run, overheard from its scheduler while the app simulates.

A Result knows when a request came, was first scheduled, had its first and its last token; what lay between is in no
table of it, for a run that is not looked at should not pay for it. Every plan with work in it is one row of the
Result's `steps`, in order: so plans are enough, and need no clock.
"""

from __future__ import annotations

from array import array
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from kvsim.cache.base import Sequence
from kvsim.fleet import is_cluster
from kvsim.result import Result
from kvsim.sched.base import Plan, Scheduler, State
from kvsim.setup import Setup

EVENTS = ("chunk", "prompt end", "preempted", "swapped", "loading", "resumed")
"""a prefill chunk; one that ends the input, so that a token follows; its memory was taken; it was taken and kept in
host memory; it waits for host memory; it decodes on, for nothing had to be computed again"""
CHUNK, PROMPT_END, PREEMPTED, SWAPPED, LOADING, RESUMED = range(len(EVENTS))


def beside(folder: Path) -> Path:
    """Where events of the run in a Result folder are."""
    return folder.with_name(f"{folder.name}.events.parquet")


class Telling(Scheduler):
    """A scheduler whose plans somebody hears."""

    def __init__(self, inner: Scheduler, listener: Overheard) -> None:
        self._inner, self._listener = inner, listener
        self.holds_batch = inner.holds_batch

    def plan(self, state: State) -> Plan:
        found = self._inner.plan(state)
        self._listener.hear(state, found)
        return found


class Overheard:
    """Events of one run: as many as it has prefill chunks, however long it decodes."""

    def __init__(self) -> None:
        self._events = array("q")
        """(step, row, event, tokens)"""
        self._step = 0
        self._filling: set[int] = set()
        """rows whose input is being computed"""
        self._loading: list[Sequence] = []

    def of(self, setup: Setup) -> Setup:
        """`setup` with a scheduler that tells the plans of the first run. Clusters, whose plans are of several
        replicas, and SGLang's scheduler, which makes no such plans, stay as they are: nothing is overheard."""
        if is_cluster(setup.scenario) or setup.spec.prefix == "radix":
            return setup
        listeners = [self]

        def telling() -> Scheduler:
            scheduler = setup.scheduler()
            return Telling(scheduler, listeners.pop()) if listeners else scheduler

        return replace(setup, scheduler=telling)  # type: ignore[arg-type]

    def hear(self, state: State, plan: Plan) -> None:
        """What the coming step will do."""
        if plan.preempted:
            self._preempted(state, plan)
        if self._loading:
            self._resumed()
        if plan.admitted:
            self._admitted(plan)
        if self._filling:
            for seq, tokens, context in plan.chunks:
                if seq.row in self._filling:
                    ends = context + tokens == seq.prompt + seq.generated
                    self._add(seq, PROMPT_END if ends else CHUNK, tokens)
                    if ends:
                        self._filling.remove(seq.row)
        if plan.chunks or plan.steps:
            self._step += 1

    def _preempted(self, state: State, plan: Plan) -> None:
        swaps = getattr(state.kv, "swap", False)
        for seq in plan.preempted:
            self._add(seq, SWAPPED if swaps and state.kv.loads(seq) else PREEMPTED)
            self._filling.discard(seq.row)

    def _admitted(self, plan: Plan) -> None:
        self._filling.update(seq.row for seq in plan.admitted)
        computing = {seq.row for seq, _, _ in plan.chunks}
        for seq in plan.admitted:
            if seq.row not in computing:
                self._add(seq, LOADING)
                self._loading.append(seq)

    def _resumed(self) -> None:
        """Of those that waited for host memory: who decodes though no chunk has ended its input."""
        self._loading = [seq for seq in self._loading if seq.row in self._filling]
        for seq in self._loading:
            if seq.decoding:
                self._add(seq, RESUMED)
                self._filling.remove(seq.row)

    def _add(self, seq: Sequence, event: int, tokens: int = 0) -> None:
        self._events.extend((self._step, seq.row, event, tokens))

    def table(self, result: Result) -> pl.DataFrame:
        """`row` of the trace, `event` (an index of EVENTS), `start_ns` and `end_ns` of its step, `tokens` of a chunk:
        by row, in order. Empty where nothing was overheard."""
        steps, rows, events, tokens = np.frombuffer(self._events, np.int64).reshape(-1, 4).T
        table = result.steps
        over = int(table["end_ns"].max() or 0)  # type: ignore[arg-type]
        start, end = (np.append(table[name].to_numpy(), over)[steps] for name in ("start_ns", "end_ns"))
        frame = pl.DataFrame({"row": rows, "event": events, "start_ns": start, "end_ns": end, "tokens": tokens})
        return frame.sort("row", maintain_order=True)

    def save(self, folder: Path, result: Result) -> None:
        """Write the table beside the folder that the Result will be saved in; no file where nothing was overheard."""
        if self._events:
            folder.parent.mkdir(parents=True, exist_ok=True)
            self.table(result).write_parquet(beside(folder), compression_level=1)
