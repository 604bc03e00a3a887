"""What every cache layout is: the sequence it serves, the Allocator protocol, and the memory it reports.

Time inside a cache is a *step counter*, not a clock. Every decoding sequence grows by one token a step, so a sequence
that has joined the decode set keeps `base = tokens in cache − step` constant and nothing has to be touched per
sequence and step: `advance(k)` moves all of them on at once, in time that does not depend on how many there are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mypy_extensions import mypyc_attr

from kvsim.cache.retention import FULL, Retention


class Sequence:
    """One request inside an engine. Lengths in tokens.

    `computed` tokens are in the cache (positions 0 … computed − 1). A step computes some of the `pending` ones; when
    none is left one token is sampled, `generated` grows, and that token is the next pending one. The last token sampled
    never enters the cache, so a sequence ends holding `final` tokens.
    While `decoding`, `computed` and `generated` are stale: they follow from `base` and the step counter.
    """

    __slots__ = (
        "admitted", "base", "cached", "chain", "computed", "decoding", "dropped", "final", "generated",
        "last_token_ns", "output", "peak", "preemptions", "priority", "prompt", "recomputed", "row", "store",
    )

    def __init__(self, row: int, prompt: int, output: int, priority: int = 0, chain: Any = None) -> None:
        self.row = row
        """row of the trace"""
        self.prompt = prompt
        self.output = output
        self.priority = priority
        self.chain = chain
        """what the prefix cache knows of its content (runs of block ids); None: all private"""
        self.final = prompt + max(output, 1) - 1
        """tokens it holds at the end"""
        self.generated = 0
        self.computed = 0
        self.cached = 0
        """tokens found in the prefix cache at the latest admission"""
        self.base = 0
        self.dropped = 0
        """tokens that retention has taken out of the cache for good when the prompt ended"""
        self.decoding = False
        self.admitted = -1
        """running number of its latest admission: the order of the running set"""
        self.preemptions = 0
        self.peak = 0
        """most tokens it had in the cache when it was preempted"""
        self.recomputed = 0
        """tokens computed more than once because of preemption"""
        self.last_token_ns = -1
        """when its latest token was sampled, while it is not decoding"""
        self.store: Any = None
        """what the allocator keeps for it"""

    @property
    def tokens(self) -> int:
        """Prompt and sampled tokens."""
        return self.prompt + self.generated

    @property
    def pending(self) -> int:
        """Tokens to compute before the next one can be sampled."""
        return self.prompt + self.generated - self.computed

    def __repr__(self) -> str:
        return f"Sequence(row={self.row}, {self.prompt}+{self.output}, computed={self.computed}, base={self.base})"


class Transfer:
    """Bytes that move over the link to a second tier. `seq` waits for them; None: nobody does."""

    __slots__ = ("bytes", "seq")

    def __init__(self, bytes: int, seq: Sequence | None = None) -> None:
        self.bytes = bytes
        self.seq = seq


@dataclass(slots=True)
class MemoryStats:
    """Where the KV pool's bytes are. `used + reserved + internal + cached + external + free = pool`, always."""

    pool: int
    used: int
    """really hold a token; a shared block counts once"""
    reserved: int
    """allocated, not yet filled, will be"""
    internal: int
    """allocated, never will be filled"""
    cached: int
    """idle prefix blocks, reclaimable at once"""
    external: int
    """contiguous layouts: free − largest hole; paged: 0"""
    free: int
    """the largest hole, or all free blocks"""
    shared_saved: int = 0
    """bytes that sharing saves (in no sum)"""
    largest_free: int = 0
    """largest request that would fit now (in no sum)"""

    def check(self) -> None:
        parts = self.used + self.reserved + self.internal + self.cached + self.external + self.free
        assert parts == self.pool, f"memory does not add up: {self}"
        assert min(self.used, self.reserved, self.internal, self.cached, self.external, self.free) >= 0, self


