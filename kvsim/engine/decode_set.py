"""The decoding sequences as a calendar: each grows by one token a step, so nothing is touched per sequence and step.

With `base = tokens in cache − step` constant, the total context is `sum_base + n · step`, completions are a heap on the
step number, and the longest sequence is the one of largest base. A layer group with a window w attends min(context, w):
its sequences move from growing to saturated on a step that is known when they join.
"""

from __future__ import annotations

from bisect import bisect_right
from heapq import heapify, heappop, heappush

from kvsim.cache.base import Sequence

NEVER = 1 << 62


class Lengths:
    """Attended lengths of all decoding sequences in one group of layers that attend `window` tokens (0: all).

    Tokens that retention has dropped count as never there: lengths are those of what is held.
    """

    __slots__ = ("_growing", "_saturating", "_tallest", "grow_base", "growing", "saturated", "window")

    def __init__(self, window: int) -> None:
        self.window = window
        self.growing = 0
        self.grow_base = 0
        self.saturated = 0
        self._saturating: list[tuple[int, int, Sequence]] = []
        self._tallest: list[tuple[int, int, Sequence]] = []
        self._growing: set[Sequence] = set()
        """those that have yet to reach the window"""

    def join(self, seq: Sequence, step: int) -> None:
        """A sequence attends base + step + 1 tokens in the coming step, or the window where that is less."""
        base = seq.base - seq.dropped
        heappush(self._tallest, (-base, seq.row, seq))
        saturates = self.window - 1 - base
        if self.window and saturates <= step:
            self.saturated += 1
            return
        self.growing += 1
        self.grow_base += base
        if self.window:
            self._growing.add(seq)
            heappush(self._saturating, (saturates, seq.row, seq))

    def leave(self, seq: Sequence, step: int) -> None:
        base = seq.base - seq.dropped
        if self.window and self.window - 1 - base <= step:
            self.saturated -= 1
        else:
            self._growing.discard(seq)
            self.growing -= 1
            self.grow_base -= base

    def settle(self, step: int) -> None:
        """Move those that have reached the window by `step` to the saturated ones."""
        heap = self._saturating
        while heap and heap[0][0] <= step:
            saturates, _, seq = heappop(heap)
            base = seq.base - seq.dropped
            if seq in self._growing and saturates == self.window - 1 - base:
                self._growing.remove(seq)
                self.growing -= 1
                self.grow_base -= base
                self.saturated += 1

    def next_saturation(self) -> int:
        """Step at which the next sequence stops growing. May be too early (a sequence that left), never too late."""
        return self._saturating[0][0] if self._saturating else NEVER

    def attended(self, step: int) -> int:
        """Tokens attended by all sequences in the coming step."""
        return self.grow_base + self.growing * (step + 1) + self.saturated * self.window

    def longest(self, step: int) -> int:
        """The longest attended length in the coming step, tokens."""
        heap = self._tallest
        if len(heap) > 64 and len(heap) > 4 * (self.growing + self.saturated):
            self._tallest = heap = [entry for entry in heap if _valid(entry)]
            heapify(heap)
        while heap:
            key, _, seq = heap[0]
            if seq.decoding and seq.dropped - seq.base == key:
                break
            heappop(heap)
        else:
            return 0
        longest = step + 1 - key
        return min(longest, self.window) if self.window else longest


def _valid(entry: tuple[int, int, Sequence]) -> bool:
    """Whether the sequence of an entry (−base, row, sequence) still decodes at that base."""
    seq = entry[2]
    return seq.decoding and seq.dropped - seq.base == entry[0]


class DecodeSet:
    """All decoding sequences of one replica, and the step counter they share."""

    def __init__(self, windows: tuple[int, ...]) -> None:
        self.step = 0
        self.sequences: set[Sequence] = set()
        self.count = 0
        self.latest = -1
        """the latest admission among all that ever joined"""
        self._token_ns = -1
        """when all that decoded in the latest step had their token"""
        self._tokens_at: dict[int, int] = {}
        """when sequences had their latest token → how many; all but those that just joined had it together"""
        self.groups = tuple(Lengths(window) for window in windows)
        self._windowed = tuple(group for group in self.groups if group.window)
        self._finish: dict[int, list[Sequence]] = {}
        self._finish_steps: list[int] = []

    def join(self, seq: Sequence) -> None:
        """`seq` (its `base` set) has one pending token: it decodes from the coming step on."""
        seq.decoding = True
        self.sequences.add(seq)
        self.count += 1
        self.latest = max(self.latest, seq.admitted)
        self._tokens_at[seq.last_token_ns] = self._tokens_at.get(seq.last_token_ns, 0) + 1
        for group in self.groups:
            group.join(seq, self.step)
        step = seq.prompt + seq.output - 1 - seq.base
        bucket = self._finish.get(step)
        if bucket is None:
            self._finish[step] = [seq]
            heappush(self._finish_steps, step)
        else:
            bucket.append(seq)

    def leave(self, seq: Sequence) -> None:
        """`seq` no longer decodes; its `computed` and `generated` are brought up to date."""
        if seq.computed < seq.base + self.step:  # it has had a token since it joined
            seq.last_token_ns = self._token_ns
        seq.computed = seq.base + self.step
        seq.generated = seq.computed + 1 - seq.prompt
        seq.decoding = False
        self._tokens_at[seq.last_token_ns] -= 1
        self.sequences.remove(seq)
        self.count -= 1
        for group in self.groups:
            group.leave(seq, self.step)
        step = seq.prompt + seq.output - 1 - seq.base
        bucket = self._finish.get(step)
        if bucket is not None:
            bucket.remove(seq)

    def last(self) -> Sequence:
        """The one that was admitted latest. Looks at all; only a preemption asks."""
        found: Sequence | None = None
        for seq in self.sequences:
            if found is None or seq.admitted > found.admitted:
                found = seq
        assert found is not None, "nobody decodes"
        return found

    def tokens(self, last: int) -> dict[int, int]:
        """Every sequence has a token now (and more until `last`): when they had the one before → how many did."""
        before = self._tokens_at
        self._token_ns = last
        self._tokens_at = {last: self.count}
        return before

    def horizon(self) -> int:
        """Steps until the next completion, or until a sequence reaches a window."""
        steps, finish = self._finish_steps, self._finish
        while not finish[steps[0]]:
            del finish[heappop(steps)]
        limit = steps[0] - self.step
        for group in self._windowed:
            limit = min(limit, max(1, group.next_saturation() - self.step))
        return limit

    def advance(self, steps: int) -> list[Sequence]:
        """Everyone has decoded `steps` tokens (≤ horizon). Returns those that are done, still in the set."""
        self.step += steps
        for group in self._windowed:
            group.settle(self.step)
        return self._finish.get(self.step, [])


def ended_by(ends: list[int], now: int) -> list[int]:
    """Of the steps of a stride in flight, which end at `ends`, those over at `now`. The last ends by an event."""
    return ends[: min(bisect_right(ends, now), len(ends) - 1)]
