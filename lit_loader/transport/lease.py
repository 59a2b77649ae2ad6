"""The bytes of a slot as a reader or writer of it holds them, and tensors that are rows of it."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lit_loader.batch_memory import LARGE_BYTES
from lit_loader.transport.layout import ALIGNMENT
from lit_loader.transport.mapping import Mapping
from lit_loader.transport.memory_file import WINDOW_BYTES

__all__ = ["Lease", "lease_of", "merged", "stack_of_rows"]

_Window = ctypes.c_uint8 * WINDOW_BYTES


class Lease(np.ndarray[Any, Any]):
    """The bytes of a slot. Every tensor and array that lies in it holds on to this.

    Attributes:
        mapping: Keeps the bytes where they are.
        ticket: Keeps the slot, for a reader; None: there is no need to.
        stretches: Start and end of what a reader uses.
    """

    mapping: Mapping
    ticket: Any
    stretches: list[tuple[int, int]]

    def holds(self, address: int) -> bool:
        """Whether an address is one of these bytes'."""
        return 0 <= address - self.mapping.address < WINDOW_BYTES


def lease_of(mapping: Mapping) -> Lease:
    """Return the bytes of a mapping of `WINDOW_BYTES`."""
    window: Any = _Window.from_address(mapping.address)
    lease: Lease = np.frombuffer(window, np.uint8).view(Lease)
    lease.mapping, lease.ticket, lease.stretches = mapping, None, []
    return lease


def merged(places: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return start and end of the stretches that places (offset and length of each) make up, neighbours as one."""
    found: list[tuple[int, int]] = []
    for offset, length in sorted(places):
        if found and offset < found[-1][1] + ALIGNMENT:
            found[-1] = (found[-1][0], max(found[-1][1], offset + length))
        else:
            found.append((offset, offset + length))
    return found


def stack_of_rows(
    lease: Lease, addresses: Sequence[int], shape: Sequence[int], dtype: torch.dtype
) -> Tensor | None:
    """Return the tensor that values one behind the other in a slot make up; None: they are not so, or elsewhere.

    Args:
        lease: The slot's bytes.
        addresses: Where each value begins.
        shape: Of one value.
        dtype: Of its elements.
    """
    size, first = math.prod(shape) * dtype.itemsize, addresses[0]
    if size < LARGE_BYTES or not lease.holds(first):
        return None
    if any(address != first + n * size for n, address in enumerate(addresses)):
        return None
    memory: Any = lease
    count = len(addresses) * math.prod(shape)
    stack = torch.frombuffer(memory, dtype=dtype, count=count, offset=first - lease.mapping.address)
    return stack.view(len(addresses), *shape)
