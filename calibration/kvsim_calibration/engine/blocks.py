"""Real blocks under kvsim's rules: ids that are handed out, shared by content, and taken back.

The scheduler sees an `Allocator`, as in the simulator; the paged cache reads `tables`. The rules are those of
kvsim.cache.prefix (vLLM's), on single blocks instead of runs: a test holds the two equal on every step.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b

import numpy as np

from kvsim.cache.base import Allocator, MemoryStats, Sequence


class BlockPool(Allocator):
    """`blocks` blocks of `block_size` tokens. `seq.chain` is the list of its tokens, prompt and generated.

    Invariants: a block is free (in the queue) if and only if no table names it; a findable block has one key.
    """

    def __init__(self, *, blocks: int, block_size: int, token_bytes: int, share: bool = False) -> None:
        """`share`: whether blocks of equal content are found again."""
        self.blocks, self.block_size, self.token_bytes, self.share = blocks, block_size, token_bytes, share
        self.block_bytes = block_size * token_bytes
        self.pool_bytes = blocks * self.block_bytes
        self.tables: dict[int, list[int]] = {}
        """row of the trace → its block ids, in order"""
        self.evicted_blocks = 0
        self._queue: OrderedDict[int, None] = OrderedDict.fromkeys(range(blocks))
        """free blocks; the first is taken next"""
        self._holders = [0] * blocks
        self._key: dict[int, bytes] = {}
        """block → its content's key, where it is findable"""
        self._found: dict[bytes, dict[int, None]] = {}
        """key → the blocks with this content, the one that was findable first in front"""
        self._keys: dict[int, list[bytes]] = {}
        """row → keys of its full blocks, as far as they were needed"""
        self._sequences: dict[int, Sequence] = {}

    # -- finding ----------------------------------------------------------------------------------------------------

    def match(self, seq: Sequence) -> int:
        return len(self._find(seq)) * self.block_size

    def _find(self, seq: Sequence) -> list[int]:
        """Blocks that hold the beginning of `seq`: full ones, and never its last token."""
        hits: list[int] = []
        if self.share:
            for key in self._keys_of(seq, (seq.tokens - 1) // self.block_size):
                if key not in self._found:
                    break
                hits.append(next(iter(self._found[key])))
        return hits

    def _keys_of(self, seq: Sequence, full: int) -> list[bytes]:
        """Keys of the first `full` blocks: a digest of the block's tokens and of all before."""
        keys, size = self._keys.setdefault(seq.row, []), self.block_size
        while len(keys) < full:
            at = len(keys) * size
            tokens = np.asarray(seq.chain[at : at + size], np.int64).tobytes()
            keys.append(blake2b((keys[-1] if keys else b"") + tokens, digest_size=16).digest())
        return keys[:full]

    # -- taking and giving back -------------------------------------------------------------------------------------

    def admit(self, seq: Sequence, tokens: int, ensure: int = 0) -> bool:
        hits = self._find(seq)
        need = self._need(len(hits) * self.block_size + tokens, len(hits))
        idle = sum(not self._holders[block] for block in hits)
        if max(need, self._need(ensure, len(hits))) + idle > len(self._queue):
            return False
        for block in hits:
            self._queue.pop(block, None)
            self._holders[block] += 1
        self.tables[seq.row], self._sequences[seq.row] = hits, seq
        seq.cached = seq.computed = len(hits) * self.block_size
        self._extend(seq, tokens)
        return True

    def grow(self, seq: Sequence, tokens: int) -> bool:
        if self._need(seq.computed + tokens, len(self.tables[seq.row])) > len(self._queue):
            return False
        self._extend(seq, tokens)
        return True

    def _need(self, tokens: int, held: int) -> int:
        return -(-tokens // self.block_size) - held

    def _extend(self, seq: Sequence, tokens: int) -> None:
        """Blocks for `tokens` more; those that become full are findable at once."""
        table, upto = self.tables[seq.row], seq.computed + tokens
        for _ in range(self._need(upto, len(table))):
            block, _ = self._queue.popitem(last=False)
            self.evicted_blocks += self._forget(block)
            self._holders[block] = 1
            table.append(block)
        if self.share:
            first, full = seq.computed // self.block_size, upto // self.block_size
            for block, key in zip(table[first:full], self._keys_of(seq, full)[first:], strict=True):
                self._key[block] = key
                self._found.setdefault(key, {})[block] = None

    def _forget(self, block: int) -> bool:
        """The content of `block` can no longer be found. Whether it could."""
        key = self._key.pop(block, None)
        if key is None:
            return False
        del self._found[key][block]
        if not self._found[key]:
            del self._found[key]
        return True

    def release(self, seq: Sequence, *, finished: bool) -> None:
        for block in reversed(self.tables.pop(seq.row)):  # ends of prefixes go before their beginnings
            self._holders[block] -= 1
            if not self._holders[block]:
                self._queue[block] = None
                if block not in self._key:
                    self._queue.move_to_end(block, last=False)
        del self._sequences[seq.row]
        if finished:
            self._keys.pop(seq.row, None)

    def never_fits(self, seq: Sequence) -> bool:
        return self._need(seq.final, 0) > self.blocks

    # -- a real engine walks its running sequences: none is ever counted in bulk -------------------------------------

    def join(self, seq: Sequence) -> None:
        raise AssertionError("the reference engine has no decode set")

    leave = join

    def horizon(self, limit: int) -> int:
        return 0

    def advance(self, steps: int) -> None:
        raise AssertionError("the reference engine has no decode set")

    # -- what it looks like -----------------------------------------------------------------------------------------

    def stats(self) -> MemoryStats:
        size, sequences = self.block_size, self._sequences.values()
        shared = sum(holders - 1 for holders in self._holders if holders > 1) * size
        used = sum(seq.computed for seq in sequences) - shared
        internal = sum(max(0, len(self.tables[seq.row]) * size - seq.final) for seq in sequences)
        held, cached = self.blocks - len(self._queue), sum(block in self._key for block in self._queue)
        return MemoryStats(
            pool=self.pool_bytes, used=used * self.token_bytes, internal=internal * self.token_bytes,
            reserved=(held * size - used - internal) * self.token_bytes, cached=cached * self.block_bytes, external=0,
            free=(len(self._queue) - cached) * self.block_bytes, shared_saved=shared * self.token_bytes,
            largest_free=len(self._queue) * self.block_bytes,
        )  # fmt: skip

    def memory_map(self) -> list[tuple[int, int, int]]:
        """True addresses; a shared block is drawn as the first holder's, idle prefix blocks as row −1."""
        owner: dict[int, int] = dict.fromkeys((block for block in self._queue if block in self._key), -1)
        for row, table in self.tables.items():
            for block in table:
                owner.setdefault(block, row)
        size = self.block_bytes
        return [(block * size, (block + 1) * size, owner[block]) for block in sorted(owner)]

    def check(self) -> None:
        holders = [0] * self.blocks
        for table in self.tables.values():
            for block in table:
                holders[block] += 1
        assert holders == self._holders
        assert set(self._queue) == {block for block, count in enumerate(holders) if not count}
        assert {block for blocks in self._found.values() for block in blocks} == set(self._key)
        self.stats().check()
