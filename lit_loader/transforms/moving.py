"""Transform flat targets with their image: torchvision's results for boxes, points and masks in a tenth of the time.

A flat target is a tensor, a number or a dict of them, transformed value by value; torchvision traverses any nesting.
numpy transforms float32 points and XYXY boxes, with torchvision's operations; torchvision transforms all other values.
Oriented boxes move by their corners, see NOTE [Oriented boxes].
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

from lit_loader.transforms.oriented import box_points, boxes_of_points, is_oriented

__all__ = ["Mirror", "as_array", "flat_targets", "moved", "moved_targets", "resized", "wrap"]

# torchvision leaves plain tensors of a target unchanged if there is an image.
_UNCHANGED_TYPES: Final = (bool, int, float, str, type(None), Tensor, np.ndarray)
_CANVAS_TYPES: Final = (tv_tensors.BoundingBoxes, tv_tensors.KeyPoints)


def flat_targets(targets: Sequence[Any], *, size: tuple[int, ...]) -> bool:
    """Return True if all targets are tensors, numbers or dicts of them, on the canvas of the image.

    Args:
        targets: A sample without its image.
        size: Height and width of the image, in pixels.
    """
    return all(
        all(_is_flat_value(value, size) for value in target.values())
        if type(target) is dict
        else _is_flat_value(target, size)
        for target in targets
    )


def moved_targets(targets: Sequence[Any], move: Callable[[Any], Any]) -> list[Any]:
    """Apply ``move`` to the boxes, points and masks of flat targets, as torchvision does in a sample with an image."""

    def moved_value(value: Any) -> Any:
        return moved(value, move) if isinstance(value, tv_tensors.TVTensor) else value

    return [
        {name: moved_value(value) for name, value in target.items()} if type(target) is dict else moved_value(target)
        for target in targets
    ]


def moved(value: Any, move: Callable[[Any], Any]) -> Any:
    """Apply ``move`` to a value, or to the corners of oriented boxes as ``tv_tensors.KeyPoints``."""
    return boxes_of_points(move(box_points(value)), like=value) if is_oriented(value) else move(value)


def resized(value: Any, *, size: tuple[int, int]) -> Any:
    """Scale boxes, points or a mask with their image to ``size`` (height, width)."""
    coordinates = as_array(value)
    if coordinates is None:
        return functional.resize(value, list(size))
    # float32 ratios and one multiplication, like torchvision, for the same bits.
    height, width = value.canvas_size
    if (height, width) == size:
        return value
    ratios = np.array([size[1] / width, size[0] / height] * (coordinates.shape[-1] // 2), dtype=np.float32)
    return wrap(torch.from_numpy(coordinates * ratios), like=value, canvas_size=size)


@dataclass(frozen=True)
class Mirror:
    """Mirrors an image, boxes, points or a mask along x (axis 0) or y (axis 1): x becomes W - x."""

    axis: int

    def __call__(self, value: Any) -> Any:
        """Return a mirrored copy."""
        axis = self.axis
        if type(value) is tv_tensors.Image:
            return value.as_subclass(Tensor).flip(-1 - axis).as_subclass(tv_tensors.Image)
        coordinates = as_array(value)
        if coordinates is not None:
            limit = value.canvas_size[1 - axis]
            mirrored = coordinates.copy()
            if mirrored.shape[-1] == 2:
                mirrored[..., axis] = limit - coordinates[..., axis]
            else:
                # The right edge of a mirrored box is its former left edge.
                mirrored[:, [axis, axis + 2]] = limit - coordinates[:, [axis + 2, axis]]
            return wrap(torch.from_numpy(mirrored), like=value)
        if isinstance(value, tv_tensors.KeyPoints):
            # torchvision's flips shift points by one pixel; see NOTE [How torchvision transforms points].
            points = value.as_subclass(Tensor).clone()
            points[..., axis] = value.canvas_size[1 - axis] - points[..., axis]
            return wrap(points, like=value)
        return functional.vertical_flip(value) if axis else functional.horizontal_flip(value)


def wrap(plain: Tensor, *, like: Any, **fields: Any) -> Any:
    """Convert a tensor to the type of ``like``, with its fields: ``tv_tensors.wrap`` in a tenth of the time.

    Args:
        plain: The values.
        like: A plain tensor or one of torchvision's types.
        fields: Fields that differ, such as ``canvas_size``.
    """
    # torchvision's types store their fields, such as canvas_size, as instance attributes.
    wrapped = plain.as_subclass(type(like))
    wrapped.__dict__.update(like.__dict__, **fields)
    return wrapped


def as_array(value: Any) -> npt.NDArray[np.float32] | None:
    """Return a view of XYXY boxes or points, or None for values that torchvision must transform."""
    kind = type(value)
    if kind is tv_tensors.KeyPoints or (
        kind is tv_tensors.BoundingBoxes and value.format is tv_tensors.BoundingBoxFormat.XYXY
    ):
        # numpy would drop the gradient, and lose bits of other dtypes in float32 operations.
        plain = value.as_subclass(Tensor)
        if plain.dtype is torch.float32 and plain.is_cpu and not plain.requires_grad:
            array: npt.NDArray[np.float32] = plain.numpy()
            return array
    return None


def _is_flat_value(value: Any, size: tuple[int, ...]) -> bool:
    kind = type(value)
    if kind in _CANVAS_TYPES:
        return bool(value.canvas_size == size)
    return kind in _UNCHANGED_TYPES or (kind is tv_tensors.Mask and value.shape[-2:] == size)
