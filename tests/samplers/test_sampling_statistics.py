"""Draws follow their distribution.

Each check is a chi-square test at a false-alarm rate of 1e-6 (`tests.support.chi_square`). The seeds are fixed, so a
run that passed passes again.
"""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from lit_loader.samplers import ClassBalancedSampler, RandomSampler, WeightedRandomSampler
from lit_loader.samplers.shuffle import permutation
from lit_loader.seeding import key64
from tests.support.chi_square import assert_fits, assert_permutations_fit


def _pairs(values, lag):
    """Return pairs of values `lag` apart that do not overlap, so that they are independent."""
    blocks = values[: len(values) // (2 * lag) * 2 * lag].reshape(-1, 2, lag)
    return blocks[:, 0].ravel(), blocks[:, 1].ravel()


def _table(rows, columns, size):
    return np.bincount(rows * size + columns, minlength=size * size)


def test_chi_square_bound_refuses_a_wrong_distribution():
    counts = np.bincount(WeightedRandomSampler([1.0] * 10, 100_000).order(seed=0, epoch=0)[:])
    assert_fits(counts, [0.1] * 10)
    with pytest.raises(AssertionError, match="exceeds"):
        assert_fits(counts, np.array([1.1] + [1.0] * 9) / 10.1)


def test_all_permutations_of_five_are_equally_likely():
    assert_permutations_fit([permutation(key64(k), 5) for k in range(12_000)])


@pytest.mark.parametrize("seed", range(3))
def test_shuffle_is_uniform_and_neighbours_are_independent(seed):
    size = 50
    order = RandomSampler(200_000).order(seed=seed, epoch=0)[:] * size // 200_000
    places = np.arange(200_000) * size // 200_000
    uniform = np.full(size * size, 1 / size**2)
    assert_fits(_table(places, order, size), uniform, lost=2 * size - 1)
    for lag in (1, 2, 7, 256):
        assert_fits(_table(*_pairs(order, lag), size), uniform)


def test_epochs_and_seeds_shuffle_independently():
    size = 50
    n = 200_000
    sampler = RandomSampler(n)
    first = np.argsort(sampler.order(seed=0, epoch=0)[:]) * size // n
    for seed, epoch in ((0, 1), (1, 0), (0, 2), (2**32, 0)):
        other = np.argsort(sampler.order(seed=seed, epoch=epoch)[:]) * size // n
        assert_fits(_table(first, other, size), np.full(size * size, 1 / size**2), lost=2 * size - 1)


@pytest.mark.parametrize("power", [0, 1, 3])
def test_draws_with_replacement_match_the_weights_and_are_independent(power):
    weights = np.arange(1, 21.0) ** power + 20.0**power / 10
    probabilities = weights / weights.sum()
    draws = WeightedRandomSampler(weights, 800_000).order(seed=1, epoch=0)[:]
    assert_fits(np.bincount(draws), probabilities)
    for lag in (1, 2, 256):
        assert_fits(_table(*_pairs(draws, lag), 20), np.outer(probabilities, probabilities))


def test_draws_without_replacement_equal_successive_draws():
    weights = np.array([1.0, 2.0, 3.0, 6.0])
    sampler = WeightedRandomSampler(weights, 2, replacement=False)
    pairs = list(permutations(range(4), 2))
    numbers = {pair: k for k, pair in enumerate(pairs)}
    drawn = [numbers[tuple(sampler.order(seed=0, epoch=e)[:].tolist())] for e in range(10_000)]
    probabilities = [weights[a] / 12 * weights[b] / (12 - weights[a]) for a, b in pairs]
    assert_fits(np.bincount(drawn, minlength=len(pairs)), probabilities)


def test_a_class_balanced_position_matches_the_expected_visits_over_seeds():
    labels = [0] * 7 + [1] * 3 + [-1] * 2
    sampler = ClassBalancedSampler(labels, num_samples=9)
    first = [sampler.order(seed=seed, epoch=0)[:1][0] for seed in range(4000)]
    assert_fits(np.bincount(first, minlength=12), sampler.expected_visits() / 9)


def test_cycles_and_positions_of_a_class_are_uniform():
    labels = np.array([0] * 40 + [1] * 4)
    order = ClassBalancedSampler(labels, num_samples=80_000).order(seed=2, epoch=1)[:]
    assert_permutations_fit(order[order >= 40].reshape(-1, 4))
    places = np.flatnonzero(order >= 40) * 100 // len(order)
    # Half of each block's places are of this class: a hypergeometric count has half the variance.
    assert_fits(np.bincount(places, minlength=100), np.full(100, 0.01), scale=2.0)
