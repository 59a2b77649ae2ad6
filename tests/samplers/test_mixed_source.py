"""`MixedSourceSampler`: the same mix in every batch of every rank, every sample in its turn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset

from lit_loader.samplers import (
    ClassBalancedSampler,
    GroupedSampler,
    MixedSourceSampler,
    RandomSampler,
    RepeatFactorSampler,
    SequentialSampler,
    WeightedRandomSampler,
    rank_batch,
)

sources = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 5)), min_size=1, max_size=4)


@given(pairs=sources, seed=st.integers(), epoch=st.integers(0, 2**40))
def test_pattern_of_sources_repeats_through_the_epoch(pairs, seed, epoch):
    lengths, counts = zip(*pairs, strict=True)
    indices = MixedSourceSampler(lengths, counts).order(seed=seed, epoch=epoch)[:].reshape(-1, sum(counts))
    pattern = np.repeat(range(len(counts)), counts)
    assert (np.searchsorted(np.cumsum(lengths), indices, side="right") == pattern).all()


def assert_cycles(indices, lengths):
    """Check that no sample of a source repeats before all of them were visited."""
    begin = 0
    for length in lengths:
        visits = indices[(indices >= begin) & (indices < begin + length)] - begin
        for start in range(0, len(visits) - length + 1, length):
            assert sorted(visits[start : start + length].tolist()) == list(range(length))
        begin += length


@given(pairs=sources, num_repetitions=st.integers(1, 20), seed=st.integers())
def test_samples_of_a_source_come_in_cycles_across_epochs(pairs, num_repetitions, seed):
    lengths, counts = zip(*pairs, strict=True)
    sampler = MixedSourceSampler(lengths, counts, num_samples=num_repetitions * sum(counts))
    row = np.concatenate([sampler.order(seed=seed, epoch=epoch)[:] for epoch in range(4)])
    assert_cycles(row, lengths)


@given(pairs=sources, seed=st.integers())
def test_default_epoch_is_the_shortest_that_visits_every_sample(pairs, seed):
    lengths, counts = zip(*pairs, strict=True)
    sampler = MixedSourceSampler(lengths, counts)
    assert set(sampler.order(seed=seed, epoch=0)[:].tolist()) == set(range(sum(lengths)))
    shorter = len(sampler) // sum(counts) - 1
    assert any(shorter * count < length for length, count in pairs)


def test_indices_are_those_of_torchs_concat_dataset():
    datasets = [["a0", "a1", "a2"], ["b0"], ["c0", "c1"]]
    dataset = ConcatDataset(datasets)
    sampler = MixedSourceSampler([len(dataset) for dataset in datasets], [2, 1, 1], seed=0)
    letters = "".join(dataset[index][0] for index in sampler)
    assert letters == "aabc" * 2
    assert sampler.num_indices == len(dataset)
    assert sampler.expected_visits().tolist() == [4 / 3] * 3 + [2.0] + [1.0] * 2


def test_huge_source_needs_no_stored_shuffle():
    sampler = MixedSourceSampler([10**12, 1000], [3, 1], num_samples=4 * 10**9)
    part = sampler.order(seed=0, epoch=1)[4 * 10**8 : 4 * 10**8 + 4000].reshape(-1, 4)
    assert len(np.unique(part[:, :3])) == 3000
    assert sorted(part[:, 3].tolist()) == list(range(10**12, 10**12 + 1000))


def inner_samplers(n):
    """Return samplers of n indices, each with its own number of positions."""
    return [
        SequentialSampler(n),
        RandomSampler(n),
        ClassBalancedSampler(np.arange(n) % 3, num_samples=n + 4),
        RepeatFactorSampler(np.arange(n) % 2 + 1.5),
        WeightedRandomSampler(np.arange(1, n + 1), 2 * n),
    ]


parts = st.lists(st.tuples(st.integers(3, 30), st.integers(0, 5)), min_size=1, max_size=4)


def mixed(pairs, **arguments):
    """Return a sampler over sources of these lengths; kind 5 is a plain length."""
    return MixedSourceSampler([[*inner_samplers(n), n][kind] for n, kind in pairs], **arguments)


@given(pairs=parts, data=st.data(), seed=st.integers(), epoch=st.integers(0, 2**40))
def test_quotas_of_an_epoch_are_exact_and_nearest_to_the_shares(pairs, data, seed, epoch):
    shares = data.draw(st.lists(st.floats(0.01, 9), min_size=len(pairs), max_size=len(pairs)))
    num_samples = data.draw(st.integers(len(pairs), 300))
    sampler = mixed(pairs, shares=shares, num_samples=num_samples)
    assert sampler.quotas.sum() == num_samples
    # The largest remainder method rounds down or up, and then moves single positions to sources without any.
    exact = np.array(shares) / sum(shares) * num_samples
    assert (np.abs(sampler.quotas - exact) < 1 + (exact < 1).sum()).all()
    indices = sampler.order(seed=seed, epoch=epoch)[:]
    sources = np.searchsorted(np.cumsum(sampler.lengths), indices, side="right")
    assert np.bincount(sources, minlength=len(pairs)).tolist() == sampler.quotas.tolist()


@given(pairs=parts, data=st.data(), seed=st.integers())
def test_visits_to_a_source_are_its_samplers_epochs_one_after_the_other(pairs, data, seed):
    counts = data.draw(st.none() | st.lists(st.integers(1, 4), min_size=len(pairs), max_size=len(pairs)))
    # A seed of their own makes the samplers' epochs known here.
    samplers = [[*inner_samplers(n), SequentialSampler(n)][kind] for n, kind in pairs]
    for number, inner in enumerate(samplers):
        inner.seed = number
    num_samples = None if counts is None else sum(counts) * data.draw(st.integers(1, 9))
    sampler = MixedSourceSampler(samplers, counts, num_samples=num_samples)
    row = np.concatenate([sampler.order(seed=seed, epoch=epoch)[:] for epoch in range(3)])
    begin = 0
    for number, inner in enumerate(samplers):
        visits = row[(row >= begin) & (row < begin + inner.num_indices)] - begin
        num_epochs = -(-len(visits) // len(inner))
        expected = np.concatenate([inner.order(seed=number, epoch=epoch)[:] for epoch in range(num_epochs)])
        assert visits.tolist() == expected[: len(visits)].tolist()
        begin += inner.num_indices


@given(pairs=sources, seed=st.integers())
def test_samples_of_a_length_come_in_cycles_across_epochs_of_shares(pairs, seed):
    lengths, shares = zip(*pairs, strict=True)
    sampler = MixedSourceSampler(lengths, shares=shares, num_samples=40)
    row = np.concatenate([sampler.order(seed=seed, epoch=epoch)[:] for epoch in range(4)])
    assert_cycles(row, lengths)


@given(pairs=parts, data=st.data(), seed=st.integers(), epoch=st.integers(0, 2**30))
def test_slices_of_mixed_samplers_equal_the_whole(pairs, data, seed, epoch):
    counts = data.draw(st.none() | st.lists(st.integers(1, 4), min_size=len(pairs), max_size=len(pairs)))
    sampler = mixed(pairs, counts=counts)
    indices = sampler.order(seed=seed, epoch=epoch)[:]
    order = sampler.order(seed=seed, epoch=epoch)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sampler)), max_size=6)))
    # From the end to the start: a slice depends on no slice before it.
    for start, stop in reversed(list(zip([0, *cuts], [*cuts, len(sampler)], strict=True))):
        assert order[start:stop].tolist() == indices[start:stop].tolist()


@given(
    pairs=sources,
    multiple=st.integers(1, 3),
    world_size=st.integers(1, 3),
    num_repetitions=st.integers(1, 12),
    epoch=st.integers(0, 9),
)
def test_every_batch_of_every_rank_has_the_same_mix(pairs, multiple, world_size, num_repetitions, epoch):
    lengths, counts = zip(*pairs, strict=True)
    sampler = MixedSourceSampler(lengths, counts, num_samples=sum(counts) * num_repetitions)
    order = sampler.order(seed=0, epoch=epoch)
    size = sum(counts) * multiple
    settings = {"batch_size": size, "world_size": world_size, "multiple": sampler.batch_multiple, "drop_last": False}
    seen = []
    for batch in range(-(-len(order) // (size * world_size))):
        for rank in range(world_size):
            part = rank_batch(order, batch, rank=rank, **settings)
            drawn = np.searchsorted(np.cumsum(lengths), part.indices, side="right")
            repetitions, remainder = divmod(len(part.indices), sum(counts))
            assert remainder == 0
            assert np.bincount(drawn, minlength=len(counts)).tolist() == [repetitions * count for count in counts]
            seen += part.positions
    assert set(seen) >= set(range(len(order)))
    assert len(seen) == len(set(seen))


def test_default_epoch_holds_an_epoch_of_every_source():
    in_full = MixedSourceSampler([30, ClassBalancedSampler([0, 1, 1], num_samples=8)])
    assert in_full.quotas.tolist() == [30, 8]
    assert MixedSourceSampler([70, 5], shares=[0.7, 0.3]).quotas.tolist() == [70, 30]
    assert MixedSourceSampler([70, 5], shares=[7, 3], num_samples=10).quotas.tolist() == [7, 3]
    assert MixedSourceSampler([10, RandomSampler(4)], [1, 2]).quotas.tolist() == [10, 20]


def test_expected_visits_combine_those_of_the_sources():
    weighted = WeightedRandomSampler([1.0, 3.0], 8)
    sampler = MixedSourceSampler([weighted, 4], shares=[1, 1], num_samples=16)
    assert sampler.expected_visits().tolist() == [2.0, 6.0, 2.0, 2.0, 2.0, 2.0]
    counts = sum(np.bincount(sampler.order(seed=0, epoch=e)[:], minlength=6) for e in range(400)) / 400
    np.testing.assert_allclose(counts, sampler.expected_visits(), atol=0.15)


def test_new_weights_of_a_source_are_a_new_revision():
    weighted = WeightedRandomSampler([1.0, 3.0])
    sampler = MixedSourceSampler([weighted, 4], [1, 1])
    fingerprint = sampler.fingerprint()
    weighted.set_weights([0.0, 1.0])
    assert sampler.revision == 1
    assert sampler.fingerprint() != fingerprint
    order = sampler.order(seed=0, epoch=0)
    assert set(order[:][::2].tolist()) == {1}


def test_source_that_has_grown_is_refused():
    data = [0, 1, 2]
    sampler = MixedSourceSampler([RandomSampler(data), 4])
    data.append(3)
    with pytest.raises(ValueError, match=r"sources\[0\] had 3 positions over 3 indices, and now has 4 over 4"):
        sampler.order(seed=0, epoch=0)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"sources": [4, 0]}, ValueError, r"sources\[1\]=0; leave out an empty source"),
        ({"counts": [0, 1]}, ValueError, r"counts\[0\]=0; leave out a source that you do not want"),
        ({"counts": [1, 2.0]}, TypeError, "`counts` must be integers, got float64"),
        ({"counts": [1]}, ValueError, "has 2 entries and `counts` has 1: .*give one count for each source"),
        ({"sources": 5}, TypeError, "`sources` must be a sequence of lengths and samplers, got 5"),
        ({"sources": [], "counts": []}, ValueError, "`sources` is empty"),
        ({"num_samples": 7}, ValueError, r"num_samples=7 is not a multiple of sum\(counts\)=4.*give 8"),
        ({"num_samples": 0}, ValueError, "num_samples=0"),
        ({"shares": [1, 1]}, ValueError, r"got \[3, 1\] and \[1, 1\]; give one of them"),
        ({"counts": None, "shares": [1]}, ValueError, "has 2 entries and `shares` has 1: .*one share for each source"),
        ({"counts": None, "shares": [1, 0]}, ValueError, r"shares\[1\]=0 must be positive.*; leave out a source that"),
        ({"counts": None, "shares": [1, float("nan")]}, ValueError, r"shares\[1\]=nan"),
        ({"counts": None, "shares": [1, "2"]}, TypeError, r"shares\[1\] must be a number, got '2'"),
        (
            {"counts": None, "shares": [1, 1e-9]},
            ValueError,
            r"num_samples=None is an epoch of 5e\+09 positions.*pass num",
        ),
        ({"counts": None, "num_samples": 1}, ValueError, "num_samples=1 is less than the 2 sources"),
        ({"sources": [9, MixedSourceSampler([3, 3], [1, 1])]}, TypeError, "composes every batch itself"),
        ({"sources": [9, GroupedSampler(RandomSampler(4), [0, 0, 1, 1])]}, TypeError, "GroupedSampler composes"),
    ],
)
def test_invalid_arguments_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        MixedSourceSampler(**{"sources": [9, 5], "counts": [3, 1], **arguments})
