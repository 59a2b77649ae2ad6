"""Geometry of oriented boxes: the corners of a rotated box, and the box around corners."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["box_corners", "enclosing_boxes", "quad_areas", "rotated_corners"]

_Floats = npt.NDArray[np.float64]


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


def enclosing_boxes(corners: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the smallest xyxy boxes ``(n, 4)`` around corners ``(n, 4, 2)``."""
    return np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1)


def quad_areas(corners: npt.NDArray[Any]) -> _Floats:
    """Return the areas of quadrangles, float64 ``(n,)``, by the shoelace formula.

    Args:
        corners: Shape ``(n, 4, 2)``, in order around the quadrangle.
    """
    # The cross product of the diagonals is twice the area. Differences first, so that large coordinates lose nothing.
    first, second = np.moveaxis(corners[:, 2:].astype(np.float64) - corners[:, :2], 1, 0)
    areas: _Floats = np.abs(first[:, 0] * second[:, 1] - first[:, 1] * second[:, 0]) / 2
    return areas
