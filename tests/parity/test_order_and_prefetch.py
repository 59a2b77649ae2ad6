"""Order of delivery, how far ahead workers go, and who makes which batch."""

from __future__ import annotations

import multiprocessing
import threading

import pytest

from lit_loader import get_worker_info
from tests.support.parity_backends import EVERY, FORK, KEPT, THREAD, assert_alike, close, each_of
from tests.support.parity_datasets import Numbers, as_list


class Barrier(Numbers):
    """No worker's first sample is made before every worker has got one."""

    def __init__(self, length, barrier):
        super().__init__(length)
        self.barrier = barrier
        self.waited = set()

    def __getitem__(self, index):
        worker = get_worker_info().id
        if worker not in self.waited:
            self.barrier.wait(30)
            self.waited.add(worker)
        return index


@pytest.mark.parametrize("seed", [{}, {"seed": 1}], ids=["unseeded", "seeded"])
@pytest.mark.parametrize("in_order", [True, False])
def test_every_worker_gets_a_first_batch_before_any_gets_a_second(in_order, seed):
    for backend, kind_of_barrier in ((FORK, multiprocessing.Barrier), (THREAD, threading.Barrier)):
        for (kind, workers), more in zip(backend.both, ({}, seed), strict=True):
            make_barrier = multiprocessing.Barrier if "worker_method" not in workers else kind_of_barrier
            arguments = {**workers, **more, "num_workers": 3, "prefetch_factor": 1, "in_order": in_order}
            loader = kind(Barrier(7, make_barrier(3)), **arguments)
            assert sorted(batch.item() for batch in loader) == list(range(7))


class Worker(Numbers):
    def __getitem__(self, index):
        return index, get_worker_info().id


@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_batches_are_dealt_to_workers_in_turns(num_workers):
    for backend in (FORK, THREAD):
        dealt = []
        for kind, workers in backend.both:
            arguments = {**workers, "num_workers": num_workers}
            dealt.append(list(kind(Worker(9), batch_size=2, collate_fn=as_list, **arguments)))
        assert dealt[0] == dealt[1]
        assert dealt[0][num_workers][0][1] == 0


class Counting:
    """A sampler that counts how many indices were taken from it."""

    def __init__(self):
        self.taken = 0

    def __iter__(self):
        for index in range(100):
            self.taken += 1
            yield index


@each_of(FORK, KEPT, THREAD)
@pytest.mark.parametrize("prefetch_factor", [1, 3])
@pytest.mark.parametrize("in_order", [True, False])
def test_no_more_is_taken_ahead_than_prefetch_factor_for_each_worker(backend, prefetch_factor, in_order):
    counts = []
    for kind, workers in backend.both:
        sampler = Counting()
        arguments = {"sampler": sampler, "prefetch_factor": prefetch_factor, "in_order": in_order}
        loader = kind(Numbers(100), **arguments, **workers)
        iterator = iter(loader)
        actual = [sampler.taken]
        for _ in range(4):
            next(iterator)
            actual.append(sampler.taken)
        counts.append(actual)
        del iterator
        close(loader)
    assert counts[0] == counts[1] == [2 * prefetch_factor + n for n in range(5)]


@each_of(FORK, KEPT, THREAD)
@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param({"batch_size": 3}, marks=pytest.mark.soak),
        {"batch_size": 3, "drop_last": True},
        {"batch_size": None},
    ],
    ids=str,
)
def test_out_of_order_the_batches_are_the_same_ones(backend, arguments):
    actual = []
    for kind, workers in backend.both:
        loader = kind(Numbers(20), in_order=False, **arguments, **workers)
        actual.append(
            [sorted(batch.tolist() if hasattr(batch, "tolist") else [batch] for batch in loader) for _ in range(2)]
        )
        close(loader)
    assert actual[0] == actual[1]


def test_one_worker_delivers_in_order_whatever_is_asked():
    for kind, workers in FORK.both:
        arguments = {**workers, "num_workers": 1}
        loader = kind(Numbers(9), batch_size=2, in_order=False, **arguments)
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5], [6, 7], [8]]


def test_shuffled_epochs_and_what_is_drawn_afterwards_are_torchs():
    actual = assert_alike(lambda: (Numbers(20), {"shuffle": True, "batch_size": 3}), *EVERY, num_epochs=3)
    assert actual["epochs"][0] != actual["epochs"][1]


class Counted(Numbers):
    """Each sample is how often a sampler of `CountsIterations` has been iterated."""

    count = 0

    def __getitem__(self, index):
        return self.count


class CountsIterations:
    def __init__(self, dataset):
        self.dataset = dataset

    def __iter__(self):
        self.dataset.count += 1
        return iter(range(len(self.dataset)))

    def __len__(self):
        return len(self.dataset)


@each_of(FORK, KEPT)
def test_forked_workers_are_started_between_the_two_times_that_the_sampler_is_iterated(backend):
    actual = []
    for kind, workers in backend.both:
        dataset = Counted(3)
        loader = kind(dataset, sampler=CountsIterations(dataset), batch_size=None, **workers)
        actual.append(([[*loader], [*loader]], dataset.count))
        close(loader)
    torchs, ours = actual
    assert ours == torchs
