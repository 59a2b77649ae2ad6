"""Geometry of oriented boxes: corners of rotated boxes, boxes around corners, and the part that a region shows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = [
    "VisibleParts",
    "are_flat",
    "box_corners",
    "clockwise",
    "enclosing_boxes",
    "has_numbers",
    "rotated_corners",
    "sides_cross",
    "signed_areas",
    "smallest_rectangles",
    "visible_areas",
    "visible_parts",
]

_Floats: TypeAlias = npt.NDArray[np.float64]

# A side of the smallest rectangle around a polygon is parallel to a side of its convex hull, which is a side or, if
# the polygon has a dent, a diagonal. Sides come first, so that a rectangle keeps its own.
_HULL_SIDES: Final = ((0, 1), (2, 3), (1, 2), (3, 0), (0, 2), (1, 3))
# Rectangles that are larger than the smallest one by this share count as equal, for rounded coordinates.
_EQUAL_AREAS: Final = 1e-4
# Orders of the corners around the quadrangle, apart from its start and its sense of rotation.
_ORDERS: Final = ([0, 1, 2, 3], [0, 2, 1, 3], [0, 1, 3, 2])
_ON_BORDER: Final = 1e-6  # share of the longer side of the canvas


class VisibleParts(NamedTuple):
    """Parts of quadrangles that a region shows.

    Attributes:
        areas: float64 ``(N,)``, in square pixels.
        boxes: float64 ``(N, 5)``, the smallest rectangle around the part with the angle of the whole box, as
            `smallest_rectangles` returns it; without width and height if no part is shown.
    """

    areas: _Floats
    boxes: _Floats


def rotated_corners(rotated_boxes: npt.NDArray[Any]) -> _Floats:
    """Return the corners of rotated boxes.

    Args:
        rotated_boxes: ``cx, cy, w, h, r``, shape ``(n, 5)``, pixels and degrees. A positive angle turns the box
            counter-clockwise as seen on the screen, where y points down.

    Returns:
        float64 ``(n, 4, 2)``: x and y of the corners that are left top, right top, right bottom and left bottom at
        ``r=0``. A row with NaN stays NaN.

    Source:
        torchvision's conversion from ``CXCYWHR`` to ``XYXYXYXY``.
    """
    numbers = rotated_boxes.astype(np.float64)
    angle = np.radians(numbers[:, 4])
    # Vectors from the centre to the middle of the right and of the lower side.
    right = numbers[:, 2:3] / 2 * np.stack([np.cos(angle), -np.sin(angle)], axis=1)
    down = numbers[:, 3:4] / 2 * np.stack([np.sin(angle), np.cos(angle)], axis=1)
    offsets = np.stack([-right - down, right - down, right + down, down - right], axis=1)
    corners: _Floats = numbers[:, None, :2] + offsets
    return corners


def box_corners(boxes: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return left top, right top, right bottom and left bottom of xyxy boxes ``(n, 4)``, shape ``(n, 4, 2)``."""
    return boxes[:, [0, 1, 2, 1, 2, 3, 0, 3]].reshape(-1, 4, 2)


