"""Order of delivery, number of batches ahead, and the worker of each batch."""

from __future__ import annotations

import multiprocessing
import threading

import pytest
import torch

from lit_loader import get_worker_info
from tests.support.parity_backends import EVERY, FORK, KEPT, THREAD, assert_alike, close, each_of, same_for_both
from tests.support.parity_datasets import CountingSampler, Numbers, as_list


class Barrier(Numbers):
    """No worker returns its first sample before every worker has one."""

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
def test_every_worker_gets_a_first_batch_before_a_second_one(in_order, seed):
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
def test_batches_are_distributed_to_workers_in_turns(num_workers):
    settings = {"batch_size": 2, "collate_fn": as_list, "num_workers": num_workers}
    for backend in (FORK, THREAD):
        batches = same_for_both(backend, lambda kind, workers: list(kind(Worker(9), **workers | settings)))
        assert batches[num_workers][0][1] == 0


@each_of(FORK, KEPT, THREAD)
@pytest.mark.parametrize("prefetch_factor", [1, 3])
@pytest.mark.parametrize("in_order", [True, False])
def test_prefetching_is_limited_by_prefetch_factor_for_each_worker(backend, prefetch_factor, in_order):
    def counts(kind, workers):
        sampler = CountingSampler(100)
        arguments = {"sampler": sampler, "prefetch_factor": prefetch_factor, "in_order": in_order}
        loader = kind(Numbers(100), **arguments, **workers)
        iterator = iter(loader)
        numbers = [sampler.num_read]
        for _ in range(4):
            next(iterator)
            numbers.append(sampler.num_read)
        del iterator
        close(loader)
        return numbers

    assert same_for_both(backend, counts) == [2 * prefetch_factor + n for n in range(5)]


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
def test_out_of_order_delivery_has_the_same_batches(backend, arguments):
    def sorted_batches(kind, workers):
        loader = kind(Numbers(20), in_order=False, **arguments, **workers)
        epochs = [sorted(torch.as_tensor(batch).reshape(-1).tolist() for batch in loader) for _ in range(2)]
        close(loader)
        return epochs

    same_for_both(backend, sorted_batches)


def test_one_worker_delivers_in_order_also_with_in_order_false():
    for kind, workers in FORK.both:
        arguments = {**workers, "num_workers": 1}
        loader = kind(Numbers(9), batch_size=2, in_order=False, **arguments)
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5], [6, 7], [8]]


def test_shuffled_epochs_and_later_random_draws_are_torchs():
    actual = assert_alike(lambda: (Numbers(20), {"shuffle": True, "batch_size": 3}), *EVERY, num_epochs=3)
    assert actual["epochs"][0] != actual["epochs"][1]


class Counted(Numbers):
    """Each sample is the number of iterations of a `CountsIterations` sampler."""

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
def test_forked_workers_start_between_the_two_iterations_of_the_sampler(backend):
    def counts(kind, workers):
        dataset = Counted(3)
        loader = kind(dataset, sampler=CountsIterations(dataset), batch_size=None, **workers)
        epochs = [list(loader), list(loader)]
        close(loader)
        return epochs, dataset.count

    same_for_both(backend, counts)
