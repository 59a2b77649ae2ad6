"""The scheduler of the next epoch, which starts when the present one has no more tasks."""

from __future__ import annotations

import threading

import pytest

from lit_loader.engine import EndOfEpoch
from tests.support.fake_backend import FakeBackend, plan, rest, schedule


def chain(backend, lengths, **options):
    """Return the first of several schedulers, a list of the later ones, and the function that creates one."""
    later = []

    def begin(n):
        if n == len(lengths):
            return None
        later.append(schedule(backend, plan(lengths[n], epoch=n), claim=False, **options))
        return later[-1]

    first = schedule(backend, plan(lengths[0]), begin_next=lambda: begin(1), **options)
    return first, later, begin


def test_next_epochs_tasks_are_sent_one_by_one_after_the_last_task():
    backend = FakeBackend(2)
    first, later, _ = chain(backend, [8, 20])
    assert later == []
    for n in range(8):
        first.next_batch()
        assert len(later) == (n >= 2)  # six are in flight, so the third batch finds no more tasks of its own epoch
        assert len(backend.tasks) == 6
    assert {submitted.epoch for submitted in backend.tasks} == {1}


def test_claimed_next_epoch_fills_up_and_delivers_its_own_batches():
    backend = FakeBackend(2)
    first, later, begin = chain(backend, [1, 20, 1])
    first.next_batch()
    assert len(backend.tasks) == 6  # the first epoch is over, so all tasks in flight are the second's
    with pytest.raises(EndOfEpoch):
        first.next_batch()
    assert later[0].claim(lambda: begin(2))
    assert len(rest(later[0])) == 20
    assert len(later) == 2


def test_present_epoch_sends_no_tasks_of_a_claimed_next_epoch():
    backend = FakeBackend()
    first, later, _ = chain(backend, [3, 40])
    first.next_batch()
    assert later[0].claim()
    num_tasks = len(backend.tasks)
    assert len(rest(first)) == 2
    assert len(backend.tasks) == num_tasks - 2


def test_present_epoch_continues_while_another_thread_waits_in_the_next():
    """Two live iterators in two threads: neither waits for the other's batches."""
    backend = FakeBackend()
    first, later, _ = chain(backend, [3, 40])
    first.next_batch()
    assert later[0].claim()
    waits = threading.Event()
    release = threading.Event()

    def wait_for_a_batch():
        with later[0]._lock:  # as `next_batch` does
            waits.set()
            release.wait(10)

    thread = threading.Thread(target=wait_for_a_batch)
    thread.start()
    assert waits.wait(10)
    batches = []
    other = threading.Thread(target=lambda: batches.extend(rest(first)))
    other.start()
    other.join(5)
    finished = not other.is_alive()
    release.set()
    thread.join()
    other.join()
    assert finished
    assert len(batches) == 2


def test_only_one_next_epoch_starts_even_if_it_is_short():
    first, later, _ = chain(FakeBackend(), [1, 1, 1, 1])
    assert len(rest(first)) == 1
    assert len(later) == 1


def test_next_epoch_may_be_empty():
    first, later, _ = chain(FakeBackend(), [2, 0])
    assert len(rest(first)) == 2
    assert later[0].claim()
    assert rest(later[0]) == []


def test_next_epoch_does_not_start_after_an_error_of_the_plan():
    def failing():
        yield from plan(1)
        raise LookupError

    later = []
    first = schedule(FakeBackend(), failing(), begin_next=lambda: later.append(1))
    first.next_batch()
    with pytest.raises(LookupError):
        first.next_batch()
    assert later == []


def test_error_of_next_plan_is_raised_by_next_epoch():
    def failing():
        raise LookupError("of the next")
        yield

    backend = FakeBackend()
    later = []

    def begin():
        later.append(schedule(backend, failing(), claim=False))
        return later[0]

    first = schedule(backend, plan(2), begin_next=begin)
    assert len(rest(first)) == 2
    assert later[0].claim()
    with pytest.raises(LookupError, match="of the next"):
        later[0].next_batch()


def test_closing_present_epoch_keeps_the_next():
    first, later, _ = chain(FakeBackend(), [2, 3])
    first.next_batch()
    first.close()
    assert later[0].claim()
    assert len(rest(later[0])) == 3
