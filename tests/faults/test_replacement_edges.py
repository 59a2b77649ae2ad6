"""Corners of replacing workers: lists used again, starts that fail, several warnings, stale descriptors."""

from __future__ import annotations

import gc
import os
import select
import signal
import threading
import time
import warnings
from functools import partial

import psutil
import pytest
import torch
from torch.utils.data import IterableDataset

from lit_loader import DataLoader
from lit_loader.engine import processes, recovery
from lit_loader.errors import WorkerDiedError, WorkerRestartWarning
from tests.support.background import running
from tests.support.dying_sets import Dying, Waiting, backend_of, first_time

pytestmark = pytest.mark.filterwarnings("ignore::lit_loader.errors.WorkerRestartWarning")
SIZE = 64
BATCH = 4


def make_loader(dataset, **arguments):
    return DataLoader(dataset, **{"num_workers": 2, "seed": 3, "persistent_workers": True, **arguments})


def kill(backend, *numbers):
    """Kill workers, and wait for their ends, so that the backend notices all of them at once."""
    for number in numbers:
        backend.workers[number].kill()
        backend.workers[number].join()


class OneList:
    """Batches of indices, all of them in one list, as a sampler may that makes each when it is asked."""

    def __len__(self):
        return SIZE // BATCH

    def __iter__(self):
        batch = [0] * BATCH
        for first in range(0, SIZE, BATCH):
            batch[:] = range(first, first + BATCH)
            yield batch


def test_lost_task_is_repeated_with_its_original_index(tmp_path):
    dataset = Dying(SIZE, tmp_path, {9: "kill", 30: "kill"})
    loader = make_loader(dataset, batch_sampler=OneList())
    with loader:
        received = [batch["index"].tolist() for batch in loader]
    assert received == [list(range(first, first + BATCH)) for first in range(0, SIZE, BATCH)]


@pytest.mark.parametrize("error", [OSError(11, "no process"), KeyboardInterrupt()], ids=["OSError", "Ctrl-C"])
def test_all_workers_end_if_a_replacement_cannot_start(tmp_path, error):
    loader = make_loader(Dying(SIZE, tmp_path), batch_size=BATCH)
    batches = iter(loader)
    next(batches)
    backend = backend_of(loader)
    pids = [process.pid for process in backend.workers]

    def fail(number):
        raise error

    backend._start = fail
    kill(backend, 0)
    with pytest.raises(type(error)) as raised:
        list(batches)
    assert error in (raised.value, raised.value.__cause__)
    assert not backend.usable
    assert backend.workers == []
    assert not any(psutil.pid_exists(pid) for pid in pids)
    with pytest.raises(RuntimeError, match="workers were closed"):
        next(batches)


def test_epoch_that_ends_during_a_replacement_writes_to_no_reused_descriptor(tmp_path):
    """Numbers of descriptors are used again at once, and a finalizer may send a message to a worker at any time."""
    loader = make_loader(Dying(SIZE, tmp_path), batch_size=BATCH)
    batches = iter(loader)
    other = iter(loader)
    next(batches), next(other)
    backend = backend_of(loader)
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
    with make_loader(Dying(SIZE, tmp_path), batch_size=BATCH) as loader, warnings.catch_warnings():
        warnings.simplefilter("error", WorkerRestartWarning)
        batches = iter(loader)
        delivered = [next(batches)]
        kill(backend_of(loader), 0, 1)
        num_warnings = 0
        while len(delivered) < SIZE // BATCH:
            try:
                delivered.append(next(batches))
            except WorkerRestartWarning:
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
def test_waiting_thread_survives_the_replacement_of_its_workers(tmp_path, monkeypatch, is_watched):
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
        backend = backend_of(loader)
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
        assert len(caught) == 1
        assert old not in backend._workers
    for actual, expected_epoch in zip((received, other_received), expected, strict=True):
        pairs = zip(actual, expected_epoch, strict=True)
        assert all(torch.equal(batch["noise"], expected["noise"]) for batch, expected in pairs)


