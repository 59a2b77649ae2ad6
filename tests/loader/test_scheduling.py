"""Scheduling: idle workers take the next batch, order of delivery, bounds, faults."""

from __future__ import annotations

import os
import threading
import time
import weakref

import pytest
import torch
from torch.utils.data import Dataset

from lit_loader import DataLoader, get_worker_info
from tests.support.in_threads import Calls
from tests.support.scheduled_set import Counted, Draws, Gated

METHODS = pytest.mark.parametrize("method", ["multiprocessing", "thread"])


def event(method):
    return threading.Event() if method == "thread" else torch.multiprocessing.Event()


@METHODS
class TestOneWorkerIsStuckInASample:
    def test_and_the_others_make_all_that_may_be_held(self, method, tmp_path):
        gate = event(method)

        class Stuck(Counted):
            def __getitem__(self, index):
                if index == 0:
                    assert gate.wait(30)
                return super().__getitem__(index)

        dataset = Stuck(tmp_path / "made", 32)
        loader = DataLoader(dataset, batch_size=2, num_workers=2, seed=0, worker_method=method)
        iterator = iter(loader)
        actual = []
        consumer = threading.Thread(target=lambda: actual.append(next(iterator).tolist()))
        consumer.start()
        assert dataset.settled(10) == 10  # six batches, but for the one that is stuck
        assert actual == []
        gate.set()
        consumer.join(20)
        assert actual == [[0, 1]]
        assert [batch.tolist() for batch in iterator] == [[n, n + 1] for n in range(2, 32, 2)]

    def test_and_out_of_order_the_others_are_delivered(self, method):
        gate = event(method)
        loader = DataLoader(
            Gated({2: gate}, 16), batch_size=2, num_workers=2, seed=0, worker_method=method, in_order=False
        )
        iterator = iter(loader)
        actual = [next(iterator).tolist() for _ in range(7)]
        gate.set()
        assert [2, 3] not in actual
        assert sorted([*actual, next(iterator).tolist()]) == [[n, n + 1] for n in range(0, 16, 2)]
        del iterator


class Barrier(Dataset):
    """Every worker must have its first sample before any has its second."""

    def __init__(self, arrivals):
        self.here = arrivals
        self.first = threading.local()

    def __len__(self):
        return 12

    def __getitem__(self, index):
        if not hasattr(self.first, "done"):
            self.first.done = True
            self.here[get_worker_info().id].set()
            for other in self.here:
                assert other.wait(20)
        return index

    def __getstate__(self):
        return self.here

    def __setstate__(self, arrivals):
        self.__init__(arrivals)


@pytest.mark.parametrize("method", ["fork", "forkserver", "thread"])
@pytest.mark.parametrize("seed", [None, 0])
def test_workers_that_wait_for_each_other_at_their_first_sample_all_get_one(method, seed):
    context = torch.multiprocessing.get_context(None if method == "thread" else method)
    arrivals = [threading.Event() if method == "thread" else context.Event() for _ in range(3)]
    loader = DataLoader(
        Barrier(arrivals),
        batch_size=2,
        num_workers=3,
        seed=seed,
        worker_method="thread" if method == "thread" else "multiprocessing",
        multiprocessing_context=None if method == "thread" else context,
    )
    assert [batch.tolist() for batch in loader] == [[n, n + 1] for n in range(0, 12, 2)]


@METHODS
def test_a_batch_is_made_by_one_worker(method):
    def maker(index):
        time.sleep(0.005)
        return os.getpid() % 100_000 * 100_000 + threading.get_ident() % 99_991

    with DataLoader(Calls(maker, 64), batch_size=16, num_workers=2, seed=0, worker_method=method) as loader:
        makers = [set(batch.tolist()) for batch in loader]
    assert {len(actual) for actual in makers} == {1}


class Counting:
    """A collate function with lit_loader's ``__module__`` that counts its calls in this process."""

    __module__ = "lit_loader.collate.counting"
    calls = 0

    def __call__(self, samples):
        type(self).calls += 1
        return list(samples)


@pytest.mark.parametrize(("method", "calls"), [("multiprocessing", 0), ("thread", 3)])
def test_a_batch_is_collated_once_and_whole_by_its_worker(method, calls, monkeypatch):
    monkeypatch.setattr(Counting, "calls", 0)
    arguments = {"batch_size": 4, "seed": 5, "num_workers": 2, "worker_method": method}
    loader = DataLoader(list(range(12)), collate_fn=Counting(), **arguments)
    assert list(loader) == [[n, n + 1, n + 2, n + 3] for n in (0, 4, 8)]
    assert Counting.calls == calls  # none of worker processes' by the consumer


@METHODS
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_custom_sampler_may_name_a_batch_by_any_container(method, num_workers):
    loader = DataLoader(
        list(range(100, 112)),
        batch_sampler=[{0, 1, 2}, (3, 4), range(5, 9), dict.fromkeys((9, 10)), torch.tensor([11, 0])],
        num_workers=num_workers,
        seed=0,
        worker_method=method,
    )
    expected = [[100, 101, 102], [103, 104], [105, 106, 107, 108], [109, 110], [111, 100]]
    assert [batch.tolist() for batch in loader] == expected


@METHODS
def test_a_thousand_batches_ahead_pass_a_queue_that_holds_fewer(method):
    loader = DataLoader(range(8000), num_workers=2, prefetch_factor=1500, seed=0, worker_method=method)
    assert [int(batch) for batch in loader] == list(range(8000))


@METHODS
def test_a_batch_is_not_kept_alive_after_its_delivery(method):
    with DataLoader(
        Draws(), batch_size=2, num_workers=2, seed=0, worker_method=method, persistent_workers=True
    ) as loader:
        iterator = iter(loader)
        batches = []
        for _ in range(12):
            batch = next(iterator)
            batches.append(weakref.ref(batch["torch"]))
            del batch
        deadline = time.monotonic() + 5  # a worker thread drops its own reference a moment later
        while any(batch() is not None for batch in batches) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert [batch() for batch in batches] == [None] * 12
        del iterator


@METHODS
def test_tasks_of_many_ended_passes_are_not_done_by_a_worker_that_was_stuck_meanwhile(method, tmp_path):
    gate = event(method)

    class Stuck(Counted):
        def __getitem__(self, index):
            if index == 100:
                assert gate.wait(30)
            return super().__getitem__(index)

    dataset = Stuck(tmp_path / "made", 1000)
    with DataLoader(
        dataset, num_workers=1, seed=0, worker_method=method, persistent_workers=True, sampler=None
    ) as loader:
        iterators = [iter(loader)]
        samples = [int(next(iterators[0])) for _ in range(100)]
        assert samples == list(range(100))
        assert dataset.settled(100) == 100  # it waits in sample 100
        for _ in range(100):  # each has three tasks in the queue
            abandoned = iter(loader)
            abandoned.close()
            next_iterator = iter(loader)
            next_iterator.begin()
            next_iterator.close()
        gate.set()
        assert int(next(iterators[0])) == 100
        # the one that it was waiting in, and three more of the first epoch
        assert dataset.settled(104) == 104
        iterators.clear()
