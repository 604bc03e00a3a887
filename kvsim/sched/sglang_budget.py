"""What memory SGLang promises: an estimate of what running requests will still need, and what is left for a prefill."""

from __future__ import annotations

from kvsim.cache.radix_pool import Job, RadixPool

START_RATIO, LEAST_RATIO, DECAY_STEPS = 0.7, 0.14, 600
"""share of its declared output that a running request is taken to need: at the start, at least (times the start), and
decode steps from one to the other"""
RETRACT_STEPS = 20
"""decode steps to make room for when something was retracted"""
LONGEST_ESTIMATE = 4096
"""output tokens that one request reserves at most"""


def produced(job: Job, step: int) -> int:
    """Tokens that a running request has generated at decode step `step`."""
    return job.base + step + 1 - job.prompt


class Estimate:
    """Of the tokens that running requests will still need. It falls while memory suffices, and rises when it did not.

    `conservativeness` scales where it starts; with `exact`, all that is declared is reserved.
    """

    def __init__(self, conservativeness: float, exact: bool) -> None:
        self.start = min(1.0, START_RATIO * conservativeness)
        self.ratio = self.start
        self.exact = exact

    def restart(self) -> None:
        """Nobody runs or waits."""
        self.ratio = self.start

    def decay(self, steps: int) -> None:
        """The estimate falls to its least, step by step: one product would round otherwise."""
        least = self.start * LEAST_RATIO
        by = (self.start - least) / DECAY_STEPS
        while steps > 0 and self.ratio != least:
            self.ratio = max(self.ratio - by, least)
            steps -= 1

    def correct(self, running: list[Job], step: int) -> None:
        """It was too low: requests were retracted, and these still run."""
        needed = sum([produced(job, step) + RETRACT_STEPS for job in running])
        self.ratio = min(1.0, needed / (sum([job.max_new for job in running]) + 1))

    def reserved(self, running: list[Job], step: int) -> float:
        """Tokens that these requests are taken to need until they end. Summed one by one, in order, as SGLang does:
        one product would round otherwise."""
        ratio = 1.0 if self.exact else self.ratio
        needed = 0.0
        for job in running:
            left = job.max_new + job.prompt - job.base - step - 1  # max_new − produced(job, step), without a call
            needed += (left if left < LONGEST_ESTIMATE else LONGEST_ESTIMATE) * ratio
        return needed


class Budget:
    """What one prefill pass may still take: `chunk` tokens in this step, `prefill` before no further prompt is
    admitted. Tokens are charged in whole pages."""

    def __init__(self, pool: RadixPool, reserved: float, chunk: int, prefill: int) -> None:
        self.pool = pool
        self.reserved = reserved
        """tokens that running and newly admitted requests are taken to need"""
        self.chunk = chunk
        self.prefill = prefill

    @property
    def room(self) -> float:
        return self.pool.free + self.pool.evictable - self.reserved

    @property
    def spent(self) -> bool:
        """Whether this step computes enough (and memory is not what is short)."""
        return self.room > 0 and (self.prefill <= 0 or self.chunk <= 0)

    def charge(self, tokens: int, max_new: int) -> None:
        page = self.pool.page
        tokens = -(-tokens // page) * page
        self.reserved += tokens + page + max_new
        self.chunk -= tokens
        self.prefill -= tokens
