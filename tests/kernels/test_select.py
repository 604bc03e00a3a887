"""Which tokens stay: StreamingLLM, H2O, SnapKV."""

from __future__ import annotations

import numpy as np
import pytest
from kvsim_kernels.reference.select import heavy_hitters, snapkv, window


def test_window() -> None:
    assert window(10, 2, 3).tolist() == [0, 1, 7, 8, 9]
    assert window(5, 2, 3).tolist() == [0, 1, 2, 3, 4]
    assert window(0, 2, 3).tolist() == []


def test_heavy_hitters_keep_the_best_and_the_newest() -> None:
    scores = [[5, 1, 4, 9, 0, 0], [1, 1, 1, 2, 9, 9]]
    assert heavy_hitters(scores, budget=4, recent=2).tolist() == [[0, 3, 4, 5], [2, 3, 4, 5]]
    assert heavy_hitters(scores, budget=2, recent=2).tolist() == [[4, 5]] * 2
    assert heavy_hitters(scores, budget=9, recent=2).tolist() == [list(range(6))] * 2


def test_heavy_hitters_without_a_recent_part_are_the_top_k() -> None:
    scores = np.random.default_rng(0).random((3, 50))
    kept = heavy_hitters(scores, budget=12, recent=0)
    assert (np.diff(kept) > 0).all()
    for row, keep in zip(scores, kept, strict=True):
        assert row[keep].min() > np.delete(row, keep).max()


def test_snapkv_keeps_neighbours_of_what_the_observers_look_at() -> None:
    scores = np.zeros((1, 40))
    scores[0, 20] = 1
    kept = snapkv(scores, budget=7 + 4, observe=4, kernel=7)
    assert kept.tolist() == [[17, 18, 19, 20, 21, 22, 23, 36, 37, 38, 39]]
    scores[0, 38] = 9  # an observer's own score pools into no one
    assert snapkv(scores, budget=11, observe=4).tolist() == kept.tolist()
    assert snapkv(scores[:, :3], budget=2, observe=2).tolist() == [[1, 2]]


def test_bad_input_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match="5 recent tokens do not fit a budget of 4"):
        heavy_hitters([[1.0] * 9], budget=4, recent=5)
    with pytest.raises(ValueError, match="odd and positive, not 4"):
        snapkv([[1.0] * 9], 4, 2, kernel=4)
