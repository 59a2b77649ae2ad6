"""Checks of arguments that several transforms share."""

from __future__ import annotations

__all__ = ["check_chances", "check_fill", "check_rotation"]


def check_chances(**chances: float) -> None:
    """Raise ValueError unless every argument is a probability."""
    for name, chance in chances.items():
        if not 0 <= chance <= 1:
            raise ValueError(f"{name}={chance} is not a probability in [0, 1].")


def check_rotation(rotation: float) -> None:
    """Raise ValueError unless ``rotation`` is a largest angle in degrees; a larger one would repeat directions."""
    if not 0 <= rotation <= 180:
        raise ValueError(f"rotation={rotation} must be from 0 to 180 degrees.")


def check_fill(fill: float) -> None:
    """Raise ValueError unless ``fill`` is a uint8 value, the dtype of the datasets' images."""
    if not 0 <= fill <= 255 or fill != int(fill):
        raise ValueError(f"fill={fill} is not a pixel value; give a whole number from 0 to 255.")
