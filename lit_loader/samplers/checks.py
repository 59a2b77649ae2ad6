"""Checks of arguments that several samplers share."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence, Sized
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lit_loader.types import IndexArray

__all__ = [
    "Weights",
    "checked_flag",
    "checked_int",
    "checked_integers",
    "checked_number",
    "checked_source",
    "checked_weights",
]

Weights = Sequence[float] | npt.NDArray[Any] | torch.Tensor


def checked_int(name: str, value: Any, *, minimum: int | None = None) -> int:
    """Return an argument as an int.

    Args:
        name: The argument's name, for the message.
        value: What was given; anything with ``__index__`` that is not a bool.
        minimum: The least value allowed, or None for no bound.

    Raises:
        TypeError: If the value is not an integer.
        ValueError: If the value is below the minimum.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"`{name}` must be an int, got {value!r} of type {type(value).__name__}") from None
    if minimum is not None and number < minimum:
        raise ValueError(f"`{name}` must be at least {minimum}, got {name}={number}")
    return number


def checked_flag(name: str, value: Any) -> bool:
    """Return an argument that must be a bool.

    Raises:
        TypeError: If it is anything else, 0 and 1 included.
    """
    if not isinstance(value, bool):
        raise TypeError(f"`{name}` must be True or False, got {value!r} of type {type(value).__name__}")
    return value


def checked_source(data_source: Any) -> Sized:
    """Return something whose ``len`` is the number of indices: the source itself, or ``range`` of a length.

    Raises:
        TypeError: If it is neither an int nor has a length.
        ValueError: If the length is negative.
    """
    if isinstance(data_source, Sized):
        return data_source
    try:
        return range(checked_int("data_source", data_source, minimum=0))
    except TypeError:
        raise TypeError(
            f"`data_source` must be a length or have one, got {type(data_source).__name__}; "
            "give a dataset with `__len__` or an int"
        ) from None


def checked_number(name: str, value: Any, *, rule: str) -> float:
    """Return an argument as a float.

    Args:
        name: The argument's name, for the message.
        value: What was given; any real number that is not a bool.
        rule: Where the number must lie, for the message: "in [0, 1]".

    Raises:
        TypeError: If the value is not a number.
        ValueError: If it is infinite or NaN.
    """
    if isinstance(value, bool) or not isinstance(value, float | int | np.floating | np.integer):
        raise TypeError(f"`{name}` must be a number {rule}, got {value!r} of type {type(value).__name__}")
    if not math.isfinite(value):
        raise ValueError(f"`{name}` must be a number {rule}, got {name}={value}")
    return float(value)


def checked_integers(name: str, values: Any) -> IndexArray:
    """Return integers as an int64 array ``(n,)``, which may be the caller's own.

    Raises:
        TypeError: If they are not integers.
        ValueError: If they have not one dimension.
    """
    array = values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"`{name}` must have one dimension, got shape {array.shape}")
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"`{name}` must be integers, got {array.dtype}")
    return array.astype(np.int64, copy=False)


def checked_weights(name: str, weights: Weights) -> npt.NDArray[np.float64]:
    """Return a read-only copy of weights, float64 ``(n,)``: one copy, whatever they come in.

    Args:
        name: The argument's name, for the message.
        weights: One number an index: a list, array, memory map, tensor or Arrow column.

    Raises:
        TypeError: If they are not numbers.
        ValueError: If one is negative, infinite or NaN (the first is named), all are zero, or the shape
            is wrong.
    """
    values: Any = weights.detach().cpu().numpy() if isinstance(weights, torch.Tensor) else weights
    try:
        given = np.asarray(values) if isinstance(values, list | tuple) else values
        kind = getattr(getattr(given, "dtype", None), "kind", "f")
        if kind not in "biufO":  # numpy would read text and dates as numbers, and drop an imaginary part
            raise TypeError(f"got {given.dtype}")
        array = np.array(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"`{name}` must be one number an index: {error}") from error
    if not array.flags.owndata:  # a chunked Arrow column gives a view of itself where a copy was asked for
        array = array.copy()
    if array.ndim != 1 or len(array) == 0:
        raise ValueError(f"`{name}` must have shape (n,) with n > 0, got shape {array.shape}")
    smallest, largest = float(array.min()), float(array.max())  # both are NaN where one weight is
    if not (smallest >= 0 and largest < math.inf):
        first = int((~(np.isfinite(array) & (array >= 0))).argmax())
        raise ValueError(f"`{name}` must be finite and not negative, got {name}[{first}]={array[first]}")
    if largest == 0:
        raise ValueError(f"`{name}` are all zero ({len(array)} of them); at least one must be positive")
    array.flags.writeable = False
    return array
