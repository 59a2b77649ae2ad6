"""Oriented boxes in targets: rectangles and quadrilaterals in any direction, moved by their corners.

NOTE [Oriented boxes]
    Targets hold them as ``tv_tensors.BoundingBoxes`` of format XYXYXYXY or CXCYWHR, with ``clamping_mode=None``.
    Checked in torchvision 0.29: its crop, resize, rotation and perspective take a quadrilateral for a parallelogram,
    and put a rectangle around that, which is wrong for any other shape; its soft clamping cuts a box at the border, so
    that the box changes its shape, and boxes along the axes become zeros. Here the four corners move as points, without
    clamping, and become boxes again. A box that the canvas shows in part keeps its shape, with corners outside, and its
    visible part is measured by exact clipping.
    Corners stay clockwise on the screen, as torchvision's: a mirrored box begins at the other end of the same side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeGuard

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from lit_loader.annotations.quadrangles import clockwise, smallest_rectangles

__all__ = [
    "apply_transform",
    "box_corners",
    "box_points",
    "boxes_of_corners",
    "boxes_of_points",
    "has_oriented",
    "is_oriented",
]

_Floats: TypeAlias = npt.NDArray[np.float64]

_FORMAT: Final = tv_tensors.BoundingBoxFormat
_ALONG_AXES: Final = (_FORMAT.XYXY, _FORMAT.XYWH, _FORMAT.CXCYWH)
# torchvision's flips mirror boxes exactly, but shift points by one pixel. The others call transforms or functions of
# the user, which expect boxes.
_EXPECT_BOXES: Final = (
    v2.RandomHorizontalFlip,
    v2.RandomVerticalFlip,
    v2.Lambda,
    v2.Compose,
    v2.RandomApply,
    v2.RandomChoice,
    v2.RandomOrder,
)


def is_oriented(value: Any) -> TypeGuard[tv_tensors.BoundingBoxes]:
    """Return True for ``tv_tensors.BoundingBoxes`` of a rotated format."""
    return isinstance(value, tv_tensors.BoundingBoxes) and value.format not in _ALONG_AXES


def has_oriented(targets: Sequence[Any]) -> bool:
    """Return True if a target, which is a mapping, has oriented ``boxes``."""
    return any(isinstance(target, Mapping) and is_oriented(target.get("boxes")) for target in targets)


def box_corners(boxes: tv_tensors.BoundingBoxes) -> _Floats:
    """Return the corners of oriented boxes, float64 ``(N, 4, 2)``, x and y in pixels."""
    plain = boxes.as_subclass(Tensor).detach().cpu().double()
    if boxes.format is not _FORMAT.XYXYXYXY:
        # In double precision, so that a box that nothing moves has the same float32 numbers afterwards.
        plain = functional.convert_bounding_box_format(plain, old_format=boxes.format, new_format="XYXYXYXY")
    corners: _Floats = plain.reshape(-1, 4, 2).numpy()
    return corners


def boxes_of_corners(
    corners: npt.NDArray[Any], *, like: tv_tensors.BoundingBoxes, canvas_size: tuple[int, int]
) -> tv_tensors.BoundingBoxes:
    """Return boxes in the format and dtype of ``like``, on another canvas.

    Args:
        corners: Corners ``(N, 4, 2)``. Boxes with an angle become the `smallest_rectangles` around them.
        like: Oriented boxes.
        canvas_size: Height and width in pixels.
    """
    if like.format is _FORMAT.XYXYXYXY:
        plain = torch.from_numpy(clockwise(corners).reshape(-1, 8))
    else:
        rotated = torch.from_numpy(smallest_rectangles(corners))
        plain = functional.convert_bounding_box_format(rotated, old_format="CXCYWHR", new_format=like.format)
    return tv_tensors.wrap(plain.to(like.dtype), like=like, canvas_size=canvas_size)


def box_points(boxes: tv_tensors.BoundingBoxes) -> tv_tensors.KeyPoints:
    """Return the corners of oriented boxes as points for transforms, float32 ``(N, 4, 2)``."""
    return tv_tensors.KeyPoints(torch.from_numpy(box_corners(boxes)).float(), canvas_size=boxes.canvas_size)


def boxes_of_points(points: tv_tensors.KeyPoints, *, like: tv_tensors.BoundingBoxes) -> tv_tensors.BoundingBoxes:
    """Return moved `box_points` as boxes of the format of ``like``."""
    corners = points.as_subclass(Tensor).double().numpy()
    return boxes_of_corners(corners, like=like, canvas_size=tuple(points.canvas_size))


def apply_transform(transform: Any, sample: Any) -> Any:
    """Call a transform with a sample; torchvision's transforms move oriented boxes by their corners.

    Args:
        transform: Any transform.
        sample: A tuple or list ``(image, target, ...)``, or an image.

    Raises:
        TypeError: The transform is a ``v2.RandomIoUCrop``, which needs boxes along the axes.
    """
    if not isinstance(sample, tuple | list):
        return transform(sample)
    if not has_oriented(sample[1:]) or not _moves_points(transform):
        return transform(*sample)
    if isinstance(transform, v2.RandomIoUCrop):
        remedy = "use lit_loader.transforms.RandomObjectCrop, or iou_crop of detection_transforms"
        raise TypeError(f"v2.RandomIoUCrop takes boxes along the axes, got {_format_name(sample)}; {remedy}.")
    image, *targets = sample
    with_points = [
        {**target, "boxes": box_points(target["boxes"])} if has_oriented([target]) else target for target in targets
    ]
    new_image, *new_targets = transform(image, *with_points)
    restored = [
        {**new, "boxes": boxes_of_points(new["boxes"], like=old["boxes"])} if has_oriented([old]) else new
        for old, new in zip(targets, new_targets, strict=True)
    ]
    return (new_image, *restored)


def _moves_points(transform: Any) -> bool:
    """Return True for transforms of torchvision that move points with the pixels."""
    return type(transform).__module__.startswith("torchvision.") and not isinstance(transform, _EXPECT_BOXES)


def _format_name(sample: Any) -> str:
    return next(str(target["boxes"].format.name) for target in sample[1:] if has_oriented([target]))
