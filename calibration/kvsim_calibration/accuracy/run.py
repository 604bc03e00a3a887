"""A whole measurement: texts, streams and needles, every policy on each, resumed where an earlier run stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from threading import Event, Lock
from typing import Any

import torch

from kvsim_calibration.accuracy import basis, measure
from kvsim_calibration.accuracy.evict import check
from kvsim_calibration.accuracy.items import Item
from kvsim_calibration.accuracy.policies import FULL_CACHE, Policy
from kvsim_calibration.accuracy.stored import IN_BASIS
from kvsim_calibration.accuracy.weights import Loaded
from kvsim_calibration.lines import Lines, Row


def run(loaded: Loaded, work: Sequence[Item], kept: Lines, update: Callable[[float, float], None],
        workers: int = 1) -> list[Row]:  # fmt: skip
    """All rows of these items; those that `kept` has already are not measured again.

    `workers` items at a time, each on one thread of torch, so what comes out does not depend on their number. A run
    that is stopped ends when each has finished the policy it is at.
    """
    for policy in {policy for item in work for policy in item.policies}:
        check(policy.retention)
    wanted = {(*item.name, policy.name): _size(item, policy)
              for item in work for policy in (FULL_CACHE, *item.policies)}  # fmt: skip
    todo = {item: missing for item in work if (missing := _missing(item, kept))}
    lock, stop, threads, whole = Lock(), Event(), torch.get_num_threads(), sum(wanted.values())

    def one(item: Item, bases: Sequence[basis.Basis]) -> None:
        if stop.is_set():
            return
        try:
            for row in _fresh(loaded, item, todo[item], bases):
                with lock:
                    if stop.is_set():
                        return
                    kept.add(row)
                    update(sum(wanted.get(_name(row), 0) for row in kept.rows), whole)
        except BaseException:
            stop.set()  # here, before this thread takes the next item
            raise

    with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        try:
            based = any(policy.precision.endswith(IN_BASIS) for missing in todo.values() for policy in missing)
            bases = pool.submit(basis.fitted, loaded.model, loaded.tokenizer).result() if based else []
            for done in as_completed([pool.submit(one, item, bases) for item in todo]):
                done.result()
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)
            torch.set_num_threads(threads)
    update(whole, whole)
    return [row for row in kept.rows if _name(row) in wanted]


def _size(item: Item, policy: Policy) -> int:
    """Tokens to compute, for the progress bar."""
    return len(item.tokens) - (0 if policy == FULL_CACHE else item.prompt)


def _missing(item: Item, kept: Lines) -> list[Policy]:
    """The full cache counts as a policy here: it is measured anew where any of them is missing."""
    done = {_name(row) for row in kept.rows}
    return [policy for policy in (FULL_CACHE, *item.policies) if (*item.name, policy.name) not in done]


def _fresh(loaded: Loaded, item: Item, missing: Sequence[Policy], bases: Sequence[basis.Basis]) -> Iterator[Row]:
    others = [policy for policy in missing if policy != FULL_CACHE]
    for row in measure.compare(loaded.model, item.tokens, item.prompt, others, bases, item.scored):
        if row.policy != FULL_CACHE.name or FULL_CACHE in missing:
            yield {**item.key, **row.facts()}


def _name(row: Row) -> tuple[Any, ...]:
    return row["kind"], row["item"], row["context"], row.get("text"), row["policy"]
