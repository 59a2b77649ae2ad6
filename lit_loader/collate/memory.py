"""Memory of batches: written to in place, and large pages for large batches.

NOTE [Huge pages]
    A batch of many megabytes is always fresh memory: glibc maps it for this batch and unmaps it after, so
    that every page is a fault while the batch is written, and the faults cost more than the copy (a stack
    of 64 float32 images of 3 x 224 x 224: 25 ms, with huge pages 7 ms, on the cores this was written on).
    Where transparent huge pages are ``always`` on or ``never``, the request changes nothing; numpy asks for
    its own arrays in the same way.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lit_loader import batch_memory

__all__ = ["HUGE_BYTES", "bytes_of", "new_batch", "stacked_already", "use_huge_pages"]

# At least one huge page of 2 MiB lies inside of so much memory, whatever its alignment.
HUGE_BYTES = 4 << 20

_MADV_HUGEPAGE = 14


def _find_madvise() -> Callable[[int, int, int], int] | None:
    if sys.platform != "linux":
        return None
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return madvise


_madvise = _find_madvise()


def bytes_of(batch: Tensor) -> Any:
    """Return the memory of a tensor that was just made, as a writable buffer that lives no longer than it.

    ``Tensor.numpy`` would do the same and leave a storage that cannot be resized, unlike torch's batches.

    Raises:
        TypeError: If the tensor has no memory in this process (the default device is another one, say).
    """
    if type(batch) is not Tensor or not batch.is_cpu:
        raise TypeError(f"a {type(batch).__name__} on {batch.device} has no memory here")
    return (ctypes.c_char * batch.nbytes).from_address(batch.data_ptr())


def new_batch(shape: Sequence[int], dtype: torch.dtype, device: str | None = None) -> Tensor:
    """Return memory for a large batch, its values not set: in a worker's slot, or of huge pages.

    Args:
        shape: Of the batch.
        dtype: Of its elements.
        device: Where it would be if it is not in a slot; None: the default device.
    """
    memory = batch_memory.current()
    batch = None if memory is None else memory.empty(shape, dtype)
    if batch is None:
        batch = torch.empty(tuple(shape), dtype=dtype, device=device)
        use_huge_pages(batch)
    return batch


def stacked_already(addresses: Sequence[int], shape: Sequence[int], dtype: torch.dtype) -> Tensor | None:
    """Return the stack of values that lie one behind the other in a slot; None: they do not.

    Args:
        addresses: Where each value begins, all contiguous and of one shape.
        shape: Of one value.
        dtype: Of its elements.
    """
    memory = batch_memory.current()
    return None if memory is None else memory.rows(addresses, shape, dtype)


def use_huge_pages(batch: Tensor) -> None:
    """Ask for huge pages under a CPU tensor of `HUGE_BYTES` or more that nothing was written to yet.

    See NOTE [Huge pages].
    """
    if _madvise is None or batch.nbytes < HUGE_BYTES or batch.device.type != "cpu":
        return
    first = -(-batch.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (batch.data_ptr() + batch.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    _madvise(first, end - first, _MADV_HUGEPAGE)  # advice: where it is refused, small pages serve
