"""The main process's side of the slots: who has which, and when one may be written to again.

NOTE [When a slot is free]
    A batch goes into a slot whose `Ticket` the main process made. Whoever needs the slot holds the ticket: the pool
    while the batch is out, what came back and is not yet opened, and, through the `Lease`, every tensor and array that
    lies in it. With its last holder the ticket is gone, and the slot is free. A slot is page-locked only where the
    loader itself copies its batches to a device, and whoever copies holds the batch until the copy has completed.

NOTE [What is kept]
    Slots that are free keep their memory for the next batch: as many as were ever out at one time. What a consumer
    keeps beyond that may take ``KEPT_BYTES``; later batches are copied out of their slots. A slot that growth added
    gives its memory back when it is free.

NOTE [What is page-locked]
    From the first to the last byte that a batch uses of a slot, rounded up to a power of two, so that batches that grow
    are seldom registered again: at most twice the bytes that the batch uses, and 2 MiB. A batch with larger holes in
    it, as one may be while a worker learns what its samples look like, is not locked; its tensors are copied to
    page-locked memory when it is delivered. A slot stays locked as its largest batch needed it, until one comes that is
    not locked.

Owns: the file and the mappings of its slots.
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

from lit_loader.transport.forks import FORKS_ARE_NOTICED, make_private_before_forks
from lit_loader.transport.interrupts import interrupt_again
from lit_loader.transport.lease import Lease, lease_of, merged
from lit_loader.transport.mapping import CHUNK_BYTES, Mapping
from lit_loader.transport.memory_file import MAX_SLOTS, WINDOW_BYTES, MemoryFile
from lit_loader.transport.page_lock import PageLock

__all__ = ["KEPT_BYTES", "Slots", "Ticket", "open_slots"]

KEPT_BYTES = 1 << 30
"""What batches that the consumer keeps may take in slots before further ones are copied."""

_LOCKED_BYTES = 1 << 21  # page-locked at least: to register a small batch takes as long
_IN_HAND = 4  # batches that a consumer works with, and hardly more


class Ticket:
    """The right to a slot; see NOTE [When a slot is free].

    Attributes:
        number: The slot's.
    """

    __slots__ = ("__weakref__", "_slots", "kept_bytes", "number")

    def __init__(self, slots: Slots, number: int) -> None:
        self._slots, self.number = slots, number
        self.kept_bytes = 0  # by its lease

    def retire(self) -> None:
        """Let the slot never be used again: another process may read it for as long as it lives."""
        self._slots._retired.add(self.number)

    def __del__(self) -> None:
        try:
            self._slots.free(self.number, self.kept_bytes)
        except (
            KeyboardInterrupt
        ):  # not tried again, as it may have been freed: at worst a slot is never used again
            interrupt_again()


class Slots:
    """The slots of a pool of worker processes.

    Args:
        file: Their memory.
        page_lock: Page-locks the memory of slots; None: nothing is page-locked.
        kept_bytes: See NOTE [What is kept].

    Attributes:
        file: Their memory, for the workers.
        lock: Held while a lease is made, and through a fork.
    """

    def __init__(
        self, file: MemoryFile, *, page_lock: PageLock | None = None, kept_bytes: int = KEPT_BYTES
    ) -> None:
        self.file, self.lock = file, threading.RLock()
        self._page_lock, self._kept_limit = page_lock, kept_bytes
        self._pid = os.getpid()
        self._free: deque[int] = deque()  # the last ones were used last, and are in the caches
        self._mappings: dict[int, Mapping] = {}
        self._locked: dict[int, tuple[int, int]] = {}  # start and end of what is page-locked of a slot
        self._leases: weakref.WeakValueDictionary[int, Lease] = weakref.WeakValueDictionary()
        self._retired: set[int] = set()  # never used again: see `Ticket.retire`
        self._num_slots = self._most_out = self._kept = 0
        self._let_go: deque[int] = deque()  # bytes that are not kept any more; counted under the lock
        self._closed = False
        make_private_before_forks(self)

    @property
    def kept_bytes(self) -> int:
        """Memory of the slots whose batches the consumer holds."""
        with self.lock:
            while self._let_go:
                self._kept -= self._let_go.popleft()
            return self._kept

    @property
    def _num_out(self) -> int:
        """Slots of batches that are out, or came back and were not opened."""
        return self._num_slots - len(self._free) - len(self._retired) - len(self._leases)

    def ticket(self) -> Ticket | None:
        """Return the right to a free slot; None: there is none, and the batch goes another way."""
        try:
            number = self._free.pop()
        except IndexError:
            if self._num_slots == MAX_SLOTS or self._closed:
                return None
            number = self._num_slots
            self._num_slots += 1
        self._most_out = max(self._most_out, self._num_out)
        return Ticket(self, number)

    def _keep(self, ticket: Ticket, stretches: Sequence[tuple[int, int]]) -> Lease | None:
        """Return the bytes of a slot, stretches of which are going to be used; None: too much is kept as it is."""
        size = sum(-(-(end - start) // CHUNK_BYTES) * CHUNK_BYTES for start, end in stretches)
        with self.lock:
            kept = self.kept_bytes
            if kept and kept + size > self._kept_limit:
                return None
            lease = self._lease_of(ticket)
            for start, end in stretches:
                lease.mapping.touch(start, end - start)
            lease.stretches = list(stretches)
            ticket.kept_bytes = size
            self._kept += size
            if self._page_lock is not None and stretches:
                self._lock_pages(self._page_lock, ticket.number, lease.mapping, stretches)
            return lease

    def read(self, ticket: Ticket, places: Sequence[tuple[int, int]]) -> list[Any]:
        """Return the bytes at places of a slot, each offset and length: where they are, or copied if too much is kept.

        Called once for each ticket.

        Raises:
            RuntimeError: If the slots were closed.
        """
        stretches = merged(places)
        try:
            lease = self._keep(ticket, stretches)
        except OSError as error:
            if self._closed:
                text = "the loader's workers were closed; call iter() on the loader for new ones"
                raise RuntimeError(text) from error
            lease = None  # this process may not map so much
        if lease is not None:
            exporter: Any = lease  # as typed, arrays are no buffers before Python 3.12
            view = memoryview(exporter)
            return [view[offset : offset + length] for offset, length in places]
        return [self.file.read(ticket.number, offset, length) for offset, length in places]

    def _lease_of(self, ticket: Ticket) -> Lease:
        mapping = self._mappings.get(ticket.number)
        if mapping is None:
            mapping = self._mappings[ticket.number] = self.file.map(ticket.number)
        lease = self._leases[ticket.number] = lease_of(mapping)
        lease.ticket = ticket
        return lease

    def free(self, number: int, kept_bytes: int) -> None:
        """Take back a slot whose ticket is gone; any thread may bring it, in the middle of anything."""
        if os.getpid() != self._pid or sys.is_finalizing():
            return  # a fork's copy, or too late
        self._let_go.append(kept_bytes)
        self._reuse(number)

    def _reuse(self, number: int) -> None:
        if self._closed:
            if number not in self._retired:
                self._drop(number)
            self._close_file()
        elif number in self._retired:
            return
        elif len(self._free) + self._num_out < self._most_out + _IN_HAND:
            self._free.append(number)
        else:
            self._drop(number)
            self._free.appendleft(number)  # used again when there is no other

    def _lock_pages(
        self, page_lock: PageLock, number: int, mapping: Mapping, stretches: Sequence[tuple[int, int]]
    ) -> None:
        """Page-lock what a batch uses of a slot, if it is not: see NOTE [What is page-locked].

        One range a slot: a copy to a device fails if its source lies in two that were registered apart.
        """
        first, end = min(start for start, _ in stretches), max(end for _, end in stretches)
        locked = self._locked.get(number)
        if locked is not None and locked[0] <= first and end <= locked[1]:
            return
        self._unlock_pages(number, mapping)  # nothing is copied out of a slot whose batch is only now opened
        first = first // mmap.PAGESIZE * mmap.PAGESIZE
        most = 2 * sum(end - start for start, end in stretches) + _LOCKED_BYTES
        if end - first > most:
            return
        size = min(max(_LOCKED_BYTES, 1 << (end - first - 1).bit_length()), most, WINDOW_BYTES - first)
        if page_lock.lock(mapping.address + first, size):
            self._locked[number] = (first, first + size)

    def _unlock_pages(self, number: int, mapping: Mapping) -> None:
        locked = self._locked.pop(number, None)
        if locked is not None and self._page_lock is not None:
            self._page_lock.unlock(mapping.address + locked[0])

    def _drop(self, number: int) -> None:
        """Unmap a slot that is not used any more, and free its memory whoever else has it mapped."""
        mapping = self._mappings.pop(number, None)
        if mapping is not None:
            self._unlock_pages(number, mapping)
        # a slot that was never opened has no mapping, nor one that was made private before a fork
        with contextlib.suppress(OSError):
            (mapping or self.file.map(number)).give_back()

    def make_private(self) -> None:
        """Make the memory of every batch that is held this process's own; see `lit_loader.transport.forks`."""
        for number, lease in list(self._leases.items()):
            ticket = lease.ticket
            if ticket is None or number in self._locked:
                continue  # a page-locked one is held by the loader alone, while it is copied to a device
            self._mappings.pop(number, None)  # first: of no use to another batch if only a part were private
            try:
                self.file.make_private(lease.mapping, lease.stretches)
            except MemoryError:
                ticket.retire()
            self._leases.pop(number, None)
            lease.ticket = None
            del ticket

    def close(self) -> None:
        """Free all slots; those that are held still, when they are not held any more."""
        self._closed = True
        while self._free:
            self._drop(self._free.pop())
        self._close_file()

    def _close_file(self) -> None:
        # a fork makes those that are held private, which takes the file; one that is just dying is still listed
        if all(lease() is None for lease in self._leases.valuerefs()):
            self.file.close()


def open_slots(page_lock: PageLock | None = None) -> Slots | None:
    """Return slots for a pool of worker processes; None where they cannot be had, and batches go by pipe."""
    if not FORKS_ARE_NOTICED:  # a fork would see later batches in the place of those that its parent holds
        return None
    try:
        file = MemoryFile()
    except OSError:
        return None
    try:
        file.map(0)
    except OSError:
        file.close()
        return None
    return Slots(file, page_lock=page_lock)
