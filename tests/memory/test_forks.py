"""What a process holds when it forks stays as it is, there and in the fork."""

from __future__ import annotations

import ctypes
import errno
import gc
import mmap
import os
import signal
import threading
import time

import numpy as np
import pytest

from lit_loader.foundation import interrupts
from lit_loader.memory import mapping, slots
from tests.support.memory_link import Link, large, num_maps, refuse_to_populate


@pytest.fixture
def link():
    link = Link()
    yield link
    link.close()


def in_a_fork(look):
    """Return the bytes that a function returns in a forked process, which waits for a byte before it goes on."""
    to_child, go = os.pipe()
    answer, to_parent = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(go)  # so that the end of a test that failed is the end of this
            os.read(to_child, 1)
            os.write(to_parent, look())
        finally:
            os._exit(0)

    def ask():
        os.write(go, b"1")
        found = os.read(answer, 1000)
        os.waitpid(pid, 0)
        for fd in (to_child, go, answer, to_parent):
            os.close(fd)
        return found

    return ask


def test_fork_sees_batches_of_the_time_of_the_fork(link):
    held = link.send([large(1), large(2).numpy()])
    scalar = link.send(large(3))[0, 0]
    ask = in_a_fork(lambda: bytes([int(held[0].min()), int(held[1].max()), int(scalar)]))
    held.clear()
    for number in range(200):
        link.send([large(number + 7), large(number + 7)])
    assert ask() == bytes([1, 2, 3])


def test_views_of_the_parent_stay_valid_and_writable(link):
    held = link.send([large(1), large(2)])
    address = held[0].data_ptr()
    assert in_a_fork(lambda: b"x")() == b"x"
    assert held[0].data_ptr() == address
    for number in range(50):
        link.send([large(number + 7), large(number + 7)])
    assert (held[0] == 1).all()
    held[0] += 4
    assert (held[0] == 5).all()
    assert (held[1] == 2).all()


def test_edits_in_the_fork_and_in_the_parent_do_not_meet(link):
    held = link.send(large(1))

    def edit():
        held.add_(1)
        return bytes([int(held.min()), int(held.max())])

    ask = in_a_fork(edit)
    held.add_(10)
    assert ask() == bytes([2, 2])
    assert (held == 11).all()


def test_fork_frees_slots_and_memory_of_kept_batches(link):
    held = [link.send(large(n, 1 << 18)) for n in range(40)]
    assert link.used_bytes >= 40 << 20
    in_a_fork(lambda: b"x")()
    assert link.used_bytes <= 8 << 20
    assert link.slots.kept_bytes == 0
    more = [link.send(large(n, 1 << 18)) for n in range(40)]
    assert link.slots._num_slots == 40
    assert all((t == n).all() for n, t in enumerate(held))
    assert all((t == n).all() for n, t in enumerate(more))


def test_a_batch_that_is_opened_after_a_fork_is_right_and_the_forks_own_too(link):
    ticket = link.slots.ticket()
    frame = link.write(ticket, lambda writer: [large(1), large(2)])
    in_a_fork(lambda: b"x")()
    batch = link.read(ticket, frame)
    del ticket
    for number in range(20):
        link.send(large(number + 70))
    assert [float(t.max()) for t in batch] == [1, 2]


def test_memory_stays_flat_over_many_forks(link):
    held = [link.send(large(n, 1 << 16)) for n in range(3)]
    used = []
    for number in range(25):
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        held.append(link.send(large(number + 3, 1 << 16)))
        assert float(held.pop(0)[7]) == number
        used.append((link.used_bytes, link.slots._num_slots, num_maps()))
    assert len({used[n] for n in range(5, 25)}) == 1


def test_ctrl_c_before_a_fork_is_raised_after_it_and_every_batch_is_private(link, monkeypatch, request):
    """In the hook of a fork Python would lose it, and leave the batches that come after it shared."""
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
    with pytest.raises(KeyboardInterrupt):  # it comes some time after the fork
        assert in_a_fork(lambda: bytes(int(batch.max()) for batch in batches))() == bytes([1, 2])
        assert link.slots.kept_bytes == 0
        time.sleep(10)
    assert link.send(large(3)).max() == 3


