"""Shuffled cycles: every index once a cycle, any visit computable alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lit_loader.samplers import shuffle
from lit_loader.samplers.shuffle import cycles_order, shuffled_cycles

keys = st.integers(0, 2**64 - 1)


@given(key=keys, count=st.integers(1, 60), first=st.integers(0, 2**40))
def test_every_cycle_holds_every_index_once(key, count, first):
    visits = shuffled_cycles(key, count, first * count, (first + 3) * count).reshape(3, count)
    assert (np.sort(visits, axis=1) == np.arange(count)).all()


@given(key=keys, count=st.integers(1, 60), start=st.integers(0, 2**45), data=st.data())
def test_visit_does_not_depend_on_the_requested_range(key, count, start, data):
    visits = shuffled_cycles(key, count, start, start + 200)
    a = data.draw(st.integers(0, 199))
    b = data.draw(st.integers(a + 1, 200))
    np.testing.assert_array_equal(shuffled_cycles(key, count, start + a, start + b), visits[a:b])


@given(
    key=keys,
    count=st.sampled_from([1, 3, 100, 16_384, 20_000]),
    slices=st.lists(st.tuples(st.integers(0, 90_000), st.integers(1, 20_000)), min_size=1, max_size=5),
)
def test_cached_blocks_give_same_visits_in_any_access_order(key, count, slices):
    order = cycles_order(key, count)
    for start, size in slices:
        visits = order[start : start + size]
        np.testing.assert_array_equal(visits, shuffled_cycles(key, count, start, start + size))
        if visits.flags.writeable:
            visits[:] = -1  # a copy, not the cached block


def test_very_large_cycles_are_permutations_that_are_not_stored(monkeypatch):
    monkeypatch.setattr(shuffle, "_MOST_SORTED", 100)
    monkeypatch.setattr(shuffle, "_CYCLES_BLOCK", 1)
    few = cycles_order(7, 101)
    visits = few[0:303].reshape(3, 101)
    assert (np.sort(visits, axis=1) == np.arange(101)).all()
    assert len({tuple(row) for row in visits.tolist()}) == 3
    np.testing.assert_array_equal(few[50:250], visits.ravel()[50:250])


@pytest.mark.parametrize("count", [2**20 + 1, 10**12])
def test_slice_of_very_large_cycles_equals_single_positions(count):
    visits = cycles_order(7, count)[5 * count - 10 : 5 * count + 10]
    assert visits.dtype == np.int64
    assert 0 <= visits.min() <= visits.max() < count
    alone = [cycles_order(7, count)[p : p + 1][0] for p in range(5 * count - 10, 5 * count + 10)]
    assert visits.tolist() == alone
