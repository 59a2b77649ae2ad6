"""One column of a batch, the values of one field over all samples, to a tensor.

Each function takes its short way only for a column that it knows to the last value (all of one exact
type); any other it leaves to torch's function for that type, so that mixed types, errors and their messages
are torch's. None allocates shared memory: a worker's batch goes through our own transport.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Sequence
from operator import attrgetter, countOf
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data._utils import collate as torch_collate

from lit_loader import batch_memory
from lit_loader.batch_memory import LARGE_BYTES
from lit_loader.collate.memory import HUGE_BYTES, bytes_of, new_batch, stacked_already

__all__ = ["Column", "collate_arrays", "collate_numbers", "collate_scalars", "collate_tensors"]

Column: TypeAlias = Sequence[Any]

# What numbers become, and the code by which struct writes them: a third of the time of any other way.
_NUMBERS: dict[type, tuple[torch.dtype, str]] = {
    bool: (torch.bool, "?"),
    int: (torch.int64, "q"),
    float: (torch.float64, "d"),
}
_SCALARS: dict[type, torch.dtype] = {
    np.bool_: torch.bool,
    np.uint8: torch.uint8,
    np.int8: torch.int8,
    np.int16: torch.int16,
    np.int32: torch.int32,
    np.int64: torch.int64,
    np.float16: torch.float16,
    np.float32: torch.float32,
    np.float64: torch.float64,
    np.complex64: torch.complex64,
    np.complex128: torch.complex128,
}
_DTYPES = {np.dtype(scalar): dtype for scalar, dtype in _SCALARS.items()}
_dtype, _strides = attrgetter("dtype"), attrgetter("strides")

# Raised where a short way does not lead through (sizes differ, a number is too large, the default device is
# another one); torch's function then gives its own result or error.
_NO_WAY = (TypeError, ValueError, RuntimeError, OverflowError, struct.error)


def collate_tensors(column: Column, *, collate_fn_map: Any = None) -> Tensor:
    """Stack tensors along a new first dimension.

    Raises:
        RuntimeError: Sizes differ, or tensors are nested or sparse.
    """
    first = column[0]
    if first.is_nested or first.layout is not torch.strided:
        return _by_torch(torch_collate.collate_tensor_fn, column, collate_fn_map)
    least = HUGE_BYTES if batch_memory.current() is None else LARGE_BYTES
    if first.nbytes * len(column) >= least and (plain := _as_plain(column)) is not None and _are_alike(plain):
        first = plain[0]
        addresses = [tensor.data_ptr() for tensor in plain]
        stack = stacked_already(addresses, first.shape, first.dtype)
        if stack is not None:
            return stack
        batch = new_batch((len(plain), *first.shape), first.dtype, "cpu")
        return torch.stack(plain, 0, out=batch)  # type: ignore[arg-type]
    return torch.stack(column, 0)  # type: ignore[arg-type]


def collate_arrays(column: Column, *, collate_fn_map: Any = None) -> Tensor:
    """Stack numpy arrays along a new first dimension.

    Raises:
        RuntimeError: Sizes differ.
        TypeError: The arrays hold strings or objects.
        ValueError: Strides are negative.
    """
    first = column[0]
    dtype = _DTYPES.get(first.dtype)
    if dtype is not None and _are_arrays_alike(column):
        if first.nbytes >= LARGE_BYTES and batch_memory.current() is not None:
            addresses = [array.__array_interface__["data"][0] for array in column]
            stack = stacked_already(addresses, first.shape, dtype)
            if stack is not None:
                return stack
        try:
            batch = new_batch((len(column), *first.shape), dtype)
            np.frombuffer(bytes_of(batch), first.dtype).reshape(batch.shape)[...] = column
            return batch
        except _NO_WAY:
            pass
    return _by_torch(torch_collate.collate_numpy_array_fn, column, collate_fn_map)


def collate_scalars(column: Column, *, collate_fn_map: Any = None) -> Tensor:
    """Make a tensor of numpy scalars."""
    kind = type(column[0])
    dtype = _SCALARS.get(kind)
    if dtype is not None and _are_all(kind, column):
        try:
            batch = torch.empty(len(column), dtype=dtype)
            np.frombuffer(bytes_of(batch), kind)[...] = column
            return batch
        except _NO_WAY:
            pass
    return _by_torch(torch_collate.collate_numpy_scalar_fn, column, collate_fn_map)


def collate_numbers(column: Column, *, collate_fn_map: Any = None) -> Tensor:
    """Make a tensor of Python's numbers: bool, int64 or, of a column that begins with a float, float64.

    Raises:
        ValueError: An int does not fit into 64 bits.
        TypeError: Something is no number.
    """
    kind = type(column[0])
    if kind in _NUMBERS and _are_all(kind, column):
        dtype, code = _NUMBERS[kind]
        try:
            batch = torch.empty(len(column), dtype=dtype)
            struct.pack_into(f"{len(column)}{code}", bytes_of(batch), 0, *column)
            return batch
        except _NO_WAY:
            pass
    torchs = torch_collate.collate_float_fn if isinstance(column[0], float) else torch_collate.collate_int_fn
    return _by_torch(torchs, column, collate_fn_map)


def _by_torch(function: Callable[..., Any], column: Column, collate_fn_map: Any) -> Tensor:
    collated: Tensor = function(column, collate_fn_map=collate_fn_map)
    return collated


def _are_all(kind: type, column: Column) -> bool:
    return countOf(map(type, column), kind) == len(column)


def _as_plain(tensors: Column) -> Column | None:
    """Return a column as plain tensors, if that is what their stack is: so it is for torchvision's own types.

    None: they are of another subclass, or torchvision was told that operations keep its types.
    """
    kind = type(tensors[0])
    if kind is Tensor:
        return tensors
    if not kind.__module__.startswith("torchvision.tv_tensors") or not _are_all(kind, tensors):
        return None
    with torch._C.DisableTorchFunctionSubclass():
        plain = [tensor.as_subclass(Tensor) for tensor in tensors]
    keeps = sys.modules["torchvision.tv_tensors"]._torch_function_helpers  # as torchvision asks it
    return None if getattr(keeps, "_TORCHFUNCTION_SUBCLASS", True) else plain


def _are_alike(tensors: Column) -> bool:
    """Whether tensors can be written into one batch that is made for the first of them."""
    first = tensors[0]
    return first.device.type == "cpu" and all(
        type(tensor) is Tensor
        and tensor.shape == first.shape
        and tensor.dtype is first.dtype
        and tensor.device == first.device
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and not tensor.requires_grad
        for tensor in tensors
    )


def _are_arrays_alike(arrays: Column) -> bool:
    """Whether plain arrays have one dtype and one layout, which torch would take and keep as it is."""
    first = arrays[0]
    return (
        first.flags.c_contiguous
        and min(first.strides, default=0) >= 0
        and _are_all(np.ndarray, arrays)
        and countOf(map(_dtype, arrays), first.dtype) == len(arrays)
        and countOf(map(_strides, arrays), first.strides) == len(arrays)
    )
