"""Lifetimes: abandoned iterators, several at once, persistent workers, copies of loaders, changing datasets."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset, get_worker_info

from lit_loader import DataLoader
from tests.support.parity_backends import (
    FORK,
    INLINE,
    KEPT,
    KEPT_THREAD,
    THREAD,
    close,
    each_of,
    error_of,
    events,
    everywhere,
    same_for_both,
)
from tests.support.parity_datasets import CountingSampler, Numbers, Samples


def assert_same(backend, show, **arguments):
    """Assert that ``show(loader)`` and the draws of loaders of both classes are the same, and return the former."""

    def observe(kind, workers):
        torch.manual_seed(2)
        loader = kind(**{"dataset": Numbers(8), "batch_size": 2, **copy.deepcopy(arguments)}, **workers)
        result = show(loader)
        close(loader)
        return result, torch.get_rng_state().tolist()

    return same_for_both(backend, observe)[0]


def abandoned(loader):
    actual = []
    for count in (0, 3, 99):
        iterator = iter(loader)
        actual.append([batch.tolist() for _, batch in zip(range(count), iterator, strict=False)])
        del iterator
    return actual


def in_turns(loader):
    first = iter(loader)
    second = iter(loader)
    return [next(iterator).tolist() for iterator in (first, second, second, first, first)] + events(second)


def restarted(loader):
    """Call ``iter`` twice: whether both are one object, and the events of the second."""
    first = iter(loader)
    next(first)
    second = iter(loader)
    return first is second, events(second), iter(first) is first


def after_its_end(loader):
    iterator = iter(loader)
    list(iterator)
    return events(iterator, ends=5), events(iter(loader))


@everywhere
@pytest.mark.parametrize("show", [abandoned, restarted, after_its_end])
def test_abandoned_restarted_and_ended_iterators_are_torchs(backend, show):
    assert_same(backend, show, shuffle=True)


@each_of(INLINE, FORK, THREAD)
def test_several_iterators_at_once_are_torchs(backend):
    assert_same(backend, in_turns, shuffle=True)


@each_of(KEPT, KEPT_THREAD)
def test_persistent_workers_have_one_iterator_object(backend):
    is_one_object, _, is_its_own_iterator = assert_same(backend, restarted)
    assert is_one_object
    assert is_its_own_iterator


@each_of(INLINE, FORK, THREAD)
def test_iterator_outlives_its_loader(backend):
    for kind, workers in backend.both:
        iterator = iter(kind(Numbers(5), batch_size=2, **workers))
        assert [batch.tolist() for batch in iterator] == [[0, 1], [2, 3], [4]]


def copies(loader):
    return [
        events(iter(copied))
        for copied in (copy.copy(loader), copy.deepcopy(loader), pickle.loads(pickle.dumps(loader)))
    ]


@each_of(INLINE, FORK, THREAD)
@pytest.mark.parametrize(
    "shuffle", [pytest.param(False, id="in order", marks=pytest.mark.soak), pytest.param(True, id="shuffled")]
)
def test_loader_can_be_copied_and_pickled(backend, shuffle):
    generator = torch.Generator().manual_seed(4) if shuffle else None
    assert_same(backend, copies, shuffle=shuffle, generator=generator)


def test_copies_keep_every_attribute():
    for kind in (TorchDataLoader, DataLoader):
        loader = kind(Samples([1, 2, 3]), batch_size=2, drop_last=True, num_workers=2, prefetch_factor=5, timeout=3)
        for copied in (copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
            assert type(copied) is kind
            assert copied.dataset is not loader.dataset
            for name in ("batch_size", "drop_last", "num_workers", "prefetch_factor", "timeout", "in_order"):
                assert getattr(copied, name) == getattr(loader, name)
            assert type(error_of(setattr, copied, "batch_size", 3)) is ValueError  # still fixed


@everywhere
def test_iterator_cannot_be_pickled(backend):
    for kind, workers in backend.both:
        loader = kind(Numbers(2), **workers)
        iterator = iter(loader)
        assert type(error_of(pickle.dumps, iterator)) is NotImplementedError
        assert len(list(iterator)) == 2
        close(loader)


class Growing(Numbers):
    scale = 1

    def __getitem__(self, index):
        if index >= self.length:
            raise IndexError(index)
        return index * self.scale


def grown(loader):
    """Let the dataset grow and change between epochs: persistent processes have a copy of the old one."""
    actual = [events(iter(loader))]
    loader.dataset.length += 3
    loader.dataset.scale = 10
    actual.append((len(loader), events(iter(loader))))
    loader.dataset.length = 1
    return [*actual, len(loader), events(iter(loader))]


@each_of(INLINE, FORK, KEPT, THREAD)
@pytest.mark.parametrize("batch_size", [pytest.param(1, marks=pytest.mark.soak), 2])
def test_dataset_that_changes_between_epochs_gives_torchs_batches(backend, batch_size):
    assert_same(backend, grown, dataset=Growing(4), batch_size=batch_size)


@each_of(FORK, THREAD)
def test_attributes_set_on_the_dataset_after_construction_reach_the_workers(backend):
    for kind, workers in backend.both:
        loader = kind(dataset := Growing(3), **workers)
        dataset.scale = 7
        assert [batch.item() for batch in loader] == [0, 7, 14]


class WorkerIds(IterableDataset):
    def __iter__(self):
        return iter([get_worker_info().id] * 3)


@pytest.mark.parametrize(("old_number", "new_number"), [(3, 2), (2, 3)])
@pytest.mark.parametrize("dataset", [WorkerIds(), Numbers(12)], ids=["iterable", "map"])
def test_changed_num_workers_does_not_affect_persistent_workers(dataset, old_number, new_number):
    def epochs(kind, workers):
        loader = kind(dataset, **{**workers, "num_workers": old_number})
        samples = [[int(item) for item in loader]]
        loader.num_workers = new_number
        samples.append([int(item) for item in loader])
        close(loader)
        return samples

    same_for_both(KEPT, epochs)


def test_changed_num_workers_does_not_change_the_prefetching_of_persistent_workers():
    def num_prefetched(kind, workers):
        sampler = CountingSampler(12)
        loader = kind(Numbers(12), sampler=sampler, **workers)
        list(loader)
        loader.num_workers = 4
        sampler.num_read = 0
        iterator = iter(loader)
        next(iterator)
        num_read = sampler.num_read
        del iterator
        close(loader)
        return num_read

    same_for_both(KEPT, num_prefetched)
