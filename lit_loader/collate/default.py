"""torch's default collation and conversion, result for result, with less work a sample.

Samples are turned into columns by C loops, and columns of one exact type into tensors by `columns`.
Structures other than tuple, named tuple, list and dict go through torch's ``collate``, which keeps their
type, with our functions for the columns inside of them.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import countOf, itemgetter
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_convert as torch_default_convert
from torch.utils.data._utils import collate as torch_collate

from lit_loader.collate.columns import (
    Column,
    collate_arrays,
    collate_numbers,
    collate_scalars,
    collate_tensors,
)

__all__ = ["default_collate", "default_convert", "has_torchs_table"]

_Functions = dict[type | tuple[type, ...], Callable[..., Any]]

_NUMPY_SCALARS = (np.bool_, np.number, np.object_)


def _keep(column: Column, *, collate_fn_map: Any = None) -> Column:
    return column


# torch's table as torch fills it, and the same with functions of ours: who adds to torch's table is heard.
_TORCHS: _Functions = {
    torch.Tensor: torch_collate.collate_tensor_fn,
    np.ndarray: torch_collate.collate_numpy_array_fn,
    _NUMPY_SCALARS: torch_collate.collate_numpy_scalar_fn,
    float: torch_collate.collate_float_fn,
    int: torch_collate.collate_int_fn,
    str: torch_collate.collate_str_fn,
    bytes: torch_collate.collate_str_fn,
}
_OURS: _Functions = {
    torch.Tensor: collate_tensors,
    np.ndarray: collate_arrays,
    _NUMPY_SCALARS: collate_scalars,
    float: collate_numbers,
    int: collate_numbers,
    str: _keep,
    bytes: _keep,
}
# By the exact type of a column's first value. Not torch's business and so never added to by a user.
_BY_TYPE: dict[type, Callable[..., Any]] = {
    **{kind: function for kind, function in _OURS.items() if isinstance(kind, type)},
    **dict.fromkeys((np.bool_, np.uint8, np.int8, np.int16, np.int32, np.int64), collate_scalars),
    **dict.fromkeys((np.float16, np.float32, np.float64, np.complex64, np.complex128), collate_scalars),
    bool: collate_numbers,
}
_AS_IT_IS = frozenset({torch.Tensor, int, float, bool, str, bytes, type(None)})


def default_collate(batch: Any) -> Any:
    """Return what ``torch.utils.data.default_collate`` returns for a list of samples.

    A loader takes it in the place of torch's. Call it, and not torch's, inside of a collate function of your own
    (``from lit_loader.collate import default_collate``): in a worker torch's stacks tensors in new shared memory of
    its own, from which a worker process's batch is copied once more, and fails where /dev/shm is too small; this one
    stacks in the process's own memory, or where the samples lie already.

    Entries that the user put into torch's ``default_collate_fn_map`` are honoured.

    Args:
        batch: Samples: tensors, numpy arrays, numbers, strings, nested in mappings and sequences.

    Raises:
        TypeError: If a sample is none of these.
        RuntimeError: If tensors or sequences differ in size.
    """
    if has_torchs_table():
        return _collate(batch)
    functions = torch_collate.default_collate_fn_map
    ours = {
        kind: _OURS[kind] if function is _TORCHS.get(kind) else function
        for kind, function in functions.items()
    }
    if ours.get(torch.Tensor) is not collate_tensors and np.ndarray in ours:
        ours[np.ndarray] = functions[np.ndarray]  # torch's sends the arrays, as tensors, through the table
    return torch_collate.collate(batch, collate_fn_map=ours)


def has_torchs_table() -> bool:
    """Whether torch's ``default_collate_fn_map`` is as torch fills it, without entries of the user's."""
    return torch_collate.default_collate_fn_map == _TORCHS


def _collate(batch: Any) -> Any:
    first = batch[0]
    kind = type(first)
    function = _BY_TYPE.get(kind)
    if function is not None:
        return function(batch, collate_fn_map=_OURS)
    if kind is tuple or kind is list:
        if _are_equally_long(batch):
            return [_collate(column) for column in zip(*batch, strict=False)]
    elif kind is dict:
        return {key: _collate(list(map(itemgetter(key), batch))) for key in first}
    elif isinstance(first, tuple) and hasattr(first, "_fields"):
        return kind(*map(_collate, zip(*batch, strict=False)))
    return torch_collate.collate(batch, collate_fn_map=_OURS)


def _are_equally_long(batch: Any) -> bool:
    try:
        return countOf(map(len, batch), len(batch[0])) == len(batch)
    except TypeError:  # something has no length; torch's error depends on what stands before it
        return False


def default_convert(data: Any) -> Any:
    """Return what ``torch.utils.data.default_convert`` returns: arrays and numpy scalars become tensors.

    A tensor made of an array shares its memory, as torch's does.

    Args:
        data: A sample, nested in mappings and sequences or not.
    """
    kind = type(data)
    if kind in _AS_IT_IS:
        return data
    if kind is tuple or kind is list:
        return [default_convert(item) for item in data]
    if kind is dict:
        return {key: default_convert(item) for key, item in data.items()}
    return torch_default_convert(data)  # type: ignore[no-untyped-call]
