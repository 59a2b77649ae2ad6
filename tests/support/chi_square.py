"""Chi-square tests at a false-alarm rate of 1e-6: so rarely is a right implementation refused for an arbitrary seed."""

from __future__ import annotations

from itertools import permutations

import numpy as np

NORMAL_QUANTILE = 4.753424308822899  # of 1 - 1e-6: statistics.NormalDist().inv_cdf(1 - 1e-6)


def assert_permutations_fit(rows):
    """Check that all permutations of the same values are equally likely among rows, ``(N, number of values)``."""
    rows = np.asarray(rows)
    number_by_permutation = {values: number for number, values in enumerate(permutations(np.unique(rows).tolist()))}
    numbers = [number_by_permutation[tuple(row)] for row in rows.tolist()]
    count = len(number_by_permutation)
    assert_fits(np.bincount(numbers, minlength=count), np.full(count, 1 / count))


def assert_fits(counts, probabilities, *, lost=1, scale=1.0):
    """Compare counts with probabilities; the quantile is Wilson and Hilferty's (1931) approximation."""
    counts = np.asarray(counts, np.float64).ravel()
    probabilities = np.asarray(probabilities).ravel()
    expected = counts.sum() * probabilities
    assert expected.min() > 10
    statistic = scale * ((counts - expected) ** 2 / expected).sum()
    freedom = counts.size - lost
    bound = freedom * (1 - 2 / (9 * freedom) + NORMAL_QUANTILE * np.sqrt(2 / (9 * freedom))) ** 3
    assert statistic < bound, f"chi-square {statistic:.1f} exceeds {bound:.1f} with {freedom} degrees of freedom"
