"""Guarantee: this loader's iterator has the attributes that tools read from torch's."""

from __future__ import annotations

import os
import pickle

import pytest
from lightning.pytorch.utilities import CombinedLoader
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from lit_loader import DataLoader
from tests.support.toys import Slow

BACKENDS = {
    "inline": {},
    "processes": {"num_workers": 2},
    "persistent": {"num_workers": 2, "persistent_workers": True},
    "threads": {"num_workers": 2, "worker_method": "thread"},
}


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("backend", BACKENDS)
def test_iterator_is_an_instance_of_torchs_base_class_and_cannot_be_pickled(backend, seed):
    with DataLoader(list(range(8)), seed=seed, **BACKENDS[backend]) as loader:
        iterator = iter(loader)
        next(iterator)
        assert isinstance(iterator, _BaseDataLoaderIter)
        with pytest.raises(NotImplementedError, match="cannot be pickled"):
            pickle.dumps(iterator)
        with pytest.raises(NotImplementedError, match="cannot be pickled"):
            pickle.dumps(iter(TorchDataLoader([1])))


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("mode", ["max_size_cycle", "min_size", "max_size", "sequential"])
def test_lightnings_combined_loader_is_pickled_while_it_is_iterated(mode, seed):
    combined = CombinedLoader({"a": DataLoader(list(range(8)), seed=seed), "b": DataLoader([1, 2], seed=seed)}, mode)
    next(iter(combined))
    copy = pickle.loads(pickle.dumps(combined))
    assert len(list(copy)) == len(list(combined))


@pytest.mark.parametrize("seed", [None, 1])
def test_worker_processes_are_shown(seed):
    with DataLoader(list(range(64)), seed=seed, num_workers=2) as loader:
        iterator = iter(loader)
        next(iterator)
        workers = iterator._workers
        assert len({worker.pid for worker in workers}) == 2
        assert all(worker.is_alive() and worker.exitcode is None for worker in workers)
        list(iterator)
    for worker in workers:  # as torch's own tests do
        worker.join(10)
        assert not worker.is_alive()
        assert worker.exitcode == 0
    assert iterator._workers == workers


def test_shown_workers_keep_no_descriptor():
    workers = []
    counts = []
    for _ in range(4):
        with DataLoader(list(range(8)), seed=1, num_workers=2) as loader:
            iterator = iter(loader)
            next(iterator)
            workers += iterator._workers
        counts.append(len(os.listdir("/proc/self/fd")))
    assert counts[1] == counts[-1]
    assert all(worker.exitcode == 0 for worker in workers)


@pytest.mark.parametrize("seed", [None, 1])
def test_workers_that_live_on_are_shown_after_the_end_of_a_pass(seed):
    with DataLoader(list(range(8)), seed=seed, num_workers=2, persistent_workers=True) as loader:
        iterator = iter(loader)
        list(iterator)
        assert len(iterator._workers) == 2
        assert all(worker.is_alive() for worker in iterator._workers)


def test_a_worker_that_was_replaced_is_shown_as_the_new_one():
    with DataLoader(Slow(0.005, 2000), seed=1, num_workers=2, persistent_workers=True) as loader:
        iterator = iter(loader)
        next(iterator)
        old_pids = [worker.pid for worker in iterator._workers]
        iterator._workers[0].kill()
        with pytest.warns(RuntimeWarning, match="ended"):
            all(iterator._workers[0].pid == old_pids[0] for _ in iterator)  # until it is another
        new_pids = [worker.pid for worker in iterator._workers]
        assert new_pids[0] != old_pids[0]
        assert new_pids[1] == old_pids[1]


def test_threads_are_shown_and_without_workers_there_is_no_such_attribute():
    with DataLoader(list(range(8)), num_workers=2, worker_method="thread") as loader:
        iterator = iter(loader)
        assert all(worker.is_alive() for worker in iterator._workers)
    assert not hasattr(iter(DataLoader([1])), "_workers")
    assert not hasattr(iter(TorchDataLoader([1])), "_workers")


def test_before_its_first_batch_a_seeded_pass_has_no_workers_yet():
    with DataLoader(list(range(8)), seed=1, num_workers=1) as loader:
        assert iter(loader)._workers == []
