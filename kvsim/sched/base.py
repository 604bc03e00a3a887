"""What a scheduler sees and what it answers. Schedulers decide; they have no clock and no effect outside the cache.

A plan is always carried out, so a scheduler takes memory from the cache as it plans (as real engines do) instead of on
a draft that would be committed later.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, Protocol

from mypy_extensions import mypyc_attr

from kvsim.cache.base import Allocator, Sequence
from kvsim.registry import Registry


class DecodingSet(Protocol):
    """The part of engine.decode_set.DecodeSet that schedulers use."""

    sequences: set[Sequence]
    step: int
    latest: int
    count: int

    def join(self, seq: Sequence) -> None: ...
    def leave(self, seq: Sequence) -> None: ...
    def last(self) -> Sequence: ...
    def horizon(self) -> int: ...
    def advance(self, steps: int) -> list[Sequence]: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds a batch."""

    sequences: int = 256
    """running at the same time (vLLM: max_num_seqs)"""
    tokens: int = 2048
    """computed in one step (vLLM: max_num_batched_tokens)"""
    chunk: int = 0
    """of one prompt in one step (vLLM: long_prefill_token_threshold); 0: no such limit"""
    whole_prompt: bool = False
    """admit a request only where its whole prompt fits in memory now"""
    reserve_output: bool = False
    """admit a request only where it and all that run can reach their last token (TensorRT-LLM's guaranteed no-evict)"""
    priority: bool = False
    """waiting requests by (priority, arrival) instead of by arrival; the least urgent one is preempted"""


@mypyc_attr(native_class=False)
class Waiting(deque[Sequence]):
    """The queue of requests that hold no memory: first come first served; preempted ones return to its head."""

    def arrive(self, seq: Sequence) -> None:
        self.append(seq)

    def come_back(self, seq: Sequence) -> None:
        self.appendleft(seq)

    def head(self) -> Sequence:
        return self[0]

    def take(self) -> Sequence:
        return self.popleft()


@mypyc_attr(native_class=False)
class PriorityWaiting(list[tuple[int, int, Sequence]]):
    """Most urgent first, then by arrival, also for those that come back: a heap."""

    def arrive(self, seq: Sequence) -> None:
        heappush(self, (seq.priority, seq.row, seq))

    def come_back(self, seq: Sequence) -> None:
        self.arrive(seq)

    def head(self) -> Sequence:
        return self[0][2]

    def take(self) -> Sequence:
        return heappop(self)[2]


class Plan:
    """What the next step computes."""

    __slots__ = ("admitted", "chunks", "open", "preempted", "steps", "taken")

    def __init__(self) -> None:
        self.chunks: list[tuple[Sequence, int, int]] = []
        """(sequence, tokens to compute, tokens it has in the cache before)"""
        self.steps = 0
        """steps in which all decoding sequences can take part, one token each; 0: they do not. More than one only where
        there are no chunks and the plan would stay the same for as long"""
        self.taken = 0
        """of these, how many the cache has already been advanced by"""
        self.open = True
        """whether a new arrival could change the plan before a sequence ends"""
        self.admitted: list[Sequence] = []
        self.preempted: list[Sequence] = []


class State:
    """What a replica's scheduler looks at."""

    __slots__ = (
        "admissions", "blocked", "decode", "kv", "limits", "lingering", "loading", "max_stride", "partial", "promised",
        "waiting",
    )

    def __init__(self, decode: DecodingSet, kv: Allocator, limits: Limits, max_stride: int) -> None:
        self.decode = decode
        self.kv = kv
        self.limits = limits
        self.max_stride = max_stride
        self.waiting: Waiting | PriorityWaiting = PriorityWaiting() if limits.priority else Waiting()
        self.partial: list[Sequence] = []
        """running sequences that are not in the decode set, by order of admission"""
        self.lingering: list[Sequence] = []
        """done, but still in their batch (static batching)"""
        self.loading = 0
        """admitted sequences whose tokens are still on their way from a second tier"""
        self.promised = 0
        """what the admitted sequences will hold in the end, where output is reserved"""
        self.admissions = 0
        self.blocked = False
        """the head of the queue cannot be admitted until something is given back"""

    def stride(self) -> int:
        """Most decode steps that may be planned at once. Where decoding gives memory back, the head of the queue may
        fit after any step, so every step is planned anew while somebody waits."""
        if self.kv.returns_while_decoding and self.waiting:
            self.blocked = False
            return min(1, self.max_stride)
        return self.max_stride

    def running(self) -> int:
        return self.decode.count + len(self.partial) + len(self.lingering) + self.loading

    def admit(self, tokens: int, ensure: int, plan: Plan) -> int | None:
        """Try to admit the head of the queue with `tokens` beyond its cached prefix; the tokens planned, None if it
        does not fit. Where a second tier holds a part of the prefix that is fetched first, and nothing planned."""
        seq = self.waiting.head()
        loads = self.kv.loads(seq)
        if loads:
            tokens = 0
        whole = 0
        if self.limits.reserve_output:
            whole, most = self.kv.whole(seq)
            if self.promised + whole > most:
                self.blocked = True
                return None
        if not self.kv.admit(seq, tokens, ensure):
            self.blocked = True
            return None
        self.promised += whole
        self.waiting.take()
        plan.admitted.append(seq)
        if loads:
            self.loading += 1
        else:
            self.run(seq)
            plan.chunks.append((seq, tokens, seq.computed))
            seq.computed += tokens
        return tokens

    def run(self, seq: Sequence) -> None:
        """`seq` is the latest of the running sequences."""
        self.admissions += 1
        seq.admitted = self.admissions
        self.partial.append(seq)

    def release(self, seq: Sequence, *, finished: bool) -> None:
        """`seq` gives back its memory."""
        self.kv.release(seq, finished=finished)
        self.blocked = False
        if self.limits.reserve_output:
            self.promised -= self.kv.whole(seq)[0]

    def preempt(self, seq: Sequence, plan: Plan, planned: int = 0) -> None:
        """Take all memory from a running `seq` that is not in the decode set; it will start again (recompute).

        `planned` of its tokens were to be computed in the coming step and now are not.
        """
        self.kv.preempting(seq, seq.computed - planned)
        self.release(seq, finished=False)
        seq.preemptions += 1
        seq.peak = max(seq.peak, seq.computed - planned)
        seq.computed = 0
        self.waiting.come_back(seq)
        plan.preempted.append(seq)

    def stop_decoding(self) -> None:
        """Move every decoding sequence to `partial`, which stays in order of admission."""
        for seq in sorted(self.decode.sequences, key=admission):
            self.decode.leave(seq)
            self.kv.leave(seq)
            self.partial.append(seq)
        self.partial.sort(key=admission)


def admission(seq: Sequence) -> int:
    return seq.admitted


@mypyc_attr(allow_interpreted_subclasses=True)
class Scheduler:
    """Decides what a step computes. One file adds one: subclass, and register it under its name (by the decorator, or
    by a call where the file is compiled: decorated classes are not)."""

    holds_batch: bool = False
    """whether sequences that are done stay in their batch until it ends"""

    def plan(self, state: State) -> Plan:
        """What to compute next; an empty plan where nothing can run. Takes constant time per step and sequence
        admitted, unless memory runs out."""
        raise NotImplementedError


SCHEDULERS: Registry[Any] = Registry("scheduler")
"""name → Scheduler subclass; `sglang` is a machine of its own (engine/sglang_replica.py runs it)"""
