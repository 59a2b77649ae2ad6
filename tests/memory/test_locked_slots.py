"""Which bytes of slots are page-locked, and until when; seen by a fake lock that records every call."""

from __future__ import annotations

import mmap
import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lit_loader.memory import mapping, slots
from lit_loader.memory.mapping import ALIGNMENT, WINDOW_BYTES, merge_ranges
from tests.support.memory_link import Link, large

LEAST = 1 << 21


class FakeLock:
    """Page-locks nothing, and notes what it is asked."""

    def __init__(self, *, grants=True):
        self.grants = grants
        self.locked = {}
        self.log = []
        self.refuses = False
        self.interrupts = set()

    def lock(self, address, num_bytes):
        assert address not in self.locked, "locked twice"
        assert address % mmap.PAGESIZE == 0
        self.log.append(("lock", num_bytes))
        if self.grants:
            self.locked[address] = num_bytes
        self._interrupt("lock")
        return self.grants

    def _interrupt(self, call):
        if call in self.interrupts:
            self.interrupts.discard(call)
            raise KeyboardInterrupt

    def unlock(self, address):
        if self.refuses:
            return False
        self._interrupt("unlock")
        size = self.locked.pop(address, None)
        if size is not None:
            self.log.append(("unlock", size))
        return True

    def holds(self, tensor):
        start = tensor.data_ptr()
        end = tensor.data_ptr() + tensor.nbytes
        return any(first <= start and end <= first + size for first, size in self.locked.items())


@pytest.fixture
def lock():
    return FakeLock()


@pytest.fixture
def unmapped(lock, monkeypatch):
    """Return the addresses of mappings that were unmapped, with a remark if they were locked."""
    libc = mapping._libc
    addresses = []

    class Watching:
        def __getattr__(self, name):
            return getattr(libc, name)

        def munmap(self, address, size):
            locked = [first for first in lock.locked if address <= first < address + size]
            addresses.append(f"{address} while locked" if locked else address)
            return libc.munmap(address, size)

    monkeypatch.setattr(mapping, "_libc", Watching())
    return addresses


@pytest.fixture
def link(lock):
    link = Link(page_lock=lock)
    yield link
    link.close()
    assert lock.locked == {}


def test_memory_is_locked_once_for_each_slot_and_anew_when_a_batch_is_larger(link, lock):
    for _ in range(5):
        assert lock.holds(link.send(large(1, 1 << 12)))
    assert lock.log == [("lock", LEAST)]
    assert lock.holds(link.send(large(1, 1 << 20)))
    assert lock.log[1:] == [("unlock", LEAST), ("lock", 1 << 22)]
    assert lock.holds(link.send(large(1, 1 << 12)))
    assert len(lock.log) == 3


@given(st.lists(st.tuples(st.integers(0, 40 << 20), st.integers(1 << 14, 8 << 20)), min_size=1, max_size=6))
def test_one_range_holds_all_of_a_batch_and_at_most_twice_its_bytes_and_2_mib_or_nothing_is_locked(places):
    lock = FakeLock()
    link = Link(page_lock=lock)
    ticket = link.slots.ticket()
    views = link.slots.read(ticket, places)
    ranges = merge_ranges(((start, start + size) for start, size in places), gap=ALIGNMENT)
    used = sum(end - start for start, end in ranges)
    first = min(start for start, _ in places)
    end = max(start + size for start, size in places)
    assert len(lock.locked) <= 1
    if lock.locked:
        (mapping,) = link.slots._mappings.values()
        ((address, size),) = lock.locked.items()
        start = address - mapping.address
        assert start <= first
        assert end <= start + size <= WINDOW_BYTES
        assert size <= 2 * used + LEAST
    else:
        assert end - first + mmap.PAGESIZE > 2 * used + LEAST, "it was allowed"
    del views, ticket
    link.close()
    assert lock.locked == {}


def test_a_batch_with_a_large_hole_is_not_locked_and_right(link, lock):
    ticket = link.slots.ticket()
    link.slots.read(ticket, [(0, 1 << 14), (64 << 20, 1 << 14)])
    assert lock.locked == {}
    del ticket
    batch = link.send([large(1), large(2)])
    assert all(lock.holds(tensor) for tensor in batch)


def test_a_batch_that_does_not_fit_into_what_is_locked_is_never_half_locked(link, lock):
    """A copy to a device fails if its source lies in part in memory that is registered."""
    assert lock.holds(link.send(large(1)))
    ticket = link.slots.ticket()
    assert ticket.number == 0
    link.slots.read(ticket, [(0, 1 << 14), (64 << 20, 1 << 14)])
    assert lock.locked == {}
    del ticket