def test_lost_tasks_and_dropped_epochs_leave_no_slot_in_use(tmp_path):
    dataset = Dying(SIZE, tmp_path, side=70)
    arguments = {"batch_size": BATCH, "max_worker_restarts": 100}
    with make_loader(dataset, **arguments) as loader:
        for most in (1, 5, 2, None):
            for number, _ in enumerate(loader):
                if number % 5 == 0:
                    kill(backend_of(loader), *range(1 + number % 2))
                if number == most:
                    break
        gc.collect()
        backend = backend_of(loader)
        ahead = loader._worker_manager.next_epoch
        if ahead is not None:
            ahead[-1].close()
        deadline = time.monotonic() + 60
        epoch = backend.open_epoch(iterate=False)
        while backend._in_flight and time.monotonic() < deadline:
            assert not backend.poll(epoch, 1.0)
        assert not backend._in_flight
        assert backend._slots.num_out == 0


@pytest.mark.parametrize("method", ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.soak)])
def test_threads_share_workers_that_die(tmp_path, method):
    """Each batch of each epoch comes once, to whichever thread."""
    arguments = {"batch_size": BATCH, "shuffle": True, "seed": 3}
    plain = DataLoader(Dying(SIZE, tmp_path), **arguments)
    expected = [[batch["index"].tolist() for batch in plain] for _ in range(2)]
    dataset = Dying(SIZE, tmp_path, {5: "kill", 50: "exit"})
    loader = make_loader(dataset, multiprocessing_context=method, **arguments)
    received = []

    def consume(batches, _):
        received.append([batch["index"].tolist() for batch in batches])

    with loader:
        iterators = [iter(loader) for _ in range(2)]
        with running(*(partial(consume, batches) for batches in iterators)):
            pass
    assert sorted(received) == sorted(expected)


class SlowToBegin(IterableDataset):
    """Hangs when it is asked for an iterator."""

    def __init__(self, marks):
        self.marks = marks

    def __iter__(self):
        first_time(self.marks, "begun")
        time.sleep(600)


def test_hang_in_iter_of_an_iterable_dataset_is_reported(tmp_path, capfd):
    loader = DataLoader(SlowToBegin(tmp_path), batch_size=BATCH, num_workers=1, hang_timeout_s=0.5)
    with pytest.raises(WorkerDiedError, match="hung"):
        next(iter(loader))
    assert "__iter__" in capfd.readouterr().err


def test_idle_worker_that_does_not_report_counts_as_hung(tmp_path, monkeypatch):
    """Stopped while idle, it cannot report, and so the tasks of the other one would stay unknown."""
    monkeypatch.setattr(recovery, "_REPORT_S", 0.5)
    monkeypatch.setattr("sys.stderr", None)  # a process without one has its workers replaced too
    dataset = Waiting(SIZE, tmp_path, at=2 * BATCH)
    loader = make_loader(dataset, batch_size=BATCH, hang_timeout_s=3)
    with loader:
        batches = iter(loader)
        received = [next(batches)]
        backend = backend_of(loader)
        heartbeats = backend._hangs.table
        rests = 0
        while rests < 60:  # the other one has made all that it may, and is not just between two batches
            rests = 0 if not (tmp_path / "waits").exists() or all(heartbeats.since) else rests + 1
            time.sleep(0.001)
        idle = int(heartbeats.since[0] > 0)
        os.kill(backend.workers[idle].pid, signal.SIGSTOP)
        (tmp_path / "go").touch()
        with pytest.warns(WorkerRestartWarning) as caught:
            received += batches
    assert [int(batch["index"][0]) for batch in received] == list(range(0, SIZE, BATCH))
    texts = [str(warning.message) for warning in caught]
    assert any("exit code 7" in text for text in texts), texts
    assert any("hung: it did not report" in text for text in texts), texts
