"""A worker's side of the slots: the memory that a batch is made in, where the main process reads it.

NOTE [Where things are in a slot]
    rows    If the samples of a batch hold large tensors of the same shapes (`Layout`), those of one field lie one
            behind the other, sample for sample: when the last of them is there, so is their stack.
    rest    Everything else, in the order in which it is made.

NOTE [Who keeps what]
    A collate function or a dataset may keep what it was given or gave, in this process and for longer than the batch.
    If anything still refers to the slot when the batch is to be sent, its memory is made this process's own first. Not
    covered: a process that such code forks in the middle of a batch sees the slot, and later batches in it.

Runs in: a worker process's main thread.
Owns: its mappings of the slots.
"""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lit_loader.batch_memory import LARGE_BYTES
from lit_loader.transport.intervals import Intervals
from lit_loader.transport.layout import Layout, aligned
from lit_loader.transport.lease import Lease, lease_of, stack_of_rows
from lit_loader.transport.mapping import Mapping
from lit_loader.transport.memory_file import WINDOW_BYTES, MemoryFile

__all__ = ["Place", "SlotKeptError", "SlotWriter"]


class Place(NamedTuple):
    """Where a task's samples go.

    Attributes:
        slot: The slot.
        num_rows: How many samples; 0 if that is not known.
    """

    slot: int
    num_rows: int = 0


class SlotKeptError(MemoryError):
    """What user code of a worker keeps of a slot could not be copied: the slot must not be written to again."""


class SlotWriter:
    """Gives memory in the slot of the task in hand: a `lit_loader.batch_memory.BatchMemory`.

    Args:
        file: The slots' memory.
        joins: Whether rows that lie one behind the other may serve as their stack, because nobody else holds them.

    Attributes:
        row: The row of the sample that is being made.
        num_found: Bytes of the answer that were in the slot when they were asked for, and need not be copied.
    """

    def __init__(self, file: MemoryFile, *, joins: bool) -> None:
        self._file, self._joins = file, joins
        self._mappings: dict[int, Mapping] = {}
        self._lease: Lease | None = None

    @property
    def is_open(self) -> bool:
        """Whether there is a slot to write to."""
        return self._lease is not None

    def open(self, place: Place, layout: Layout | None) -> None:
        """Begin a task.

        Args:
            place: Its slot.
            layout: Of the rows that its samples will probably fill, or None if that is not known.
        """
        self.row, self.num_found, self._place = 0, 0, place
        try:
            self._mapping = self._mappings.get(place.slot) or self._file.map(place.slot)
        except OSError:
            return  # the batch goes by pipe
        self._mappings[place.slot] = self._mapping
        self._lease = lease_of(self._mapping)
        self._top = 0
        self._layout: Layout | None = None
        self._starts: list[int] = []  # of each leaf's rows
        self._claimed: set[int] = set()  # offsets of the rows that were given out
        self._named = Intervals()
        if layout is not None:
            self.lay_out(layout)

    def lay_out(self, layout: Layout) -> None:
        """Have rows of this layout from now on, behind what is in the slot already; once a row is filled it stays."""
        self._forget_rows()
        if self._layout is not None:
            return
        starts = [self._top + start for start in layout.starts(self._place.num_rows)]
        if starts[-1] <= WINDOW_BYTES:
            self._layout, self._starts, self._top = layout, starts, starts[-1]

    @property
    def layout(self) -> Layout | None:
        """The layout of the rows; None: there are no rows."""
        return self._layout

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor | None:
        """Return memory for a tensor, in the row of the sample that is being made if it fits there."""
        num_bytes = math.prod(shape) * dtype.itemsize
        if self._lease is None or num_bytes < LARGE_BYTES:
            return None
        offset = self._row_of(tuple(shape), dtype)
        if offset is None and (offset := self._allocate(num_bytes)) is None:
            return None
        return self._tensor(offset, shape, dtype)

    def take_in(self, address: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor | None:
        """Copy a tensor's bytes into the slot; None: they are there already, or there is no room.

        Args:
            address: Where its bytes begin, all of them one behind the other.
            shape: Of the tensor.
            dtype: Of its elements.
        """
        assert self._lease is not None
        if 0 <= address - self._mapping.address < self._mapping.num_bytes:
            return None
        tensor = self.empty(shape, dtype)
        if tensor is not None:
            ctypes.memmove(tensor.data_ptr(), address, tensor.nbytes)
        return tensor

    def rows(self, addresses: Sequence[int], shape: Sequence[int], dtype: torch.dtype) -> Tensor | None:
        """Return the stack of values that lie in rows of the slot; None: they do not, or are somebody else's too."""
        if self._lease is None or not self._joins:
            return None
        return stack_of_rows(self._lease, addresses, shape, dtype)

    def name(self, buffer: memoryview) -> tuple[int, int] | None:
        """Return where in the slot a buffer's bytes are, after copying them there if need be; None: they are not.

        No two buffers are named in the same place, so that what was memory of its own is that for the reader too.
        """
        num_bytes = buffer.nbytes
        if self._lease is None or num_bytes < LARGE_BYTES:
            return None
        address = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0]
        offset: int | None = address - self._mapping.address
        assert offset is not None
        if 0 <= offset < self._mapping.num_bytes and self._named.add(offset, offset + num_bytes):
            self.num_found += num_bytes
            return offset, num_bytes
        if (offset := self._allocate(num_bytes)) is None:
            return None
        ctypes.memmove(self._mapping.address + offset, address, num_bytes)
        self._named.add(offset, offset + num_bytes)
        return offset, num_bytes

    def close(self) -> None:
        """End the task: see NOTE [Who keeps what]. The tensors that this gave out should be gone."""
        if self._lease is None:
            return
        held, self._lease = weakref.ref(self._lease), None
        if (lease := held()) is not None:
            del self._mappings[self._place.slot]  # first: see `Slots.make_private`
            try:
                self._file.make_private(lease.mapping, [(0, self._top)])
            except MemoryError as error:
                raise SlotKeptError(f"{error}, which the dataset or the collate function keeps") from error

    def _allocate(self, num_bytes: int) -> int | None:
        offset = self._top
        if offset + num_bytes > WINDOW_BYTES or not self._mapping.touch(offset, num_bytes):
            return None
        self._top = offset + aligned(num_bytes)
        return offset

    def _row_of(self, shape: tuple[int, ...], dtype: torch.dtype) -> int | None:
        """Return where the row of the present sample is, for a tensor that its layout knows and that has none yet."""
        if self._layout is None or self.row >= self._place.num_rows:
            return None
        for leaf, start, size in zip(self._layout.leaves, self._starts, self._layout.sizes, strict=False):
            offset = start + self.row * size
            if leaf == (dtype, shape) and offset not in self._claimed:
                self._claimed.add(offset)
                return offset if self._mapping.touch(offset, size) else None
        self._forget_rows()
        return None

    def _forget_rows(self) -> None:
        """Give up rows that nothing was written to: they would be a hole in the slot, page-locked with the rest."""
        if self._layout is not None and not self._claimed and self._top == self._starts[-1]:
            self._layout, self._top = None, self._starts[0]

    def _tensor(self, offset: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        memory: Any = self._lease
        count = math.prod(shape)
        return torch.frombuffer(memory, dtype=dtype, count=count, offset=offset).view(tuple(shape))
