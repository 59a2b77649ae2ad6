"""torch's default collation: the same results with less work per sample.

Samples are transposed by C loops into columns, the values of one field over all samples. A column of one exact type
becomes a tensor here, written once: into a worker's shared memory if the batch is made there. Any other column goes to
torch's function for its type, which keeps torch's results and errors for mixed types. Structures other than tuple,
named tuple, list and dict go through torch's ``collate``, which keeps their type, with this module's functions for the
columns inside. No function here allocates torch's shared memory, because the worker has its own way to send a batch.

NOTE [Huge pages]
    A batch of many megabytes is always new memory: glibc maps it for this batch and unmaps it afterwards. So every page
    costs a page fault while the batch is written, and the faults cost more than the copy: stacking 64 float32 images
    of 3 x 224 x 224 took 25 ms, and 7 ms with huge pages. If transparent huge pages are set to ``always`` or ``never``,
    the request has no effect. numpy makes the same request for its own arrays.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter, countOf, itemgetter
from types import FunctionType
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate as torch_default_collate
from torch.utils.data import default_convert
from torch.utils.data._utils import collate as torch_collate

from lit_loader.memory import batch_memory
from lit_loader.memory.batch_memory import LARGE_BYTES, is_channels_last

HUGE_BYTES: Final = 4 << 20
"""Memory of this size contains at least one whole huge page of 2 MiB, at any alignment."""

_MADV_HUGEPAGE: Final = 14

_FLOATS: Final = (np.float16, np.float32, np.float64, np.complex64, np.complex128)
_INTEGERS: Final = (np.bool_, np.uint8, np.int8, np.int16, np.int32, np.int64)
_SCALARS: Final[dict[type, torch.dtype]] = {
    kind: torch.from_numpy(np.empty(0, kind)).dtype for kind in (*_FLOATS, *_INTEGERS)
}
_ARRAYS: Final = {np.dtype(scalar): dtype for scalar, dtype in _SCALARS.items()}
_NUMBERS: Final = {**_SCALARS, bool: torch.bool, int: torch.int64, float: torch.float64}

_madvise = ctypes.CDLL(None).madvise if sys.platform == "linux" else None
if _madvise is not None:
    _madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

_tensor_properties = attrgetter("shape", "dtype", "device", "layout", "requires_grad")
_array_properties = attrgetter("dtype", "strides")

# Errors of a fast path that is not possible (sizes differ, a number is too large, the default device is not the CPU).
# Then torch's function is called for its own result or error.
_UNSUITABLE: Final = (TypeError, ValueError, RuntimeError, OverflowError)


def default_collate(batch: Any) -> Any:
    """Collate a list of samples to the same result as ``torch.utils.data.default_collate``.

    A loader uses it instead of torch's function. Call it in your own collate functions, too
    (``from lit_loader.collate import default_collate``): in a worker, torch's function stacks tensors in new shared
    memory, from which the batch is copied once more, and fails if /dev/shm is too small. This one stacks in the memory
    of the batch, and does not copy samples that already form a stack there.

    Entries that the user has added to torch's ``default_collate_fn_map`` are used.

    Args:
        batch: Samples: tensors, numpy arrays, numbers, strings, nested in mappings and sequences.

    Raises:
        TypeError: If a sample is none of these.
        RuntimeError: If tensors or sequences differ in size.
    """
    user_table = torch_collate.default_collate_fn_map
    if user_table == _TORCH_TABLE:
        return _collate(batch)
    table = {kind: _REPLACEMENTS.get(function, function) for kind, function in user_table.items()}
    if table.get(Tensor) is not collate_tensors and np.ndarray in table:
        # torch's function for arrays converts them to tensors, which it collates by the user's entry for tensors.
        table[np.ndarray] = user_table[np.ndarray]
    return torch_collate.collate(batch, collate_fn_map=table)


def _collate(batch: Any) -> Any:
    first = batch[0]
    kind = type(first)
    # One lookup; torch calls isinstance for each entry of its table.
    function = _BY_EXACT_TYPE.get(kind)
    if function is not None:
        return function(batch, collate_fn_map=_TABLE)
    if kind is tuple or kind is list:
        try:
            columns = list(zip(*batch, strict=True))
        except (TypeError, ValueError):
            # Lengths differ, or a sample cannot be iterated: torch's function raises its own error.
            return torch_collate.collate(batch, collate_fn_map=_TABLE)
        return list(map(_collate, columns))
    if kind is dict:
        # The keys of the first sample, as in torch: others are ignored, and missing ones raise KeyError.
        return {key: _collate(list(map(itemgetter(key), batch))) for key in first}
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return kind(*map(_collate, zip(*batch, strict=False)))
    return torch_collate.collate(batch, collate_fn_map=_TABLE)


def replace_torch_collate(collate_fn: Any) -> Any:
    """Return this module's `default_collate` instead of torch's; any other collate function unchanged."""
    return default_collate if collate_fn is torch_default_collate else collate_fn


def is_builtin_collate(collate_fn: Any) -> bool:
    """Return True for lit_loader's collate functions and torch's defaults, which draw no random numbers.

    False for user subclasses of lit_loader's, and for default collation while the user has entries in torch's
    ``default_collate_fn_map``, because those may draw; and for collation that mixes a batch, which draws.
    """
    # The arguments of a partial do not change whether its function draws.
    while isinstance(collate_fn, partial):
        collate_fn = collate_fn.func
    if collate_fn in (torch_default_collate, default_collate):
        return torch_collate.default_collate_fn_map == _TORCH_TABLE
    if collate_fn is default_convert:
        return True
    if getattr(collate_fn, "mixing", None) is not None:
        return False
    definition = collate_fn if isinstance(collate_fn, FunctionType) else type(collate_fn)
    return str(getattr(definition, "__module__", "")).startswith("lit_loader.collate")


def collate_tensors(column: Sequence[Any], *, collate_fn_map: Any = None) -> Any:
    """Stack tensors along a new first dimension.

    Raises:
        RuntimeError: If sizes differ, or tensors are nested or sparse.
    """
    first = column[0]
    if first.is_nested or first.layout is not torch.strided:
        return torch_collate.collate_tensor_fn(column, collate_fn_map=collate_fn_map)
    # Below these sizes torch.stack in ordinary memory is faster than checking every tensor of the column.
    min_bytes = HUGE_BYTES if batch_memory.current() is None else LARGE_BYTES
    if first.nbytes * len(column) >= min_bytes:
        plain = _as_uniform_tensors(column)
        if plain is not None:
            return stack_tensors(plain)
    return torch.stack(column, 0)  # type: ignore[arg-type]


def collate_arrays(column: Sequence[Any], *, collate_fn_map: Any = None) -> Any:
    """Stack numpy arrays along a new first dimension.

    Raises:
        RuntimeError: If sizes differ.
        TypeError: If the arrays hold strings or objects.
        ValueError: If strides are negative.
    """
    first = column[0]
    dtype = _ARRAYS.get(first.dtype)
    if dtype is not None and _are_uniform_arrays(column):
        memory = batch_memory.current()
        if memory is not None and first.nbytes >= LARGE_BYTES:
            addresses = [array.__array_interface__["data"][0] for array in column]
            rows = memory.rows(addresses, first.shape, dtype)
            if rows is not None:
                return rows
        try:
            batch = empty_batch((len(column), *first.shape), dtype)
            # numpy copies all arrays in one C loop, without a tensor for each of them.
            np.frombuffer(_buffer_of(batch), first.dtype).reshape(batch.shape)[...] = column
            return batch
        except _UNSUITABLE:
            pass
    return torch_collate.collate_numpy_array_fn(column, collate_fn_map=collate_fn_map)


def collate_numbers(column: Sequence[Any], *, collate_fn_map: Any = None) -> Any:
    """Collate Python numbers to a tensor of bool, int64 or float64, and numpy scalars to one of their own dtype.

    Raises:
        ValueError: If an int does not fit into 64 bits.
        TypeError: If a value is not a number.
    """
    kind = type(column[0])
    dtype = _NUMBERS.get(kind)
    # True is an int, and torch decides by the first value; a mixed column goes to torch for the same result.
    if dtype is not None and _are_all(kind, column):
        try:
            batch = torch.empty(len(column), dtype=dtype)
            np.frombuffer(_buffer_of(batch), kind)[...] = column
            return batch
        except _UNSUITABLE:
            pass
    return torch_default_collate(column)  # type: ignore[arg-type] # a tuple is a column too


def stack_tensors(tensors: Sequence[Tensor]) -> Tensor:
    """Stack plain CPU tensors of one shape and dtype, without grad, in the memory of batches.

    Nothing is copied if the tensors already form their stack in a worker's shared memory.
    """
    first = tensors[0]
    memory = batch_memory.current()
    # Memory of a conjugated tensor holds the values before conjugation, so the view would be wrong.
    if memory is not None and all(map(Tensor.is_contiguous, tensors)) and not any(map(Tensor.is_conj, tensors)):
        rows = memory.rows(list(map(Tensor.data_ptr, tensors)), first.shape, first.dtype)
        if rows is not None:
            return rows
    batch = empty_batch((len(tensors), *first.shape), first.dtype, "cpu")
    return torch.stack(tensors, 0, out=batch)  # type: ignore[arg-type]


def empty_batch(shape: Sequence[int], dtype: torch.dtype, device: str | None = None) -> Tensor:
    """Return an uninitialised tensor for a large batch: in a worker's shared memory, or in huge pages.

    See NOTE [Huge pages].

    Args:
        shape: Shape of the batch.
        dtype: Dtype of the batch.
        device: Device if the batch is not in shared memory; None for the default device.
    """
    memory = batch_memory.current()
    batch = None if memory is None else memory.empty(shape, dtype)
    if batch is not None:
        return batch
    batch = torch.empty(tuple(shape), dtype=dtype, device=device)
    if _madvise is not None and batch.nbytes >= HUGE_BYTES and batch.is_cpu:
        # madvise() takes whole pages: the start is rounded up and the end down, so that no other memory is affected.
        start = -(-batch.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (batch.data_ptr() + batch.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
        _madvise(start, end - start, _MADV_HUGEPAGE)  # only advice: if the kernel refuses, small pages are used
    return batch


def _buffer_of(batch: Tensor) -> Any:
    """Return the memory of a new tensor as a writable buffer, valid as long as the tensor exists.

    Raises:
        TypeError: If the tensor has no memory on the CPU, for example because of another default device.
    """
    # Not `Tensor.numpy`, which makes the storage non-resizable; batches of torch's function can be resized.
    if type(batch) is not Tensor or not batch.is_cpu:
        raise TypeError(f"expected a plain CPU tensor, got a {type(batch).__name__} on {batch.device}")
    return (ctypes.c_char * batch.nbytes).from_address(batch.data_ptr())


def _are_all(kind: type, column: Sequence[Any]) -> bool:
    return countOf(map(type, column), kind) == len(column)


def _as_uniform_tensors(column: Sequence[Any]) -> Sequence[Tensor] | None:
    """Return a column as plain CPU tensors, or None unless they differ only in values and their stack is contiguous.

    torchvision's own types count as plain tensors, because stacking them returns a plain tensor, unless the user has
    set torchvision to keep its types.
    """
    kind = type(column[0])
    if not _are_all(kind, column):
        return None
    if kind is not Tensor:
        if not kind.__module__.startswith("torchvision.tv_tensors"):
            return None
        helpers = sys.modules["torchvision.tv_tensors"]._torch_function_helpers
        # The setting of `set_return_type`, in the place where torchvision itself reads it.
        if getattr(helpers, "_TORCHFUNCTION_SUBCLASS", True):
            return None
        with torch._C.DisableTorchFunctionSubclass():
            column = [tensor.as_subclass(Tensor) for tensor in column]
    first = column[0]
    if not first.is_cpu or first.requires_grad:
        return None
    if countOf(map(_tensor_properties, column), _tensor_properties(first)) != len(column):
        return None
    # With other strides, torch's stack may be channels last.
    are_contiguous = all(map(Tensor.is_contiguous, column))
    if are_contiguous or (first.ndim == 3 and all(map(is_channels_last, column))):
        return column
    return None


def _are_uniform_arrays(arrays: Sequence[Any]) -> bool:
    """Return True for plain numpy arrays of one dtype and one contiguous layout."""
    first = arrays[0]
    # A stride of a broadcast array is 0, and a negative one is torch's error to raise.
    return (
        first.flags.c_contiguous
        and min(first.strides, default=0) >= 0
        and _are_all(np.ndarray, arrays)
        and countOf(map(_array_properties, arrays), _array_properties(first)) == len(arrays)
    )


_REPLACEMENTS: Final[dict[Callable[..., Any], Callable[..., Any]]] = {
    torch_collate.collate_tensor_fn: collate_tensors,
    torch_collate.collate_numpy_array_fn: collate_arrays,
    torch_collate.collate_numpy_scalar_fn: collate_numbers,
    torch_collate.collate_float_fn: collate_numbers,
    torch_collate.collate_int_fn: collate_numbers,
}
# torch's own entries. Others in its table are the user's, also those that were added before this import.
_TORCH_TABLE: Final = {
    kind: function
    for kind, function in torch_collate.default_collate_fn_map.items()
    if function.__module__ == torch_collate.__name__
}
_TABLE: Final = {kind: _REPLACEMENTS.get(function, function) for kind, function in _TORCH_TABLE.items()}
_BY_EXACT_TYPE: Final = {
    **{kind: function for kind, function in _TABLE.items() if isinstance(kind, type)},
    **dict.fromkeys(_NUMBERS, collate_numbers),
}
