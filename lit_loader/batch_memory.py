"""Memory for what goes into a batch: a worker process's slot of shared memory, or ordinary memory elsewhere.

Who makes a tensor that becomes (part of) a batch asks here. In a worker process that is making a batch the answer
lies in the memory that the main process reads, so that nothing is copied on the way; anywhere else it is
``torch.empty``. The values are the same either way.

Runs in: every process and thread; each thread has its own source.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

__all__ = ["BatchMemory", "LARGE_BYTES", "current", "empty", "using"]

LARGE_BYTES = 1 << 14
"""Smaller tensors are copied as often as it takes; to touch a page of shared memory for them would cost more."""


class BatchMemory(Protocol):
    """Gives memory for batches."""

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor | None:
        """Return a contiguous CPU tensor whose values are not set; None: there is no more memory of this kind."""

    def rows(self, addresses: Sequence[int], shape: Sequence[int], dtype: torch.dtype) -> Tensor | None:
        """Return the batch of values that lie one behind the other in this memory; None: they do not.

        Args:
            addresses: Where each value begins, all contiguous and of one shape.
            shape: Of one value.
            dtype: Of its elements.
        """


class _Current(threading.local):
    memory: BatchMemory | None = None


_current = _Current()


def current() -> BatchMemory | None:
    """Return where this thread takes memory for batches; None: ordinary memory."""
    return _current.memory


@contextlib.contextmanager
def using(memory: BatchMemory | None) -> Iterator[None]:
    """Take memory for batches from ``memory`` in this thread."""
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
