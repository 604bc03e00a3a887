"""Layout `fit`: contiguous, grown a piece at a time the way `realloc` does: in place if the hole behind is long enough,
else into a new hole (first or best fit), with a copy of all tokens so far, and only then is the old interval freed.

Little is reserved for nothing, but holes that are each too small add up (external waste) and copies cost time.
A sequence alone always grows in place when it lies at the bottom of the pool, so whatever fits alone gets through.
"""

from __future__ import annotations

from heapq import heappop, heappush

from kvsim.cache.base import Sequence
from kvsim.cache.contiguous import Contiguous, Interval
from kvsim.cache.space import FitRule, HoleSpace


class Fit(Contiguous):
    """`growth_tokens` more tokens at a time (the last piece is cut at max_model_len).

    When each decoding sequence runs out of room is known from its base: those steps answer `horizon` and serve
    `advance`. Nothing else touches the holes before the next of them. A step in which something grows is the last of
    its stride, so that the copy is charged to the one after it whatever the strides are.
    """

    copies = True

    def __init__(
        self, *, pool_bytes: int, token_bytes: int, max_model_len: int, growth_tokens: int = 16,
        placement: FitRule = "first",
    ) -> None:
        super().__init__(
            pool_bytes=pool_bytes, token_bytes=token_bytes, max_model_len=max_model_len, placement=placement
        )
        self.growth_tokens = growth_tokens
        assert isinstance(self.space, HoleSpace)  # what first and best fit place in
        self._holes = self.space
        self._due: dict[int, dict[Sequence, None]] = {}
        """step → the decoding sequences that cannot take it without growing, in the order they came to be there"""
        self._due_steps: list[int] = []
        """its keys, a heap"""
        self._grows_at: dict[Sequence, int] = {}
        """where in `_due` a sequence is"""
        self._moved = 0

    def capacity(self, seq: Sequence, tokens: int) -> int:
        return min(-(-tokens // self.growth_tokens) * self.growth_tokens, self.max_model_len)

    def grow(self, seq: Sequence, tokens: int) -> bool:
        held: Interval = seq.store
        needed = seq.computed + tokens
        if needed > held.capacity:
            capacity = self.capacity(seq, needed)
            start = self._find(self._holes, held, capacity)
            if start < 0:
                return False
            self._place(seq, seq.computed, start, capacity)
        return super().grow(seq, tokens)

    def join(self, seq: Sequence) -> None:
        super().join(seq)
        self._expect(seq)

    def leave(self, seq: Sequence) -> None:
        super().leave(seq)
        self._forget(seq)

    def horizon(self, limit: int) -> int:
        growth = self._next_growth()
        until = growth - self.step
        if limit < until:
            return limit
        return until if self._growth_fits(growth) else until - 1

    def advance(self, steps: int) -> None:
        growth = self._next_growth()
        if growth == self.step + steps:
            for seq in list(self._due[growth]):
                held: Interval = seq.store
                capacity = self.capacity(seq, held.capacity + 1)
                start = self._find(self._holes, held, capacity)
                assert start >= 0, "advanced beyond the horizon"
                self._place(seq, held.capacity, start, capacity)
                self._expect(seq)
        self.step += steps
        assert growth >= self.step, "advanced beyond the horizon"

    def take_moved_bytes(self) -> int:
        moved, self._moved = self._moved, 0
        return moved

    def check(self) -> None:
        super().check()
        expected = {seq: step for step, sequences in self._due.items() for seq in sequences}
        assert expected == self._grows_at
        assert sorted(self._due) == sorted(self._due_steps), "a step is due and nobody looks for it"
        full = {seq: held.capacity - seq.base + 1 for seq, held in self._live.items()
                if seq.decoding and held.capacity < seq.final}
        assert expected == full, "a sequence is full at another step than it is expected to grow"

    def _expect(self, seq: Sequence) -> None:
        """Note when `seq` will be full, unless it ends before."""
        self._forget(seq)
        held: Interval = seq.store
        if held.capacity < seq.final:
            step = self._grows_at[seq] = held.capacity - seq.base + 1
            if step not in self._due:
                self._due[step] = {}
                heappush(self._due_steps, step)
            self._due[step][seq] = None

    def _forget(self, seq: Sequence) -> None:
        step = self._grows_at.pop(seq, None)
        if step is not None:
            del self._due[step][seq]

    def _next_growth(self) -> int:
        """The step that some sequence cannot take without growing; a step far away if there is none."""
        steps, due = self._due_steps, self._due
        while steps and not due[steps[0]]:
            del due[heappop(steps)]
        return steps[0] if steps else 1 << 62

    def _growth_fits(self, step: int) -> bool:
        """Whether all sequences that have to grow for `step` find room, one after the other. What is asked first is
        cheap and nearly always enough; else they try on a copy of the holes."""
        due, largest = self._due[step], self._holes.largest_hole
        together = 0
        for seq in due:
            held: Interval = seq.store
            length = self.capacity(seq, held.capacity + 1) * self.token_bytes
            if not together and length > max(largest, held.length + self._holes.behind(held.start, held.length)):
                return False  # the first of them has nowhere to go
            together += length
        if together <= largest or len(due) == 1:
            return True  # the largest hole would take them all, wherever some of them go
        holes = self._holes.copy()
        for seq in due:
            held = seq.store
            if self._find(holes, held, self.capacity(seq, held.capacity + 1)) < 0:
                return False
        return True

    def _find(self, holes: HoleSpace, held: Interval, capacity: int) -> int:
        """Take room for `capacity` tokens in place of an interval; where it begins, or −1 and no change if there is
        none."""
        length = capacity * self.token_bytes
        if holes.extend(held.start, held.length, length - held.length):
            return held.start
        start = holes.take(length)
        if start >= 0:
            holes.give(held.start, held.length)
        return start

    def _place(self, seq: Sequence, tokens: int, start: int, capacity: int) -> None:
        """`seq`, which holds `tokens`, now has the room that was found for it."""
        held: Interval = seq.store
        if start != held.start:
            self._moved += tokens * self.token_bytes
        self._will_fill += min(capacity, seq.final) - min(held.capacity, seq.final)
        held.start, held.length, held.capacity = start, capacity * self.token_bytes, capacity
