"""The worker's side of the slots: shared memory in which a batch is made.

NOTE [What user code keeps]
    A collate function or a dataset may keep samples or batches, in this process and for longer than the batch. If
    anything still refers to the slot when the batch is to be sent, this process first gets a private copy of its
    memory. Not covered: a process that such code forks while a batch is being made sees the slot, and later batches in
    it.
"""

from __future__ import annotations

import ctypes
import math
import weakref
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lit_loader.memory.batch_memory import LARGE_BYTES
from lit_loader.memory.mapping import ALIGNMENT, WINDOW_BYTES, Lease, Mapping, MemoryFile


class SlotKeptError(MemoryError):
    """User code of a worker keeps a part of a slot that could not be copied, so the slot must not be used again."""


class SlotWriter:
    """The `lit_loader.memory.batch_memory.BatchMemory` of a worker process: memory in the slot of one batch at a time.

    Memory is allocated from the start of the slot to its end, and not freed before the batch is done. So samples of one
    shape that are allocated one after the other form their own stack, if nothing else is allocated in between.

    Args:
        file: The slots' memory.
        stacks_rows: Whether samples that lie one after the other may be returned as their stack without a copy. Not if
            the collate function may return or keep the samples themselves.

    Runs in: a worker process's main thread.
    Owns: its mappings of the slots.
    """

    def __init__(self, file: MemoryFile, *, stacks_rows: bool) -> None:
        self._file, self._stacks_rows = file, stacks_rows
        self._mappings: dict[int, Mapping] = {}
        self._lease: Lease | None = None

    def open(self, slot: int) -> None:
        """Begin a batch in a slot, or in ordinary memory if this process is not allowed to map the slot."""
        try:
            mapping = self._mappings.get(slot) or Mapping(self._file, slot)
        except OSError:
            return
        self._mappings[slot] = self._mapping = mapping
        self._lease = Lease.from_address(mapping.address)
        self._lease.mapping = mapping
        self._slot = slot
        self._top = self._last_bytes = 0  # end of the allocated memory, and size of the last allocation
        self._named: list[tuple[int, int]] = []  # start and end of what `name` returned, in order

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor | None:
        """Return memory for a tensor, or None if the tensor is small or the slot is full."""
        num_bytes = math.prod(shape) * dtype.itemsize
        if self._lease is None or num_bytes < LARGE_BYTES or (offset := self._allocate(num_bytes)) is None:
            return None
        return self._tensor(offset, shape, dtype)

    def rows(self, addresses: Sequence[int], shape: Sequence[int], dtype: torch.dtype) -> Tensor | None:
        """Return the stack of values as a view if they lie one after the other in the slot, or None."""
        size, first = math.prod(shape) * dtype.itemsize, addresses[0]
        if self._lease is None or not self._stacks_rows or size < LARGE_BYTES:
            return None
        offset, end = first - self._mapping.address, first + len(addresses) * size
        if not 0 <= offset < WINDOW_BYTES or list(addresses) != list(range(first, end, size)):
            return None
        return self._tensor(offset, (len(addresses), *shape), dtype)

    def name(self, buffer: memoryview) -> tuple[int, int] | None:
        """Return offset and length of a buffer's bytes in the slot, or None if the buffer is small or the slot is full.

        The bytes are copied to the slot if they are not there. Two buffers never get the same place, so that tensors
        with memory of their own here have that in the main process too.
        """
        num_bytes = buffer.nbytes
        if self._lease is None or num_bytes < LARGE_BYTES:
            return None
        address = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0]
        start = address - self._mapping.address
        if 0 <= start < WINDOW_BYTES and add_range(self._named, start, start + num_bytes):
            return start, num_bytes
        if (offset := self._allocate(num_bytes)) is None:
            return None
        ctypes.memmove(self._mapping.address + offset, address, num_bytes)
        add_range(self._named, offset, offset + num_bytes)
        return offset, num_bytes

    def close(self) -> None:
        """End the batch, after it was encoded: see NOTE [What user code keeps].

        Raises:
            SlotKeptError: If what is kept could not be copied.
        """
        if self._lease is None:
            return
        # All tensors in the slot refer to the lease. It is gone now, unless user code keeps one of them.
        held, self._lease = weakref.ref(self._lease), None
        if held() is not None:
            # Before the next line, so that a mapping of which only a part was made private is not used again.
            del self._mappings[self._slot]
            try:
                self._mapping.make_private([(0, self._top)])
            except MemoryError as error:
                raise SlotKeptError(f"{error}, which the dataset or the collate function keeps") from error

    def _allocate(self, num_bytes: int) -> int | None:
        # Without a gap after an allocation of the same size, so that samples of one shape form a stack.
        offset = self._top if num_bytes == self._last_bytes else -(-self._top // ALIGNMENT) * ALIGNMENT
        if offset + num_bytes > WINDOW_BYTES or not self._mapping.touch(offset, num_bytes):
            return None
        self._top, self._last_bytes = offset + num_bytes, num_bytes
        return offset

    def _tensor(self, offset: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        memory: Any = self._lease
        return torch.frombuffer(memory, dtype=dtype, count=math.prod(shape), offset=offset).view(tuple(shape))


def add_range(ranges: list[tuple[int, int]], start: int, end: int) -> bool:
    """Insert a range into a sorted list; return False, and insert nothing, if it overlaps one of them."""
    at = bisect_left(ranges, (start, end))
    if (at and ranges[at - 1][1] > start) or (at < len(ranges) and ranges[at][0] < end):
        return False
    ranges.insert(at, (start, end))
    return True
