"""The main process's side of the slots: references to them, and when one may be written again.

NOTE [When a slot is free]
    The main process creates a `Ticket` for each slot that a worker may write to. References to the ticket keep the
    slot: the backend's while the batch is being made, that of a result that was received and not delivered, and, by
    the `Lease`, those of every tensor and array in the slot. When the last reference is gone, the ticket is deleted and
    the slot is free. Slots are page-locked only if the loader itself copies batches to a device, and `DevicePrefetcher`
    keeps the batch until its copy has ended.

NOTE [Memory that slots keep]
    As many free slots as were ever in use by workers at one time, and a few more, keep their memory for the next batch.
    Batches that the consumer keeps may take up to ``KEPT_BYTES`` in slots. Beyond that, batches are copied out of their
    slots. Slots in excess of that number free their memory when they are free.

NOTE [Page-locked bytes]
    A slot is locked from the first to the last byte that its batch uses. The size is rounded up to a power of two, so
    that slowly growing batches are seldom registered again, but at most to twice the bytes that the batch uses plus
    2 MiB. A batch with larger gaps (where a collate function leaves out much of what was made in the slot) is not
    locked; its tensors are copied to page-locked memory when it is delivered. The lock of a slot stays for later
    batches that lie within it.

NOTE [Forks]
    A forked process sees the batches that its parent holds, and the parent cannot know for how long. So before a fork
    the memory of every such batch becomes private to the parent, at the same addresses, and is copied on write like all
    other memory; the slot is free from then on. If there is not enough memory for that copy, the slot is never used
    again. From then until the fork is done no thread can open another batch.
    A fork by other means than ``os.fork`` (in C, without Python's hooks) is not noticed.

NOTE [Finalizers]
    A slot is freed by the finalizer of its ticket, which may run in any thread and at any time, also within `Slots`'
    own methods. So `Slots.free` takes no lock. What it changes is changed and read by single operations of deques,
    dicts and sets, and weak references have no callbacks. Python prints and drops a KeyboardInterrupt that comes in a
    finalizer or a callback, so `interrupt_again` raises it again.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import sys
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

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

KEPT_BYTES = 1 << 30  # how much memory in slots the consumer may keep before further batches are copied
_MIN_LOCKED_BYTES = 1 << 21  # registering less does not take less time
_NUM_IN_USE = 4  # batches that a consumer usually has at one time
_INTERRUPT_DELAY_S = 0.01

_open_lock = threading.RLock()  # held while a batch is opened, and through a fork: see NOTE [Forks]
_all_slots: list[weakref.ref[Slots]] = []


class Ticket:
    """A reference that keeps a slot from being used again: see NOTE [When a slot is free].

    Attributes:
        number: Number of the slot.
    """

    __slots__ = ("__weakref__", "_slots", "number")

    def __init__(self, slots: Slots, number: int) -> None:
        self._slots, self.number = slots, number

    def retire(self) -> None:
        """Never use the slot again, because another process may read it for as long as that process lives."""
        self._slots._retired.add(self.number)

    def __del__(self) -> None:
        try:
            if hasattr(self, "number"):  # else Ctrl-C came before: at worst a slot is never used again
                self._slots.free(self.number)
        except KeyboardInterrupt:
            # Not tried again, because the slot may be free already. At worst it is never used again.
            interrupt_again()


class Slots:
    """The slots of a backend's worker processes.

    Args:
        file: Their memory.
        page_lock: Page-locks the memory of slots, or None if nothing is page-locked.
        kept_bytes: See NOTE [Memory that slots keep].

    Attributes:
        file: Their memory, for the workers.

    Owns: the file and the mappings of its slots.
    """

    def __init__(
        self, file: MemoryFile, *, page_lock: PageLock | None = None, kept_bytes: int = KEPT_BYTES
    ) -> None:
        self.file = file
        self._page_lock, self._kept_limit = page_lock, kept_bytes
        self._pid = os.getpid()
        self._free: deque[int] = deque()  # taken from the right end: used last, and still in the CPU's caches
        self._mappings: dict[int, Mapping] = {}
        self._leases: dict[int, weakref.ref[Lease]] = {}  # of slots whose batches were opened
        self._kept: dict[int, int] = {}  # memory of each of these slots, in bytes
        self._retired: set[int] = set()  # never used again: see `Ticket.retire`
        self._num_slots = self._max_out = 0
        self._closed = False
        with _open_lock:
            _all_slots[:] = [reference for reference in _all_slots if reference() is not None]
            _all_slots.append(weakref.ref(self))

    @property
    def kept_bytes(self) -> int:
        """Memory of the slots whose batches the consumer holds."""
        return sum(self._kept.values())  # one step for the interpreter: see NOTE [Finalizers]

    @property
    def _num_out(self) -> int:
        """How many slots have a batch that is being made, or was received and not opened."""
        return self._num_slots - len(self._free) - len(self._retired) - len(self._leases)

    def ticket(self) -> Ticket | None:
        """Return the ticket of a free slot, or None if there is none and the batch has to be sent by pipe."""
        try:
            number = self._free.pop()
        except IndexError:
            if self._num_slots == MAX_SLOTS or self._closed:
                return None
            number = self._num_slots
            self._num_slots += 1
        self._max_out = max(self._max_out, self._num_out)
        return Ticket(self, number)

    def read(self, ticket: Ticket, places: Sequence[tuple[int, int]]) -> list[Any]:
        """Return bytes of a slot: views, or copies if the consumer keeps too much memory in slots.

        It may be called once for each ticket.

        Args:
            ticket: Of the slot.
            places: Offset and length of each piece of memory.

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
            lease = None  # this process is not allowed to map so much
        if lease is None:
            return [self.file.read(ticket.number, start, size) for start, size in places]
        window: Any = lease  # typed as Any: type stubs do not know that a ctypes array is a buffer
        window = np.frombuffer(window, np.uint8)  # a memoryview of the lease itself cannot be sliced as bytes
        view = memoryview(window)
        return [view[start : start + size] for start, size in places]

    def _open(self, ticket: Ticket, ranges: Places) -> Lease | None:
        """Return the bytes of a slot for the consumer, or None if it keeps too much memory in slots.

        Args:
            ticket: Of the slot.
            ranges: Start and end of the byte ranges that the batch uses.

        Raises:
            OSError: If this process is not allowed to map so much.
        """
        number = ticket.number
        size = sum(-(-(end - start) // CHUNK_BYTES) * CHUNK_BYTES for start, end in ranges)
        with _open_lock:
            kept = self.kept_bytes
            if kept and kept + size > self._kept_limit:
                return None
            unmap_parked()
            mapping = self._mapping(number, ranges)
            lease = Lease.from_address(mapping.address)
            lease.mapping, lease.ticket, lease.ranges = mapping, ticket, ranges
            self._kept[number], self._leases[number] = size, weakref.ref(lease)
            for start, end in ranges:
                mapping.touch(start, end - start)
            if self._page_lock is not None and ranges and mapping.locked is None:
                _lock_pages(self._page_lock, mapping, ranges)
            return lease

    def _mapping(self, number: int, ranges: Places) -> Mapping:
        """Return the mapping of a slot: with all bytes that a batch uses page-locked, or none.

        A slot has one locked range, because a copy to a device fails if its source extends over two of them.

        Raises:
            OSError: If this process is not allowed to map so much.
        """
        mapping = self._mappings.get(number)
        if mapping is not None and mapping.locked is not None and ranges:
            start, end = mapping.locked
            is_inside = start <= ranges[0][0] and ranges[-1][1] <= end
            # No copy is running: the batch is only being opened.
            if not is_inside and not mapping.unlock():
                mapping = None  # it is unmapped when that is possible; the slot is mapped at another address
        if mapping is None:
            mapping = self._mappings[number] = Mapping(self.file, number)
        return mapping

    def free(self, number: int) -> None:
        """Free a slot whose ticket was deleted: see NOTE [Finalizers]."""
        if os.getpid() != self._pid or sys.is_finalizing():
            return  # in a fork, which has only copies of the tickets, or at the interpreter's exit
        self._kept.pop(number, None)
        self._leases.pop(number, None)
        if number in self._retired:
            # Unlocked and unmapped. Its memory is not freed: another process may read it.
            self._mappings.pop(number, None)
        elif self._closed:
            self._drop(number)
        elif len(self._free) + self._num_out < self._max_out + _NUM_IN_USE:
            self._free.append(number)
        else:
            self._drop(number)
            self._free.appendleft(number)  # at the left end: used only if there is no other
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
        for number in list(self._leases):
            reference = self._leases.get(number)
            lease = None if reference is None else reference()
            if lease is None or lease.ticket is None or lease.mapping.locked is not None:
                continue  # only the loader has batches in page-locked slots, and only while it copies them
            # Before the next lines, so that a mapping of which only a part was made private is not used again.
            self._mappings.pop(number, None)
            try:
                lease.mapping.make_private(lease.ranges)
            except MemoryError:
                lease.ticket.retire()
            lease.ticket = None  # frees the slot, unless it was retired

    def close(self) -> None:
        """Free all slots; those that the consumer still holds are freed when it drops them."""
        self._closed = True
        unmap_parked()
        while self._free:
            self._drop(self._free.pop())
        if not self._leases:  # else a fork still needs the file, to make the memory of held batches private
            self.file.close()


def open_slots(page_lock: PageLock | None = None) -> Slots | None:
    """Return slots for worker processes, or None if the platform lacks them and batches are sent by pipe."""
    if not hasattr(os, "register_at_fork"):
        return None  # without that hook a fork would see later batches overwrite those that its parent held
    try:
        file = MemoryFile()
        Mapping(file, 0)
    except OSError:
        return None
    return Slots(file, page_lock=page_lock)


def _lock_pages(page_lock: PageLock, mapping: Mapping, ranges: Places) -> None:
    """Page-lock the bytes that a batch uses of a slot: see NOTE [Page-locked bytes]."""
    first, end = ranges[0][0], ranges[-1][1]
    first = first // mmap.PAGESIZE * mmap.PAGESIZE
    most = 2 * sum(end - start for start, end in ranges) + _MIN_LOCKED_BYTES
    if end - first > most:
        return
    size = min(max(_MIN_LOCKED_BYTES, 1 << (end - first - 1).bit_length()), most, WINDOW_BYTES - first)
    mapping.lock(page_lock, first, size)


def interrupt_again() -> None:
    """Raise the KeyboardInterrupt that a finalizer has caught once more, shortly after the finalizer."""
    main = threading.main_thread().ident
    assert main is not None
    threading.Timer(_INTERRUPT_DELAY_S, signal.pthread_kill, (main, signal.SIGINT)).start()


def _before_fork() -> None:
    _open_lock.acquire()
    for reference in _all_slots:
        if (slots := reference()) is not None:
            slots.make_private()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_open_lock.release, after_in_child=_open_lock.release
    )
