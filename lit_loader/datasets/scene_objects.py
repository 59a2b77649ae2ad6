"""One object of a scene of shapes: its kinds, its outline, its box and its named points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lit_loader.annotations.keypoints import KeypointSchema

__all__ = [
    "FINISH_NAMES",
    "MAX_ROTATION",
    "POINTS",
    "SHAPE_NAMES",
    "SceneObject",
    "box_of",
    "directions",
    "hole",
    "outline",
    "points_of",
]

SHAPE_NAMES: tuple[str, ...] = ("disc", "square", "star")
"""Class names, the most frequent first."""

FINISH_NAMES: tuple[str, ...] = ("plain", "dotted", "hollow")
"""Values of the attribute ``finish``, the most frequent first: filled; filled and with dots; a rim."""

POINTS = KeypointSchema(
    names=("top", "top_left", "top_right", "bottom_left", "bottom_right"),
    flip_pairs=((1, 2), (3, 4)),
    normalization_pair=(1, 2),
)
"""What the points are: a star's tips, a square's corners (which has no ``top``); a disc has none. The two upper
ones are there for every object with points, so an error is divided by their distance."""

MAX_ROTATION = 36.0
"""Degrees; from here on another tip of a star would be its top."""

_STAR_INNER_RADIUS = 0.45  # of the outer radius
_RIM = 0.17  # of the radius: how thick the rim of a hollow object is
_NUM_CORNERS = {"disc": 40, "square": 4, "star": 10}
_FIRST_CORNER = {"disc": -90.0, "square": -135.0, "star": -90.0}  # degrees from the x axis, clockwise as seen
_POINT_CORNERS = {  # which point of `POINTS` each corner of the outline is
    "disc": {},
    "square": {0: "top_left", 1: "top_right", 2: "bottom_right", 3: "bottom_left"},
    "star": {0: "top", 2: "top_right", 4: "bottom_right", 6: "bottom_left", 8: "top_left"},
}


@dataclass(frozen=True, kw_only=True)
class SceneObject:
    """One object of a scene.

    Coordinates count from the image's top left corner: the centre of its first pixel is (0.5, 0.5).

    Args:
        class_id: Position in `SHAPE_NAMES`.
        finish_id: Position in `FINISH_NAMES`.
        centre: x and y in pixels.
        radius: Distance from the centre to the outermost point, in pixels.
        rotation: Radians, clockwise as seen; at 0 a square lies on a side and a star's tip points up.
        colour: Red, green, blue in 0..255.
    """

    class_id: int
    finish_id: int
    centre: tuple[float, float]
    radius: float
    rotation: float
    colour: tuple[int, int, int]


def directions(scene_object: SceneObject, count: int) -> npt.NDArray[np.float64]:
    """Return ``count`` directions all around, in radians, the object's first corner first."""
    first = math.radians(_FIRST_CORNER[SHAPE_NAMES[scene_object.class_id]]) + scene_object.rotation
    return first + np.arange(count, dtype=np.float64) * (2 * math.pi / count)


def outline(scene_object: SceneObject, *, scale: float = 1.0) -> npt.NDArray[np.float64]:
    """Return the corners of an object in drawing order, float64 pixels, shape ``(num_corners, 2)``.

    Args:
        scene_object: The object.
        scale: Multiplies the radius.
    """
    name = SHAPE_NAMES[scene_object.class_id]
    radii = np.full(_NUM_CORNERS[name], scene_object.radius * scale)
    if name == "star":
        radii[1::2] *= _STAR_INNER_RADIUS
    angles = directions(scene_object, _NUM_CORNERS[name])
    around = radii[:, None] * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    corners: npt.NDArray[np.float64] = scene_object.centre + around
    return corners


def hole(scene_object: SceneObject) -> npt.NDArray[np.float64]:
    """Return the inner outline of a rim of even thickness: all edges are equally far from the centre."""
    first, second = outline(scene_object)[:2] - scene_object.centre
    edge = second - first
    distance = abs(first[0] * edge[1] - first[1] * edge[0]) / math.hypot(*edge)
    return outline(scene_object, scale=1 - _RIM * scene_object.radius / distance)


def box_of(scene_object: SceneObject) -> tuple[int, int, int, int]:
    """Return the tight box ``(xmin, ymin, xmax, ymax)`` in whole pixels."""
    corners = outline(scene_object)
    low, high = np.floor(corners.min(axis=0)), np.ceil(corners.max(axis=0))
    return int(low[0]), int(low[1]), int(high[0]), int(high[1])


def points_of(
    objects: Sequence[SceneObject],
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]]:
    """Return the named points of a scene's objects.

    Args:
        objects: The scene, in drawing order.

    Returns:
        float32 ``(num_objects, K, 2)`` pixels, 0 where absent, K as in `POINTS`; uint8 ``(num_objects, K)``
        visibility: 0 absent, 1 hidden by an object that is drawn later, 2 visible.
    """
    shape = (len(objects), len(POINTS.names))
    points, visibility = np.zeros((*shape, 2), dtype=np.float32), np.zeros(shape, dtype=np.uint8)
    for i, scene_object in enumerate(objects):
        corners = outline(scene_object)
        for corner, name in _POINT_CORNERS[SHAPE_NAMES[scene_object.class_id]].items():
            hidden = any(_covers(later, corners[corner]) for later in objects[i + 1 :])
            points[i, POINTS.names.index(name)] = corners[corner]
            visibility[i, POINTS.names.index(name)] = 1 if hidden else 2
    return points, visibility


def _covers(scene_object: SceneObject, point: npt.NDArray[np.float64]) -> bool:
    """Whether an object is painted over a point."""
    if not _inside(outline(scene_object), point):
        return False
    return FINISH_NAMES[scene_object.finish_id] != "hollow" or not _inside(hole(scene_object), point)


def _inside(corners: npt.NDArray[np.float64], point: npt.NDArray[np.float64]) -> bool:
    """Whether a polygon holds a point: a ray from it to the right crosses the edges an odd number of times."""
    (x0, y0), (x1, y1) = corners.T, np.roll(corners, -1, axis=0).T
    crossed = (y0 > point[1]) != (y1 > point[1])
    x = x0[crossed] + (point[1] - y0[crossed]) * (x1 - x0)[crossed] / (y1 - y0)[crossed]
    return int((x > point[0]).sum()) % 2 == 1
