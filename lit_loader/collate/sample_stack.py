"""The stack of a batch's samples in a worker thread, written sample by sample.

NOTE [Samples in threads]
    If all samples of a batch wait in memory of their own, each of their pages costs a page fault, and the samples have
    left the CPU's caches when they are stacked: 0.5 ms per float32 image of 3 x 224 x 224, a third of its decoding.
    So a transform that allocates batch memory writes the sample straight into its row of the stack. The large tensor
    of any other sample is copied into its row at once, which frees the sample's memory for the next one. The memory of
    a batch is reused when nothing refers to it. (Worker processes have slots instead, and keep freed memory.)
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
"""A weak reference to the memory of a row; it returns None when no tensor uses the row any more."""

_IMAGE_DTYPES: Final = (torch.uint8, torch.float32)
"""Dtypes of rows that `SampleStack.empty` hands out."""

_Row: TypeAlias = tuple[tuple[int, ...], torch.dtype]


def _unused() -> None:
    """Return None, as the weak reference to a row that no tensor uses."""


def stacks_samples(collate_fn: Any) -> bool:
    """Return True if a collate function is a built-in one that stacks the large tensors of samples."""
    settings: dict[str, Any] = {}
    function = collate_fn
    while isinstance(function, partial):
        settings = {**function.keywords, **settings}  # keywords of the outer partial win
        function = function.func
    images = settings.get("images", getattr(function, "images", "stack"))
    return is_builtin_collate(collate_fn) and images == "stack"


class StackPool:
    """Memory of stacks for reuse, shared by the worker threads of a loader; see NOTE [Samples in threads].

    Runs in: all worker threads of a loader.

    Args:
        num_kept: Number of unused stacks that keep their memory.

    Attributes:
        row: Shape and dtype of the last sample that was stacked; None before the first.
        has_kept_rows: True after the dataset kept a row of `SampleStack.empty`. No rows are handed out from then on,
            because a kept row keeps the whole stack.
    """

    def __init__(self, num_kept: int) -> None:
        self.row: _Row | None = None
        self.has_kept_rows = False
        self._num_kept = num_kept
        self._lock = threading.Lock()
        self._free: list[_Memory] = []
        # Memory in use, with a reference to a view of it that every tensor in it keeps alive.
        self._used: list[tuple[_Memory, weakref.ref[_Memory]]] = []

    def take(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return an uninitialised contiguous CPU tensor."""
        # Plain bytes, because only the size decides whether memory fits another batch.
        num_bytes = math.prod(shape) * dtype.itemsize
        with self._lock:
            free = self._free
            used = []
            for memory, lease in self._used:
                if lease() is None:
                    free.append(memory)
                else:
                    used.append((memory, lease))
            # Memory of another size is dropped: the size of batches has changed.
            free = [memory for memory in free if memory.nbytes == num_bytes]
            memory = free.pop() if free else np.empty(num_bytes, dtype=np.uint8)
            # Tensors refer to the view and not to the memory itself, which the pool keeps alive.
            view = memory[:]
            self._free = free[: self._num_kept]
            self._used = [*used, (memory, weakref.ref(view))]
        return torch.from_numpy(view).view(dtype).view(*shape)


class SampleStack:
    """The `lit_loader.memory.batch_memory.BatchMemory` of a worker thread: see NOTE [Samples in threads].

    Args:
        num_samples: Number of samples of the batch.
        pool: Source of its memory.

    Runs in: one worker thread, for one batch.
    """

    def __init__(self, num_samples: int, pool: StackPool) -> None:
        self._num_samples = num_samples
        self._num_used = 0  # rows that hold a sample
        self._pool = pool
        self._stack: Tensor | None = None
        self._making_samples = True
        self._next_reference: _Reference = _unused  # to the next row, if `empty` has handed it out
        self._references: list[_Reference] = []  # to rows that were handed out and have become samples

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor | None:
        """Return memory of the next row.

        Returns:
            A tensor, or None: samples have another shape or dtype or none was stacked yet, the row is in use, all
            samples are made, or the dataset keeps rows.
        """
        pool = self._pool
        # Only the shape of an earlier sample: a transform may also allocate an image that it resizes afterwards.
        if pool.row != (tuple(shape), dtype) or pool.has_kept_rows:
            return None
        if not self._making_samples or self._next_reference() is not None:
            return None
        row = self._next_row(shape, dtype)
        if row is None:
            return None
        # Tensors of the caller keep this array alive, so the reference tells whether the row is still in use.
        array = row.numpy()
        self._next_reference = weakref.ref(array)
        return torch.from_numpy(array)

    def moved(self, sample: Any) -> Any:
        """Move the first large tensor of a sample into the stack; return a sample without one unchanged."""
        if type(sample) is not tuple:
            return self._moved_tensor(sample)
        for index, value in enumerate(sample):
            moved = self._moved_tensor(value)
            if moved is not value:
                return (*sample[:index], moved, *sample[index + 1 :])
        return sample

    def end_samples(self) -> None:
        """Stop handing out rows, because the collate function allocates memory from here on."""
        self._making_samples = False

    def rows(self, addresses: Sequence[int], shape: Sequence[int], dtype: torch.dtype) -> Tensor | None:
        """Return the stack, or None unless these are its samples in order and no other tensor uses a row."""
        stack = self._stack
        if stack is None or self._num_used != len(addresses):
            return None
        if (stack.dtype, stack.shape[1:]) != (dtype, shape):
            return None
        start = stack.data_ptr()
        size = stack.stride(0) * stack.itemsize
        # In order and without gaps: the collate function may have left out or repeated samples.
        if list(addresses) != list(range(start, start + len(addresses) * size, size)):
            return None
        # The dataset keeps a sample that it returned, so the batch must be a copy, like every other stack.
        if any(reference() is not None for reference in self._references):
            self._pool.has_kept_rows = True
            return None
        return stack if self._num_used == self._num_samples else stack[: self._num_used]

    def _next_row(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor | None:
        """Return the next row, or None if the stack is full or has another shape or dtype."""
        if self._stack is None:
            self._stack = self._pool.take((self._num_samples, *shape), dtype)
        stack = self._stack
        if self._num_used == self._num_samples or stack.shape[1:] != tuple(shape) or stack.dtype != dtype:
            return None
        return stack[self._num_used]

    def _moved_tensor(self, value: Any) -> Any:
        kind = type(value)
        # Other subclasses may override how they are stacked.
        if kind is not Tensor and kind.__module__ != "torchvision.tv_tensors._image":
            return value
        with torch._C.DisableTorchFunction():
            # Checked first, because sparse and nested tensors have no `nbytes`. torch stacks them, or refuses.
            is_dense = value.is_cpu and value.layout is torch.strided and not value.is_quantized
            if not is_dense or value.nbytes < LARGE_BYTES or value.requires_grad:
                return value
            is_channels_last = not value.is_contiguous() and value.ndim == 3
            plain = value.permute(1, 2, 0) if is_channels_last else value
            row = self._next_row(plain.shape, plain.dtype) if plain.is_contiguous() else None
            if row is None:
                return value
            if plain.data_ptr() == row.data_ptr():  # written there by the transform
                self._references.append(self._next_reference)
                self._next_reference = _unused
            elif self._next_reference() is None:
                row.copy_(plain)
            else:
                return value  # another tensor of the dataset uses the row
            self._num_used += 1
            if row.dtype in _IMAGE_DTYPES:
                self._pool.row = row.shape, row.dtype
            moved = row.permute(2, 0, 1) if is_channels_last else row
            return moved if kind is Tensor else moved.as_subclass(kind)
