"""The main process's side of the slots: which batches use them, and when a slot may be written again.

NOTE [Life of a slot]
    The main process creates a `Ticket` for each slot that a worker may write to. The slot is in use for as long as
    anything refers to the ticket: the backend while the batch is being made and until it is delivered, then, through
    the `Lease`, every tensor and array in the slot. With the last reference the ticket is deleted, which frees the
    slot. Slots are page-locked only if the loader itself copies batches to a device; `DevicePrefetcher` refers to the
    batch until its copy has ended.

NOTE [Memory of slots]
    As many free slots as workers ever used at one time, and a few more, keep their memory for the next batch. Further
    slots free their memory when they become free. Batches that the consumer keeps may take up to ``KEPT_BYTES`` in
    slots; beyond that, batches are copied out of their slots.

NOTE [Page-locked bytes]
    A slot is locked from the first to the last byte that its batch uses. The size is rounded up to a power of two, so
    that slowly growing batches are seldom registered again, but at most to twice the bytes that the batch uses plus
    2 MiB. A batch with larger gaps (a collate function that drops much of the memory it was given) is not locked; its
    tensors are copied to page-locked memory when it is delivered. The lock stays for later batches that fit into it.

NOTE [Forks]
    A forked process sees the batches that its parent holds, and the parent cannot know for how long. So before a fork
    the memory of every such batch becomes private to the parent, at the same addresses, and is copied on write like all
    other memory. That frees the slot. If there is not enough memory for the copy, the slot is never used again. Until
    the fork is done no thread can open another batch.
    A fork by other means than ``os.fork`` (in C, without Python's hooks) is not noticed.

NOTE [Finalizers]
    The finalizer of a ticket frees its slot. It may run in any thread and at any time, also in the middle of `Slots`'
    own methods, so `Slots.free` takes no lock. Its state is read and changed only by single operations of deques, dicts
    and sets, which are atomic for other threads, and weak references have no callbacks.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from lit_loader.foundation.interrupts import defer_interrupts, interrupt_again
from lit_loader.memory.mapping import (
    ALIGNMENT,
    CHUNK_BYTES,
    MAX_SLOTS,
    WINDOW_BYTES,
    Lease,
    Mapping,
    MemoryFile,
    PageLock,
    merge_ranges,
    unmap_parked,
)
from lit_loader.memory.serialization import Places

KEPT_BYTES = 1 << 30  # memory in slots that the consumer may keep before further batches are copied
_MIN_LOCKED_BYTES = 1 << 21  # registering less does not take less time
_NUM_IN_USE = 4  # batches that a consumer usually has at one time

_open_lock = threading.RLock()  # held while a batch is opened, and during a fork: see NOTE [Forks]
_all_slots: list[weakref.ref[Slots]] = []


class Ticket:
    """A reference that keeps a slot from being used again: see NOTE [Life of a slot].

    Attributes:
        number: Number of the slot.
    """

    __slots__ = ("__weakref__", "_slots", "number")

    def __init__(self, slots: Slots, number: int) -> None:
        self._slots = slots
        self.number = number

    def retire(self) -> None:
        """Never use the slot again, because another process may read it for as long as that process lives."""
        self._slots._retired.add(self.number)

    def __del__(self) -> None:
        try:
            # False if Ctrl-C came in `__init__`. Then the slot is never used again.
            if hasattr(self, "number"):
                self._slots.free(self.number)
        # Not `defer_interrupts`, which would cost more than all the rest here, for every batch. Nor is it tried again:
        # the slot may be free already, and would then have two owners. At worst it is never used again.
        except KeyboardInterrupt:
            interrupt_again()


class Slots:
    """The slots of a backend's worker processes.

    Args:
        file: Memory of the slots.
        page_lock: Page-locks the memory of slots; None to lock nothing.
        kept_bytes: Memory that the consumer may keep in slots: see NOTE [Memory of slots].

    Attributes:
        file: Memory of the slots, to be sent to the workers.
        num_slots: How many slots were ever used.

    Owns: the file and the mappings of its slots.
    """

    def __init__(self, file: MemoryFile, *, page_lock: PageLock | None = None, kept_bytes: int = KEPT_BYTES) -> None:
        self.file = file
        self._page_lock = page_lock
        self._kept_limit = kept_bytes
        self._pid = os.getpid()
        # Taken from the right end: the most recently used slot is still in the CPU's caches.
        self._free: deque[int] = deque()
        self._mappings: dict[int, Mapping] = {}
        # The slots whose batches were opened, and the memory of each of these slots in bytes.
        self._leases: dict[int, weakref.ref[Lease]] = {}
        self._kept: dict[int, int] = {}
        # Never used again: see `Ticket.retire`.
        self._retired: set[int] = set()
        self.num_slots = 0
        # The largest value of `num_out` so far.
        self._max_out = 0
        self._closed = False
        with _open_lock:
            # Collected slots are dropped here and not by a callback, which Python may run at any time.
            _all_slots[:] = [reference for reference in _all_slots if reference() is not None]
            _all_slots.append(weakref.ref(self))

    @property
    def kept_bytes(self) -> int:
        """Memory of the slots whose batches the consumer holds."""
        # Not a loop: a finalizer may free a slot between two iterations, which raises RuntimeError.
        return sum(self._kept.values())

    @property
    def num_out(self) -> int:
        """Number of slots whose batch is being made, or was received and not opened yet."""
        return self.num_slots - len(self._free) - len(self._retired) - len(self._leases)

    def ticket(self) -> Ticket | None:
        """Return the ticket of a free slot, or None if no slot is free; such a batch is sent through the pipe."""
        try:
            number = self._free.pop()
        except IndexError:
            if self.num_slots == MAX_SLOTS or self._closed:
                return None
            number = self.num_slots
            self.num_slots += 1
        self._max_out = max(self._max_out, self.num_out)
        return Ticket(self, number)

    def read(self, ticket: Ticket, places: Sequence[tuple[int, int]]) -> list[Any]:
        """Return pieces of a slot's memory: views, or copies if the consumer keeps too much memory in slots.

        May be called once per ticket.

        Args:
            ticket: Ticket of the slot.
            places: Offset and length of each piece, in bytes.

        Raises:
            RuntimeError: If the slots were closed.
        """
        ranges = merge_ranges(((start, start + size) for start, size in places), gap=ALIGNMENT)
        try:
            lease = self._open(ticket, ranges)
        except OSError as error:
            if self._closed:
                text = "the loader's workers were closed; call iter() on the loader for new ones"
                raise RuntimeError(text) from error
            # This process is not allowed to map so much.
            lease = None
        if lease is None:
            return [self.file.read(ticket.number, start, size) for start, size in places]
        # Typed as Any: type stubs do not know that ctypes and numpy arrays are buffers.
        buffer: Any = lease
        # A memoryview of the lease itself cannot be sliced as bytes.
        buffer = np.frombuffer(buffer, np.uint8)
        view = memoryview(buffer)
        return [view[start : start + size] for start, size in places]

    def _open(self, ticket: Ticket, ranges: Places) -> Lease | None:
        """Return the bytes of a slot for the consumer, or None if it keeps too much memory in slots.

        Args:
            ticket: Ticket of the slot.
            ranges: Start and end of the byte ranges that the batch uses.

        Raises:
            OSError: If this process is not allowed to map so much.
        """
        number = ticket.number
        # In whole chunks, because `Mapping.touch` brings in memory by chunks.
        size = sum(-(-(end - start) // CHUNK_BYTES) * CHUNK_BYTES for start, end in ranges)
        with _open_lock:
            kept_bytes = self.kept_bytes
            # A single batch may exceed the limit.
            if kept_bytes and kept_bytes + size > self._kept_limit:
                return None
            unmap_parked()
            mapping = self._mapping(number, ranges)
            lease = Lease.from_address(mapping.address)
            lease.mapping = mapping
            lease.ticket = ticket
            lease.ranges = ranges
            self._kept[number] = size
            self._leases[number] = weakref.ref(lease)
            # The worker has written these pages, so there is memory for them.
            for start, end in ranges:
                mapping.touch(start, end - start)
            if self._page_lock is not None and ranges and mapping.locked is None:
                _lock_pages(self._page_lock, mapping, ranges)
            return lease

    def _mapping(self, number: int, ranges: Places) -> Mapping:
        """Return the mapping of a slot, in which either all bytes of the batch are page-locked or none.

        A slot has a single locked range, because a copy to a device fails if its source extends over two of them.

        Raises:
            OSError: If this process is not allowed to map so much.
        """
        mapping = self._mappings.get(number)
        if mapping is not None and mapping.locked is not None and ranges:
            start, end = mapping.locked
            is_inside = start <= ranges[0][0] and ranges[-1][1] <= end
            # No copy can be running that reads the old range, because this batch is only being opened.
            if not is_inside and not mapping.unlock():
                # Parked until it can be unlocked; the slot is mapped at another address.
                mapping = None
        if mapping is None:
            mapping = self._mappings[number] = Mapping(self.file, number)
        return mapping

    def free(self, number: int) -> None:
        """Free a slot whose ticket was deleted: see NOTE [Finalizers]."""
        # The tickets of a fork are copies.
        if os.getpid() != self._pid or sys.is_finalizing():
            return
        # Before the number becomes free: another thread may take it at once, and add entries of its own.
        self._kept.pop(number, None)
        self._leases.pop(number, None)
        if number in self._retired:
            # This unlocks and unmaps it. Its memory is not freed: another process may read it.
            self._mappings.pop(number, None)
        elif self._closed:
            self._drop(number)
        elif len(self._free) + self.num_out < self._max_out + _NUM_IN_USE:
            self._free.append(number)
        else:
            self._drop(number)
            # At the left end: used only if no other slot is free.
            self._free.appendleft(number)
        if self._closed:
            self.close()

    def _drop(self, number: int) -> None:
        """Unmap a free slot, and free its memory in all processes that have it mapped."""
        mapping = self._mappings.pop(number, None)
        if mapping is not None:
            mapping.unlock()
        # A slot that was never opened, or was made private before a fork, has no mapping here.
        with contextlib.suppress(OSError):
            (mapping or Mapping(self.file, number)).free_pages()

    def make_private(self) -> None:
        """Make the memory of every batch that the consumer holds private to this process: see NOTE [Forks]."""
        # A copy of the keys, because a finalizer may free a slot during the loop.
        for number in list(self._leases):
            reference = self._leases.get(number)
            lease = None if reference is None else reference()
            # Only the loader has batches in page-locked slots, and only while a device copies them.
            if lease is None or lease.ticket is None or lease.mapping.locked is not None:
                continue
            # Forgotten first: if only a part becomes private, the mapping must not be used for another batch.
            self._mappings.pop(number, None)
            try:
                lease.mapping.make_private(lease.ranges)
            except MemoryError:
                lease.ticket.retire()
            # Frees the slot, unless it was retired.
            lease.ticket = None

    def close(self) -> None:
        """Free all slots; those that the consumer still uses are freed when it drops them."""
        self._closed = True
        unmap_parked()
        while self._free:
            self._drop(self._free.pop())
        # A fork needs the file to make the memory of open batches private.
        if not self._leases:
            self.file.close()


def open_slots(page_lock: PageLock | None = None) -> Slots | None:
    """Return slots for worker processes, or None if the platform lacks them; batches are then sent through pipes."""
    # Without that hook, later batches would overwrite those that a fork sees.
    if not hasattr(os, "register_at_fork"):
        return None
    try:
        file = MemoryFile()
        # Raises if a limit (ulimit -v) does not allow even one mapping.
        Mapping(file, 0)
    except OSError:
        return None
    return Slots(file, page_lock=page_lock)


def _lock_pages(page_lock: PageLock, mapping: Mapping, ranges: Places) -> None:
    """Page-lock the bytes that a batch uses of a slot: see NOTE [Page-locked bytes]."""
    start = ranges[0][0] // mmap.PAGESIZE * mmap.PAGESIZE
    needed = ranges[-1][1] - start
    limit = 2 * sum(end - start for start, end in ranges) + _MIN_LOCKED_BYTES
    if needed > limit:
        return
    power_of_two = 1 << (needed - 1).bit_length()
    size = min(max(_MIN_LOCKED_BYTES, power_of_two), limit, WINDOW_BYTES - start)
    mapping.lock(page_lock, start, size)


def _before_fork() -> None:
    # Python prints and drops an exception in this hook and forks all the same: the fork would see batches that are not
    # private yet, and the hook after the fork would release a lock that was not acquired.
    with defer_interrupts(in_callback=True):
        _open_lock.acquire()
        for reference in _all_slots:
            slots = reference()
            if slots is not None:
                slots.make_private()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_open_lock.release, after_in_child=_open_lock.release)
