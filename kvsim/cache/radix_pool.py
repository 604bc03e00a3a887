"""SGLang's KV pool: pages of tokens owned by the radix tree or by a request, and what a request does to both.

Only counts are kept, no page numbers: a request holds the pages behind `owned`, the tree all others that are taken.
The methods that give pages back return how many tokens' worth, because SGLang lets them reach `free` only when all
results of a step are applied.
"""

from __future__ import annotations

from kvsim.cache.base import Sequence
from kvsim.cache.growth import Growth
from kvsim.cache.radix import WIDTH, Key, Node, RadixTree


class Job(Sequence):
    """A sequence with its content, as SGLang's scheduler sees it."""

    __slots__ = ("inserted", "key", "max_new", "node", "owned", "queued")

    def __init__(
        self, row: int, prompt: int, output: int, key: Key, *, max_new: int | None = None, priority: int = 0
    ) -> None:
        super().__init__(row, prompt, output, priority)
        self.key = key
        """content of prompt and answer: one integer for each `unit` tokens of the pool"""
        self.max_new = output if max_new is None else max_new
        """output tokens it declares, ≥ those it really produces"""
        self.node: Node | None = None
        """the tree node it has locked"""
        self.owned = 0
        """tokens at its beginning that the tree owns"""
        self.inserted = 0
        """tokens it has put into the tree since its latest admission"""
        self.queued = 0
        """running number of its latest entry into the queue"""


