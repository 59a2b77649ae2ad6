"""The worker's side of the slots: the shared memory in which it makes a batch.

NOTE [References kept by user code]
    A collate function or a dataset may keep samples or batches in the worker process for longer than the batch. If
    anything still refers to the slot when the batch is sent, the worker first gets a private copy of the memory.
    Not covered: a process that such code forks while a batch is being made sees the slot, and later batches in it.
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
    """User code in a worker refers to a slot that could not be copied, so the slot must not be used again."""


class SlotWriter:
    """The `lit_loader.memory.batch_memory.BatchMemory` of a worker process: the slot of one batch at a time.

    Memory is allocated from the start of the slot towards its end, and freed when the batch is done. So samples of one
    shape that are allocated one after the other already form their stack, if nothing else is allocated in between.

    Args:
        file: The slots' memory.
        stacks_rows: Whether adjacent samples may be returned as their stack without a copy. False if the collate
            function may return or keep the samples themselves.

    Runs in: a worker process's main thread.
    Owns: its mappings of the slots.
    """

    def __init__(self, file: MemoryFile, *, stacks_rows: bool) -> None:
        self._file = file
        self._stacks_rows = stacks_rows
        self._mappings: dict[int, Mapping] = {}
        self._lease: Lease | None = None

    def open(self, slot: int) -> None:
        """Start a batch in a slot, or in ordinary memory if this process is not allowed to map the slot."""
        try:
            mapping = self._mappings.get(slot) or Mapping(self._file, slot)
        except OSError:
            return
        self._mappings[slot] = mapping
        self._mapping = mapping
        self._lease = Lease.from_address(mapping.address)
        self._lease.mapping = mapping
        self._slot = slot
        self._top = 0  # end of the allocated memory
        self._last_bytes = 0  # size of the last allocation
        self._named: list[tuple[int, int]] = []  # start and end of the ranges that `name` returned, sorted

    @property
    def num_bytes(self) -> int:
        """Bytes of the slot that the encoded batch uses, until `close`; 0 without a slot."""
        return 0 if self._lease is None else sum(end - start for start, end in self._named)

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor | None:
        """Return memory for a tensor, or None if the tensor is small or the slot is full."""
        num_bytes = math.prod(shape) * dtype.itemsize
        if self._lease is None or num_bytes < LARGE_BYTES:
            return None
        offset = self._allocate(num_bytes)
        return None if offset is None else self._tensor(offset, shape, dtype)

    def rows(self, addresses: Sequence[int], shape: Sequence[int], dtype: torch.dtype) -> Tensor | None:
        """Return the stack of several tensors as a view, or None unless they follow each other in the slot."""
        size = math.prod(shape) * dtype.itemsize
        if self._lease is None or not self._stacks_rows or size < LARGE_BYTES:
            return None
        start = addresses[0]
        offset = start - self._mapping.address
        adjacent = range(start, start + len(addresses) * size, size)
        if not 0 <= offset < WINDOW_BYTES or list(addresses) != list(adjacent):
            return None
        return self._tensor(offset, (len(addresses), *shape), dtype)

    def name(self, buffer: memoryview) -> tuple[int, int] | None:
        """Return offset and length of a buffer's bytes in the slot, or None if the buffer is small or the slot is full.

        Bytes that are not in the slot yet are copied there.
        """
        num_bytes = buffer.nbytes
        if self._lease is None or num_bytes < LARGE_BYTES:
            return None
        address = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0]
        start = address - self._mapping.address
        # Two buffers never get the same place: tensors that do not share memory here must not share it there either.
        if 0 <= start < WINDOW_BYTES and add_range(self._named, start, start + num_bytes):
            return start, num_bytes
        offset = self._allocate(num_bytes)
        if offset is None:
            return None
        ctypes.memmove(self._mapping.address + offset, address, num_bytes)
        add_range(self._named, offset, offset + num_bytes)
        return offset, num_bytes

    def close(self) -> None:
        """End the batch after it was encoded: see NOTE [References kept by user code].

        Raises:
            SlotKeptError: If user code refers to the slot, and its memory could not be copied.
        """
        if self._lease is None:
            return
        # All tensors in the slot refer to the lease, so it is collected here unless user code keeps one of them.
        lease = weakref.ref(self._lease)
        self._lease = None
        if lease() is not None:
            # Forgotten first: if only a part becomes private, the mapping must not be used for another batch.
            del self._mappings[self._slot]
            try:
                self._mapping.make_private([(0, self._top)])
            except MemoryError as error:
                raise SlotKeptError(f"{error}, which the dataset or the collate function keeps") from error

    def _allocate(self, num_bytes: int) -> int | None:
        # No gap after an allocation of the same size, so that samples of one shape form a stack.
        offset = self._top if num_bytes == self._last_bytes else -(-self._top // ALIGNMENT) * ALIGNMENT
        if offset + num_bytes > WINDOW_BYTES or not self._mapping.touch(offset, num_bytes):
            return None
        self._top = offset + num_bytes
        self._last_bytes = num_bytes
        return offset

    def _tensor(self, offset: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        memory: Any = self._lease
        return torch.frombuffer(memory, dtype=dtype, count=math.prod(shape), offset=offset).view(tuple(shape))


def add_range(ranges: list[tuple[int, int]], start: int, end: int) -> bool:
    """Insert a range into a sorted list; return False and insert nothing if it overlaps a range of the list."""
    index = bisect_left(ranges, (start, end))
    overlaps_previous = index > 0 and ranges[index - 1][1] > start
    overlaps_next = index < len(ranges) and ranges[index][0] < end
    if overlaps_previous or overlaps_next:
        return False
    ranges.insert(index, (start, end))
    return True
