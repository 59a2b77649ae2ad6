"""The samplers that repeat, take turns and mix do so by chance where they say so, and as often as they say.

Each check is a chi-square test at a false-alarm rate of 1e-6 (`tests.support.chi_square`). The seeds are fixed, so a
run that passed passes again.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from lit_loader.samplers import ClassAwareSampler, MixedSourceSampler, RepeatFactorSampler, SubsetRandomSampler
from tests.support.chi_square import assert_fits, assert_permutations_fit


def _first_places(sampler, place, *, seeds, epoch):
    """Return how often each index comes at a place, over seeds."""
    drawn = [sampler.order(seed=seed, epoch=epoch)[place : place + 1][0] for seed in range(seeds)]
    return np.bincount(drawn, minlength=sampler.num_indices)


def _assert_unrelated(first, second):
    """Compare two rows of cycles of four; a table of cycles has 4 / 3 of the variance of one of single draws."""
    table = np.bincount(first * 4 + second, minlength=16)
    assert_fits(table, np.full(16, 1 / 16), lost=7, scale=0.75)


def test_extra_visit_has_the_probability_of_the_fraction():
    sampler = RepeatFactorSampler([1.0, 1.1, 2.25, 0.5, 1.7, 1.85, 1.9])  # 10.3: the fractions are moved a little
    epochs = 10_000
    visits = np.array([np.bincount(sampler.order(seed=0, epoch=e)[:], minlength=7) for e in range(epochs)])
    chances = sampler.expected_visits() - visits.min(axis=0)
    for image in range(1, 7):
        extra = np.count_nonzero(visits[:, image] > visits[:, image].min())
        assert_fits([epochs - extra, extra], [1 - chances[image], chances[image]])


def test_all_sets_of_repeated_images_are_equally_likely():
    """Along a list that is not shuffled anew, two of these twenty sets would come and no other."""
    sampler = RepeatFactorSampler([1.5] * 6)
    numbers = {chosen: k for k, chosen in enumerate(combinations(range(6), 3))}
    drawn = []
    for epoch in range(5000):
        visits = np.bincount(sampler.order(seed=1, epoch=epoch)[:], minlength=6)
        drawn.append(numbers[tuple(np.flatnonzero(visits == 2).tolist())])
    assert_fits(np.bincount(drawn, minlength=20), np.full(20, 0.05))


@pytest.mark.parametrize("place", [0, 4])
def test_repeat_factor_position_matches_expected_visits(place):
    sampler = RepeatFactorSampler([1.0, 2.5, 0.25, 1.25, 3.0])
    counts = _first_places(sampler, place, seeds=5000, epoch=2)
    assert_fits(counts, sampler.expected_visits() / len(sampler))


@pytest.mark.parametrize(("place", "epoch"), [(0, 0), (4, 0), (1, 3)])
def test_class_aware_position_matches_expected_visits(place, epoch):
    labels = [[0], [0], [0, 1], [1], [2], [2], [2], []]
    sampler = ClassAwareSampler(labels, num_samples=7, empty_as_class=True)
    counts = _first_places(sampler, place, seeds=2500, epoch=epoch)
    assert_fits(counts, sampler.expected_visits() / 7)


def test_turns_of_classes_and_images_are_uniform_and_independent():
    order = ClassAwareSampler(np.repeat(range(4), 4), num_samples=64_000).order(seed=5, epoch=1)[:]
    turns = order.reshape(-1, 4)
    assert_permutations_fit(turns // 4)
    images = np.sort(turns, axis=1) % 4  # by class, one row a turn
    for c in range(4):
        assert_permutations_fit(images[:, c].reshape(-1, 4))
    for c in range(1, 4):
        _assert_unrelated(images[:, 0], images[:, c])


def test_subsets_are_shuffled_uniformly():
    sampler = SubsetRandomSampler([9, 2, 4, 7])
    assert_permutations_fit([sampler.order(seed=3, epoch=e)[:] for e in range(6000)])


@pytest.mark.parametrize("place", [0, 3, 5])
def test_mixed_source_position_is_uniform_over_its_source(place):
    counts = _first_places(MixedSourceSampler([7, 5], [2, 1]), place, seeds=2000, epoch=2)
    source = slice(0, 7) if place % 3 < 2 else slice(7, 12)
    assert counts[source].sum() == 2000
    assert_fits(counts[source], np.full(source.stop - source.start, 1 / (source.stop - source.start)))


def test_cycles_of_sources_are_uniform_and_sources_unrelated():
    mix = MixedSourceSampler([4, 4], [1, 1], num_samples=40_000).order(seed=1, epoch=3)[:].reshape(-1, 2)
    mix[:, 1] -= 4
    for source in (0, 1):
        assert_permutations_fit(mix[:, source].reshape(-1, 4))
    _assert_unrelated(mix[:, 0], mix[:, 1])