class RadixPool:
    """`tokens` tokens in pages of `page`. A key's integers stand for `unit` tokens each: 1 where it holds tokens,
    `page` where it holds ids of whole pages.

    Invariant: free + tokens in the tree + whole pages held by requests beyond what the tree owns = all whole pages.
    """

    def __init__(self, tokens: int, page: int, eviction: str = "lru", unit: int = 1) -> None:
        self.page = page
        self.unit = unit
        self.eviction = eviction
        self.tokens = self.free = tokens // page * page
        self.evicted = 0
        """tokens evicted so far"""
        self.tree = RadixTree(page // unit, eviction)
        self.step = 0
        """decode steps whose pages are taken: the clock that a job's `base` is relative to"""
        self._growth = Growth(page)
        """of decoding requests"""
        self._computed = 0
        """tokens of requests that hold memory and do not decode"""
        self.owned = 0
        """what the tree owns of all requests' tokens, each counted for itself"""

    @property
    def evictable(self) -> int:
        return self.tree.evictable * self.unit

    def match(self, job: Job, length: int) -> tuple[Node, int]:
        """The node at which the longest cached prefix of the job's first `length` tokens ends, and the prefix's length
        in tokens."""
        node = self.tree.match(self.key(job, length), job.node)
        return node, node.end * self.unit

    def adopt(self, job: Job, node: Node, prefix: int) -> None:
        """The job enters with a cached prefix; the tree keeps it from eviction."""
        self.tree.lock(node)
        job.node = node
        job.owned = job.cached = job.computed = prefix
        job.inserted = 0
        self.owned += prefix
        self._computed += prefix

    def make_room(self, tokens: int) -> bool:
        """Evict until `tokens` are free or nothing more can go; whether they are free then."""
        if tokens > self.free:
            gone = self.tree.evict(-(-(tokens - self.free) // self.unit))
            size = self.unit * sum([node.size for node in gone])
            self.free += size
            self.evicted += size
        return tokens <= self.free

    def pages(self, start: int, tokens: int) -> int:
        """Tokens' worth of pages that a request with `start` tokens takes for `tokens` more."""
        return self._whole(start + tokens) - self._whole(start)

    def take(self, tokens: int) -> None:
        """Whole pages, after `make_room`."""
        self.free -= tokens
        assert self.free >= 0, "took more than make_room made"

    def compute(self, job: Job, tokens: int) -> None:
        """`tokens` more of its tokens are in the pages that were taken for them."""
        job.computed += tokens
        self._computed += tokens

    # -- decoding -----------------------------------------------------------------------------------------------------

    def join(self, job: Job) -> None:
        """`job` (its `base` set) takes part in all decode steps from now on."""
        self._growth.join(job.base)
        self._computed -= job.computed

    def leave(self, job: Job) -> None:
        """`job` no longer decodes; the caller has brought `computed` up to date."""
        self._growth.leave(job.base)
        self._computed += job.computed

    @property
    def lengths(self) -> int:
        """Tokens that all requests together have in the pool, shared ones each counted for itself."""
        return self._computed + self._growth.tokens(self.step)

    def length(self, job: Job) -> int:
        """Tokens that `job` has in the pool."""
        return job.base + self.step if job.decoding else job.computed

    def demand(self, steps: int) -> int:
        """Tokens' worth of pages that all decoding requests together take in the next `steps` steps."""
        return self.page * self._growth.blocks(self.step, steps)

    def horizon(self, limit: int) -> int:
        """How many more steps (0 … limit) surely fit."""
        return self._growth.horizon(self.step, (self.free + self.evictable) // self.page, limit)

    def provide(self, steps: int) -> None:
        """Evict what the next `steps` steps (≤ the horizon) evict: SGLang makes room for a page a request in each,
        needed or not.

        One call stands for all. Let D(j) be what the j steps before a step take and n the requests: that step evicts
        until what is gone is n · page + D(j) − free, or nothing is left. Meanwhile nothing else touches the tree, so
        these are cuts through one and the same order of leaves, and D only grows: the last one's comprises all others.
        """
        if steps > 0:
            before = self.demand(steps - 1) if steps > 1 else 0
            self.make_room(before + self._growth.count * self.page)

    def advance(self, steps: int) -> None:
        """All decoding requests take the pages of their next `steps` tokens."""
        if steps > 0:
            self.provide(steps)
            self.take(self.demand(steps))
            self.step += steps

    # -- a request and the tree ---------------------------------------------------------------------------------------

    def checkpoint(self, job: Job, length: int) -> int:
        """Hand the whole pages of the job's first `length` tokens to the tree, where what is there already is freed.

        The prompt is inserted once more by itself: that cuts the tree at its end, so that an answer can be evicted
        without its prompt, and ranks the prompt a priority higher.
        """
        assert job.node is not None
        whole, prompt = length // self.page * self.page, job.prompt // self.page * self.page
        already = self._insert(job, whole, job.inserted, job.priority)
        job.inserted = max(job.inserted, whole)
        if 0 < prompt < whole:
            self._insert(job, prompt, prompt, job.priority + 1)
        freed = max(0, already - job.owned)
        node, owned = self.match(job, whole)
        self.owned += owned - job.owned
        job.owned = owned
        self.tree.unlock(job.node)
        self.tree.lock(node)
        job.node = node
        return freed

    def release(self, job: Job) -> int:
        """Give back all that the tree does not own, and the lock on what it does."""
        assert job.node is not None
        freed = self._whole(job.computed) - job.owned
        self.tree.unlock(job.node)
        self.owned -= job.owned
        self._computed -= job.computed
        job.node = None
        job.owned = 0
        return freed

    def check(self, jobs: list[Job]) -> None:
        """Raise AssertionError where an invariant is broken, `jobs` being all that hold pages. Slow: for tests."""
        self.tree.check()
        held = sum(self._whole(self.length(job)) - job.owned for job in jobs)
        assert self.lengths == sum(self.length(job) for job in jobs)
        assert self.owned == sum(job.owned for job in jobs)
        assert self.free + self.tree.size * self.unit + held == self.tokens, "pages leaked"

    def _whole(self, tokens: int) -> int:
        """`tokens` rounded up to whole pages."""
        return -(-tokens // self.page) * self.page

    def _insert(self, job: Job, length: int, inserted_before: int, priority: int) -> int:
        before = inserted_before // self.unit
        return self.tree.insert(self.key(job, length), before, priority, job.node) * self.unit

    def key(self, job: Job, length: int) -> Key:
        """Of the job's first `length` tokens."""
        return job.key[: length // self.unit * WIDTH]
