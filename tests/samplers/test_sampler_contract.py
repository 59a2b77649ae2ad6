"""Guarantees of every sampler."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler

from lit_loader.samplers import OrderSampler, RandomSampler
from lit_loader.types import Order
from tests.support.sampler_families import FAMILIES, FIXED, ITERABLE, sampler_classes

EVERY_FAMILY = pytest.mark.parametrize("family", FAMILIES)
EVERY_ITERABLE = pytest.mark.parametrize("family", ITERABLE)
family_names = st.sampled_from(sorted(FAMILIES))
lengths = st.integers(2, 200)
seeds = st.integers(-(2**63), 2**63)
epochs = st.integers(0, 2**40)


def batch_order(sampler, *, seed=0, epoch=0, global_batch=4):
    return sampler.batch_order(seed=seed, epoch=epoch, global_batch=global_batch)


def test_families_cover_all_exported_samplers():
    assert {type(make(9, None)) for make in FAMILIES.values()} == sampler_classes()


@given(family=family_names, n=lengths, seed=seeds, epoch=epochs)
def test_same_seed_and_epoch_repeat_the_same_order(family, n, seed, epoch):
    first = FAMILIES[family](n, None)
    second = FAMILIES[family](n, 5)
    batch_order(second, seed=seed + 1, epoch=epoch)[:]
    indices = batch_order(first, seed=seed, epoch=epoch)[:]
    np.testing.assert_array_equal(batch_order(second, seed=seed, epoch=epoch)[:], indices)


@given(
    family=family_names,
    n=lengths,
    global_batch=st.integers(1, 40),
    seed=seeds,
    a=st.none() | st.integers(-500, 500),
    b=st.none() | st.integers(-500, 500),
)
def test_slice_of_an_order_equals_slice_of_all_indices(family, n, global_batch, seed, a, b):
    sampler = FAMILIES[family](n, None)
    part = batch_order(sampler, seed=seed, epoch=1, global_batch=global_batch)[a:b]
    assert part.dtype == np.int64
    indices = batch_order(sampler, seed=seed, epoch=1, global_batch=global_batch)[:]
    np.testing.assert_array_equal(part, indices[a:b])


@given(family=family_names, n=lengths, seed=seeds)
def test_order_has_length_and_indices_of_its_sampler(family, n, seed):
    sampler = FAMILIES[family](n, None)
    order = batch_order(sampler, seed=seed)
    assert isinstance(order, Order)
    assert len(order) == len(order[:]) == len(sampler) == sampler.num_samples
    assert sampler.num_indices == n
    assert order[:].min() >= 0
    assert order[:].max() < n


@EVERY_FAMILY
def test_random_orders_differ_between_epochs_and_seeds(family):
    sampler = FAMILIES[family](100, None)
    first = batch_order(sampler)[:]
    for other in (batch_order(sampler, epoch=1), batch_order(sampler, seed=1)):
        assert np.array_equal(first, other[:]) == (family in FIXED)


@EVERY_FAMILY
def test_expected_visits_sum_to_the_length(family):
    sampler = FAMILIES[family](50, None)
    visits = sampler.expected_visits()
    assert visits.dtype == np.float64
    assert visits.shape == (50,)
    assert visits.sum() == pytest.approx(len(sampler), rel=1e-12)


@EVERY_ITERABLE
def test_iterator_yields_order_of_its_epoch_as_python_ints(family):
    sampler = FAMILIES[family](5000, 7)
    for epoch in (0, 3):
        sampler.set_epoch(epoch)
        indices = list(sampler)
        assert {type(index) for index in indices} == {int}
        assert indices == sampler.order(seed=7, epoch=epoch)[:].tolist()


@EVERY_ITERABLE
def test_unseeded_iterator_draws_a_seed_from_torch(family):
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
    order = batch_order(sampler)
    for clone in (pickle.loads(pickle.dumps(sampler)), copy.deepcopy(sampler)):
        np.testing.assert_array_equal(batch_order(clone)[:], order[:])
    for copied in (pickle.loads(pickle.dumps(order)), copy.deepcopy(order)):
        np.testing.assert_array_equal(copied[:], order[:])


@EVERY_FAMILY
def test_only_set_epoch_is_counted(family):
    sampler = FAMILIES[family](100, 1)
    batch_order(sampler, epoch=9)[:]
    assert (sampler.epoch, sampler.num_epochs_set) == (0, 0)
    sampler.set_epoch(0)
    sampler.set_epoch(4)
    assert (sampler.epoch, sampler.num_epochs_set) == (4, 2)


@EVERY_FAMILY
def test_samplers_are_distributed_samplers_of_one_replica(family):
    sampler = FAMILIES[family](100, 1)
    assert isinstance(sampler, DistributedSampler)
    assert (sampler.num_replicas, sampler.rank) == (1, 0)


@EVERY_FAMILY
def test_writing_into_a_slice_does_not_change_the_order(family):
    order = batch_order(FAMILIES[family](20, 1))
    expected = order[:].copy()
    part = order[:]
    if part.flags.writeable:
        part[:] = -7
    np.testing.assert_array_equal(order[:], expected)


def test_invalid_seeds_and_epochs_are_refused():
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

    def expected_visits(self, epoch=0):
        return np.ones(8)


def test_user_sampler_without_lengths_is_refused():
    with pytest.raises(TypeError, match=r"Unsized .*__len__.*num_indices"):
        Unsized()
