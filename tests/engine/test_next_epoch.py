"""The epoch that is begun when the one before it has no more tasks, over a backend that the test controls."""

from __future__ import annotations

import threading

import pytest

from lit_loader.engine import EndOfEpoch
from tests.engine.fake_backend import FakeBackend, plan, rest, schedule


def chain(backend, lengths, **options):
    """Return the first of several schedulers, a list of those that were begun after it, and what begins one."""
    begun = []

    def begin(n):
        if n == len(lengths):
            return None
        begun.append(schedule(backend, plan(lengths[n], epoch=n), claim=False, **options))
        return begun[-1]

    first = schedule(backend, plan(lengths[0]), begin_next=lambda: begin(1), **options)
    return first, begun, begin


def test_its_tasks_go_out_one_by_one_when_the_plan_has_come_to_its_end():
    backend = FakeBackend(2)
    first, begun, _ = chain(backend, [8, 20])
    assert begun == []
    for n in range(8):
        first.next_batch()
        assert len(begun) == (n >= 2)  # six are out; the third that is delivered finds no more of its own
        assert len(backend.tasks) == 6
    assert {submitted.epoch for submitted in backend.tasks} == {1}


def test_it_is_filled_up_when_it_is_claimed_and_gives_its_own_batches():
    backend = FakeBackend(2)
    first, begun, begin = chain(backend, [1, 20, 1])
    first.next_batch()
    assert len(backend.tasks) == 6  # nothing of the first is left, all that may be in flight is of the second
    with pytest.raises(EndOfEpoch):
        first.next_batch()
    assert begun[0].claim(lambda: begin(2))
    assert len(rest(begun[0])) == 20
    assert len(begun) == 2


def test_both_together_hold_no_more_than_one():
    backend = FakeBackend(2)
    first, _, _ = chain(backend, [3, 20])
    assert len(backend.tasks) == 6
    for _ in range(3):
        first.next_batch()
        assert len(backend.tasks) == 6


def test_it_serves_one_iterator():
    first, begun, _ = chain(FakeBackend(), [1, 5])
    first.next_batch()
    assert begun[0].claim()
    assert not begun[0].claim()


def test_when_it_is_claimed_the_one_before_sends_nothing_of_it():
    backend = FakeBackend()
    first, begun, _ = chain(backend, [3, 40])
    first.next_batch()
    assert begun[0].claim()
    num_tasks = len(backend.tasks)
    assert len(rest(first)) == 2
    assert len(backend.tasks) == num_tasks - 2


def test_when_another_thread_waits_for_its_batch_the_one_before_goes_on():
    """Two live iterators in two threads: neither waits for the other's batches."""
    backend = FakeBackend()
    first, begun, _ = chain(backend, [3, 40])
    first.next_batch()
    assert begun[0].claim()
    waits, release = threading.Event(), threading.Event()

    def wait_for_a_batch():
        with begun[0]._lock:  # as `next_batch` does
            waits.set()
            release.wait(10)

    thread = threading.Thread(target=wait_for_a_batch)
    thread.start()
    assert waits.wait(10)
    found = []
    other = threading.Thread(target=lambda: found.extend(rest(first)))
    other.start()
    other.join(5)
    done = not other.is_alive()
    release.set()
    thread.join()
    other.join()
    assert done
    assert len(found) == 2


def test_only_one_is_begun_though_it_is_shorter_than_what_may_be_in_flight():
    first, begun, _ = chain(FakeBackend(), [1, 1, 1, 1])
    assert len(rest(first)) == 1
    assert len(begun) == 1


def test_it_may_be_empty():
    first, begun, _ = chain(FakeBackend(), [2, 0])
    assert len(rest(first)) == 2
    assert begun[0].claim()
    assert rest(begun[0]) == []


def test_after_an_error_of_the_plan_it_is_not_begun():
    def failing():
        yield from plan(1)
        raise LookupError

    begun = []
    first = schedule(FakeBackend(), failing(), begin_next=lambda: begun.append(1))
    first.next_batch()
    with pytest.raises(LookupError):
        first.next_batch()
    assert begun == []


def test_an_error_of_its_plan_waits_until_it_is_claimed():
    def failing():
        raise LookupError("of the next")
        yield

    backend = FakeBackend()
    begun = []

    def begin():
        begun.append(schedule(backend, failing(), claim=False))
        return begun[0]

    first = schedule(backend, plan(2), begin_next=begin)
    assert len(rest(first)) == 2
    assert begun[0].claim()
    with pytest.raises(LookupError, match="of the next"):
        begun[0].next_batch()


def test_closing_the_first_leaves_it():
    first, begun, _ = chain(FakeBackend(), [2, 3])
    first.next_batch()
    first.close()
    assert begun[0].claim()
    assert len(rest(begun[0])) == 3
