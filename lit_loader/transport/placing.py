"""Samples moved into the slot one by one, while they are still in the caches and before the next one is made.

NOTE [Why at once]
    A batch that is held until its last sample is there and copied then has left the caches, and its samples are given
    back to the system and taken again. Moved at once, a sample's own memory is free for the next one.

Moved are contiguous CPU tensors and numpy arrays of `LARGE_BYTES` or more, in tuples, named tuples, lists and dicts.
The collate function gets the moved ones. If what it makes of them is copied yet again (by a padding one, say), moving
does not pay, and ends.

Runs in: a worker process's main thread.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from lit_loader.batch_memory import LARGE_BYTES
from lit_loader.transport.layout import Layout
from lit_loader.transport.pickled import NUMPY_DTYPES, is_plain
from lit_loader.transport.slot_writer import Place, SlotWriter

__all__ = ["Placing"]

_MOST_WASTED = 2  # batches in a row whose samples were moved for nothing
_TORCH_DTYPES = {torch.empty(0, dtype=dtype).numpy().dtype: dtype for dtype in NUMPY_DTYPES}


class Placing:
    """Moves the samples of the task in hand into its slot.

    Args:
        writer: Gives the memory.

    Attributes:
        layout: What all samples of the task so far have in common, or None if there is nothing large.
    """

    def __init__(self, writer: SlotWriter) -> None:
        self._writer = writer
        self.layout: Layout | None = None
        self._active = self._first = False
        self._num_moved = self._num_wasted = 0

    def open(self, place: Place) -> None:
        """Begin a task, whose samples will probably be laid out as those of the one before."""
        self._writer.open(place, self.layout)
        self._active = self._first = self._writer.is_open and self._num_wasted < _MOST_WASTED
        self._num_moved = 0
        self.layout = None

    def __call__(self, sample: Any) -> Any:
        """Return the sample, its large tensors moved; the next one goes to the next row."""
        if not self._active:
            return sample
        try:
            leaves = find_leaves(sample)
        except RecursionError:  # it contains itself
            leaves = []
        if self._first:
            self._first = False
            self._active = bool(leaves)
            self.layout = Layout(tuple(leaves)) if leaves else None
            if self.layout is not None and self._writer.layout != self.layout:
                self._writer.lay_out(self.layout)
        elif self.layout is not None and tuple(leaves) != self.layout.leaves:
            self.layout = None
        if leaves:
            sample = self._move(sample, {})
        self._writer.row += 1
        return sample

    def close(self) -> None:
        """End the task, after its answer was put together."""
        if self._num_moved:
            self._num_wasted = 0 if 2 * self._writer.num_found >= self._num_moved else self._num_wasted + 1
        self._active = False  # the next task may have no slot
        self._writer.close()

    def _move(self, data: Any, moved: dict[int, Any]) -> Any:
        """Return ``data`` with its large tensors moved, and itself if there are none in it."""
        kind = type(data)
        if kind is tuple or kind is list or _is_named(data):
            if id(data) not in moved:
                items = [self._move(item, moved) for item in data]
                same = all(new is old for new, old in zip(items, data, strict=True))
                moved[id(data)] = data if same else kind._make(items) if _is_named(data) else kind(items)
        elif kind is dict:
            if id(data) not in moved:
                fields = {key: self._move(value, moved) for key, value in data.items()}
                same = all(fields[key] is data[key] for key in fields)
                moved[id(data)] = data if same else fields
        elif not isinstance(data, (Tensor, np.ndarray)) or _leaf_of(data) is None:
            return data
        elif id(data) not in moved:
            moved[id(data)] = self._moved(data)
        return moved[id(data)]

    def _moved(self, data: Any) -> Any:
        if isinstance(data, np.ndarray):
            address, dtype = data.__array_interface__["data"][0], _TORCH_DTYPES[data.dtype]
            tensor = self._writer.take_in(address, data.shape, dtype)
            self._num_moved += 0 if tensor is None else data.nbytes
            return data if tensor is None else tensor.numpy()
        with torch._C.DisableTorchFunctionSubclass():
            tensor = self._writer.take_in(data.data_ptr(), data.shape, data.dtype)
            if tensor is None:
                return data
            self._num_moved += tensor.nbytes
            if type(data) is not Tensor:
                tensor = tensor.as_subclass(type(data))
            tensor.__dict__.update(data.__dict__)
            return tensor


def find_leaves(data: Any) -> list[tuple[torch.dtype, tuple[int, ...]]]:
    """Return dtype and shape of every large tensor in a sample, in order."""
    kind = type(data)
    if kind is tuple or kind is list or _is_named(data):
        return [leaf for item in data for leaf in find_leaves(item)]
    if kind is dict:
        return [leaf for value in data.values() for leaf in find_leaves(value)]
    leaf = _leaf_of(data) if isinstance(data, (Tensor, np.ndarray)) else None
    return [] if leaf is None else [leaf]


def _is_named(data: Any) -> bool:
    """Whether it is a named tuple that is its items and no more."""
    named = isinstance(data, tuple) and hasattr(data, "_fields") and hasattr(data, "_make")
    return named and not getattr(data, "__dict__", None)


def _leaf_of(data: Any) -> tuple[torch.dtype, tuple[int, ...]] | None:
    """Return dtype and shape of a tensor or array that can be moved and is worth it."""
    if isinstance(data, np.ndarray):
        dtype = _TORCH_DTYPES.get(data.dtype)
        fits = type(data) is np.ndarray and data.nbytes >= LARGE_BYTES and data.flags.c_contiguous
        return (dtype, data.shape) if fits and dtype is not None else None
    with torch._C.DisableTorchFunctionSubclass():
        if data.layout is not torch.strided or data.nbytes < LARGE_BYTES:
            return None
        if data.dtype not in NUMPY_DTYPES or not is_plain(data) or not data.is_contiguous():
            return None
        return data.dtype, tuple(data.shape)
