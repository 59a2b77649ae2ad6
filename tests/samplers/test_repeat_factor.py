"""`RepeatFactorSampler`: LVIS's factors, met exactly in the mean and to less than one in every epoch."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lit_loader.samplers import RepeatFactorSampler, rank_batch, repeat_factors

factors = st.lists(
    st.floats(0, 6) | st.sampled_from([1.0, 1.0 + 2.0**-50, 2.0 - 2.0**-50, 0.5]), min_size=1, max_size=60
).filter(lambda values: sum(values) > 0.51)


@given(rows=st.lists(st.lists(st.integers(0, 4), max_size=4), min_size=1, max_size=40), thresh=st.floats(0.01, 1))
def test_factors_are_lviss_formula(rows, thresh):
    shares = {c: sum(c in row for row in rows) / len(rows) for row in rows for c in row}
    expected = [max([1.0] + [math.sqrt(thresh / shares[c]) for c in row]) for row in rows]
    assert repeat_factors(rows, repeat_thresh=thresh).tolist() == expected


@given(values=factors, seed=st.integers(), epoch=st.integers(0, 2**40))
def test_every_epoch_has_the_same_length_and_every_factor_is_met_to_less_than_one(values, seed, epoch):
    sampler = RepeatFactorSampler(values)
    counts = np.bincount(sampler.order(seed=seed, epoch=epoch)[:], minlength=len(values))
    assert counts.sum() == len(sampler)
    assert abs(len(sampler) - sum(values)) <= 0.5 + 1e-9
    certain = np.floor(values)
    assert (counts >= certain).all()
    assert (counts <= certain + 1).all()


@given(values=factors)
def test_expected_visits_are_the_factors_but_for_the_rounding_of_their_sum(values):
    sampler = RepeatFactorSampler(values)
    visits = sampler.expected_visits()
    assert visits.sum() == pytest.approx(len(sampler), rel=1e-12)
    moved = visits - values
    assert abs(moved).sum() <= abs(len(sampler) - sum(values)) + 1e-9 <= 0.5 + 2e-9
    is_integer = np.array(values) == np.floor(values)
    assert (moved[is_integer] == 0).all()


def test_a_factor_that_is_whole_is_met_in_every_epoch():
    values = np.array([1.0, 3.0, 0.0, 1.5, 1.2])
    sampler = RepeatFactorSampler(values)
    assert len(sampler) == 7
    for epoch in range(50):
        counts = np.bincount(sampler.order(seed=0, epoch=epoch)[:], minlength=5)
        assert counts[:3].tolist() == [1, 3, 0]
        assert counts[3] + counts[4] == 3


def test_neighbours_are_not_bound_to_come_in_turns():
    """Systematic sampling along the list itself would never repeat two neighbours of factor 1.5 together."""
    sampler = RepeatFactorSampler(np.full(20, 1.5))
    together = 0
    for epoch in range(100):
        counts = np.bincount(sampler.order(seed=3, epoch=epoch)[:], minlength=20)
        together += int((counts[::2] == counts[1::2]).sum())
    assert together > 200  # of 1,000, 474 in the mean


def test_visits_are_spread_over_the_epoch():
    sampler = RepeatFactorSampler([50.0] + [1.0] * 950)
    halves = np.array([np.count_nonzero(sampler.order(seed=0, epoch=e)[:500] == 0) for e in range(40)])
    assert 20 < halves.mean() < 30


def test_ranks_have_as_many_batches_as_each_other_in_every_epoch():
    sampler = RepeatFactorSampler(repeat_factors([0] * 90 + [1] * 3 + [2] * 7, repeat_thresh=0.3))
    for epoch in range(5):
        order = sampler.order(seed=0, epoch=epoch)
        parts = [rank_batch(order, 3, batch_size=8, rank=r, world_size=3, drop_last=True).indices for r in range(3)]
        assert np.concatenate(parts).tolist() == order[72:96].tolist()


def test_factors_are_copied():
    values = np.array([1.0, 2.0])
    sampler = RepeatFactorSampler(values)
    values[:] = 7.0
    assert sampler.expected_visits().tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1.0, -0.5], r"repeat_factors\[1\]=-0.5"),
        ([1.0, 1.0, math.inf], r"repeat_factors\[2\]=inf"),
        ([], r"shape \(0,\)"),
        ([0.0], "`repeat_factors` are all zero"),
        ([0.1, 0.2], "must sum to more than 0.5 .* got 0.3"),
        ([1.0, 3e9], r"must sum to .* got 3e\+09, with repeat_factors\[1\]=3e\+09 the largest; scale"),
    ],
)
def test_bad_factors_are_refused_by_name(values, message):
    with pytest.raises(ValueError, match=message):
        RepeatFactorSampler(values)


def test_bad_thresholds_are_refused():
    for thresh in (0, -1.0, 1.5, float("nan")):
        with pytest.raises(ValueError, match=rf"in \(0, 1\], got repeat_thresh={thresh}"):
            repeat_factors([0], repeat_thresh=thresh)
    for thresh in (True, "0.1"):
        with pytest.raises(TypeError, match="`repeat_thresh` must be a number"):
            repeat_factors([0], repeat_thresh=thresh)
