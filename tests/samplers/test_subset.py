"""`SubsetRandomSampler`: one visit for each listed index."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lit_loader.samplers import RandomSampler, SubsetRandomSampler

some_indices = st.lists(st.integers(0, 50), max_size=60)


@given(indices=some_indices, seed=st.integers(), epoch=st.integers(0, 2**40))
def test_every_listed_index_is_visited_once_per_listing(indices, seed, epoch):
    sampler = SubsetRandomSampler(indices, num_indices=51)
    assert sorted(sampler.order(seed=seed, epoch=epoch)[:].tolist()) == sorted(indices)
    assert sampler.expected_visits().tolist() == [indices.count(i) for i in range(51)]
    unshuffled = SubsetRandomSampler(indices, shuffle=False)
    assert unshuffled.order(seed=seed, epoch=epoch)[:].tolist() == indices
    assert unshuffled.num_indices == max(indices, default=-1) + 1


def test_places_are_those_of_a_random_sampler():
    """So a subset of any length is shuffled in the memory that a random sampler needs."""
    indices = np.arange(1000) * 3 + 1
    shuffled = RandomSampler(1000).order(seed=2, epoch=5)[:]
    np.testing.assert_array_equal(
        SubsetRandomSampler(indices).order(seed=2, epoch=5)[100:900], indices[shuffled[100:900]]
    )


def test_subset_sampler_subclasses_torchs_and_copies_its_indices():
    for given_indices in ([3, 1], np.array([3, 1], np.int32), torch.tensor([3, 1])):
        sampler = SubsetRandomSampler(given_indices, shuffle=False, seed=0)
        given_indices[0] = 0
        assert isinstance(sampler, torch.utils.data.SubsetRandomSampler)
        assert list(sampler) == [3, 1]
        with pytest.raises(ValueError, match="read-only"):
            sampler.indices[0] = 0


def test_empty_subset_gives_an_empty_epoch():
    assert list(SubsetRandomSampler([])) == list(torch.utils.data.SubsetRandomSampler([])) == []


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"indices": [0, -1]}, ValueError, r"be in \[0, 1\), .* got indices\[1\]=-1"),
        ({"num_indices": 2}, ValueError, r"be in \[0, 2\), where num_indices .* got indices\[1\]=2"),
        ({"num_indices": -1}, ValueError, "num_indices=-1"),
        ({"indices": [0.5]}, TypeError, "`indices` must be integers, got float64"),
        ({"indices": np.array([True, False])}, TypeError, r"got bool; for a mask give np\.flatnonzero"),
        ({"indices": torch.tensor([True])}, TypeError, "got bool; for a mask"),
        ({"indices": [True, False]}, TypeError, "`indices` must be integers, got bool"),
        ({"indices": [[0]]}, ValueError, r"one dimension, got shape \(1, 1\)"),
        ({"shuffle": 1}, TypeError, "`shuffle` must be True or False"),
    ],
)
def test_invalid_arguments_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        SubsetRandomSampler(**{"indices": [0, 2, 1], **arguments})
