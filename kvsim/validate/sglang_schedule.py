"""Replay a recording of SGLang's own scheduler through ours: the same requests, then step against step.

A recording (docs/validation.md) lists limits, requests with their prompt's token ids, and for every pass of the
scheduler what was run and what cache and queue looked like then. Here a pass is a step of a counter.
"""

from __future__ import annotations

import hashlib
from typing import Any

from kvsim.cache.radix import Key, Node, RadixTree, key_of, units_of
from kvsim.cache.radix_pool import Job, RadixPool
from kvsim.engine.decode_set import DecodeSet
from kvsim.sched.sglang import Batch, Limits, Sglang
from kvsim.validate.vllm_schedule import generated_token

Json = dict[str, Any]


class WatchedTree(RadixTree):
    """A radix tree that keeps what it evicts."""

    def __init__(self, page: int, eviction: str) -> None:
        super().__init__(page, eviction)
        self.evicted: list[Node] = []
        """since it was last emptied"""

    def evict(self, want: int) -> list[Node]:
        gone = super().evict(want)
        self.evicted += gone
        return gone


def job(request: Json) -> Job:
    """A recorded request, with the tokens that it is made to generate."""
    prompt, output = len(request["prompt"]), request["output_tokens"]
    answer = [generated_token(request["id"], position) for position in range(prompt, prompt + output)]
    return Job(
        request["id"], prompt, output, key_of(request["prompt"] + answer),
        max_new=request.get("max_new_tokens"), priority=request.get("priority", 0),
    )


def scheduler(limits: Json, unit: int) -> Sglang:
    """Settings that a recording leaves out have SGLang's defaults, as its recorder has them."""
    eviction = limits.get("eviction", "lru")
    pool = RadixPool(limits["pool_tokens"], limits["page_size"], eviction, unit)
    pool.tree = WatchedTree(pool.tree.page, eviction)
    return Sglang(pool, Limits(
        max_running=limits["max_running"], chunk_tokens=limits["chunk_tokens"],
        max_prefill_tokens=limits["max_prefill_tokens"], policy=limits.get("policy", "fcfs"),
        priorities=limits.get("priority_scheduling", False), ignore_eos=limits["ignore_eos"],
        conservativeness=limits.get("conservativeness", 1.0),
    ), DecodeSet((0,)))


def steps(recording: Json, page_ids: dict[int, Key] | None = None) -> list[Json]:
    """The steps that our scheduler takes, in the recording's form; of the calls to the cache only what they `evicted`.

    With `page_ids` it sees ids of whole pages, by request, in place of tokens.
    """
    limits = recording["limits"]
    engine = scheduler(limits, limits["page_size"] if page_ids else 1)
    arrivals = sorted(recording["requests"], key=lambda r: (r["arrival_step"], r["id"]), reverse=True)
    taken: list[Json] = []
    unfinished = len(arrivals)
    while unfinished:
        while arrivals and arrivals[-1]["arrival_step"] <= len(taken):
            arriving = job(arrivals.pop())
            arriving.key = page_ids[arriving.row] if page_ids else arriving.key
            engine.add(arriving)
        batch = engine.schedule()
        note = _scheduled(engine, batch)
        finished = engine.apply(batch)
        unfinished -= len(finished)
        taken.append(note | {"finished": [job.row for job in finished], "after": _memory(engine.pool)})
    return taken


def with_evicted(step: Json) -> Json:
    """A recorded step with the leaves that its calls evicted, in order, as one more field."""
    if "calls" not in step:
        return step
    return step | {"evicted": [leaf for call in step["calls"] if call["call"] == "evict" for leaf in call["leaves"]]}


def leaf(node: Node) -> list[Any]:
    """A leaf as recordings name it: length and hash of the path to its end, and its own length."""
    text = ",".join(map(str, units_of(node.path())))
    return [node.end, hashlib.sha256(text.encode()).hexdigest()[:16], node.size]


def _scheduled(engine: Sglang, batch: Batch | None) -> Json:
    decoding = engine.running if batch and batch.kind == "decode" else []
    chunks = batch.chunks if batch else []
    tree, evictable, protected, free = _memory(engine.pool)
    watched = engine.pool.tree
    assert isinstance(watched, WatchedTree)
    evicted, watched.evicted = watched.evicted, []
    return {
        "kind": batch.kind if batch else None,
        "scheduled": {str(job.row): 1 for job in decoding} | {str(chunk.job.row): chunk.tokens for chunk in chunks},
        "from": {str(chunk.job.row): chunk.start for chunk in chunks},
        "running": [job.row for job in engine.running],
        "waiting": [job.row for job in engine.waiting],
        "retracted": [job.row for job in engine.retracted],
        "chunked": engine.chunked.row if engine.chunked else None,
        "new_token_ratio": round(engine.estimate.ratio, 9),
        "tree": tree, "evictable": evictable, "protected": protected, "free": free,
        "evicted": [leaf(node) for node in evicted],
    }


def _memory(pool: RadixPool) -> list[int]:
    """Tokens: in the tree, of these evictable and protected, and free."""
    tree = pool.tree
    return [*(n * pool.unit for n in (tree.size, tree.evictable, tree.protected)), pool.free]