def test_no_batch_is_opened_during_a_fork(link):
    """A thread that reads a batch while another one forks gets it before or after."""
    wrong = []
    stop = threading.Event()

    def read():
        number = 0
        while not stop.is_set():
            number = (number + 1) % 100
            batch = link.send([large(number)])
            if not bool((batch[0] == number).all()):
                wrong.append(number)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        for _ in range(15):
            in_a_fork(lambda: b"x")()
    finally:
        stop.set()
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("way", ["make_private", "fork"])
def test_no_write_of_another_thread_is_lost(link, way):
    """A thread edits a batch in place, in C and without the interpreter's lock, while it is made private."""
    if not may_populate():
        pytest.skip("this kernel cannot be asked for all pages at once")
    for number in range(10):
        (array,) = link.send([np.full(1 << 20, number)])
        rounds = []
        stop = threading.Event()
        thread = threading.Thread(target=increment, args=(array, rounds, stop))
        thread.start()
        try:
            wait_for(rounds)
            for _ in range(5):
                if way == "fork":
                    in_a_fork(lambda: b"x")()
                else:
                    with slots._open_lock:
                        link.slots.make_private()
        finally:
            stop.set()
            thread.join()
        assert array.min() == array.max() == number + len(rounds)


def increment(array, rounds, stop):
    while not stop.is_set():
        array += 1
        rounds.append(1)


def wait_for(rounds):
    """Wait until another round has just begun."""
    before = len(rounds)
    while len(rounds) <= before:
        time.sleep(0.0001)


def may_populate():
    with mmap.mmap(-1, mmap.PAGESIZE) as memory:
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        return mapping._libc.madvise(address, mmap.PAGESIZE, mapping._MADV_POPULATE_WRITE) == 0


class TestWithoutMemoryForTheCopy:
    """Pages are copied when they are written to, and the slot keeps those that were not."""

    def held_over_a_fork(self, link, monkeypatch, look):
        """Return a batch that was held when the kernel refused, the number of its slot, and what asks the fork."""
        held = link.send([large(1, 1 << 17), large(2).numpy(), large(3, 1 << 17)])
        (number,) = link.slots._leases
        with monkeypatch.context() as patch:
            asked = refuse_to_populate(patch, errno.ENOMEM)
            ask = in_a_fork(lambda: look(held))
        assert len(asked) >= 1
        return held, number, ask

    def test_a_fork_sees_what_was_held_whatever_the_parent_makes_and_edits(self, link, monkeypatch):
        held, number, ask = self.held_over_a_fork(link, monkeypatch, extremes)
        for one in held:
            one += 10
        make_many(link, avoid=number)
        assert extremes(held) == bytes([11, 11, 12, 12, 13, 13])
        assert ask() == bytes([1, 1, 2, 2, 3, 3])
        assert extremes(held) == bytes([11, 11, 12, 12, 13, 13])

    def test_the_parent_keeps_what_it_held_whatever_the_fork_edits(self, link, monkeypatch):
        def edit(held):
            for one in held:
                one += 10
            return extremes(held)

        held, number, ask = self.held_over_a_fork(link, monkeypatch, edit)
        make_many(link, avoid=number)
        assert ask() == bytes([11, 11, 12, 12, 13, 13])
        assert extremes(held) == bytes([1, 1, 2, 2, 3, 3])

    def test_a_fork_sees_it_though_the_parent_has_let_it_go_and_closed_all(self, link, monkeypatch):
        held, number, ask = self.held_over_a_fork(link, monkeypatch, extremes)
        held.clear()
        make_many(link, avoid=number)
        link.close()
        gc.collect()
        assert ask() == bytes([1, 1, 2, 2, 3, 3])

    def test_a_range_that_cannot_be_mapped_keeps_no_other_from_being_ones_own(self, link, monkeypatch):
        held = link.send([large(1), large(2, 1 << 18), large(3)])
        (number,) = link.slots._leases
        lease = link.slots._leases[number]()
        sizes = []

        def refuse_the_first(num_bytes, *rest):
            sizes.append(num_bytes)
            if len(sizes) == 1:
                raise OSError(errno.ENOMEM, "no memory")
            return real(num_bytes, *rest)

        real = mapping._map
        end = lease.ranges[-1][1]
        lease.ranges = [(0, 4096), (1 << 16, end)]
        with monkeypatch.context() as patch:
            patch.setattr(mapping, "_map", refuse_the_first)
            ask = in_a_fork(lambda: bytes([int(held[2].min()), int(held[2].max())]))
        assert len(sizes) == 2
        held[2].add_(10)
        make_many(link, avoid=number)
        assert ask() == bytes([3, 3])
        assert [float(t.mean()) for t in held] == [1, 2, 13]

    def test_retired_slot_counts_neither_as_in_use_nor_as_kept(self, link, monkeypatch):
        """It is not counted as one that is out, and what it took is not counted as kept."""
        for _ in range(3):
            held, _, ask = self.held_over_a_fork(link, monkeypatch, extremes)
            ask()
            del held
        assert link.slots._num_out == 0
        assert link.slots.kept_bytes == 0
        for number in range(50):
            link.send(large(number))
        assert link.slots._num_slots == 4

    def test_a_fork_would_see_later_batches_if_the_slot_were_used_again(self, link, monkeypatch):
        """The mechanism taken away."""

        class Forgetful(set):
            def __contains__(self, number):
                return False

        link.slots._retired = Forgetful()
        _, _, ask = self.held_over_a_fork(link, monkeypatch, extremes)
        for number in range(20):
            link.send([large(number + 70, 1 << 17)])
        assert ask() != bytes([1, 1, 2, 2, 3, 3])