def enclosing_boxes(points: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the smallest xyxy boxes ``(n, 4)`` around points ``(n, k, 2)``."""
    return np.concatenate([points.min(axis=1), points.max(axis=1)], axis=1)


def has_numbers(column: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return True for the rows of ``corners`` or ``rotated_boxes`` that are not NaN, ``(n,)``."""
    present: npt.NDArray[np.bool_] = ~np.isnan(column.reshape(len(column), math.prod(column.shape[1:]))[:, 0])
    return present


def are_flat(corners: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return True where all corners ``(n, 4, 2)`` are on one line, ``(n,)``.

    Sides that cross may enclose equal areas of both signs, but not in each order of the corners.
    """
    areas = [signed_areas(corners[:, order]) for order in _ORDERS]
    flat: npt.NDArray[np.bool_] = ~np.any(areas, axis=0)
    return flat


def smallest_rectangles(corners: npt.NDArray[Any]) -> _Floats:
    """Return the smallest rectangle around each polygon of four corners.

    A rectangle is its own smallest one. The first side of the result has the direction closest to the first side of the
    corners.

    Args:
        corners: ``(N, 4, 2)``, x and y in pixels, in either sense of rotation; clockwise ones keep their first corner.

    Returns:
        float64 ``(N, 5)``: cx, cy, w, h in pixels and r in degrees, in (-180, 180], as torchvision's CXCYWHR: the first
        side, of length w, has the direction (cos r, -sin r).

    Source:
        Freeman and Shapira 1975, Determining the minimum-area encasing rectangle for an arbitrary closed curve.
    """
    points = clockwise(corners)
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
    # Also in float32, where targets have it.
    degrees[degrees.astype(np.float32) == -180] = 180
    return np.concatenate([centres, high - low, degrees[:, None]], axis=1)


def signed_areas(polygons: npt.NDArray[Any]) -> _Floats:
    """Return the signed area of polygons ``(N, M, 2)``, positive if clockwise on the screen, float64 ``(N,)``."""
    points = polygons.astype(np.float64)
    # Relative to a corner, because products of large coordinates would cancel.
    x, y = np.moveaxis(points - points[:, :1], 2, 0)
    areas: _Floats = (x * np.roll(y, -1, axis=1) - np.roll(x, -1, axis=1) * y).sum(axis=1) / 2
    return areas


def visible_areas(corners: npt.NDArray[Any], regions: npt.NDArray[Any]) -> _Floats:
    """Return the area of the part of each polygon that its region shows, float64 ``(N,)``, in square pixels.

    Args:
        corners: ``(N, 4, 2)``, x and y in pixels.
        regions: Left, top, right and bottom of each region, ``(N, 4)``, in pixels.
    """
    low, high = np.split(regions.astype(np.float64)[:, None], 2, axis=2)
    return _clamped_areas(_divided_outlines(corners.astype(np.float64), low, high), low, high)


def visible_parts(corners: npt.NDArray[Any], region: Sequence[float]) -> VisibleParts:
    """Measure the part of each polygon that a region shows, by exact clipping.

    Args:
        corners: ``(N, 4, 2)``, x and y in pixels.
        region: Left, top, right and bottom, in pixels.
    """
    low = np.array(region[:2], dtype=np.float64)
    high = np.array(region[2:], dtype=np.float64)
    points = clockwise(corners)
    outline = _divided_outlines(points, low, high)
    areas = _clamped_areas(outline, low, high)
    margin = _ON_BORDER * max(1.0, float(np.abs(high - low).max()))
    is_shown = ((outline >= low - margin) & (outline <= high + margin)).all(axis=2)
    # The corners of the region that are inside a polygon are the other corners of its visible part.
    region_corners = np.array([low, (high[0], low[1]), high, (low[0], high[1])])
    vertices = np.concatenate([outline, np.broadcast_to(region_corners, (len(points), 4, 2))], axis=1)
    is_vertex = np.concatenate([is_shown, _contain(points, region_corners)], axis=1)
    # A part without a vertex is empty, and gets a box without sides.
    vertices[~is_vertex.any(axis=1)] = 0
    is_vertex |= ~is_vertex.any(axis=1, keepdims=True)
    return VisibleParts(areas, _boxes_around(vertices, is_vertex, degrees=smallest_rectangles(points)[:, 4]))


def _divided_outlines(points: _Floats, low: _Floats, high: _Floats) -> _Floats:
    """Return polygons ``(N, 4, 2)`` with each side divided where it meets the lines of a region, ``(N, 20, 2)``.

    Args:
        points: The corners.
        low: Left and top of the region, ``(2,)``, or of one for each polygon, ``(N, 1, 2)``.
        high: Right and bottom, likewise.
    """
    starts = points[:, :, None]
    sides = np.roll(points, -1, axis=1)[:, :, None] - starts
    with np.errstate(divide="ignore", invalid="ignore"):
        # A parallel line is not met.
        cuts = [(limit[..., None, :] - starts) / sides for limit in (low, high)]
    cut_shares = np.concatenate(cuts, axis=3)[:, :, 0]
    cut_shares = np.sort(np.clip(np.where(np.isfinite(cut_shares), cut_shares, 0), 0, 1), axis=2)
    shares = np.concatenate([np.zeros((*cut_shares.shape[:2], 1)), cut_shares], axis=2)[..., None]
    return (starts + shares * sides).reshape(len(points), 20, 2)


def _clamped_areas(outlines: _Floats, low: _Floats, high: _Floats) -> _Floats:
    """Return the areas of divided outlines inside a region, ``(N,)``."""
    # Clamping moves the outer part onto the border, where it has no area.
    areas: _Floats = np.abs(signed_areas(np.clip(outlines, low, high)))
    return areas


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


def sides_cross(corners: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return True for each quadrangle ``(N, 4, 2)`` with two opposite sides that cross, bool ``(N,)``."""
    a, b, c, d = np.moveaxis(corners.astype(np.float64), 1, 0)
    crossed: npt.NDArray[np.bool_] = _segments_cross(a, b, c, d) | _segments_cross(b, c, d, a)
    return crossed


def _segments_cross(a: _Floats, b: _Floats, c: _Floats, d: _Floats) -> npt.NDArray[np.bool_]:
    """Return True where the segments from ``a`` to ``b`` and from ``c`` to ``d``, ``(N, 2)`` each, cross inside."""
    separates_cd = signed_areas(np.stack([a, b, c], axis=1)) * signed_areas(np.stack([a, b, d], axis=1)) < 0
    separates_ab = signed_areas(np.stack([c, d, a], axis=1)) * signed_areas(np.stack([c, d, b], axis=1)) < 0
    return separates_cd & separates_ab


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


def clockwise(corners: npt.NDArray[Any]) -> _Floats:
    """Return corners ``(N, 4, 2)`` clockwise on the screen, with the same first side."""
    points = corners.astype(np.float64)
    is_mirrored = signed_areas(points) < 0
    points[is_mirrored] = points[is_mirrored][:, [1, 0, 3, 2]]
    return points
