"""Weighted draws in batches of one group: every index as often as its weight says, at every place.

Each check is a chi-square test at a false-alarm rate of 1e-6 (`tests.support.chi_square`). The seeds are fixed, so a
run that passed passes again.
"""

from __future__ import annotations

import numpy as np
import pytest

from lit_loader.samplers import GroupedSampler, WeightedRandomSampler
from tests.support.chi_square import assert_fits

WEIGHTS = np.array([4.0, 0.0, 1.0, 1.0, 2.5, 0.5, 3.0, 0.0, 0.0, 8.0])
GROUPS = np.array([0, 0, 0, 3, 3, 3, 3, 1, 1, 5])  # one of weight zero, two without members


def weighted_batches(*, seed, num_batches, size=4):
    sampler = GroupedSampler(WeightedRandomSampler(WEIGHTS, num_batches * size), GROUPS)
    return sampler.batch_order(seed=seed, epoch=3, global_batch=size)[:].reshape(-1, size)


def test_every_weighted_batch_has_one_group():
    sampler = GroupedSampler(WeightedRandomSampler(WEIGHTS, 402), GROUPS)
    order = sampler.batch_order(seed=0, epoch=0, global_batch=4)
    groups = GROUPS[order[:]]
    assert (groups[:400].reshape(-1, 4) == groups[:400:4, None]).all()
    assert groups[400] == groups[401]
    assert set(groups.tolist()) == {0, 3, 5}


@pytest.mark.parametrize("place", [0, 3])
def test_position_of_a_weighted_batch_matches_the_weights(place):
    """Chi-square at a false-alarm rate of 1e-6; the places of different batches are independent."""
    drawn = weighted_batches(seed=place, num_batches=15_000)[:, place]
    positive = WEIGHTS > 0
    counts = np.bincount(drawn, minlength=len(WEIGHTS))
    assert counts[~positive].sum() == 0
    assert_fits(counts[positive], WEIGHTS[positive] / WEIGHTS.sum())


def test_draws_within_a_batch_are_independent_given_its_group():
    batches = weighted_batches(seed=9, num_batches=20_000)
    pairs = batches[GROUPS[batches[:, 0]] == 3][:, [1, 2]] - 3
    share = WEIGHTS[3:7] / WEIGHTS[3:7].sum()
    assert_fits(np.bincount(pairs[:, 0] * 4 + pairs[:, 1], minlength=16), np.outer(share, share))


def test_groups_of_batches_are_independent_draws_by_total_weight():
    groups = GROUPS[weighted_batches(seed=5, num_batches=15_000)[:, 0]]
    names = {0: 0, 3: 1, 5: 2}
    number = np.array([names[group] for group in groups.tolist()])
    share = np.array([5.0, 7.0, 8.0]) / 20
    assert_fits(np.bincount(number[::2] * 3 + number[1::2], minlength=9), np.outer(share, share))


def test_huge_and_tiny_weights_do_not_overflow():
    weights = np.array([1e308, 1e308, 1e308, 1e-320, 5e307])
    sampler = GroupedSampler(WeightedRandomSampler(weights, 1000), [0, 0, 1, 2, 1])
    assert set(sampler.batch_order(seed=0, epoch=0, global_batch=2)[:].tolist()) == {0, 1, 2, 4}
