"""Workers from the view of user code: seeds, `get_worker_info`, worker_init_fn, threads, affinity."""

from __future__ import annotations

import os
import random
import signal

import numpy as np
import pytest
import torch

from lit_loader import get_worker_info
from tests.support.parity_backends import EVERY, FORK, KEPT, THREAD, assert_alike, close, each_of, events, same_for_both
from tests.support.parity_datasets import Numbers, ProcessFacts, WorkerFacts, as_list


def facts_with(dataset, **more):
    return lambda: (dataset, {"collate_fn": as_list, **more})


def test_worker_info_is_torchs():
    actual = assert_alike(facts_with(WorkerFacts()), *EVERY)
    assert str(actual["epochs"][0]).count("('id', ('builtins.int', '1'))") == 2


def test_seeds_and_draws_in_workers_are_torchs():
    assert_alike(facts_with(ProcessFacts()), FORK, KEPT)


@pytest.mark.parametrize("dataset", [WorkerFacts(), ProcessFacts()], ids=["info", "draws"])
def test_generator_determines_the_seeds(dataset):
    def make():
        return dataset, {"collate_fn": as_list, "generator": torch.Generator().manual_seed(9)}

    assert_alike(make, FORK, KEPT, *([THREAD] if type(dataset) is WorkerFacts else []))


def test_worker_info_is_frozen_and_absent_in_the_main_process():
    class Changes(Numbers):
        def __getitem__(self, index):
            get_worker_info().id = 3

    for backend in (FORK, THREAD):
        for kind, workers in backend.both:
            first = events(iter(kind(Changes(1), **workers)))[0]
            assert first[0] == "raised"
            assert first[1] in ("FrozenInstanceError", "RuntimeError")  # torch 2.15's and 2.11's
            assert get_worker_info() is None


def marks(worker):
    """Store the worker info where samples can read it."""
    info = get_worker_info()
    info.dataset.mark = [worker, info.id, info.num_workers, info.seed, torch.initial_seed() == info.seed]


def draws(worker):
    get_worker_info().dataset.mark = [torch.rand(1).item(), np.random.rand(), random.random()]


def seeds(worker):
    torch.manual_seed(3)
    np.random.seed(3)
    random.seed(3)


class Marked(Numbers):
    mark = None

    def __getitem__(self, index):
        return {"mark": str(self.mark), "draws": [torch.rand(1).item(), np.random.rand(), random.random()]}


@pytest.mark.parametrize("function", [marks, draws, seeds])
def test_worker_init_fn_runs_after_seeding_and_before_the_first_sample(function):
    actual = assert_alike(lambda: (Marked(5), {"worker_init_fn": function, "collate_fn": as_list}), FORK, KEPT)
    assert len(actual["epochs"][0]) == 7


@each_of(FORK, KEPT, THREAD)
def test_worker_init_fn_runs_once_per_start_of_a_worker(backend, tmp_path):
    def initialised_workers(kind, workers):
        path = tmp_path / kind.__module__
        path.touch()

        def init(worker, path=path):
            with path.open("a") as file:
                file.write(f"{worker} ")

        loader = kind(Numbers(5), worker_init_fn=init, **workers)
        for _ in range(3):
            list(loader)
        close(loader)
        return sorted(path.read_text().split())

    same_for_both(backend, initialised_workers)


def test_worker_init_fn_is_not_called_without_workers():
    for kind in (FORK.both[0][0], FORK.both[1][0]):
        assert len(list(kind(Numbers(3), worker_init_fn=lambda worker: 1 / 0))) == 3


def stays_on_one_core(worker):
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[worker % len(os.sched_getaffinity(0))]})


class Affinity(Numbers):
    def __getitem__(self, index):
        return str(sorted(os.sched_getaffinity(0)))


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this platform has no affinity")
def test_affinity_set_by_worker_init_fn_holds_for_samples():
    main_affinity = os.sched_getaffinity(0)
    for backend in (FORK, THREAD):
        actual = assert_alike(lambda: (Affinity(6), {"worker_init_fn": stays_on_one_core}), backend, num_epochs=1)
        assert all("," not in item[1][0][1] for item in actual["epochs"][0][:6])
    assert os.sched_getaffinity(0) == main_affinity


class Signals(Numbers):
    """Samples tell whether a worker starts with the handlers of the main process."""

    def __getitem__(self, index):
        return str([signal.getsignal(number) is _handler for number in (signal.SIGUSR1, signal.SIGTERM)])


def _handler(number, frame):
    raise AssertionError("the main process's handler ran in a worker")


def test_workers_inherit_handlers_of_user_signals():
    previous_handler = signal.signal(signal.SIGUSR1, _handler)
    try:
        assert_alike(lambda: (Signals(2), {}), FORK, num_epochs=1)
    finally:
        signal.signal(signal.SIGUSR1, previous_handler)


def test_signal_handlers_set_by_worker_init_fn_run():
    def init(worker):
        signal.signal(signal.SIGUSR1, lambda *_: setattr(get_worker_info().dataset, "mark", "heard"))

    class Signalling(Marked):
        def __getitem__(self, index):
            os.kill(os.getpid(), signal.SIGUSR1)
            return str(self.mark)

    actual = assert_alike(lambda: (Signalling(2), {"worker_init_fn": init}), FORK, num_epochs=1)
    assert actual["epochs"][0][0][1][0][1] == "heard"
