"""`MixedSourceSampler`: the same mix in every batch of every rank, every sample in its turn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset

from lit_loader.samplers import MixedSourceSampler

sources = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 5)), min_size=1, max_size=4)


@given(pairs=sources, seed=st.integers(), epoch=st.integers(0, 2**40))
def test_pattern_of_sources_repeats_through_the_epoch(pairs, seed, epoch):
    lengths, counts = zip(*pairs, strict=True)
    indices = MixedSourceSampler(lengths, counts).order(seed=seed, epoch=epoch)[:].reshape(-1, sum(counts))
    pattern = np.repeat(range(len(counts)), counts)
    assert (np.searchsorted(np.cumsum(lengths), indices, side="right") == pattern).all()


@given(pairs=sources, num_repetitions=st.integers(1, 20), seed=st.integers())
def test_samples_of_a_source_come_in_cycles_across_epochs(pairs, num_repetitions, seed):
    lengths, counts = zip(*pairs, strict=True)
    sampler = MixedSourceSampler(lengths, counts, num_samples=num_repetitions * sum(counts))
    row = np.concatenate([sampler.order(seed=seed, epoch=epoch)[:] for epoch in range(4)])
    begin = 0
    for length in lengths:
        visits = row[(row >= begin) & (row < begin + length)] - begin
        for start in range(0, len(visits) - length + 1, length):
            assert sorted(visits[start : start + length].tolist()) == list(range(length))
        begin += length


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


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"lengths": [4, 0]}, ValueError, r"lengths\[1\]=0; leave out an empty source"),
        ({"counts": [0, 1]}, ValueError, r"counts\[0\]=0; leave out a source that you do not want"),
        ({"counts": [1, 2.0]}, TypeError, "`counts` must be integers, got float64"),
        ({"counts": [1]}, ValueError, "has 2 sources and `counts` has 1: .*give one count for each source"),
        ({"lengths": 5}, ValueError, r"`lengths` must have one dimension, got shape \(\)"),
        ({"lengths": [], "counts": []}, ValueError, "`lengths` is empty"),
        ({"num_samples": 7}, ValueError, r"num_samples=7 is not a multiple of sum\(counts\)=4.*give 8"),
        ({"num_samples": 0}, ValueError, "num_samples=0"),
    ],
)
def test_invalid_arguments_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        MixedSourceSampler(**{"lengths": [9, 5], "counts": [3, 1], **arguments})
