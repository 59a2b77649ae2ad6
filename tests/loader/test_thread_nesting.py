"""Guarantee: loaders with threads run beside and inside of each other, and of loaders with processes."""

from __future__ import annotations

import threading
import time

import pytest
import torch
from torch.utils.data import Dataset

from lit_loader import DataLoader, get_worker_info
from tests.support.in_threads import Calls, as_list, threads
from tests.support.toys import plain

seeds = pytest.mark.parametrize("seed", [None, 1])


@seeds
@pytest.mark.parametrize("persistent", [False, True])
def test_several_loaders_and_iterators_at_once(seed, persistent):
    if seed is None and persistent:
        pytest.skip("torch's persistent iterator is one object")
    loaders = [threads(range(7), batch_size=2, seed=seed, persistent_workers=persistent) for _ in range(2)]
    iterators = [iter(loader) for loader in loaders for _ in range(2)]
    actual = [[sample for batch in part for sample in batch] for part in zip(*iterators, strict=True)]
    assert [sorted(set(part)) for part in actual] == [[0, 1], [2, 3], [4, 5], [6]]
    for loader in loaders:
        loader.close()


@seeds
def test_an_iterator_may_be_consumed_in_another_thread_than_its_own(seed):
    iterator = iter(threads(range(20), seed=seed))
    actual = []

    def consume(count):
        actual.extend(sample for _ in range(count) for sample in next(iterator))

    for count in (5, 10):
        consumer = threading.Thread(target=consume, args=(count,))
        consumer.start()
        consumer.join(20)
    consume(5)
    assert actual == list(range(20))
    assert list(iterator) == []


@pytest.mark.parametrize("nested", ["multiprocessing", "thread", "inline"])
@pytest.mark.parametrize("seed", [None, 1])
def test_a_loader_inside_of_a_worker_threads_sample(nested, seed):
    """Its workers are workers of their own: their info is not the thread's, nor are their draws."""
    workers = {"num_workers": 0} if nested == "inline" else {"num_workers": 2, "worker_method": nested}

    def inside(index):
        outer_draw = torch.rand(1).item()
        inner = DataLoader(
            Calls(lambda i: (get_worker_info().id, torch.rand(1).item()), 4), seed=seed, collate_fn=as_list, **workers
        )
        actual = [sample for (sample,) in inner]
        assert get_worker_info() is not None
        return outer_draw, [draw for _, draw in actual], {worker for worker, _ in actual}

    actual = [sample for (sample,) in threads(Calls(inside, 4), seed=2)]
    for outer_draw, draws, ids in actual:
        assert outer_draw not in draws
        assert len(set(draws)) == 4
        assert ids <= {0, 1}
        if seed is None and nested != "inline":
            assert ids == {0, 1}
    if seed is not None:
        assert len({str(draws) for _, draws, _ in actual}) == 1


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_thread_loader_inside_of_a_worker_process(method, persistent):
    loader = DataLoader(
        NestedThreads(persistent), seed=4, num_workers=2, multiprocessing_context=method, collate_fn=as_list
    )
    expected = [[plain(list(NestedThreads.inner()))]] * 4
    assert [[plain(sample) for sample in batch] for batch in loader] == expected


class NestedThreads(Dataset):
    """Each sample is an epoch of a loader with threads."""

    loader = None

    def __init__(self, persistent):
        self.persistent = persistent

    def __len__(self):
        return 4

    @staticmethod
    def inner(**workers):
        return DataLoader(Calls(lambda index: torch.rand(2), 7), batch_size=3, seed=6, **workers)

    def __getitem__(self, index):
        if self.persistent and self.loader is not None:
            self.loader.set_epoch(0)
            return list(self.loader)
        self.loader = self.inner(num_workers=2, worker_method="thread", persistent_workers=self.persistent)
        return list(self.loader)


def test_a_sample_in_hand_is_finished_when_a_loader_is_closed():
    began = threading.Event()
    finished = []

    def slow(index):
        if index:
            began.set()
            time.sleep(0.2)
        finished.append(index)
        return index

    loader = threads(Calls(slow, 2), num_workers=1, seed=1, persistent_workers=True)
    iterator = iter(loader)
    next(iterator)
    assert began.wait(5)
    loader.close()
    assert finished == [0, 1]
    with pytest.raises((RuntimeError, StopIteration)):
        next(iterator)
