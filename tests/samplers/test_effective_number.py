"""Effective-number weights equal the paper's formula to the last bit; an image gets its rarest class's weight."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lit_loader.samplers import effective_number_image_weights, effective_number_weights


@given(
    counts=st.lists(st.integers(0, 400), min_size=1, max_size=10),
    beta=st.floats(0, 1, exclude_max=True) | st.sampled_from([0.9, 0.999, 0.9999, 1 - 2.0**-53]),
)
def test_weights_equal_exact_arithmetic(counts, beta):
    base = Fraction(beta)
    exact = [float((1 - base) / (1 - base**n)) if n else 0.0 for n in counts]
    np.testing.assert_allclose(effective_number_weights(counts, beta=beta), exact, rtol=2.0**-52, atol=0)


def test_beta_interpolates_between_equal_and_inverse_count_weights():
    counts = np.array([1, 10, 1000, 0])
    assert effective_number_weights(counts, beta=0.0).tolist() == [1.0, 1.0, 1.0, 0.0]
    near = effective_number_weights(torch.tensor(counts), beta=1 - 1e-12)
    np.testing.assert_allclose(near, [1.0, 0.1, 0.001, 0.0], rtol=1e-8)
    assert effective_number_weights([10**15], beta=0.9) == pytest.approx([0.1])


def test_an_image_gets_the_weight_of_its_rarest_class():
    labels = [[0, 1], [0], [0, 0], [], [0, 2, 1]]
    of_classes = effective_number_weights([4, 2, 1], beta=0.9)
    expected = [of_classes[1], of_classes[0], of_classes[0], of_classes[0], of_classes[2]]
    assert effective_number_image_weights(labels, beta=0.9).tolist() == expected
    for empty_weight in (0, 0.25):
        weights = effective_number_image_weights(labels, beta=0.9, empty_weight=empty_weight)
        assert weights[3] == empty_weight
        assert np.delete(weights, 3).tolist() == expected[:3] + expected[4:]


def test_an_image_without_a_class_gets_the_smallest_weight_of_an_image():
    always_beside_a_rarer_one = [[0, 1], [0, 2], []]
    assert effective_number_image_weights(always_beside_a_rarer_one, beta=0.9).tolist() == [1.0, 1.0, 1.0]
    assert effective_number_image_weights([-1, -1], beta=0.9).tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("counts", "beta", "error", "message"),
    [([1], beta, ValueError, rf"in \[0, 1\), got beta={beta}") for beta in (1.0, -0.1, 2, float("nan"), float("inf"))]
    + [([1], beta, TypeError, "`beta` must be a number") for beta in (True, "0.9", None)]
    + [
        ([1, -2, -3], 0.9, ValueError, r"counts\[1\]=-2"),
        ([1.0], 0.9, TypeError, "`counts` must be integers, got float64"),
    ],
)
def test_invalid_arguments_are_refused(counts, beta, error, message):
    with pytest.raises(error, match=message):
        effective_number_weights(counts, beta=beta)


def test_invalid_labels_and_empty_weights_are_refused():
    with pytest.raises(ValueError, match="not be negative, got empty_weight=-1"):
        effective_number_image_weights([0], beta=0.9, empty_weight=-1)
    with pytest.raises(ValueError, match=r"labels\[1\]=-2"):
        effective_number_image_weights([0, -2], beta=0.9)
