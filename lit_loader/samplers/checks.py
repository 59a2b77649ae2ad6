"""Checks of arguments that several samplers share."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lit_loader.samplers.epoch_settings import EpochSetting
from lit_loader.types import IndexArray

Weights = Sequence[float] | npt.NDArray[Any] | torch.Tensor


def checked_int(name: str, value: Any, *, minimum: int | None = None) -> int:
    """Return an argument as an int.

    Args:
        name: The argument's name, for the message.
        value: Any value with ``__index__`` that is not a bool.
        minimum: Smallest value allowed, or None for no bound.

    Raises:
        TypeError: If the value is not an integer.
        ValueError: If the value is below the minimum.
    """
    try:
        # A bool has __index__, and num_samples=True is a mistake.
        if isinstance(value, bool):
            raise TypeError
        # numpy integers and zero-dimensional tensors also have __index__.
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"`{name}` must be an int, got {value!r} of type {type(value).__name__}") from None
    if minimum is not None and number < minimum:
        raise ValueError(f"`{name}` must be at least {minimum}, got {name}={number}")
    return number


def checked_flag(name: str, value: Any) -> bool:
    """Return an argument that must be a bool.

    Raises:
        TypeError: If it is not a bool, such as 0 or 1.
    """
    if not isinstance(value, bool):
        raise TypeError(f"`{name}` must be True or False, got {value!r} of type {type(value).__name__}")
    return value


def checked_num_samples(num_samples: Any, default: int) -> int:
    """Return the number of positions in an epoch: ``num_samples``, at least 1, or the default if it is None."""
    return default if num_samples is None else checked_int("num_samples", num_samples, minimum=1)


_RANGES: dict[str, tuple[Callable[[float], bool], str]] = {
    "beta": (lambda value: 0 <= value < 1, "be in [0, 1)"),
    "empty_share": (lambda value: 0 <= value <= 1, "be in [0, 1]"),
    "empty_weight": (lambda value: value >= 0, "not be negative"),
    "exponent": (lambda value: 0 <= value <= 1, "be in [0, 1]"),
    "repeat_thresh": (lambda value: 0 < value <= 1, "be in (0, 1]"),
}


def checked_number(name: str, value: Any) -> float:
    """Return an argument as a float.

    Args:
        name: The argument's name, such as ``exponent``. It has the same range in every sampler.
        value: Any real number that is not a bool.

    Raises:
        KeyError: If no range is known for ``name``.
        TypeError: If the value is not a number.
        ValueError: If it is infinite, NaN or out of range.
    """
    # One range a name, so that a sampler and its config cannot disagree.
    valid, rule = _RANGES[name]
    if isinstance(value, bool) or not isinstance(value, float | int | np.floating | np.integer):
        raise TypeError(f"`{name}` must be a number and {rule}, got {value!r} of type {type(value).__name__}")
    if not (math.isfinite(value) and valid(float(value))):
        raise ValueError(f"`{name}` must {rule}, got {name}={value}")
    return float(value)


_SETTING_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(_RANGES, checked_number),
    "block_size": partial(checked_int, minimum=1),
    "empty_as_class": checked_flag,
    "num_samples": partial(checked_int, minimum=1),
    "open_shards": partial(checked_int, minimum=1),
    "replacement": checked_flag,
}


def check_share(name: str, value: Any, *, may_be_zero: bool = False) -> None:
    """Refuse a share of a source that is not a positive number.

    Args:
        name: The argument's name, for the message.
        value: Any value.
        may_be_zero: True to accept 0, as in some epochs of a schedule.

    Raises:
        TypeError: If the value is not a number.
        ValueError: If the value is out of range, or infinite.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"{name} must be a number, got {value!r} of type {type(value).__name__}")
    if may_be_zero and not 0 <= value < math.inf:
        raise ValueError(f"{name}={value} must be finite and not negative")
    if not may_be_zero and not 0 < value < math.inf:
        raise ValueError(f"{name}={value} must be positive and finite; leave out a source that you do not want")