@mypyc_attr(allow_interpreted_subclasses=True)
class Allocator:
    """A cache layout. "Does not fit" is a value, never an exception; a call that returns False changes nothing.

    Life of a sequence: `admit` → (`grow` …) → `join` → (`advance` …) → `leave` → `release`; it may be preempted, that
    is (left and) released, at any point and be admitted again later.
    Invariants are in `check()`, which tests call after every operation.
    """

    pool_bytes: int
    chunkable: bool = True
    """whether a prompt can be computed in pieces (it needs a cache to keep the earlier ones)"""
    copies: bool = False
    """whether it ever copies inside the device (`take_moved_bytes`)"""
    returns_while_decoding: bool = False
    """whether decoding sequences give memory back (blocks that their windows have left)"""
    step: int = 0
    """decode steps so far: the clock that `Sequence.base` is relative to"""

    @property
    def retention(self) -> Retention:
        """Which tokens of a sequence it keeps."""
        return FULL

    def match(self, seq: Sequence) -> int:
        """Tokens of `seq` found in the prefix cache, at most `seq.tokens − 1`: at least one token is computed."""
        return 0

    def admit(self, seq: Sequence, tokens: int, ensure: int = 0) -> bool:
        """Take `seq` in with room for its cached prefix and `tokens` more.

        Sets `seq.cached` and `seq.computed` to the prefix found (0 without a prefix cache); the caller adds `tokens`
        to `computed` when they are computed. With `ensure`, that many tokens in all must fit now, though they are not
        all allocated (vLLM admits a request only where its whole prompt fits).
        """
        raise NotImplementedError

    def grow(self, seq: Sequence, tokens: int) -> bool:
        """Room for `tokens` beyond `seq.computed` (a further prefill chunk of an admitted, not decoding sequence)."""
        raise NotImplementedError

    def fork(self, seq: Sequence, child: Sequence) -> bool:
        """`child` begins with all that `seq`, whose prompt has just been computed, holds, sharing it as far as the
        layout can. False where there is no room, or no sharing; `child` then has to compute its prompt itself."""
        return False

    def join(self, seq: Sequence) -> None:
        """`seq` (its `base` set) decodes from now on: it grows by one token a step."""
        raise NotImplementedError

    def leave(self, seq: Sequence) -> None:
        """`seq` no longer decodes; it still holds its memory. The caller has brought `computed` up to date."""
        raise NotImplementedError

    def release(self, seq: Sequence, *, finished: bool) -> None:
        """Give back all that `seq` holds. `finished`: it ended; otherwise it is preempted and may return."""
        raise NotImplementedError

    def horizon(self, limit: int) -> int:
        """How many more steps (0 … limit) surely fit for all decoding sequences together."""
        raise NotImplementedError

    def advance(self, steps: int) -> None:
        """All decoding sequences have grown by `steps` tokens (≤ the horizon)."""
        raise NotImplementedError

    def never_fits(self, seq: Sequence) -> bool:
        """Whether `seq` could not even run alone."""
        raise NotImplementedError

    def whole(self, seq: Sequence) -> tuple[int, int]:
        """(what `seq` will hold in the end, what there is) in units of the layout, nothing shared: a batch whose sum
        stays within it never runs out. (0, 0) where admission takes everything up front."""
        return 0, 0

    def stats(self) -> MemoryStats:
        """Where the bytes are, in time independent of the number of sequences."""
        raise NotImplementedError

    def memory_map(self) -> list[tuple[int, int, int]]:
        """What lies where, in order of address: (first byte, byte after the last, row of the trace). Contiguous
        layouts have true addresses; blocks are interchangeable, so paged ones are drawn sequence after sequence."""
        return []

    def check(self) -> None:
        """Raise AssertionError where an invariant is broken. Slow: for tests."""
        raise NotImplementedError

    def loads(self, seq: Sequence) -> int:
        """Tokens of `seq` that a second tier holds: admission brings them in, and `seq` computes nothing until then."""
        return 0

    def preempting(self, seq: Sequence, tokens: int) -> None:
        """`seq`, with `tokens` computed, is about to be released unfinished: the chance to swap it out."""
        return

    def take_transfers(self) -> list[Transfer]:
        """What has to move over the link to a second tier since the last call, in order."""
        return []

    def take_moved_bytes(self) -> int:
        """Bytes copied inside the device since the last call (growth by copy, compaction); the next step pays."""
        return 0


def most_steps(fits: Callable[[int], bool], limit: int) -> int:
    """The largest number of steps up to `limit` that fits, where 0 fits and what does not fit does not with more."""
    if fits(limit):
        return limit
    low, high = 0, limit  # low fits, high does not
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low
