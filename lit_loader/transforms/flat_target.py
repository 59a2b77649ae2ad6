"""Flat targets are moved value by value; torchvision's walk through any nesting gives the same in more time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from torch import Tensor
from torchvision import tv_tensors

__all__ = ["flat_targets", "moved_targets"]

_STAY: Final = (bool, int, float, str, type(None), Tensor, np.ndarray)
_MOVE: Final = (tv_tensors.BoundingBoxes, tv_tensors.KeyPoints)


def flat_targets(others: Sequence[Any], *, size: tuple[int, ...]) -> bool:
    """Return whether what comes with an image is dicts of tensors and numbers, on the image's own canvas.

    Args:
        others: A sample without its image.
        size: Height and width of the image, in pixels.
    """
    return all(
        type(other) is dict and all(_is_leaf(value, size) for value in other.values()) for other in others
    )


def moved_targets(others: Sequence[Any], move: Callable[[Any], Any]) -> list[Any]:
    """Return flat targets with ``move`` done to boxes, points and masks, as torchvision does it beside an image."""

    def moved(value: Any) -> Any:
        return move(value) if isinstance(value, tv_tensors.TVTensor) else value

    return [{name: moved(value) for name, value in other.items()} for other in others]


def _is_leaf(value: Any, size: tuple[int, ...]) -> bool:
    kind = type(value)
    if kind in _MOVE:
        return bool(value.canvas_size == size)
    return kind in _STAY or (kind is tv_tensors.Mask and value.shape[-2:] == size)
