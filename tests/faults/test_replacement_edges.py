"""Corners of replacing workers: lists used again, starts that fail, several warnings, stale descriptors."""

from __future__ import annotations

import gc
import os
import select
import signal
import threading
import time
import warnings

import psutil
import pytest
import torch
from torch.utils.data import IterableDataset

from lit_loader import DataLoader
from lit_loader.engine import processes, recovery
from lit_loader.errors import WorkerDiedError, WorkerRestartWarning
from tests.support.dying_sets import Dying, first_time

SIZE = 64
BATCH = 4


def make_loader(dataset, **arguments):
    return DataLoader(dataset, **{"num_workers": 2, "seed": 3, "persistent_workers": True, **arguments})


def kill(backend, *numbers):
    """Kill workers, and see them dead: one look finds them all."""
    for number in numbers:
        backend._workers[number].process.kill()
        backend._workers[number].process.join()


class OneList:
    """Batches of indices, all of them in one list, as a sampler may that makes each when it is asked."""

    def __len__(self):
        return SIZE // BATCH

    def __iter__(self):
        batch = [0] * BATCH
        for first in range(0, SIZE, BATCH):
            batch[:] = range(first, first + BATCH)
            yield batch


def test_lost_work_is_done_again_as_it_was_given_out(tmp_path):
    dataset = Dying(SIZE, tmp_path, {9: "kill", 30: "kill"})
    loader = make_loader(dataset, batch_sampler=OneList())
    with loader, warnings.catch_warnings():
        warnings.simplefilter("ignore", WorkerRestartWarning)
        received = [batch["index"].tolist() for batch in loader]
    assert received == [list(range(first, first + BATCH)) for first in range(0, SIZE, BATCH)]


@pytest.mark.parametrize("error", [OSError(11, "no process"), KeyboardInterrupt()], ids=["OSError", "Ctrl-C"])
def test_a_replacement_that_cannot_be_started_ends_all_workers(tmp_path, error):
    loader = make_loader(Dying(SIZE, tmp_path), batch_size=BATCH)
    batches = iter(loader)
    next(batches)
    backend = loader._worker_manager.backend
    pids = [worker.process.pid for worker in backend._workers]

    def fail(number):
        raise error

    backend._start = fail
    kill(backend, 0)
    with pytest.raises(type(error)) as raised:
        list(batches)
    assert raised.value is error
    assert not backend.usable
    assert backend.workers == []
    assert not any(psutil.pid_exists(pid) for pid in pids)
    with pytest.raises(RuntimeError, match="workers were closed"):
        next(batches)


def test_an_epoch_that_ends_while_a_worker_is_replaced_writes_to_nobody_elses_file(tmp_path):
    """Numbers of descriptors are used again at once, and a finalizer may send a message to a worker at any time."""
    loader = make_loader(Dying(SIZE, tmp_path), batch_size=BATCH)
    batches = iter(loader)
    other = iter(loader)
    next(batches), next(other)
    backend = loader._worker_manager.backend
    old = backend._workers[0]
    start = backend._start
    received = []
    stale = {old.tasks.fd, old.control.fd}

    def start_among_files(number):
        nonlocal other
        pipes = [os.pipe() for _ in range(6)]
        assert stale <= {fd for pipe in pipes for fd in pipe}
        other.close()
        for read, write in pipes:
            os.set_blocking(read, False)
            os.close(write)
            received.append(os.read(read, 100))
            os.close(read)
        return start(number)

    backend._start = start_among_files
    kill(backend, 0)
    with loader, pytest.warns(WorkerRestartWarning):
        assert len(list(batches)) == SIZE // BATCH - 1
    assert received == [b""] * 6


def test_each_restart_warns_even_if_warnings_are_errors(tmp_path):
    with make_loader(Dying(SIZE, tmp_path), batch_size=BATCH) as loader:
        batches = iter(loader)
        delivered = [next(batches)]
        kill(loader._worker_manager.backend, 0, 1)
        num_warnings = 0
        while len(delivered) < SIZE // BATCH:
            try:
                delivered.append(next(batches))
            except WorkerRestartWarning:  # pytest turns warnings into errors
                num_warnings += 1
        assert num_warnings == 2


class StaleAnswer:
    """A poller that answers, when it is let, with descriptors that may have been closed meanwhile."""

    def __init__(self, waits, release, fds):
        self.waits = waits
        self.release = release
        self.fds = fds

    def register(self, fd, events):
        pass

    def poll(self, timeout_ms=None):
        self.waits.set()
        assert self.release.wait(30)
        return [(fd, select.POLLIN) for fd in self.fds]


