"""Guarantees of every sampler."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler

from lit_loader import samplers
from lit_loader.samplers import (
    ClassAwareSampler,
    ClassBalancedSampler,
    MixedSourceSampler,
    OrderSampler,
    RandomSampler,
    RepeatFactorSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from lit_loader.types import Order

# Each makes a sampler over `n` indices (n >= 2), with a seed for __iter__.
FAMILIES: dict[str, Callable[[int, int | None], OrderSampler]] = {
    "sequential": lambda n, seed: SequentialSampler(n, seed=seed),
    "random": lambda n, seed: RandomSampler(n, seed=seed),
    "weighted": lambda n, seed: WeightedRandomSampler(np.arange(1, n + 1), 2 * n, seed=seed),
    "weighted without replacement": lambda n, seed: WeightedRandomSampler(
        np.arange(n), n - 1, replacement=False, seed=seed
    ),
    "class balanced": lambda n, seed: ClassBalancedSampler(np.arange(n) % 3 - 1, num_samples=n + 3, seed=seed),
    "class aware": lambda n, seed: ClassAwareSampler(
        np.arange(n) % 7 % 3 - 1, num_samples=n + 5, empty_as_class=True, seed=seed
    ),
    "repeat factor": lambda n, seed: RepeatFactorSampler(np.arange(n) % 7 / 3 + 0.6, seed=seed),
    "subset": lambda n, seed: SubsetRandomSampler(np.arange(n)[::-2], num_indices=n, seed=seed),
    "subset in order": lambda n, seed: SubsetRandomSampler(np.arange(n)[::-2], shuffle=False, num_indices=n, seed=seed),
    "mixed source": lambda n, seed: MixedSourceSampler([n - 1, 1], [3, 2], seed=seed),
}
FIXED = ("sequential", "subset in order")  # the same order whatever the seed and the epoch
EVERY_FAMILY = pytest.mark.parametrize("family", FAMILIES)
family_names = st.sampled_from(sorted(FAMILIES))
lengths = st.integers(2, 200)
seeds = st.integers(-(2**63), 2**63)
epochs = st.integers(0, 2**40)


@given(family=family_names, n=lengths, seed=seeds, epoch=epochs)
def test_same_seed_and_epoch_repeat_the_same_order(family, n, seed, epoch):
    first = FAMILIES[family](n, None)
    second = FAMILIES[family](n, 5)
    second.order(seed=seed + 1, epoch=epoch)[:]
    np.testing.assert_array_equal(first.order(seed=seed, epoch=epoch)[:], second.order(seed=seed, epoch=epoch)[:])


@given(
    family=family_names,
    n=lengths,
    seed=seeds,
    a=st.none() | st.integers(-500, 500),
    b=st.none() | st.integers(-500, 500),
)
def test_a_slice_of_an_order_equals_the_slice_of_the_whole(family, n, seed, a, b):
    sampler = FAMILIES[family](n, None)
    part = sampler.order(seed=seed, epoch=1)[a:b]
    assert part.dtype == np.int64
    np.testing.assert_array_equal(part, sampler.order(seed=seed, epoch=1)[:][a:b])


@given(family=family_names, n=lengths, seed=seeds)
def test_an_order_has_the_samplers_length_and_indices_of_the_dataset(family, n, seed):
    sampler = FAMILIES[family](n, None)
    order = sampler.order(seed=seed, epoch=0)
    assert isinstance(order, Order)
    assert len(order) == len(order[:]) == len(sampler) == sampler.num_samples
    assert sampler.num_indices == n
    assert order[:].min() >= 0
    assert order[:].max() < n


@EVERY_FAMILY
def test_epochs_and_seeds_differ_where_the_order_is_random(family):
    sampler = FAMILIES[family](100, None)
    first = sampler.order(seed=0, epoch=0)[:]
    for other in (sampler.order(seed=0, epoch=1), sampler.order(seed=1, epoch=0)):
        assert np.array_equal(first, other[:]) == (family in FIXED)


@EVERY_FAMILY
def test_expected_visits_sum_to_the_length(family):
    sampler = FAMILIES[family](50, None)
    visits = sampler.expected_visits()
    assert visits.dtype == np.float64
    assert visits.shape == (50,)
    assert visits.sum() == pytest.approx(len(sampler), rel=1e-12)


@EVERY_FAMILY
def test_iterating_gives_python_ints_of_the_order_of_the_epoch(family):
    sampler = FAMILIES[family](5000, 7)
    for epoch in (0, 3):
        sampler.set_epoch(epoch)
        indices = list(sampler)
        assert {type(index) for index in indices} == {int}
        assert indices == sampler.order(seed=7, epoch=epoch)[:].tolist()


@EVERY_FAMILY
def test_without_a_seed_iterating_draws_one_from_torchs_default_generator(family):
    sampler = FAMILIES[family](100, None)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        first = list(sampler)
        second = list(sampler)
        torch.manual_seed(3)
        seed = int(torch.empty((), dtype=torch.int64).random_().item())
    assert first == sampler.order(seed=seed, epoch=0)[:].tolist()
    assert (first == second) == (family in FIXED)


@EVERY_FAMILY
def test_samplers_and_orders_survive_pickle_and_deepcopy(family):
    sampler = FAMILIES[family](100, 1)
    order = sampler.order(seed=1, epoch=0)
    for clone in (pickle.loads(pickle.dumps(sampler)), copy.deepcopy(sampler)):
        assert list(clone) == list(sampler)
    for copied in (pickle.loads(pickle.dumps(order)), copy.deepcopy(order)):
        np.testing.assert_array_equal(copied[:], order[:])


@EVERY_FAMILY
def test_naming_an_epoch_is_counted_and_an_order_is_not(family):
    sampler = FAMILIES[family](100, 1)
    list(sampler)
    sampler.order(seed=0, epoch=9)
    assert (sampler.epoch, sampler.num_epochs_set) == (0, 0)
    sampler.set_epoch(0)
    sampler.set_epoch(4)
    assert (sampler.epoch, sampler.num_epochs_set) == (4, 2)


@EVERY_FAMILY
def test_lightning_takes_samplers_for_distributed_ones_of_a_single_replica(family):
    sampler = FAMILIES[family](100, 1)
    assert isinstance(sampler, DistributedSampler)
    assert (sampler.num_replicas, sampler.rank) == (1, 0)


@EVERY_FAMILY
def test_a_samplers_order_cannot_be_written_into_by_a_consumer(family):
    sampler = FAMILIES[family](20, 1)
    order = sampler.order(seed=0, epoch=0)
    expected = order[:].copy()
    part = order[:]
    if part.flags.writeable:
        part[:] = -7
    np.testing.assert_array_equal(order[:], expected)


def test_wrong_seeds_and_epochs_are_refused():
    with pytest.raises(TypeError, match=r"`seed` must be an int, got 1\.5"):
        RandomSampler(3, seed=1.5)
    sampler = RandomSampler(3)
    with pytest.raises(ValueError, match="epoch=-1"):
        sampler.set_epoch(-1)
    with pytest.raises(TypeError, match="`epoch`"):
        sampler.set_epoch(True)
    assert sampler.num_epochs_set == 0


def test_the_base_is_abstract():
    with pytest.raises(TypeError, match="abstract"):
        OrderSampler()


class Unsized(OrderSampler):
    """A user's sampler without a length."""

    def order(self, *, seed, epoch):
        return np.arange(8)

    def expected_visits(self):
        return np.ones(8)


def test_a_users_own_without_lengths_is_refused_when_it_is_made():
    with pytest.raises(TypeError, match=r"Unsized .*__len__.*num_indices"):
        Unsized()


def test_exports_are_sorted_and_exist():
    assert samplers.__all__ == sorted(samplers.__all__)
    assert all(hasattr(samplers, name) for name in samplers.__all__)
