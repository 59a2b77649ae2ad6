"""Every task that worker processes get is answered, so every slot comes back: results, errors, ends, tasks not sent."""

from __future__ import annotations

import time

import pytest
import torch
import torch.multiprocessing
from torch.utils.data import IterableDataset

from lit_loader.engine import BatchKey, ProcessBackend, StreamBatch, Task
from lit_loader.engine.channels import MAX_TASK_BYTES
from lit_loader.engine.spec import Kind
from lit_loader.errors import WorkerRestartWarning
from tests.support.memory_link import large, worker_spec


class Filled:
    """Tensors of their index, large enough for a slot; negative indices fail, and one may be a pair with a label."""

    def __getitem__(self, index):
        index = index[0] if isinstance(index, tuple) else index
        if index < 0:
            raise ValueError(f"index {index}")
        return large(index)


class Two(IterableDataset):
    def __iter__(self):
        return iter([large(0), large(1)])


def backend_of(dataset=None, *, max_restarts=0):
    """Return a backend of one worker process."""
    spec = worker_spec(dataset or Filled())
    return ProcessBackend(spec, torch.multiprocessing.get_context("fork"), max_restarts=max_restarts)


@pytest.fixture
def backend():
    backend = backend_of()
    yield backend
    backend.close()


@pytest.fixture
def epoch(backend):
    return backend.open_epoch(iterate=False)


def task(*indices):
    return Task(list(indices), BatchKey(1, 2))


def results(backend, epoch, count):
    """Wait for the next results of an epoch."""
    taken_results = []
    deadline = time.monotonic() + 20
    while len(taken_results) < count:
        assert time.monotonic() < deadline
        results = backend.poll(epoch, 1.0)
        taken_results += results
        results.clear()
    return taken_results


def make(backend, epoch, number, *indices):
    """Give the worker a task and return its result."""
    backend.submit(epoch, number, task(*indices), None)
    (result,) = results(backend, epoch, 1)
    return result


def free_slots(backend):
    """Return the numbers of unused slots."""
    return sorted(backend._slots._free)


def test_batches_have_separate_slots_until_their_tensors_are_deleted(backend, epoch):
    for number in range(3):
        backend.submit(epoch, number, task(number), None)
    batches = [backend.open(result) for result in results(backend, epoch, 3)]
    assert backend._slots.num_slots == 3
    assert free_slots(backend) == []
    assert [float(batch.mean()) for batch in batches] == [0, 1, 2]
    del batches[1]
    assert free_slots(backend) == [1]
    batches.append(backend.open(make(backend, epoch, 3, 9)))
    assert free_slots(backend) == []
    assert [float(batch.mean()) for batch in batches] == [0, 2, 9]


def test_slot_is_in_use_until_its_opened_batch_is_deleted(backend, epoch):
    backend.submit(epoch, 0, task(2), None)
    assert len(backend._in_flight) == 1
    (result,) = results(backend, epoch, 1)
    assert backend._in_flight == {}
    assert free_slots(backend) == []
    batch = backend.open(result)
    del result
    assert free_slots(backend) == []
    assert float(batch.mean()) == 2
    del batch
    assert free_slots(backend) == [0]


def test_error_frees_its_slot(backend, epoch):
    result = make(backend, epoch, 0, -1)
    assert result.kind is Kind.ERROR
    assert free_slots(backend) == [0]
    with pytest.raises(ValueError, match="index -1"):
        backend.open(result)


def test_end_of_a_stream_frees_its_slot():
    backend = backend_of(Two())
    try:
        epoch = backend.open_epoch(iterate=True)
        for number in range(3):
            backend.submit(epoch, number, Task([None]), 0)
        *batches, end = results(backend, epoch, 3)
        assert [float(backend.open(batch).batch.mean()) for batch in batches] == [0, 1]
        assert end.kind is Kind.STREAM_ENDED
        assert type(backend.open(end)) is StreamBatch
        del batches
        assert free_slots(backend) == [0, 1, 2]
    finally:
        backend.close()


def test_dropped_epoch_frees_its_slots(backend, epoch):
    """Whether the worker makes or skips its batches."""
    for number in range(6):
        backend.submit(epoch, number, task(number), None)
    backend.close_epoch(epoch)
    other = backend.open_epoch(iterate=False)
    result = make(backend, other, 0, 8)
    assert float(backend.open(result).mean()) == 8
    del result
    assert backend._in_flight == {}
    assert free_slots(backend) == list(range(7))


def test_equal_task_numbers_of_two_epochs_are_distinguished(backend, epoch):
    other = backend.open_epoch(iterate=False)
    backend.submit(epoch, 5, task(1), None)
    backend.submit(other, 5, task(2), None)
    (second,) = results(backend, other, 1)
    (first,) = results(backend, epoch, 1)  # read with the other one, and kept
    assert [float(backend.open(result).mean()) for result in (first, second)] == [1, 2]


def test_unsendable_task_takes_no_slot(backend, epoch):
    with pytest.raises(Exception, match=r"pickle|local") as error:  # keeps its frames, as the scheduler does
        backend.submit(epoch, 0, Task([lambda: None]), None)
    assert backend._in_flight == {}
    assert free_slots(backend) == []
    del error


def test_task_too_large_for_the_queue_is_sent_by_pipe(backend, epoch):
    for number in range(2):
        backend.submit(epoch, number, task((number, "x" * MAX_TASK_BYTES)), None)
    assert [float(backend.open(result).mean()) for result in results(backend, epoch, 2)] == [0, 1]


def test_results_without_slots_are_sent_by_pipe(monkeypatch):
    monkeypatch.setattr("lit_loader.engine.processes.open_slots", lambda page_lock: None)
    backend = backend_of()
    try:
        result = make(backend, backend.open_epoch(iterate=False), 0, 3)
        assert result.payload[1] is None
        assert float(backend.open(result).mean()) == 3
    finally:
        backend.close()


def test_batch_without_a_free_slot_is_sent_by_pipe(backend, epoch, monkeypatch):
    monkeypatch.setattr("lit_loader.memory.slots.MAX_SLOTS", 1)
    for number in range(2):
        backend.submit(epoch, number, task(number), None)
    in_slot, along = results(backend, epoch, 2)
    assert in_slot.payload[1] is not None
    assert along.payload[1] is None
    assert [float(backend.open(result).mean()) for result in (in_slot, along)] == [0, 1]
    del in_slot, along
    assert make(backend, epoch, 2, 5).payload[1].number == 0


def test_closed_backend_releases_everything_but_delivered_batches(backend, epoch):
    batch = backend.open(make(backend, epoch, 0, 4))
    backend.submit(epoch, 1, task(5), None)
    backend.close()
    assert backend._in_flight == {}
    assert backend.workers == []
    with pytest.raises(RuntimeError, match="workers were closed"):
        backend.submit(epoch, 2, task(6), None)
    assert (batch == 4).all()


def test_epoch_polled_after_its_end_does_not_count_as_open():
    """While an epoch is alive, restarts are not counted anew."""
    backend = backend_of(max_restarts=1)
    try:
        for _ in range(3):
            epoch = backend.open_epoch(iterate=False)
            assert float(backend.open(make(backend, epoch, 0, 1)).mean()) == 1
            backend.workers[0].kill()
            backend.workers[0].join()
            with pytest.warns(WorkerRestartWarning, match="restart 1 of max_worker_restarts=1"):
                assert float(backend.open(make(backend, epoch, 1, 2)).mean()) == 2
            backend.close_epoch(epoch)
            assert not backend.poll(epoch, 0.0)
    finally:
        backend.close()