@pytest.mark.parametrize("is_watched", [True, False], ids=["watched by the kernel", "looked at"])
def test_a_thread_that_waits_outlives_the_workers_that_it_waits_for(tmp_path, monkeypatch, is_watched):
    """Another thread replaces one meanwhile; the new one may have the same descriptors, and must be left alone."""
    if not is_watched:
        monkeypatch.delattr(os, "pidfd_open")
        monkeypatch.setattr(processes, "_UNWATCHED_POLL_S", 0.01)
    plain = DataLoader(Dying(SIZE, tmp_path), batch_size=BATCH, seed=3)
    expected = [list(plain) for _ in range(2)]
    waits = threading.Event()
    release = threading.Event()
    other_received = []
    new_poller = select.poll

    def poller_of_thread():
        stale = threading.current_thread() is thread and not waits.is_set()
        return StaleAnswer(waits, release, (old.results.fd, *old.watch)) if stale else new_poller()

    with make_loader(Dying(SIZE, tmp_path), batch_size=BATCH) as loader:
        batches = iter(loader)
        other = iter(loader)
        received = [next(batches)]
        backend = loader._worker_manager.backend
        old = backend._workers[0]
        thread = threading.Thread(target=lambda: other_received.extend(other))
        monkeypatch.setattr(select, "poll", poller_of_thread)
        thread.start()
        assert waits.wait(30)
        kill(backend, 0)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", WorkerRestartWarning)
            received += batches
            release.set()
            thread.join()
        assert [warning.category for warning in caught] == [WorkerRestartWarning]
        assert old not in backend._workers
    for actual, expected_epoch in zip((received, other_received), expected, strict=True):
        pairs = zip(actual, expected_epoch, strict=True)
        assert all(torch.equal(batch["noise"], expected["noise"]) for batch, expected in pairs)


def test_tasks_lost_with_workers_and_dropped_epochs_leave_nothing(tmp_path):
    dataset = Dying(SIZE, tmp_path, side=70)
    arguments = {"batch_size": BATCH, "max_worker_restarts": 100}
    with make_loader(dataset, **arguments) as loader, warnings.catch_warnings():
        warnings.simplefilter("ignore", WorkerRestartWarning)
        for most in (1, 5, 2, None):
            for number, _ in enumerate(loader):
                if number % 5 == 0:
                    kill(loader._worker_manager.backend, *range(1 + number % 2))
                if number == most:
                    break
        gc.collect()
        backend = loader._worker_manager.backend
        ahead = loader._worker_manager.next_epoch
        if ahead is not None:
            ahead[-1].close()
        deadline = time.monotonic() + 60
        epoch = backend.open_epoch(iterate=False)
        while backend._in_flight and time.monotonic() < deadline:
            assert not backend.poll(epoch, 1.0)
        assert not backend._in_flight
        assert backend._slots._num_out == 0


@pytest.mark.parametrize("method", ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.soak)])
def test_threads_share_the_workers_while_they_die(tmp_path, method):
    """Each batch of each epoch comes once, to whichever thread."""
    arguments = {"batch_size": BATCH, "shuffle": True, "seed": 3}
    plain = DataLoader(Dying(SIZE, tmp_path), **arguments)
    expected = [[batch["index"].tolist() for batch in plain] for _ in range(2)]
    dataset = Dying(SIZE, tmp_path, {5: "kill", 50: "exit"})
    loader = make_loader(dataset, multiprocessing_context=method, **arguments)
    received = []

    def consume(batches):
        received.append([batch["index"].tolist() for batch in batches])

    with loader, warnings.catch_warnings():
        warnings.simplefilter("ignore", WorkerRestartWarning)
        iterators = [iter(loader) for _ in range(2)]
        threads = [threading.Thread(target=consume, args=(batches,)) for batches in iterators]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(received) == sorted(expected)


class SlowToBegin(IterableDataset):
    """Hangs when it is asked for an iterator."""

    def __init__(self, marks):
        self.marks = marks

    def __iter__(self):
        first_time(self.marks, "begun")
        time.sleep(600)


def test_a_worker_that_hangs_before_the_first_sample_of_an_iterable_is_found(tmp_path, capfd):
    loader = DataLoader(SlowToBegin(tmp_path), batch_size=BATCH, num_workers=1, hang_timeout_s=0.5)
    with pytest.raises(WorkerDiedError, match="hung"):
        next(iter(loader))
    assert "__iter__" in capfd.readouterr().err


class Waiting(Dying):
    """One sample waits for a file, and then ends its worker."""

    def __getitem__(self, index):
        if index == 2 * BATCH and first_time(self.marks, "waits"):
            while not (self.marks / "go").exists():
                time.sleep(0.001)
            os._exit(7)
        return super().__getitem__(index)


def test_a_worker_that_does_not_report_when_another_has_died_hangs(tmp_path, monkeypatch):
    """Stopped while idle, it cannot report, and so the tasks of the other one would stay unknown."""
    monkeypatch.setattr(recovery, "_REPORT_S", 0.5)
    monkeypatch.setattr("sys.stderr", None)  # a process without one has its workers replaced too
    dataset = Waiting(SIZE, tmp_path)
    loader = make_loader(dataset, batch_size=BATCH, hang_timeout_s=3)
    with loader:
        batches = iter(loader)
        received = [next(batches)]
        backend = loader._worker_manager.backend
        heartbeats = backend._hangs.table
        rests = 0
        while rests < 60:  # the other one has made all that it may, and is not just between two batches
            rests = 0 if not (tmp_path / "waits").exists() or all(heartbeats.since) else rests + 1
            time.sleep(0.001)
        idle = int(heartbeats.since[0] > 0)
        os.kill(backend._workers[idle].process.pid, signal.SIGSTOP)
        (tmp_path / "go").touch()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", WorkerRestartWarning)
            received += batches
    assert [int(batch["index"][0]) for batch in received] == list(range(0, SIZE, BATCH))
    texts = [str(warning.message) for warning in caught]
    assert any("exit code 7" in text for text in texts), texts
    assert any("hung: it did not report" in text for text in texts), texts
