"""A shuffle that is evaluated position by position: a permutation, the same however it is asked, without structure.

Each statistical check is a chi-square test at a false-alarm rate of 1e-6; the seeds are fixed, so a run that passed
passes again.
"""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lit_loader.samplers import RandomSampler
from lit_loader.samplers.shuffle import FeistelOrder
from lit_loader.seeding import key64
from tests.samplers.chi_square import assert_fits


def same(count):
    """So many equal probabilities."""
    return np.full(count, 1 / count)


@settings(max_examples=60)
@given(key=st.integers(0, 2**64 - 1), length=st.integers(0, 5000))
def test_every_index_comes_once(key, length):
    assert sorted(FeistelOrder(key, length)[:].tolist()) == list(range(length))


@pytest.mark.parametrize("length", [0, 1, 2, 3, 4, 5, 4095, 4096, 4097, 40_000, 1 << 17])
def test_lengths_at_the_edges(length):
    values = FeistelOrder(key64(3), length)[:]
    assert values.dtype == np.int64
    assert np.array_equal(np.sort(values), np.arange(length))


@settings(max_examples=80)
@given(
    key=st.integers(0, 2**64 - 1),
    length=st.integers(1, 60_000),
    cuts=st.lists(st.tuples(st.integers(0, 60_000), st.integers(0, 9000)), min_size=1, max_size=8),
)
def test_a_slice_equals_the_slice_of_the_whole(key, length, cuts):
    order, whole = FeistelOrder(key, length), FeistelOrder(key, length)[:]
    for start, count in cuts:
        assert np.array_equal(order[start : start + count], whole[start : start + count])


@pytest.mark.parametrize("length", [2**20 + 1, 10**9, 10**15, 2**62])
def test_far_positions_need_no_others(length):
    order = FeistelOrder(key64("far"), length)
    for start in (0, length // 3, length - 40):
        values = order[start : start + 40]
        assert len(np.unique(values)) == 40
        assert values.min() >= 0
        assert values.max() < length
        assert np.array_equal(values[7:9], FeistelOrder(key64("far"), length)[start + 7 : start + 9])


def test_lengths_beyond_are_refused():
    with pytest.raises(ValueError, match="length=4611686018427387905"):
        FeistelOrder(1, 2**62 + 1)


def test_threads_may_read_one_order():
    order, whole = FeistelOrder(5, 200_000), FeistelOrder(5, 200_000)[:]
    wrong = []

    def read(first):
        starts = range(first, 190_000, 977)
        wrong.extend(n for n in starts if not np.array_equal(order[n : n + 64], whole[n : n + 64]))

    threads = [threading.Thread(target=read, args=(number * 13,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# -- statistics -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [pytest.param(4, marks=pytest.mark.soak), 5])
def test_all_permutations_of_a_few_are_equally_likely(length):
    numbers = {p: k for k, p in enumerate(itertools.permutations(range(length)))}
    drawn = [numbers[tuple(FeistelOrder(key64("few", k), length)[:].tolist())] for k in range(6000)]
    assert_fits(np.bincount(drawn, minlength=len(numbers)), same(len(numbers)))


@pytest.mark.parametrize("length", [10, 37, 100])
def test_every_index_is_equally_likely_at_every_position(length):
    trials = 30 * length
    counts = np.zeros((length, length))
    for trial in range(trials):
        counts[np.arange(length), FeistelOrder(key64("where", trial), length)[:]] += 1
    # each trial is a permutation: (n - 1)^2 degrees of freedom are left, which scales the statistic too
    assert_fits(counts, same(length**2), lost=2 * length - 1, scale=(length - 1) / length)


@pytest.mark.parametrize("length", [100_000, 2**21, 3_000_017])
@pytest.mark.parametrize("lag", [1, 2, 255, 256, 1024])
def test_indices_apart_are_unrelated(length, lag):
    size = 24
    values = FeistelOrder(key64("lags", length), length)[: min(length, 1 << 19)] * size // length
    blocks = values[: len(values) // (2 * lag) * 2 * lag].reshape(-1, 2, lag)
    pairs = blocks[:, 0].ravel() * size + blocks[:, 1].ravel()
    assert_fits(np.bincount(pairs, minlength=size * size), same(size * size))


@pytest.mark.parametrize("length", [100_003, 1_500_000])
def test_differences_of_neighbours_have_the_triangular_distribution(length):
    values = FeistelOrder(key64("differences", length), length)[: min(length, 1 << 20)]
    steps = values[1::2][: len(values) // 2] - values[::2][: len(values[1::2])]
    bins = 40
    edges = np.linspace(-1, 1, bins + 1)
    below = np.where(edges < 0, (1 + edges) ** 2 / 2, 1 - (1 - edges) ** 2 / 2)
    counts, _ = np.histogram(steps / length, bins=edges)
    assert_fits(counts, np.diff(below))


def test_low_bits_are_unrelated_to_positions():
    values = FeistelOrder(key64("bits"), 1 << 21)[: 1 << 19]
    positions = np.arange(len(values))
    for bits in (1, 3, 5):
        mask = (1 << bits) - 1
        table = (positions & mask) * (mask + 1) + (values & mask)
        assert_fits(np.bincount(table, minlength=(mask + 1) ** 2), same((mask + 1) ** 2))


def test_epochs_are_unrelated():
    sampler, size = RandomSampler(1 << 21), 32
    first, second = (sampler.order(seed=4, epoch=epoch)[: 1 << 19] * size >> 21 for epoch in (0, 1))
    assert_fits(np.bincount(first * size + second, minlength=size * size), same(size * size))
    assert (first == second).mean() < 0.05


def test_the_random_sampler_sorts_up_to_a_million_and_evaluates_above():
    assert not isinstance(RandomSampler(1 << 20).order(seed=0, epoch=0), FeistelOrder)
    order = RandomSampler((1 << 20) + 1).order(seed=0, epoch=0)
    assert isinstance(order, FeistelOrder)
    assert order[:4].tolist() == RandomSampler((1 << 20) + 1).order(seed=0, epoch=0)[:][:4].tolist()