def check_settings(settings: Mapping[str, Any], *, scheduled: Collection[str] = ()) -> None:
    """Check the numbers and flags among the settings of a sampler config, before there is a table.

    The samplers check the same arguments with the same functions, but a sampler is made only after the data was
    prepared, which may take hours.

    Args:
        settings: Arguments by name. None and arguments of other kinds, such as names of attributes, are accepted.
        scheduled: Names of arguments that may be schedules of epochs.

    Raises:
        TypeError: If a number or flag is of another type.
        ValueError: If a number is out of range.
    """
    for name, value in settings.items():
        # None selects the sampler's default, such as the number of images.
        if name in _SETTING_CHECKS and value is not None:
            if name in scheduled:
                EpochSetting(name, value, _SETTING_CHECKS[name])
            else:
                _SETTING_CHECKS[name](name, value)


def checked_integers(name: str, values: Any) -> IndexArray:
    """Return integers as an int64 array ``(n,)``, which may share the caller's memory.

    Raises:
        TypeError: If they are not integers.
        ValueError: If they do not have one dimension.
    """
    array = values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"`{name}` must have one dimension, got shape {array.shape}")
    # An empty list becomes a float array.
    if array.size and array.dtype.kind not in "iu":
        hint = "; for a mask give np.flatnonzero(mask)" if array.dtype.kind == "b" else ""
        raise TypeError(f"`{name}` must be integers, got {array.dtype}{hint}")
    return array.astype(np.int64, copy=False)


def refuse_first(
    name: str, values: npt.NDArray[Any], wrong: npt.NDArray[np.bool_], *, rule: str, remedy: str = ""
) -> None:
    """Raise a ValueError that names the first wrong value, if there is one.

    Args:
        name: The argument's name.
        values: The values, ``(n,)``.
        wrong: True for each value that breaks the rule, ``(n,)``.
        rule: The rule, for the message: "be positive".
        remedy: The correction, for the message.
    """
    if wrong.any():
        first = int(wrong.argmax())
        remedy = remedy and f"; {remedy}"
        raise ValueError(f"`{name}` must {rule}, got {name}[{first}]={values[first]}{remedy}")


def checked_weights(name: str, weights: Weights) -> npt.NDArray[np.float64]:
    """Return a read-only copy of weights, float64 ``(n,)``. No second copy is made on the way.

    Args:
        name: The argument's name, for the message.
        weights: One number an index: a list, array, memory map, tensor or Arrow column.

    Raises:
        TypeError: If they are not numbers.
        ValueError: If one is negative, infinite or NaN (the first is named), all are zero, or the shape is wrong.
    """
    values: Any = weights.detach().cpu().numpy() if isinstance(weights, torch.Tensor) else weights
    try:
        source = np.asarray(values) if isinstance(values, list | tuple) else values
        kind = getattr(getattr(source, "dtype", None), "kind", "f")
        # numpy would convert text and dates to numbers, and drop an imaginary part.
        if kind not in "biufO":
            raise TypeError(f"got {source.dtype}")
        array = np.array(source, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"`{name}` must be one number an index: {error}") from error
    # A chunked Arrow column returns a view of itself although np.array() asks for a copy.
    if not array.flags.owndata:
        array = array.copy()
    if array.ndim != 1 or len(array) == 0:
        raise ValueError(f"`{name}` must have shape (n,) with n > 0, got shape {array.shape}")
    # Minimum and maximum need no memory, unlike a mask; both are NaN if one weight is.
    smallest = float(array.min())
    largest = float(array.max())
    if not (smallest >= 0 and largest < math.inf):
        wrong = ~(np.isfinite(array) & (array >= 0))
        refuse_first(name, array, wrong, rule="be finite and not negative")
    if largest == 0:
        raise ValueError(f"`{name}` are all zero ({len(array)} of them); at least one must be positive")
    array.flags.writeable = False
    return array
