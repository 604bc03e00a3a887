"""The shape of one engine step: all that its cost may depend on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class StepShape:
    """One engine step, or the first of a run of decode steps in which every sequence grows by one token.

    Layers are grouped by how far they attend (`ModelSpec.attention_groups`: full, window w, …); the tuples hold one
    entry a group, in that order. A decode sequence with c tokens in the cache before the step attends c + 1 tokens
    (its own included) in a full group and min(c + 1, w) in a window group.
    """

    decode: int = 0
    """sequences that decode one token"""
    attended: tuple[int, ...] = ()
    """tokens attended by all decode sequences together, per group"""
    longest: tuple[int, ...] = ()
    """longest attended length of a decode sequence, per group"""
    growing: tuple[int, ...] = ()
    """decode sequences whose attended length grows by one in the next step, per group"""
    longest_grows: tuple[bool, ...] = ()
    """whether the longest one grows in the next step, per group"""
    chunks: tuple[tuple[int, int], ...] = ()
    """prefill chunks: (tokens computed, tokens of the same sequence already in the cache)"""
    sampled: int = 0
    """rows that go through the lm_head: decode sequences and chunks that complete their prompt"""
    scored: int = 0
    """cached tokens over which eviction scores are updated in this step (retention policies)"""
    moved_bytes: int = 0
    """bytes gathered or copied inside device memory by the cache policy (compaction, reallocation, copy-on-write)"""

    @property
    def tokens(self) -> int:
        """m: rows of the linear layers."""
        tokens = self.decode
        for chunk, _ in self.chunks:
            tokens += chunk
        return tokens