def extremes(held):
    return bytes(int(value) for one in held for value in (one.min(), one.max()))


def make_many(link, *, avoid):
    """Make batches, some of which are kept for a while; none may come in a slot of this number."""
    kept = []
    for number in range(100):
        ticket = link.slots.ticket()
        assert ticket.number != avoid
        frame = link.write(ticket, lambda writer, number=number: [large(number + 70, 1 << 17)])
        kept = [*kept[-5:], link.read(ticket, frame)]


def test_kernels_without_populate_keep_contents_and_free_the_slot(link, monkeypatch):
    held = link.send([large(1, 1 << 17), large(2).numpy(), large(3, 1 << 17)])
    (number,) = link.slots._leases
    asked = refuse_to_populate(monkeypatch, errno.EINVAL)
    ask = in_a_fork(lambda: extremes(held))
    assert len(asked) >= 1
    numbers = set()
    for value in range(20):
        ticket = link.slots.ticket()
        numbers.add(ticket.number)
        frame = link.write(ticket, lambda writer, value=value: [large(value + 70, 1 << 17)])
        link.read(ticket, frame)
        del ticket
    assert numbers == {number}
    assert extremes(held) == bytes([1, 1, 2, 2, 3, 3])
    for one in held:
        one += 10
    assert ask() == bytes([1, 1, 2, 2, 3, 3])
    assert extremes(held) == bytes([11, 11, 12, 12, 13, 13])


def test_batches_kept_beyond_close_are_private_in_a_later_fork(link):
    held = link.send(large(1))
    other = link.send(large(2))
    link.close()
    ask = in_a_fork(lambda: bytes([int(held.min()), int(held.max()), int(other.max())]))
    held.add_(10)
    other.add_(10)
    assert ask() == bytes([1, 1, 2])
    assert (held == 11).all()
    assert (other == 12).all()
    assert link.file._fd == -1  # nothing that is shared is held any more


def test_the_file_is_closed_where_there_was_no_memory_for_the_last_copy_too(link, monkeypatch):
    held = link.send(large(1))
    link.close()
    with monkeypatch.context() as patch:
        refuse_to_populate(patch, errno.ENOMEM)
        ask = in_a_fork(lambda: bytes([int(held.min()), int(held.max())]))
    held.add_(10)
    assert ask() == bytes([1, 1])
    assert link.file._fd == -1


def test_the_file_is_closed_with_the_last_batch_after_the_slots(link):
    held = link.send(large(1))
    other = link.send(large(2))
    link.close()
    del held
    assert link.file._fd >= 0
    del other
    assert link.file._fd == -1


def test_without_the_copy_a_fork_would_see_later_batches(link, monkeypatch):
    """The mechanism taken away."""
    monkeypatch.setattr(type(link.slots), "make_private", lambda self: None)
    held = [link.send(large(1))]
    ask = in_a_fork(lambda: bytes([int(held[0].min())]))
    held.clear()
    link.send(large(9))
    assert ask() == bytes([9])


def test_fork_ignores_collected_slots():
    def asked():
        return sum(known() is not None for known in slots._all_slots)

    before = asked()
    Link().close()
    assert asked() == before
    links = [Link() for _ in range(3)]
    assert asked() == before + 3
    assert len(slots._all_slots) <= before + 4, "those that are gone are dropped when others come"
    for link in links:
        link.close()
