"""Checks of arguments that several transforms share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

from lit_loader.errors import SettingError

__all__ = ["check_chances", "check_fill", "check_rotation", "whole_pixels"]


def check_chances(**chances: float) -> None:
    """Raise ValueError unless every argument is a probability."""
    for name, chance in chances.items():
        if not _is_number(chance) or not 0 <= chance <= 1:
            raise ValueError(f"{name}={chance!r} is not a probability in [0, 1].")


def check_rotation(rotation: float) -> None:
    """Raise ValueError unless ``rotation`` is a largest angle in degrees; a larger one would repeat directions."""
    if not _is_number(rotation) or not 0 <= rotation <= 180:
        raise ValueError(f"rotation={rotation!r} must be from 0 to 180 degrees.")


def check_fill(fill: float) -> None:
    """Raise ValueError unless ``fill`` is a uint8 value, the dtype of the datasets' images."""
    if not _is_number(fill) or not 0 <= fill <= 255 or fill != int(fill):
        raise ValueError(f"fill={fill!r} is not a pixel value; give a whole number from 0 to 255.")


def whole_pixels(name: str, size: Any) -> Any:
    """Return a size as an int, or a list of ints; None stays None.

    Args:
        name: The argument.
        size: A number of pixels, a sequence of them, or None. A schedule's value may be a float.

    Raises:
        SettingError: A number is not whole, or below 1.
    """
    is_list = isinstance(size, Sequence) and not isinstance(size, str)
    sides = list(size) if is_list else [size]
    if any(not _is_number(side) or side != int(side) or side < 1 for side in sides if side is not None):
        remedy = "give a schedule a step, such as {points: {0: 320, 10: 640}, step: 32}"
        raise SettingError(name, size, "must be whole numbers of pixels, at least 1", remedy)
    sides = [None if side is None else int(side) for side in sides]
    return sides if is_list else sides[0]


def _is_number(value: Any) -> bool:
    return type(value) is not bool and isinstance(value, Real) and math.isfinite(value)
