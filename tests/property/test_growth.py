"""Decoding sequences counted by residue class take and hold what they do one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvsim.cache.growth import Growth


@given(
    size=st.sampled_from([1, 4, 16]), lengths=st.lists(st.integers(1, 200), max_size=20), gone=st.integers(0, 20),
    step=st.integers(0, 100), steps=st.integers(1, 70), room=st.integers(0, 60), limit=st.integers(0, 200),
)
def test_what_is_counted_is_what_a_walk_finds(
    size: int, lengths: list[int], gone: int, step: int, steps: int, room: int, limit: int
) -> None:
    growth = Growth(size)
    for length in lengths:
        growth.join(length - step)
    for length in lengths[:gone]:
        growth.leave(length - step)
    left = lengths[gone:]

    def taken(steps: int) -> int:
        return sum(-(-(length + steps) // size) - -(-length // size) for length in left)

    assert (growth.count, growth.tokens(step)) == (len(left), sum(left))
    assert growth.tokens(step + steps) == sum(left) + steps * len(left)
    assert growth.blocks(step, steps) == taken(steps)
    assert growth.horizon(step, room, limit) == max(k for k in range(limit + 1) if taken(k) <= room)
