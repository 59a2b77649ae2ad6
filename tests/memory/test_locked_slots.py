"""Page-locked bytes of slots and how long they stay locked, as a fake lock records it."""

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
    """A page lock that locks nothing and records its calls."""

    def __init__(self):
        self.grants = True
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
def test_one_locked_range_covers_a_batch_and_is_at_most_twice_its_bytes_and_2_mib(places):
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
        assert end - first + mmap.PAGESIZE > 2 * used + LEAST, "this range could have been locked"
    del views, ticket
    link.close()
    assert lock.locked == {}


@pytest.mark.parametrize("was_locked", [False, True])
def test_batch_with_a_large_gap_is_not_locked(link, lock, was_locked):
    """Nor is a part of it: a copy to a device fails if its source lies partly in registered memory."""
    if was_locked:
        assert lock.holds(link.send(large(1)))
    ticket = link.slots.ticket()
    assert ticket.number == 0
    link.slots.read(ticket, [(0, 1 << 14), (64 << 20, 1 << 14)])
    assert lock.locked == {}
    del ticket
    assert all(lock.holds(tensor) for tensor in link.send([large(1), large(2)]))


def test_memory_that_cannot_be_locked_is_used_unlocked(link, lock):
    lock.grants = False
    for number in range(5):
        assert (link.send(large(number)) == number).all()
    assert lock.locked == {}
    assert link.slots.num_slots == 1


def test_copies_beyond_the_limit_lock_nothing(lock):
    link = Link(page_lock=lock, kept_bytes=1)
    batches = [link.send(large(n)) for n in range(4)]
    assert len(lock.log) == 1
    assert [float(batch[0, 0]) for batch in batches] == [0, 1, 2, 3]
    batches.clear()
    link.close()
    assert lock.locked == {}


def test_slots_that_were_never_opened_are_not_locked(link, lock):
    for _ in range(3):
        ticket = link.slots.ticket()
        link.write(ticket, lambda writer: large(1))
        del ticket
    assert lock.log == []


@pytest.fixture
def locked_when_freed(lock, monkeypatch):
    """A list with one entry for each call of `free_pages`: True if memory was locked."""
    were_locked = []
    free_pages = slots.Mapping.free_pages

    def spied(self):
        were_locked.append(any(self.address <= address < self.address + WINDOW_BYTES for address in lock.locked))
        free_pages(self)

    monkeypatch.setattr(slots.Mapping, "free_pages", spied)
    return were_locked


def test_memory_is_unlocked_before_it_is_freed(link, locked_when_freed):
    batches = [link.send(large(n)) for n in range(12)]
    batches.clear()
    assert locked_when_freed
    assert not any(locked_when_freed)


def test_close_unlocks_memory_before_it_is_freed_and_keeps_batches_locked(link, lock, locked_when_freed):
    batch = link.send(large(1))
    link.send(large(2))
    link.close()
    assert len(lock.locked) == 1
    assert lock.holds(batch)
    del batch
    assert lock.locked == {}
    assert locked_when_freed == [False, False]


def test_fork_leaves_locked_memory_unchanged(link, lock):
    """A device may be reading it."""
    batch = link.send(large(1))
    mappings = dict(link.slots._mappings)
    calls_before = list(lock.log)
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    assert lock.log == calls_before
    assert link.slots._mappings == mappings
    assert lock.holds(batch)
    for number in range(5):
        link.send(large(number + 5))
    assert torch.equal(batch, large(1))


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
