"""Oriented boxes in targets: rectangles and quadrilaterals in any direction, moved by their corners.

NOTE [Oriented boxes]
    Targets hold them as ``tv_tensors.BoundingBoxes`` of format XYXYXYXY or CXCYWHR, with ``clamping_mode=None``.
    Checked in torchvision 0.29: its crop, resize, rotation and perspective take a quadrilateral for a parallelogram,
    and put a rectangle around that, which is wrong for any other shape; its soft clamping cuts a box at the border, so
    that the box changes its shape, and boxes along the axes become zeros. Here the four corners move as points, without
    clamping, and become boxes again. A box that the canvas shows in part keeps its shape, with corners outside, and its
    visible part is measured by exact clipping.
    Corners stay clockwise on the screen, as torchvision's: a mirrored box begins at the other end of the same side.
    Functions of the user get the boxes; torchvision's functions inside of them have the faults above.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias, TypeGuard

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from lit_loader.annotations.quadrangles import clockwise, rotated_corners, smallest_rectangles
from lit_loader.errors import SettingError
from lit_loader.transforms.scheduled import current_transform

__all__ = [
    "apply_transform",
    "box_points",
    "boxes_of_corners",
    "boxes_of_points",
    "check_moves_oriented",
    "corners_of_boxes",
    "has_oriented",
    "is_oriented",
]

_Floats: TypeAlias = npt.NDArray[np.float64]

_FORMAT: Final = tv_tensors.BoundingBoxFormat
_ALONG_AXES: Final = (_FORMAT.XYXY, _FORMAT.XYWH, _FORMAT.CXCYWH)
# Without flips, because torchvision's mirror boxes exactly, but shift points by one pixel.
_MOVE_POINTS: Final = (
    v2.CenterCrop,
    v2.Pad,
    v2.RandomAffine,
    v2.RandomCrop,
    v2.RandomPerspective,
    v2.RandomResize,
    v2.RandomResizedCrop,
    v2.RandomRotation,
    v2.RandomShortestSize,
    v2.RandomZoomOut,
    v2.Resize,
    v2.ScaleJitter,
)
_COMPOSITIONS: Final = (v2.Compose, nn.Sequential)
_CONTAINERS: Final = (v2.RandomApply, v2.RandomChoice, v2.RandomOrder)
_CLAMPS: Final = ("would clamp them, which changes their shape", "remove it; SanitizeObjects measures visible parts")
# Refused with a reason and a remedy.
_UNSUITABLE: Final = {
    v2.RandomIoUCrop: (
        "moves boxes along the axes",
        "use lit_loader.transforms.RandomObjectCrop, or iou_crop of detection_transforms",
    ),
    v2.ElasticTransform: (
        "moves points beyond the border to another place",
        "use lit_loader.transforms.elastic.ElasticTransform",
    ),
    v2.ConvertBoundingBoxFormat: (
        "takes every box for a parallelogram",
        "choose the format by oriented='corners' or 'rotated'",
    ),
    v2.ClampBoundingBoxes: _CLAMPS,
    v2.SetClampingMode: _CLAMPS,
    v2.SanitizeBoundingBoxes: (
        "removes all of them that cross the border",
        "use lit_loader.transforms.SanitizeObjects",
    ),
}


def is_oriented(value: Any) -> TypeGuard[tv_tensors.BoundingBoxes]:
    """Return True for ``tv_tensors.BoundingBoxes`` of a rotated format."""
    return isinstance(value, tv_tensors.BoundingBoxes) and value.format not in _ALONG_AXES


def has_oriented(targets: Sequence[Any]) -> bool:
    """Return True if a target, which is a mapping, has oriented ``boxes``."""
    return any(isinstance(target, Mapping) and is_oriented(target.get("boxes")) for target in targets)


def corners_of_boxes(boxes: tv_tensors.BoundingBoxes) -> _Floats:
    """Return the corners of oriented boxes in new memory, float64 ``(N, 4, 2)``, x and y in pixels."""
    plain = boxes.as_subclass(Tensor).detach().cpu().to(torch.float64, copy=True)
    if boxes.format is _FORMAT.XYXYXYXY:
        corners: _Floats = plain.reshape(-1, 4, 2).numpy()
        return corners
    rotated = functional.convert_bounding_box_format(plain, old_format=boxes.format, new_format="CXCYWHR")
    return rotated_corners(rotated.numpy())


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
    return tv_tensors.KeyPoints(torch.from_numpy(corners_of_boxes(boxes)).float(), canvas_size=boxes.canvas_size)


def boxes_of_points(points: tv_tensors.KeyPoints, *, like: tv_tensors.BoundingBoxes) -> tv_tensors.BoundingBoxes:
    """Return moved `box_points` as boxes of the format of ``like``; if no point moved, with the same numbers."""
    plain = points.as_subclass(Tensor)
    size = tuple(points.canvas_size)
    # Rounding would change them a little, and a rectangle without area has more than one angle.
    if torch.equal(plain, box_points(like).as_subclass(Tensor)):
        return tv_tensors.wrap(like.as_subclass(Tensor), like=like, canvas_size=size)
    return boxes_of_corners(plain.double().numpy(), like=like, canvas_size=size)


def check_moves_oriented(transform: Any) -> None:
    """Refuse a transform of torchvision that cannot take oriented boxes.

    Raises:
        SettingError: Its boxes would be wrong afterwards; the message names a remedy.
    """
    for unsuitable, (rule, remedy) in _UNSUITABLE.items():
        # This package's subclasses move oriented boxes.
        if isinstance(transform, unsuitable) and not type(transform).__module__.startswith("lit_loader."):
            rule = f"{rule}, and targets have oriented boxes"
            raise SettingError("transforms", type(transform).__name__, rule, remedy)


def apply_transform(transform: Any, sample: Any) -> Any:
    """Call a transform with a sample; torchvision's transforms move oriented boxes by their corners.

    Args:
        transform: Any transform. The parts of torchvision's compositions, ``RandomApply``, ``RandomChoice`` and
            ``RandomOrder`` are called in the same way, with the draws of torchvision.
        sample: A tuple or list ``(image, target, ...)``, or an image.

    Raises:
        SettingError: The transform cannot take oriented boxes, see `check_moves_oriented`.
    """
    if not isinstance(sample, tuple | list):
        return transform(sample)
    if not has_oriented(sample[1:]):
        return transform(*sample)
    transform = current_transform(transform)
    # A scheduled transform that is switched off.
    if transform is None:
        return sample
    kind = type(transform)
    # Exact types, because a subclass may do more than call its parts.
    if kind in _COMPOSITIONS:
        for part in getattr(transform, "transforms", transform):
            sample = apply_transform(part, sample)
        return sample
    if kind in _CONTAINERS:
        chance = {"p": transform.p} if hasattr(transform, "p") else {}
        return kind([partial(_apply_part, part) for part in transform.transforms], **chance)(*sample)
    check_moves_oriented(transform)
    return _move_points(transform, sample) if isinstance(transform, _MOVE_POINTS) else transform(*sample)


def _apply_part(transform: Any, *sample: Any) -> Any:
    return apply_transform(transform, sample)


def _move_points(transform: Any, sample: Sequence[Any]) -> tuple[Any, ...]:
    """Call a transform with the corners of oriented boxes as points."""
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
