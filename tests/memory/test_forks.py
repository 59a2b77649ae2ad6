"""A fork and its parent both have the batches of the time of the fork, and edits of one do not reach the other."""

from __future__ import annotations

import ctypes
import errno
import gc
import mmap
import os
import signal
import time
from functools import partial

import numpy as np
import pytest

from lit_loader.foundation import interrupts
from lit_loader.memory import mapping, slots
from tests.support.background import running
from tests.support.memory_link import Link, large, num_maps, refuse_to_populate


def fork(work):
    """Fork a process that waits, and return a function that lets it go on and returns the bytes of ``work()`` there."""
    to_child, start = os.pipe()
    answer, to_parent = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            # Otherwise the fork would wait forever after a failed test: it would hold the writing end itself.
            os.close(start)
            os.read(to_child, 1)
            os.write(to_parent, work())
        finally:
            os._exit(0)

    def resume():
        os.write(start, b"1")
        result = os.read(answer, 1000)
        os.waitpid(pid, 0)
        for fd in (to_child, start, answer, to_parent):
            os.close(fd)
        return result

    return resume


def extremes(arrays):
    return bytes(int(value) for array in arrays for value in (array.min(), array.max()))


def edited(arrays):
    """Return the values of arrays before and after 10 was added to each."""
    values = extremes(arrays)
    for array in arrays:
        array += 10
    return values + extremes(arrays)


def make_many(link, *, avoid):
    """Make many batches, some of them alive at the same time, and check that none is in this slot."""
    recent = []
    for number in range(100):
        ticket = link.slots.ticket()
        assert ticket.number != avoid
        frame = link.write(ticket, lambda writer, number=number: [large(number + 70, 1 << 17)])
        recent = [*recent[-5:], link.read(ticket, frame)]


def test_fork_sees_batches_of_the_time_of_the_fork(link):
    batch = link.send([large(1), large(2).numpy()])
    scalar = link.send(large(3))[0, 0]
    resume = fork(lambda: extremes([*batch, scalar]))
    batch.clear()
    for number in range(200):
        link.send([large(number + 7), large(number + 7)])
    assert resume() == bytes([1, 1, 2, 2, 3, 3])


def test_edits_in_fork_and_parent_do_not_meet(link):
    batch = link.send([large(1), large(2)])
    address = batch[0].data_ptr()
    resume = fork(lambda: edited(batch))
    assert batch[0].data_ptr() == address
    batch[0] += 100
    for number in range(50):
        link.send([large(number + 7), large(number + 7)])
    assert resume() == bytes([1, 1, 2, 2, 11, 11, 12, 12])
    assert extremes(batch) == bytes([101, 101, 2, 2])


def test_fork_frees_slots_and_memory_of_kept_batches(link):
    batches = [link.send(large(n, 1 << 18)) for n in range(40)]
    assert link.used_bytes >= 40 << 20
    fork(lambda: b"x")()
    assert link.used_bytes <= 8 << 20
    assert link.slots.kept_bytes == 0
    later_batches = [link.send(large(n, 1 << 18)) for n in range(40)]
    assert link.slots.num_slots == 40
    assert all((batch == n).all() for n, batch in enumerate(batches))
    assert all((batch == n).all() for n, batch in enumerate(later_batches))


def test_batch_opened_after_a_fork_is_right(link):
    ticket = link.slots.ticket()
    frame = link.write(ticket, lambda writer: [large(1), large(2)])
    fork(lambda: b"x")()
    batch = link.read(ticket, frame)
    del ticket
    for number in range(20):
        link.send(large(number + 70))
    assert extremes(batch) == bytes([1, 1, 2, 2])


def test_memory_stays_flat_over_many_forks(link):
    live_batches = [link.send(large(n, 1 << 16)) for n in range(3)]
    used = []
    for number in range(25):
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        live_batches.append(link.send(large(number + 3, 1 << 16)))
        assert float(live_batches.pop(0)[7]) == number
        used.append((link.used_bytes, link.slots.num_slots, num_maps()))
    assert len(set(used[5:])) == 1


def test_ctrl_c_before_a_fork_is_raised_after_it_and_every_batch_is_private(link, monkeypatch, request):
    batches = [link.send(large(1)), link.send(large(2))]
    make_private = mapping.Mapping.make_private

    def interrupted(self, ranges):
        signal.raise_signal(signal.SIGINT)
        make_private(self, ranges)

    monkeypatch.setattr(mapping.Mapping, "make_private", interrupted)
    monkeypatch.setattr(interrupts, "_DELAY_S", 0.5)  # the fork has ended by then
    # A shell's background jobs ignore SIGINT.
    original_handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, original_handler))
    with pytest.raises(KeyboardInterrupt):
        assert fork(lambda: extremes(batches))() == bytes([1, 1, 2, 2])
        assert link.slots.kept_bytes == 0
        time.sleep(10)
    assert link.send(large(3)).max() == 3


