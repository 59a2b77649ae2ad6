"""Memory for batches: shared memory in a worker process that is making a batch, ordinary memory elsewhere.

Code that creates a tensor of a batch (a transform, a collate function) allocates it with `empty`. In a worker process
that memory is shared with the main process, which saves a copy; anywhere else `empty` is ``torch.empty``. The values
are the same either way.

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
"""Size from which tensors use shared memory. Copying smaller ones costs less than a page of shared memory each."""


class BatchMemory(Protocol):
    """A source of memory for batches, such as a slot of shared memory."""

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor | None:
        """Return an uninitialised contiguous CPU tensor, or None if this memory has no room for it."""

    def rows(self, addresses: Sequence[int], shape: Sequence[int], dtype: torch.dtype) -> Tensor | None:
        """Return the stack of several tensors as a view, or None unless they follow each other in this memory.

        Args:
            addresses: Address of each tensor; all are contiguous and of one shape.
            shape: Shape of one tensor.
            dtype: Their common dtype.
        """


class _Current(threading.local):
    memory: BatchMemory | None = None


_current = _Current()


def current() -> BatchMemory | None:
    """Return this thread's memory for batches, or None for ordinary memory."""
    return _current.memory


@contextlib.contextmanager
def using(memory: BatchMemory | None) -> Iterator[None]:
    """Allocate this thread's batches in ``memory`` within the block, or in ordinary memory if it is None."""
    previous = _current.memory
    _current.memory = memory
    try:
        yield
    finally:
        _current.memory = previous


def empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return an uninitialised tensor of a batch, contiguous and on the CPU.

    Args:
        shape: Shape of the tensor.
        dtype: Dtype of the tensor.
    """
    memory = _current.memory
    tensor = None if memory is None else memory.empty(shape, dtype)
    # The slot may be full. device: a default device set by the user must not apply to batches.
    return torch.empty(tuple(shape), dtype=dtype, device="cpu") if tensor is None else tensor


def is_channels_last(image: Tensor) -> bool:
    """Return True if an image of shape ``(C, H, W)`` is stored as contiguous ``(H, W, C)``."""
    return image.permute(1, 2, 0).is_contiguous()
