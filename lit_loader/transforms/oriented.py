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
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

__all__ = [
    "Visible",
    "apply_transform",
    "box_corners",
    "box_points",
    "boxes_of_corners",
    "boxes_of_points",
    "has_oriented",
    "is_oriented",
    "polygon_areas",
    "rotated_boxes",
    "rotated_corners",
    "visible_parts",
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
# A side of the smallest rectangle around a polygon is parallel to a side of its convex hull, which is a side or, if
# the polygon has a dent, a diagonal. Sides come first, so that a rectangle keeps its own.
_HULL_SIDES: Final = ((0, 1), (2, 3), (1, 2), (3, 0), (0, 2), (1, 3))
# Rectangles that are larger than the smallest one by this share count as equal, for rounded coordinates.
_EQUAL_AREAS: Final = 1e-4
_ON_BORDER: Final = 1e-6  # share of the longer side of the canvas


class Visible(NamedTuple):
    """Parts of oriented boxes that a region shows.

    Attributes:
        areas: float64 ``(N,)``, in square pixels.
        boxes: float64 ``(N, 5)``, the smallest rectangle around the part with the angle of the whole box, as
            `rotated_boxes` returns it; without width and height if no part is shown.
    """

    areas: _Floats
    boxes: _Floats


def is_oriented(value: Any) -> bool:
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
        corners: Corners ``(N, 4, 2)``. Those of a box with an angle become the smallest rectangle around them, see
            `rotated_boxes`.
        like: Oriented boxes.
        canvas_size: Height and width in pixels.
    """
    if like.format is _FORMAT.XYXYXYXY:
        plain = torch.from_numpy(_clockwise(corners).reshape(-1, 8))
    else:
        rotated = torch.from_numpy(rotated_boxes(corners))
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


def rotated_boxes(corners: npt.NDArray[Any]) -> _Floats:
    """Return the smallest rectangle around each polygon of four corners.

    A rectangle is returned as it is. The first side of the result is the one whose direction is closest to the first
    side of the corners.

    Args:
        corners: ``(N, 4, 2)``, x and y in pixels, in either sense of rotation; clockwise ones keep their first corner.

    Returns:
        float64 ``(N, 5)``: cx, cy, w, h in pixels and r in degrees, in (-180, 180], as torchvision's CXCYWHR: the first
        side, of length w, has the direction (cos r, -sin r).

    Source:
        Freeman and Shapira 1975, Determining the minimum-area encasing rectangle for an arbitrary closed curve.
    """
    points = _clockwise(corners)
    starts, ends = np.transpose(_HULL_SIDES)
    sides = points[:, ends] - points[:, starts]
    lengths = np.linalg.norm(sides, axis=2, keepdims=True)
    # Corners may coincide; the axes then do as well as any other direction.
    directions = np.divide(sides, lengths, out=np.broadcast_to([1.0, 0.0], sides.shape).copy(), where=lengths > 0)
    normals = np.stack([-directions[..., 1], directions[..., 0]], axis=-1)
    extents = np.stack([np.ptp(points @ axis.transpose(0, 2, 1), axis=1) for axis in (directions, normals)], axis=2)
    areas = extents.prod(axis=2)
    # The first one of equal areas, because the sides of a rectangle differ by rounding only.
    smallest = (areas <= areas.min(axis=1, keepdims=True) * (1 + _EQUAL_AREAS)).argmax(axis=1)
    rows = np.arange(len(points))
    u = directions[rows, smallest]
    v = normals[rows, smallest]
    axes = np.stack([u, v, -u, -v], axis=1)
    first_sides = points[:, 1] - points[:, 0]
    u = axes[rows, (axes @ first_sides[:, :, None])[..., 0].argmax(axis=1)]
    axes = np.stack([u, np.stack([-u[:, 1], u[:, 0]], axis=1)], axis=1)
    coordinates = points @ axes.transpose(0, 2, 1)
    low = coordinates.min(axis=1)
    high = coordinates.max(axis=1)
    centres = np.einsum("ni,nij->nj", (low + high) / 2, axes)
    # Adding 0 turns -0 into 0.
    degrees = np.degrees(np.arctan2(-u[:, 1] + 0.0, u[:, 0]))
    degrees[degrees == -180] = 180
    return np.concatenate([centres, high - low, degrees[:, None]], axis=1)


def polygon_areas(polygons: npt.NDArray[Any]) -> _Floats:
    """Return the signed area of polygons ``(N, M, 2)``, positive if clockwise on the screen, float64 ``(N,)``."""
    points = polygons.astype(np.float64)
    # Relative to a corner, because products of large coordinates would cancel.
    x, y = np.moveaxis(points - points[:, :1], 2, 0)
    areas: _Floats = (x * np.roll(y, -1, axis=1) - np.roll(x, -1, axis=1) * y).sum(axis=1) / 2
    return areas


def visible_parts(corners: npt.NDArray[Any], region: Sequence[float]) -> Visible:
    """Measure the part of each polygon that a region shows, by exact clipping.

    Args:
        corners: ``(N, 4, 2)``, x and y in pixels.
        region: Left, top, right and bottom, in pixels.
    """
    low = np.array(region[:2], dtype=np.float64)
    high = np.array(region[2:], dtype=np.float64)
    points = _clockwise(corners)
    starts = points[:, :, None]
    sides = np.roll(points, -1, axis=1)[:, :, None] - starts
    with np.errstate(divide="ignore", invalid="ignore"):
        # Each side is divided where it meets the four lines of the region; a parallel line is not met.
        cuts = np.concatenate([(low - starts) / sides, (high - starts) / sides], axis=3)[:, :, 0]
    cuts = np.sort(np.clip(np.where(np.isfinite(cuts), cuts, 0), 0, 1), axis=2)
    shares = np.concatenate([np.zeros((*cuts.shape[:2], 1)), cuts], axis=2)[..., None]
    outline = (starts + shares * sides).reshape(len(points), -1, 2)
    # Clamping moves what is outside onto the border, where it has no area.
    areas = np.abs(polygon_areas(np.clip(outline, low, high)))
    margin = _ON_BORDER * max(1.0, float(np.abs(high - low).max()))
    is_shown = ((outline >= low - margin) & (outline <= high + margin)).all(axis=2)
    # The corners of the region that are inside a polygon are the other corners of its visible part.
    region_corners = np.array([low, (high[0], low[1]), high, (low[0], high[1])])
    vertices = np.concatenate([outline, np.broadcast_to(region_corners, (len(points), 4, 2))], axis=1)
    is_vertex = np.concatenate([is_shown, _contain(points, region_corners)], axis=1)
    # A part without a vertex is empty, and gets a box without sides.
    vertices[~is_vertex.any(axis=1)] = 0
    is_vertex |= ~is_vertex.any(axis=1, keepdims=True)
    return Visible(areas, _boxes_around(vertices, is_vertex, degrees=rotated_boxes(points)[:, 4]))


def _boxes_around(points: _Floats, selected: npt.NDArray[np.bool_], *, degrees: _Floats) -> _Floats:
    """Return the smallest rectangles with an angle around the selected of some points ``(N, M, 2)``, ``(N, 5)``."""
    cos = np.cos(np.radians(degrees))
    sin = np.sin(np.radians(degrees))
    # Columns are the directions of the first and the second side.
    axes = np.stack([np.stack([cos, sin], axis=1), np.stack([-sin, cos], axis=1)], axis=1)
    along_sides = points @ axes
    high = np.where(selected[..., None], along_sides, -np.inf).max(axis=1)
    low = np.where(selected[..., None], along_sides, np.inf).min(axis=1)
    centres = np.einsum("ni,nji->nj", (low + high) / 2, axes)
    return np.concatenate([centres, high - low, degrees[:, None]], axis=1)


def rotated_corners(boxes: npt.NDArray[Any]) -> _Floats:
    """Return the corners of boxes with an angle, as `rotated_boxes` returns them, float64 ``(N, 4, 2)``."""
    plain = torch.from_numpy(boxes.astype(np.float64))
    corners = functional.convert_bounding_box_format(plain, old_format="CXCYWHR", new_format="XYXYXYXY")
    array: _Floats = corners.reshape(-1, 4, 2).numpy()
    return array


def _contain(polygons: _Floats, points: _Floats) -> npt.NDArray[np.bool_]:
    """Return True where polygons ``(N, M, 2)`` contain points ``(P, 2)``, by the even-odd rule, ``(N, P)``."""
    starts = polygons[:, :, None]
    ends = np.roll(polygons, -1, axis=1)[:, :, None]
    is_crossed = (starts[..., 1] > points[:, 1]) != (ends[..., 1] > points[:, 1])
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = (points[:, 1] - starts[..., 1]) / (ends[..., 1] - starts[..., 1])
    is_left = points[:, 0] < starts[..., 0] + shares * (ends[..., 0] - starts[..., 0])
    inside: npt.NDArray[np.bool_] = (is_crossed & is_left).sum(axis=1) % 2 == 1
    return inside


def _clockwise(corners: npt.NDArray[Any]) -> _Floats:
    """Return corners ``(N, 4, 2)`` clockwise on the screen, with the same first side."""
    points = corners.astype(np.float64)
    is_mirrored = polygon_areas(points) < 0
    points[is_mirrored] = points[is_mirrored][:, [1, 0, 3, 2]]
    return points
