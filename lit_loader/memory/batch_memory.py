"""Memory for batches: shared memory in a worker process that is making a batch, ordinary memory elsewhere.

Code that makes a tensor of a batch (a transform, a collate function) takes its memory from `empty`. In a worker
process that memory is shared with the main process, so that the batch is not copied on its way; anywhere else it is
that of ``torch.empty``. The values are the same either way.

Runs in: every process and thread; each thread has its own `BatchMemory`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

__all__ = ["BatchMemory", "LARGE_BYTES", "current", "empty", "is_channels_last", "using"]

LARGE_BYTES = 1 << 14
"""Smaller tensors are copied instead, which costs less than a page of shared memory for each."""


class BatchMemory(Protocol):
    """A source of memory for batches, such as a worker's part of the shared memory."""

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor | None:
        """Return a contiguous CPU tensor whose values are not set, or None if this memory has no room for it."""

    def rows(self, addresses: Sequence[int], shape: Sequence[int], dtype: torch.dtype) -> Tensor | None:
        """Return the stack of values as a view if they lie one after the other in this memory, or None.

        Args:
            addresses: Address of each value; all are contiguous and of one shape.
            shape: Of one value.
            dtype: Of its elements.
        """


class _Current(threading.local):
    memory: BatchMemory | None = None


_current = _Current()


def current() -> BatchMemory | None:
    """Return this thread's memory for batches, or None for ordinary memory."""
    return _current.memory


@contextlib.contextmanager
def using(memory: BatchMemory | None) -> Iterator[None]:
    """Take this thread's memory for batches from ``memory``, or from ordinary memory if it is None."""
    before, _current.memory = _current.memory, memory
    try:
        yield
    finally:
        _current.memory = before


def empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return memory for a tensor of a batch: contiguous, on the CPU, its values not set.

    Args:
        shape: Of the tensor.
        dtype: Of its values.
    """
    memory = _current.memory
    found = None if memory is None else memory.empty(shape, dtype)
    return torch.empty(tuple(shape), dtype=dtype, device="cpu") if found is None else found


def is_channels_last(image: Tensor) -> bool:
    """Return whether the values of each pixel of an image ``(C, H, W)`` lie side by side, and the pixels row by row."""
    return image.permute(1, 2, 0).is_contiguous()
