"""Quotas are near the shares, exact in sum and forget no class."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lit_loader.samplers.class_balanced import class_quotas, class_shares


def fractions_of(counts, exponent):
    shares = class_shares(counts, exponent=exponent)
    return [Fraction(share, sum(shares)) for share in shares]


def test_exponent_interpolates_between_natural_and_equal_shares():
    counts = [90, 9, 0, 1]
    assert fractions_of(counts, 0.0) == [Fraction(n, 100) for n in counts]
    assert fractions_of(counts, 1.0) == [Fraction(1, 3), Fraction(1, 3), 0, Fraction(1, 3)]
    half = [float(share) for share in fractions_of([16, 4, 0, 1], 0.5)]
    assert half == pytest.approx([4 / 7, 2 / 7, 0, 1 / 7])


def test_remaining_positions_go_to_largest_remainders():
    assert class_quotas([Fraction(1, 3)] * 3, 10).tolist() == [4, 3, 3]
    assert class_quotas([Fraction(47, 100), Fraction(16, 100), Fraction(37, 100)], 10).tolist() == [5, 1, 4]


@given(
    counts=st.lists(st.integers(0, 10**6), min_size=1, max_size=20).filter(any),
    exponent=st.floats(0, 1),
    num_samples=st.integers(20, 10**6),
)
def test_quotas_are_within_one_of_shares_and_sum_exactly(counts, exponent, num_samples):
    shares = fractions_of(counts, exponent)
    quotas = class_quotas(shares, num_samples)
    assert class_quotas(class_shares(counts, exponent=exponent), num_samples).tolist() == quotas.tolist()
    assert quotas.sum() == num_samples
    assert ((quotas > 0) == [count > 0 for count in counts]).all()
    raised = sum(0 < share * num_samples < 1 for share in shares)  # classes that may have taken one each
    for quota, share in zip(quotas.tolist(), shares, strict=True):
        assert -1 - raised < quota - share * num_samples < 1


def test_fewer_positions_than_classes_are_refused():
    with pytest.raises(ValueError, match="num_samples=2 is less than the 3 classes that have a share"):
        class_quotas([Fraction(1, 3)] * 3 + [Fraction(0)], 2)
