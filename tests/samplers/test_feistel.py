"""A shuffle that is evaluated position by position: a permutation, the same however it is asked, without structure.

Each statistical check is a chi-square test at a false-alarm rate of 1e-6; the seeds are fixed, so a run that passed
passes again.
"""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lit_loader.samplers import RandomSampler
from lit_loader.samplers.shuffle import feistel_order
from lit_loader.seeding import key64
from tests.support.chi_square import assert_fits


def same(count):
    """So many equal probabilities."""
    return np.full(count, 1 / count)


@given(key=st.integers(0, 2**64 - 1), length=st.integers(1, 5000))
def test_every_index_comes_once(key, length):
    assert sorted(feistel_order(key, length)[:].tolist()) == list(range(length))


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 4095, 4096, 4097, 40_000, 1 << 17])
def test_lengths_around_block_size_give_permutations(length):
    values = feistel_order(key64(3), length)[:]
    assert values.dtype == np.int64
    assert np.array_equal(np.sort(values), np.arange(length))


@given(
    key=st.integers(0, 2**64 - 1),
    length=st.integers(1, 60_000),
    cuts=st.lists(st.tuples(st.integers(0, 60_000), st.integers(0, 9000)), min_size=1, max_size=8),
)
def test_a_slice_equals_the_slice_of_the_whole(key, length, cuts):
    order = feistel_order(key, length)
    indices = feistel_order(key, length)[:]
    for start, count in cuts:
        assert np.array_equal(order[start : start + count], indices[start : start + count])


@pytest.mark.parametrize("length", [2**20 + 1, 10**9, 10**15, 2**63 - 1])
def test_far_positions_are_computed_alone(length):
    order = feistel_order(key64("far"), length)
    for start in (0, length // 3, length - 40):
        values = order[start : start + 40]
        assert len(np.unique(values)) == 40
        assert values.min() >= 0
        assert values.max() < length
        assert np.array_equal(values[7:9], feistel_order(key64("far"), length)[start + 7 : start + 9])


def test_threads_may_read_one_order():
    order = feistel_order(5, 200_000)
    indices = feistel_order(5, 200_000)[:]
    wrong = []

    def read(first):
        starts = range(first, 190_000, 977)
        wrong.extend(n for n in starts if not np.array_equal(order[n : n + 64], indices[n : n + 64]))

    threads = [threading.Thread(target=read, args=(number * 13,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# -- statistics -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [10, 37, 100])
def test_every_index_is_equally_likely_at_every_position(length):
    trials = 30 * length
    counts = np.zeros((length, length))
    for trial in range(trials):
        counts[np.arange(length), feistel_order(key64("where", trial), length)[:]] += 1
    # each trial is a permutation: (n - 1)^2 degrees of freedom are left, which scales the statistic too
    assert_fits(counts, same(length**2), lost=2 * length - 1, scale=(length - 1) / length)


@pytest.mark.parametrize("length", [100_000, 2**21, 3_000_017])
@pytest.mark.parametrize("lag", [1, 2, 255, 256, 1024])
def test_indices_at_a_lag_are_independent(length, lag):
    size = 24
    values = feistel_order(key64("lags", length), length)[: min(length, 1 << 19)] * size // length
    blocks = values[: len(values) // (2 * lag) * 2 * lag].reshape(-1, 2, lag)
    pairs = blocks[:, 0].ravel() * size + blocks[:, 1].ravel()
    assert_fits(np.bincount(pairs, minlength=size * size), same(size * size))


@pytest.mark.parametrize("length", [100_003, 1_500_000])
def test_differences_of_neighbours_have_the_triangular_distribution(length):
    values = feistel_order(key64("differences", length), length)[: min(length, 1 << 20)]
    steps = values[1::2][: len(values) // 2] - values[::2][: len(values[1::2])]
    bins = 40
    edges = np.linspace(-1, 1, bins + 1)
    below = np.where(edges < 0, (1 + edges) ** 2 / 2, 1 - (1 - edges) ** 2 / 2)
    counts, _ = np.histogram(steps / length, bins=edges)
    assert_fits(counts, np.diff(below))


def test_low_bits_are_independent_of_positions():
    values = feistel_order(key64("bits"), 1 << 21)[: 1 << 19]
    positions = np.arange(len(values))
    for bits in (1, 3, 5):
        mask = (1 << bits) - 1
        table = (positions & mask) * (mask + 1) + (values & mask)
        assert_fits(np.bincount(table, minlength=(mask + 1) ** 2), same((mask + 1) ** 2))


def test_epochs_are_independent():
    sampler = RandomSampler(1 << 21)
    size = 32
    first, second = (sampler.order(seed=4, epoch=epoch)[: 1 << 19] * size >> 21 for epoch in (0, 1))
    assert_fits(np.bincount(first * size + second, minlength=size * size), same(size * size))
    assert (first == second).mean() < 0.05


def test_random_sampler_stores_only_small_shuffles():
    assert isinstance(RandomSampler(1 << 20).order(seed=0, epoch=0), np.ndarray)
    order = RandomSampler((1 << 20) + 1).order(seed=0, epoch=0)
    assert not isinstance(order, np.ndarray)
    assert order[:4].tolist() == RandomSampler((1 << 20) + 1).order(seed=0, epoch=0)[:][:4].tolist()
