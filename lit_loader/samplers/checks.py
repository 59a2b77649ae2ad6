"""Checks of arguments that several samplers share."""

from __future__ import annotations

import operator
from collections.abc import Sized
from typing import Any

__all__ = ["checked_flag", "checked_int", "checked_source"]


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
