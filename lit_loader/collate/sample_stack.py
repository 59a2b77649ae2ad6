"""The stack of a batch's samples, written sample by sample.

NOTE [Samples of threads]
    Samples that wait for their batch hold memory that no other sample can use: each one is new memory, a page fault for
    each of its pages, and is read again for the stack when it has left the CPU's caches. 64 float32 images of
    3 x 224 x 224 cost 0.5 ms each that way in a worker thread, a third of their decoding. So a transform that asks for
    memory of the batch writes the sample to its row, and the large tensor of any other sample is copied there as soon
    as it is made, so that its memory is the next sample's. The memory of a batch is used again when nothing refers to
    it any more. (Worker processes keep freed memory instead, and have slots.)
    A transform may ask for memory of something else before: an image that is not resized yet. So rows are given out
    once a sample was stacked, and for what has its shape and dtype.
    A dataset may keep what it returned. Then the row that it was given is still referred to when the batch is made,
    and the batch is a copy, as every stack is one. A kept row keeps the whole stack, so no more are given out.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lit_loader.collate.default import is_builtin_collate
from lit_loader.memory.batch_memory import LARGE_BYTES

__all__ = ["SampleStack", "StackPool", "stacks_samples"]

_Memory: TypeAlias = npt.NDArray[np.uint8]
_Reference: TypeAlias = Callable[[], object]
"""A weak reference to the memory of a row: called, it gives None when no tensor uses the row any more."""

_DTYPES: Final = (torch.uint8, torch.float32)
"""Of rows that are given out: those of images."""

_Row: TypeAlias = tuple[tuple[int, ...], torch.dtype]


def _unused() -> None:
    """Stand for the weak reference of a row that no tensor uses."""


def stacks_samples(collate_fn: Any) -> bool:
    """Return whether a collate function stacks large tensors of a sample, and is one of lit_loader's."""
    settings: dict[str, Any] = {}
    function = collate_fn
    while isinstance(function, partial):
        settings, function = {**function.keywords, **settings}, function.func
    images = settings.get("images", getattr(function, "images", "stack"))
    return is_builtin_collate(collate_fn) and images == "stack"


class StackPool:
    """Memory of stacks that is used again, and what is known of their rows; see NOTE [Samples of threads].

    Runs in: all worker threads of a loader.

    Args:
        num_kept: How many stacks that nobody uses keep their memory.

    Attributes:
        row: Shape and dtype of a sample that was stacked, or None before the first.
        has_kept_rows: Whether the dataset has kept a row that it was given.
    """

    def __init__(self, num_kept: int) -> None:
        self.row: _Row | None = None
        self.has_kept_rows = False
        self._num_kept = num_kept
        self._lock = threading.Lock()
        # Memory, and of that in use an object that every tensor in it keeps alive.
        self._free: list[_Memory] = []
        self._used: list[tuple[_Memory, weakref.ref[_Memory]]] = []

    def take(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return a contiguous CPU tensor, its values not set."""
        num_bytes = math.prod(shape) * dtype.itemsize
        with self._lock:
            used, free = [], self._free
            for memory, lease in self._used:
                if lease() is None:
                    free.append(memory)
                else:
                    used.append((memory, lease))
            free = [memory for memory in free if memory.nbytes == num_bytes]
            memory = free.pop() if free else np.empty(num_bytes, dtype=np.uint8)
            view = memory[:]
            self._free, self._used = free[: self._num_kept], [*used, (memory, weakref.ref(view))]
        return torch.from_numpy(view).view(dtype).view(*shape)


class SampleStack:
    """The `lit_loader.memory.batch_memory.BatchMemory` of a worker thread: see NOTE [Samples of threads].

    Args:
        num_samples: Of the batch.
        pool: Gives its memory.

    Runs in: one worker thread, for one batch.
    """

    def __init__(self, num_samples: int, pool: StackPool) -> None:
        self._num_samples, self._used, self._pool = num_samples, 0, pool
        self._stack: Tensor | None = None
        self._is_making = True
        self._given: _Reference = _unused  # of the next row
        self._references: list[_Reference] = []  # of the rows that were given out and have become samples

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor | None:
        """Return memory of the next row.

        Returns:
            A tensor, or None: the row is in use, samples have another shape or dtype or none is known yet, the samples
            are made, or the dataset keeps rows.
        """
        pool = self._pool
        if pool.row != (tuple(shape), dtype) or pool.has_kept_rows:
            return None
        if not self._is_making or self._given() is not None:
            return None
        row = self._next_row(shape, dtype)
        if row is None:
            return None
        array = row.numpy()
        self._given = weakref.ref(array)
        return torch.from_numpy(array)

    def moved(self, sample: Any) -> Any:
        """Return a sample whose first large tensor lies in the stack; anything that would not be stacked stays."""
        if type(sample) is not tuple:
            return self._moved_tensor(sample)
        for place, value in enumerate(sample):
            moved = self._moved_tensor(value)
            if moved is not value:
                return (*sample[:place], moved, *sample[place + 1 :])
        return sample

    def end_samples(self) -> None:
        """Give no more rows: the samples are made, and what is asked for now is a batch."""
        self._is_making = False

    def rows(self, addresses: Sequence[int], shape: Sequence[int], dtype: torch.dtype) -> Tensor | None:
        """Return the stack, or None unless these are its samples in their order, and no other tensor uses a row."""
        stack = self._stack
        if stack is None or self._used != len(addresses) or (stack.dtype, stack.shape[1:]) != (dtype, shape):
            return None
        start, size = stack.data_ptr(), stack.stride(0) * stack.itemsize
        if list(addresses) != list(range(start, start + len(addresses) * size, size)):
            return None
        if any(reference() is not None for reference in self._references):
            self._pool.has_kept_rows = True
            return None
        return stack if self._used == self._num_samples else stack[: self._used]

    def _next_row(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor | None:
        """Return the next row if there is one and it has this shape and dtype."""
        if self._stack is None:
            self._stack = self._pool.take((self._num_samples, *shape), dtype)
        stack = self._stack
        if self._used == self._num_samples or stack.shape[1:] != tuple(shape) or stack.dtype != dtype:
            return None
        return stack[self._used]

    def _moved_tensor(self, value: Any) -> Any:
        kind = type(value)
        if kind is not Tensor and kind.__module__ != "torchvision.tv_tensors._image":
            return value
        with torch._C.DisableTorchFunction():
            # first whether it has bytes at all: sparse, nested and quantized tensors are stacked by torch, or refused
            usual = value.is_cpu and value.layout is torch.strided and not value.is_quantized
            if not usual or value.nbytes < LARGE_BYTES or value.requires_grad:
                return value
            is_turned = not value.is_contiguous() and value.ndim == 3  # an image, channels last
            plain = value.permute(1, 2, 0) if is_turned else value
            row = self._next_row(plain.shape, plain.dtype) if plain.is_contiguous() else None
            if row is None:
                return value
            if plain.data_ptr() == row.data_ptr():
                self._references.append(self._given)
                self._given = _unused
            elif self._given() is None:
                row.copy_(plain)
            else:
                return value
            self._used += 1
            if row.dtype in _DTYPES:
                self._pool.row = row.shape, row.dtype
            moved = row.permute(2, 0, 1) if is_turned else row
            return moved if kind is Tensor else moved.as_subclass(kind)
