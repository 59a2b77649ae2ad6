"""The main process's side of the slots: who has which, and when one may be written to again.

NOTE [When a slot is free]
    A batch goes into a slot whose `Ticket` the main process made. Whoever needs the slot holds the ticket: the pool
    while the batch is out, what came back and is not yet opened, and, through the `Lease`, every tensor and array that
    lies in it. With its last holder the ticket is gone, and the slot is free; if its memory is page-locked, once the
    copies to a device that were begun by then have completed too.

NOTE [What is kept]
    Slots that are free keep their memory for the next batch: as many as were ever out at one time. What a consumer
    keeps beyond that may take ``KEPT_BYTES``; later batches are copied out of their slots. A slot that growth added
    gives its memory back when it is free.

Owns: the file and the mappings of its slots.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lit_loader.transport.forks import make_private_before_forks
from lit_loader.transport.lease import Lease, lease_of, merged, stack_of_rows
from lit_loader.transport.mapping import CHUNK_BYTES, Mapping
from lit_loader.transport.memory_file import MAX_SLOTS, MemoryFile
from lit_loader.transport.page_lock import PageLock

__all__ = ["KEPT_BYTES", "Slots", "Ticket", "open_slots"]

KEPT_BYTES = 1 << 30
"""What batches that the consumer keeps may take in slots before further ones are copied."""

_LOCKED_BYTES = 1 << 21  # page-locked memory grows in steps of at least this
_IN_HAND = 4  # batches that a consumer works with, and hardly more
_FENCE_S, _FENCE_POLL_S = 60.0, 0.0005  # a device that takes longer to copy a batch has hung


class Ticket:
    """The right to a slot; see NOTE [When a slot is free].

    Attributes:
        number: The slot's.
    """

    __slots__ = ("__weakref__", "_slots", "kept_bytes", "lease", "number")

    def __init__(self, slots: Slots, number: int) -> None:
        self._slots, self.number = slots, number
        self.lease: weakref.ref[Lease] | None = None
        self.kept_bytes = 0  # by its lease

    def __del__(self) -> None:
        self._slots.free(self.number, self.kept_bytes)


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
        self._fenced: deque[tuple[int, Callable[[], bool]]] = deque()
        self._mappings: dict[int, Mapping] = {}
        self._locked: dict[int, int] = {}  # page-locked bytes at the beginning of a slot
        self._leases: weakref.WeakValueDictionary[int, Lease] = weakref.WeakValueDictionary()
        self._latest: weakref.ref[Lease] | None = None
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
    def num_slots(self) -> int:
        """Slots that were ever in use."""
        return self._num_slots

    @property
    def _num_out(self) -> int:
        """Slots of batches that are out, or came back and were not opened."""
        return self._num_slots - len(self._free) - len(self._fenced) - len(self._leases)

    def ticket(self) -> Ticket | None:
        """Return the right to a free slot; None: there is none, and the batch goes another way."""
        self._look_at_fences()
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
            lease.stretches += stretches
            ticket.kept_bytes += size
            self._kept += size
            if self._page_lock is not None and stretches:
                self._lock_pages(ticket.number, lease.mapping, max(end for _, end in stretches))
            return lease

    def read(self, ticket: Ticket, places: Sequence[tuple[int, int]]) -> list[Any]:
        """Return the bytes at places of a slot, each offset and length: where they are, or copied if too much is kept.

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

    # -- as memory of batches that are collated here, from pieces -----------------------------------------------

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor | None:
        """Return None: this process writes to no slot."""
        return None

    def rows(self, addresses: Sequence[int], shape: Sequence[int], dtype: torch.dtype) -> Tensor | None:
        """Return the stack of values that lie in rows of one slot; None: they do not."""
        lease = None if self._latest is None else self._latest()  # nearly always
        if lease is None or not lease.holds(addresses[0]):
            lease = next((one for one in list(self._leases.values()) if one.holds(addresses[0])), None)
        stack = None if lease is None else stack_of_rows(lease, addresses, shape, dtype)
        if lease is None or stack is None:
            return None
        first = addresses[0] - lease.mapping.address
        # a sample may hold a tensor twice, and its two stacks are not one
        return stack if lease.stacked.add(first, first + stack.nbytes) else None

    def _lease_of(self, ticket: Ticket) -> Lease:
        lease = None if ticket.lease is None else ticket.lease()
        if lease is None:
            mapping = self._mappings.get(ticket.number)
            if mapping is None:
                mapping = self._mappings[ticket.number] = self.file.map(ticket.number)
            lease = lease_of(mapping)
            lease.ticket, ticket.lease = ticket, weakref.ref(lease)
            self._leases[ticket.number] = lease
        self._latest = ticket.lease
        return lease

    def free(self, number: int, kept_bytes: int) -> None:
        """Take back a slot whose ticket is gone; any thread may bring it, in the middle of anything."""
        if os.getpid() != self._pid or sys.is_finalizing():
            return  # a fork's copy, or too late
        self._let_go.append(kept_bytes)
        if self._locked.get(number) and self._page_lock is not None:
            fence = self._page_lock.fence()
            if fence is not None:
                self._fenced.append((number, fence))
                if self._closed:
                    self._await_fences()
                return
        self._reuse(number)

    def _reuse(self, number: int) -> None:
        if self._closed:
            self._drop(number)
        elif len(self._free) + self._num_out < self._most_out + _IN_HAND:
            self._free.append(number)
        else:
            self._drop(number)
            self._free.appendleft(number)  # used again when there is no other

    def _look_at_fences(self) -> None:
        with contextlib.suppress(IndexError):  # taken out before it is looked at: other threads look too
            while True:
                number, has_passed = fenced = self._fenced.popleft()
                if not has_passed():
                    self._fenced.appendleft(fenced)
                    return
                self._reuse(number)

    def _lock_pages(self, number: int, mapping: Mapping, end: int) -> None:
        assert self._page_lock is not None
        held = self._locked.get(number)
        if held is not None and (held >= end or held == 0):
            return  # enough, or it could not be
        if held:
            self._page_lock.unlock(mapping.address)
        size = max(_LOCKED_BYTES, 1 << (end - 1).bit_length())
        self._locked[number] = size if self._page_lock.lock(mapping.address, size) else 0

    def _drop(self, number: int) -> None:
        """Unmap a slot that is not used any more, and free its memory whoever else has it mapped."""
        mapping = self._mappings.pop(number, None)
        if mapping is not None and self._locked.pop(number, 0) and self._page_lock is not None:
            self._page_lock.unlock(mapping.address)
        # a slot that was never opened has none, nor one that was made private before a fork
        with contextlib.suppress(OSError):
            (mapping or self.file.map(number)).give_back()

    def make_private(self) -> None:
        """Make the memory of every batch that is held this process's own; see `lit_loader.transport.forks`.

        Raises:
            MemoryError: If there is no memory for the copies.
        """
        for number, lease in list(self._leases.items()):
            ticket = lease.ticket
            if ticket is None:
                continue
            if self._locked.get(number) and self._page_lock is not None:
                self._page_lock.unlock(lease.mapping.address)
            self._mappings.pop(number, None)  # first: of no use to another batch if only a part were copied
            lease.mapping.make_private(lease.stretches)
            self._leases.pop(number, None)
            ticket.lease = None  # another piece of the batch, not opened yet, is still in the slot
            lease.ticket = None
            del ticket  # a device may be reading its memory still: it counts as locked until this is fenced
            self._locked.pop(number, None)

    def close(self) -> None:
        """Free all slots; those that are held still, when they are not held any more."""
        self._closed = True
        self._await_fences()
        while self._free:
            self._drop(self._free.pop())
        self.file.close()

    def _await_fences(self) -> None:
        deadline = time.monotonic() + _FENCE_S
        while self._fenced and time.monotonic() < deadline:
            self._look_at_fences()
            if self._fenced:
                time.sleep(_FENCE_POLL_S)


def open_slots(page_lock: PageLock | None = None) -> Slots | None:
    """Return slots for a pool of worker processes; None where they cannot be had, and batches go by pipe."""
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
