"""`RepeatFactorSampler`: LVIS's factors, met exactly in the mean and to less than one in every epoch."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lit_loader.samplers import RepeatFactorSampler, repeat_factors

factors = st.lists(
    st.floats(0, 6) | st.sampled_from([1.0, 1.0 + 2.0**-50, 2.0 - 2.0**-50, 0.5]), min_size=1, max_size=60
).filter(lambda values: sum(values) > 0.51)


@given(rows=st.lists(st.lists(st.integers(0, 4), max_size=4), min_size=1, max_size=40), thresh=st.floats(0.01, 1))
def test_factors_follow_lvis(rows, thresh):
    shares = {c: sum(c in row for row in rows) / len(rows) for row in rows for c in row}
    expected = [max([1.0] + [math.sqrt(thresh / shares[c]) for c in row]) for row in rows]
    assert repeat_factors(rows, repeat_thresh=thresh).tolist() == expected


@given(values=factors, seed=st.integers(), epoch=st.integers(0, 2**40))
def test_every_epoch_meets_factors_within_one_visit(values, seed, epoch):
    sampler = RepeatFactorSampler(values)
    counts = np.bincount(sampler.order(seed=seed, epoch=epoch)[:], minlength=len(values))
    assert counts.sum() == len(sampler)
    assert abs(len(sampler) - sum(values)) <= 0.5 + 1e-9
    assert (counts >= np.floor(values)).all()
    assert (counts <= np.ceil(values)).all()  # a whole factor is met exactly


@given(values=factors)
def test_expected_visits_are_factors_up_to_rounding_of_their_sum(values):
    sampler = RepeatFactorSampler(values)
    visits = sampler.expected_visits()
    assert visits.sum() == pytest.approx(len(sampler), rel=1e-12)
    moved = visits - values
    assert abs(moved).sum() <= abs(len(sampler) - sum(values)) + 1e-9 <= 0.5 + 2e-9
    is_integer = np.array(values) == np.floor(values)
    assert (moved[is_integer] == 0).all()


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
def test_invalid_factors_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        RepeatFactorSampler(values)


def test_invalid_thresholds_are_refused():
    for thresh in (0, -1.0, 1.5, float("nan")):
        with pytest.raises(ValueError, match=rf"in \(0, 1\], got repeat_thresh={thresh}"):
            repeat_factors([0], repeat_thresh=thresh)
    for thresh in (True, "0.1"):
        with pytest.raises(TypeError, match="`repeat_thresh` must be a number"):
            repeat_factors([0], repeat_thresh=thresh)
