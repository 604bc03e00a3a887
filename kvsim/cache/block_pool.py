"""Single blocks that groups of layers share: which content is findable, and in what order free blocks are taken.

The rules are those of run_pool.py, kept block by block and group by group.
"""

from __future__ import annotations

from collections.abc import Iterable

from kvsim.cache.ring import Link

Key = tuple[int, int, int]
"""(group, content id, block)"""


class Block(Link):
    """One physical block. `ref` sequences hold it; 0: it is free, a link of the ring of those."""

    __slots__ = ("key", "ref")

    def __init__(self) -> None:
        super().__init__()
        self.key: Key | None = None
        self.ref = 0


class BlockPool:
    """`blocks` blocks, all free at first.

    Invariants: the queue holds exactly the blocks nobody holds; a findable block is in the index under its key.
    """

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.free = blocks
        self.plain = blocks
        """free blocks that hold nothing findable"""
        self.saved = 0
        """blocks that would be held more if nothing were shared"""
        self.evicted = 0
        self._index: dict[Key, list[Block]] = {}
        """the block that was findable first serves hits"""
        self._queue = Block()
        """sentinel of the ring of free blocks; .next is taken first"""
        for _ in range(blocks):
            Block().link(self._queue)

    def hit(self, ids: list[int], needed: tuple[int, ...]) -> int:
        """Blocks at the beginning of a sequence whose first ones have these content ids that all groups can serve,
        `needed[group]` being the blocks that a group needs before a hit's end; 0: all from the first on."""
        length, before = len(ids), -1
        index = self._index
        while length != before:
            before = length
            for group, run in enumerate(needed):
                if not run:
                    at = 0
                    while at < length and (group, ids[at], at) in index:
                        at += 1
                    length = at
                    continue
                found = 0
                for at in range(length - 1, -1, -1):
                    if (group, ids[at], at) not in index:
                        found = 0
                        continue
                    found += 1
                    if found == run:
                        length = at + run
                        break
                else:
                    length = found
        return length

    def find(self, key: Key) -> Block:
        """The block that serves a hit on `key`, which is findable."""
        return self._index[key][0]

    def publish(self, block: Block, key: Key) -> None:
        """A held block is full: its content is findable from now on."""
        block.key = key
        self._index.setdefault(key, []).append(block)

    def share(self, block: Block) -> None:
        """One more sequence holds a findable block."""
        if block.ref == 0:
            block.unlink()
            self.free -= 1
        else:
            self.saved += 1
        block.ref += 1

    def take(self) -> Block:
        """The next free block (there is one); content in it is forgotten."""
        block: Block = self._queue.next
        block.unlink()
        self.free -= 1
        if block.key is None:
            self.plain -= 1
        else:
            self.evicted += 1
            same = self._index[block.key]
            same.remove(block)
            if not same:
                del self._index[block.key]
            block.key = None
        block.ref = 1
        return block

    def give(self, blocks: Iterable[Block]) -> None:
        """A sequence gives these back, in this order; those that hold nothing findable are the next to go."""
        for block in blocks:
            block.ref -= 1
            if block.ref:
                self.saved -= 1
                continue
            self.free += 1
            if block.key is None:
                self.plain += 1
                block.link(self._queue.next)
            else:
                block.link(self._queue)

    def check(self, references: dict[Block, int]) -> None:
        """Raise AssertionError where an invariant is broken, `references` being what sequences hold, how often. Slow:
        for tests."""
        queued = plain = 0
        block: Block = self._queue.next
        while block is not self._queue:
            assert block.ref == 0 and block.next.prev is block
            assert block.key is None or any(block is other for other in self._index[block.key])
            queued, plain = queued + 1, plain + (block.key is None)
            block = block.next
        assert (queued, plain) == (self.free, self.plain), (queued, plain, self.free, self.plain)
        assert all(block.ref == count for block, count in references.items())
        assert len(references) + self.free == self.blocks, (len(references), self.free, self.blocks)
        assert self.saved == sum(count - 1 for count in references.values())