def test_no_batch_is_opened_during_a_fork(link):
    wrong = []

    def read(stop):
        number = 0
        while not stop.is_set():
            number = (number + 1) % 100
            batch = link.send([large(number)])
            if not bool((batch[0] == number).all()):
                wrong.append(number)

    with running(read):
        for _ in range(15):
            fork(lambda: b"x")()
    assert wrong == []


def test_fork_loses_no_write_of_another_thread(link):
    """The other thread edits a batch in place, in C and without the interpreter's lock."""
    with mmap.mmap(-1, mmap.PAGESIZE) as memory:
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        if mapping._libc.madvise(address, mmap.PAGESIZE, mapping._MADV_POPULATE_WRITE) != 0:
            pytest.skip("this kernel cannot populate pages")

    def increment(array, rounds, stop):
        while not stop.is_set():
            array += 1
            rounds.append(1)

    for number in range(10):
        (array,) = link.send([np.full(1 << 20, number)])
        rounds = []
        with running(partial(increment, array, rounds)):
            while not rounds:
                time.sleep(0.0001)
            for _ in range(5):
                fork(lambda: b"x")()
        assert array.min() == array.max() == number + len(rounds)


class TestWithoutMemoryForTheCopy:
    """Pages are copied when they are written to, and the slot with the other pages is never used again."""

    def fork_with_batch(self, link, monkeypatch):
        """Return a batch held over a fork, the number of its slot, and the function that resumes the fork."""
        batch = link.send([large(1, 1 << 17), large(2).numpy(), large(3, 1 << 17)])
        (number,) = link.slots._leases
        with monkeypatch.context() as patch:
            refused_sizes = refuse_to_populate(patch, errno.ENOMEM)
            resume = fork(lambda: edited(batch))
        assert refused_sizes
        return batch, number, resume

    def test_edits_in_fork_and_parent_do_not_meet(self, link, monkeypatch):
        batch, number, resume = self.fork_with_batch(link, monkeypatch)
        assert edited(batch) == bytes([1, 1, 2, 2, 3, 3, 11, 11, 12, 12, 13, 13])
        make_many(link, avoid=number)
        assert resume() == bytes([1, 1, 2, 2, 3, 3, 11, 11, 12, 12, 13, 13])
        assert extremes(batch) == bytes([11, 11, 12, 12, 13, 13])

    def test_fork_sees_a_batch_that_the_parent_has_dropped_and_closed(self, link, monkeypatch):
        batch, number, resume = self.fork_with_batch(link, monkeypatch)
        batch.clear()
        make_many(link, avoid=number)
        link.close()
        gc.collect()
        assert resume()[:6] == bytes([1, 1, 2, 2, 3, 3])

    def test_retired_slot_counts_neither_as_in_use_nor_as_kept(self, link, monkeypatch):
        for _ in range(3):
            batch, _, resume = self.fork_with_batch(link, monkeypatch)
            resume()
            del batch
        assert link.slots.num_out == 0
        assert link.slots.kept_bytes == 0
        for number in range(50):
            link.send(large(number))
        assert link.slots.num_slots == 4


@pytest.mark.parametrize("has_memory", [True, False])
def test_batches_kept_beyond_close_are_private_in_a_later_fork(link, monkeypatch, has_memory):
    batches = [link.send(large(1)), link.send(large(2))]
    link.close()
    with monkeypatch.context() as patch:
        if not has_memory:
            refuse_to_populate(patch, errno.ENOMEM)
        resume = fork(lambda: extremes(batches))
    for batch in batches:
        batch += 10
    assert resume() == bytes([1, 1, 2, 2])
    assert extremes(batches) == bytes([11, 11, 12, 12])
    assert link.file.fd == -1


def test_file_is_closed_with_the_last_batch(link):
    batches = [link.send(large(1)), link.send(large(2))]
    link.close()
    batches.pop()
    assert link.file.fd >= 0
    batches.pop()
    assert link.file.fd == -1


def test_fork_ignores_collected_slots():
    def num_alive():
        return sum(reference() is not None for reference in slots._all_slots)

    num_earlier = num_alive()
    Link().close()
    assert num_alive() == num_earlier
    links = [Link() for _ in range(3)]
    assert num_alive() == num_earlier + 3
    assert len(slots._all_slots) <= num_earlier + 4, "references to collected slots are removed"
    for link in links:
        link.close()
