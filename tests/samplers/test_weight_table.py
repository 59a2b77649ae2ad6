"""The table of cumulative weights gives what bisection of the whole sum gives, and each index its probability."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lit_loader.samplers.weighted import WeightTable
from lit_loader.seeding import hash_u64

weights = st.lists(st.floats(0, 1e300), min_size=1, max_size=80).map(np.array).filter(lambda w: w.any())


def bisected(values, key, num_draws):
    """Return the draws as numpy's bisection finds them."""
    ends = np.cumsum(values / values.max())
    numbers = hash_u64(key, np.arange(num_draws)) >> np.uint64(11)
    return np.searchsorted(ends, numbers * (ends[-1] * 2.0**-53), side="right")


@given(values=weights, key=st.integers(0, 2**64 - 1))
def test_draws_are_those_of_a_bisection_and_never_of_a_zero_weight(values, key):
    draws = WeightTable(values).draw(key, 0, 300)
    np.testing.assert_array_equal(draws, bisected(values, key, 300))
    assert draws.dtype == np.int64
    assert (values[draws] > 0).all()


@pytest.mark.parametrize(
    "values",
    [
        np.random.default_rng(0).pareto(0.6, 200_000),
        np.append(np.zeros(199_999), 1.0),
        np.append(1.0, np.full(199_999, 1e-9)),
        np.sort(np.random.default_rng(1).random(200_000)),
        np.append(np.zeros(100_000), np.full(2**16, 0.1)),
    ],
    ids=["heavy tail", "one", "one and dust", "sorted", "none and equal"],
)
def test_so_they_are_with_many_weights(values):
    np.testing.assert_array_equal(WeightTable(values).draw(7, 0, 100_000), bisected(values, 7, 100_000))


@pytest.mark.parametrize("n", [1, 2, 3, 1000, 2**17 + 1])
def test_the_smallest_and_the_largest_number_give_the_first_and_the_last_index(n, monkeypatch):
    table = WeightTable(np.full(n, 0.3))
    for bits, index in ((0, 0), (2**64 - 1, n - 1)):
        monkeypatch.setattr(
            "lit_loader.samplers.weighted.hash_u64", lambda *_, bits=bits: np.array([bits], np.uint64)
        )
        assert table.draw(0, 0, 1).tolist() == [index]


def test_a_draw_does_not_depend_on_the_slice_it_is_drawn_in():
    table = WeightTable(np.append(0.0, np.ones(999)))
    whole = table.draw(5, 0, 200_000)
    np.testing.assert_array_equal(table.draw(5, 65_000, 140_001), whole[65_000:140_001])
    assert set(whole.tolist()) == set(range(1, 1000))
