"""Boxes, points and masks moved with their image: torchvision's results, for flat targets in a tenth of the time.

A flat target is a dict of tensors and numbers, and is moved value by value; torchvision walks through any nesting.
Boxes XYXY and points in float32 are moved by numpy, in the same operations; every other value by torchvision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional

__all__ = ["Mirror", "as_array", "flat_targets", "moved_targets", "resized", "wrap"]

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


def resized(value: Any, *, size: tuple[int, int]) -> Any:
    """Return boxes, points or a mask of an image that is resized to ``size`` (height, width)."""
    found = as_array(value)
    if found is None:
        return functional.resize(value, list(size))
    height, width = value.canvas_size
    if (height, width) == size:
        return value
    ratios = np.array([size[1] / width, size[0] / height] * (found.shape[-1] // 2), dtype=np.float32)
    return wrap(torch.from_numpy(found * ratios), like=value, canvas_size=size)


@dataclass(frozen=True)
class Mirror:
    """Mirrors an image, boxes, points or a mask along x (axis 0) or y (axis 1): x goes to W - x."""

    axis: int

    def __call__(self, value: Any) -> Any:
        """Return a new value."""
        axis = self.axis
        if type(value) is tv_tensors.Image:
            return value.as_subclass(Tensor).flip(-1 - axis).as_subclass(tv_tensors.Image)
        found = as_array(value)
        if found is not None:
            limit, out = value.canvas_size[1 - axis], found.copy()
            if out.shape[-1] == 2:
                out[..., axis] = limit - found[..., axis]
            else:
                out[:, [axis, axis + 2]] = limit - found[:, [axis + 2, axis]]
            return wrap(torch.from_numpy(out), like=value)
        if isinstance(value, tv_tensors.KeyPoints):
            # as boxes go; see NOTE [What torchvision does to points].
            plain = value.as_subclass(Tensor).clone()
            plain[..., axis] = value.canvas_size[1 - axis] - plain[..., axis]
            return wrap(plain, like=value)
        return functional.vertical_flip(value) if axis else functional.horizontal_flip(value)


def wrap(plain: Tensor, *, like: Any, **fields: Any) -> Any:
    """Return ``plain`` as a tensor of the type and the fields of ``like``: ``tv_tensors.wrap`` in a tenth of its time.

    Args:
        plain: Values.
        like: A tensor of torchvision's types, or a plain one.
        fields: Those that differ, such as ``canvas_size``.
    """
    wrapped = plain.as_subclass(type(like))
    wrapped.__dict__.update(like.__dict__, **fields)
    return wrapped


def as_array(value: Any) -> npt.NDArray[np.float32] | None:
    """Return the memory of boxes XYXY or of points, or None if torchvision has to move the value."""
    kind = type(value)
    if kind is tv_tensors.KeyPoints or (
        kind is tv_tensors.BoundingBoxes and value.format is tv_tensors.BoundingBoxFormat.XYXY
    ):
        plain = value.as_subclass(Tensor)
        if plain.dtype is torch.float32 and plain.is_cpu and not plain.requires_grad:
            found: npt.NDArray[np.float32] = plain.numpy()
            return found
    return None


def _is_leaf(value: Any, size: tuple[int, ...]) -> bool:
    kind = type(value)
    if kind in _MOVE:
        return bool(value.canvas_size == size)
    return kind in _STAY or (kind is tv_tensors.Mask and value.shape[-2:] == size)