def test_memory_that_cannot_be_locked_is_used_as_it_is():
    lock = FakeLock(grants=False)
    link = Link(page_lock=lock)
    for number in range(5):
        assert (link.send(large(number)) == number).all()
    assert lock.locked == {}
    assert link.slots._num_slots == 1
    link.close()


def test_copies_beyond_the_bound_lock_nothing():
    lock = FakeLock()
    link = Link(page_lock=lock, kept_bytes=1)
    kept = [link.send(large(n)) for n in range(4)]
    assert len(lock.log) == 1
    assert [float(t[0, 0]) for t in kept] == [0, 1, 2, 3]
    kept.clear()
    link.close()
    assert lock.locked == {}


def test_slots_that_were_never_opened_are_not_locked(link, lock):
    for _ in range(3):
        ticket = link.slots.ticket()
        link.write(ticket, lambda writer: large(1))
        del ticket
    assert lock.log == []


@pytest.fixture
def given_back(lock, monkeypatch):
    """Whether memory was locked, each time that some was given back."""
    found = []
    free_pages = slots.Mapping.free_pages

    def spied(self):
        found.append(any(self.address <= address < self.address + WINDOW_BYTES for address in lock.locked))
        free_pages(self)

    monkeypatch.setattr(slots.Mapping, "free_pages", spied)
    return found


def test_memory_that_a_slot_gives_back_is_unlocked_first(link, lock, given_back):
    kept = [link.send(large(n)) for n in range(12)]
    kept.clear()
    assert given_back
    assert not any(given_back)


def test_closing_unlocks_before_memory_goes_and_leaves_what_is_held(link, lock, given_back):
    held = link.send(large(1))
    link.send(large(2))
    link.close()
    assert len(lock.locked) == 1
    assert lock.holds(held)
    del held
    assert lock.locked == {}
    assert given_back == [False, False]


def test_a_fork_leaves_locked_memory_as_it_is(link, lock):
    """A device may be reading it: it is neither moved nor copied, and stays locked."""
    held = link.send(large(1))
    mappings = dict(link.slots._mappings)
    before = list(lock.log)
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    assert lock.log == before
    assert link.slots._mappings == mappings
    assert lock.holds(held)
    for number in range(5):
        link.send(large(number + 5))
    assert torch.equal(held, large(1))


def all_unlocked(lock, unmapped):
    return lock.locked == {} and unmapped and all(isinstance(address, int) for address in unmapped)


def test_ctrl_c_while_memory_is_locked_leaves_nothing_locked(lock, unmapped):
    link = Link(page_lock=lock)
    lock.interrupts = {"lock"}
    with pytest.raises(KeyboardInterrupt):
        link.send(large(1))
    assert len(lock.locked) == 1
    assert lock.holds(link.send(large(2)))
    link.close()
    assert all_unlocked(lock, unmapped)


def test_ctrl_c_while_memory_is_unlocked_leaves_it_to_be_unlocked_again(lock, unmapped):
    link = Link(page_lock=lock)
    link.send(large(1))
    lock.interrupts = {"unlock"}
    with pytest.raises(KeyboardInterrupt):
        link.close()
    link.close()
    del link
    assert all_unlocked(lock, unmapped)


def test_memory_that_cannot_be_unlocked_stays_mapped_until_other_slots_are_used(lock, unmapped):
    link = Link(page_lock=lock)
    batches = [link.send(large(number)) for number in range(3)]
    addresses = set(lock.locked)
    lock.refuses = True
    batches.clear()
    link.close()
    del link
    assert set(lock.locked) == addresses
    assert not addresses & set(unmapped)
    lock.refuses = False
    other = Link(page_lock=lock)
    other.send(large(1))
    assert addresses <= set(unmapped)
    other.close()
    assert all_unlocked(lock, unmapped)


def test_a_larger_batch_gets_other_addresses_if_its_slot_cannot_be_unlocked(lock, unmapped):
    link = Link(page_lock=lock)
    link.send(large(1))
    ((first, _),) = lock.locked.items()
    lock.refuses = True
    batch = link.send(large(2, 1 << 20))
    assert lock.holds(batch)
    assert (batch == 2).all()
    assert first in lock.locked
    lock.refuses = False
    assert (link.send(large(3, 1 << 12)) == 3).all()
    assert first in unmapped
    del batch
    link.close()
    assert all_unlocked(lock, unmapped)


def test_slots_that_are_never_used_again_are_unlocked(lock, unmapped):
    link = Link(page_lock=lock)
    link.send(large(1))
    assert len(lock.locked) == 1
    ticket = link.slots.ticket()
    ticket.retire()  # user code in the worker keeps a part of the slot
    del ticket
    assert all_unlocked(lock, unmapped)
    link.close()
