"""Lifetimes: iterators left half way, several at once, persistent workers, copies of loaders, changing datasets."""

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
)
from tests.support.parity_datasets import Numbers, Samples


def shown(backend, show, **arguments):
    """Return what ``show(loader)`` returns for both classes."""
    actual = []
    for kind, workers in backend.both:
        torch.manual_seed(2)
        loader = kind(**{"dataset": Numbers(8), "batch_size": 2, **copy.deepcopy(arguments)}, **workers)
        actual.append((show(loader), torch.get_rng_state().tolist()))
        close(loader)
        del loader
    return actual


def assert_same(backend, show, **arguments):
    torchs, ours = shown(backend, show, **arguments)
    assert ours == torchs
    return torchs[0]


def left_half_way(loader):
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


def begun_again(loader):
    """Two calls of ``iter``: is it one object, and what happens to the first epoch?"""
    first = iter(loader)
    next(first)
    second = iter(loader)
    return first is second, events(second), iter(first) is first


def after_its_end(loader):
    iterator = iter(loader)
    list(iterator)
    return events(iterator, ends=5), events(iter(loader))


@everywhere
@pytest.mark.parametrize("show", [left_half_way, begun_again, after_its_end])
def test_passes_are_torchs(backend, show):
    assert_same(backend, show, shuffle=True)


@each_of(INLINE, FORK, THREAD)
def test_several_iterators_at_once_are_torchs(backend):
    assert_same(backend, in_turns, shuffle=True)


@each_of(KEPT, KEPT_THREAD)
def test_persistent_workers_have_one_iterator_object(backend):
    one, _, itself = assert_same(backend, begun_again)
    assert one
    assert itself


@each_of(INLINE, FORK, THREAD)
def test_an_iterator_outlives_its_loader(backend):
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
def test_a_loader_can_be_copied_and_pickled(backend, shuffle):
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
def test_an_iterator_cannot_be_pickled(backend):
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
    """Let the dataset grow and change between epochs: kept processes have the old one, new ones the new."""
    actual = [events(iter(loader))]
    loader.dataset.length += 3
    loader.dataset.scale = 10
    actual.append((len(loader), events(iter(loader))))
    loader.dataset.length = 1
    return [*actual, len(loader), events(iter(loader))]


@each_of(INLINE, FORK, KEPT, THREAD)
@pytest.mark.parametrize("batch_size", [pytest.param(1, marks=pytest.mark.soak), 2])
def test_a_dataset_that_grows_and_changes_between_epochs_is_seen_as_torch_sees_it(backend, batch_size):
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


@pytest.mark.parametrize(("before", "after"), [(3, 2), (2, 3)])
@pytest.mark.parametrize("dataset", [WorkerIds(), Numbers(12)], ids=["iterable", "map"])
def test_another_num_workers_leaves_persistent_workers_as_they_are(dataset, before, after):
    actual = []
    for kind, workers in KEPT.both:
        loader = kind(dataset, **{**workers, "num_workers": before})
        epochs = [[int(item) for item in loader]]
        loader.num_workers = after
        epochs.append([int(item) for item in loader])
        actual.append(epochs)
        close(loader)
    torchs, ours = actual
    assert ours == torchs


def test_another_num_workers_does_not_change_how_far_persistent_workers_go_ahead():
    actual = []
    for kind, workers in KEPT.both:
        taken = []
        sampler = Taken(12, taken)
        loader = kind(Numbers(12), sampler=sampler, **workers)
        list(loader)
        loader.num_workers = 4
        taken.clear()
        iterator = iter(loader)
        next(iterator)
        actual.append(len(taken))
        del iterator
        close(loader)
    torchs, ours = actual
    assert ours == torchs


class Taken:
    """A sampler that notes what was taken from it."""

    def __init__(self, length, taken):
        self.length = length
        self.taken = taken

    def __iter__(self):
        for index in range(self.length):
            self.taken.append(index)
            yield index

    def __len__(self):
        return self.length
