"""Scenes of the built-in shapes dataset: place objects, draw them, and compute their boxes and points."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from lit_loader.annotations.keypoints import KeypointSchema

SHAPE_NAMES: tuple[str, ...] = ("disc", "square", "star")
"""Class names, the most frequent first."""

FINISH_NAMES: tuple[str, ...] = ("plain", "dotted", "hollow")
"""Values of the attribute ``finish``, the most frequent first: filled; filled, with dots; a ring."""

POINTS = KeypointSchema(
    names=("top", "top_left", "top_right", "bottom_left", "bottom_right"),
    flip_pairs=((1, 2), (3, 4)),
    normalization_pair=(1, 2),
)
"""Keypoint schema: the tips of a star, the corners of a square (without ``top``); a disc has no points. Every object
with points has the two upper ones, so errors are normalised by their distance."""

MAX_ROTATION = 36.0
"""Rotation in degrees from which another tip of a star would be its top."""

# Fractions of an object's radius.
_STAR_INNER_RADIUS = 0.45
_HOLE_RADIUS = 0.65
_DOT_RADIUS = 0.15

_NUM_CORNERS = {"disc": 40, "square": 4, "star": 10}
# Degrees from the x axis, clockwise in the image.
_FIRST_CORNER_ANGLE = {"disc": -90.0, "square": -135.0, "star": -90.0}
# The point in `POINTS` at each corner of the outline.
_CORNER_POINTS = {
    "disc": {},
    "square": {0: "top_left", 1: "top_right", 2: "bottom_right", 3: "bottom_left"},
    "star": {0: "top", 2: "top_right", 4: "bottom_right", 6: "bottom_left", 8: "top_left"},
}

# Scenes are drawn larger by this factor and averaged, for smooth edges.
_SUPERSAMPLING = 4
_NUM_CANDIDATES = 10
# Smallest distance of two centres, as a fraction of the sum of their radii. At smaller distances, the later object
# would hide too much of the earlier one.
_MIN_DISTANCE = 0.75


@dataclass(frozen=True, kw_only=True)
class SceneObject:
    """One object of a scene.

    Coordinates start at the image's top left corner, so the centre of the first pixel is (0.5, 0.5).

    Args:
        class_id: Position in `SHAPE_NAMES`.
        finish_id: Position in `FINISH_NAMES`.
        centre: x and y in pixels.
        radius: Distance from the centre to the outermost point, in pixels.
        rotation: Radians, clockwise in the image; at 0 a square is upright and one tip of a star points up.
        colour: Red, green, blue in 0..255.
    """

    class_id: int
    finish_id: int
    centre: tuple[float, float]
    radius: float
    rotation: float
    colour: tuple[int, int, int]


class _Round(Protocol):
    """Object with a centre and a radius in pixels."""

    @property
    def centre(self) -> tuple[float, float]: ...

    @property
    def radius(self) -> float: ...


_RoundT = TypeVar("_RoundT", bound=_Round)


def outline(scene_object: SceneObject, *, scale: float = 1.0) -> npt.NDArray[np.float64]:
    """Return the corners of an object in drawing order, float64 pixels, shape ``(num_corners, 2)``.

    Args:
        scene_object: The object.
        scale: Factor for the radius.
    """
    name = SHAPE_NAMES[scene_object.class_id]
    first_angle = math.radians(_FIRST_CORNER_ANGLE[name]) + scene_object.rotation
    angles = first_angle + np.arange(_NUM_CORNERS[name]) * (2 * math.pi / _NUM_CORNERS[name])
    corners = scene_object.radius * scale * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    # Every second corner of a star is an inner one.
    if name == "star":
        corners[1::2] *= _STAR_INNER_RADIUS
    return np.asarray(scene_object.centre + corners)


def box_of(scene_object: SceneObject) -> tuple[int, int, int, int]:
    """Return the tight box ``(xmin, ymin, xmax, ymax)`` in whole pixels."""
    corners = outline(scene_object)
    xmin, ymin = np.floor(corners.min(axis=0)).astype(int).tolist()
    xmax, ymax = np.ceil(corners.max(axis=0)).astype(int).tolist()
    return xmin, ymin, xmax, ymax


def points_of(objects: Sequence[SceneObject]) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]]:
    """Return the named points of a scene's objects.

    Args:
        objects: The scene, in drawing order.

    Returns:
        Points, float32 ``(num_objects, K, 2)`` in pixels, 0 for absent points, K as in `POINTS`; visibility, uint8
        ``(num_objects, K)``: 0 absent, 1 hidden by an object that is drawn later, 2 visible.
    """
    # All points are absent at first; a disc has none, and a square no top.
    visibility = np.zeros((len(objects), len(POINTS.names)), dtype=np.uint8)
    points = np.zeros((*visibility.shape, 2), dtype=np.float32)
    for i, scene_object in enumerate(objects):
        corners = outline(scene_object)
        for corner, name in _CORNER_POINTS[SHAPE_NAMES[scene_object.class_id]].items():
            column = POINTS.names.index(name)
            hidden = any(_covers(later_object, corners[corner]) for later_object in objects[i + 1 :])
            points[i, column] = corners[corner]
            visibility[i, column] = 1 if hidden else 2
    return points, visibility


def _covers(scene_object: SceneObject, point: npt.NDArray[np.float64]) -> bool:
    """Return True if an object is painted over a point."""
    is_hollow = FINISH_NAMES[scene_object.finish_id] == "hollow"
    in_hole = is_hollow and is_inside(outline(scene_object, scale=_HOLE_RADIUS), point)
    return is_inside(outline(scene_object), point) and not in_hole


def is_inside(corners: npt.NDArray[np.float64], point: npt.NDArray[np.float64]) -> bool:
    """Return True if a point is inside a polygon: a ray to its right crosses the edges an odd number of times."""
    x0, y0 = corners.T
    x1, y1 = np.roll(corners, -1, axis=0).T
    crossed = (y0 > point[1]) != (y1 > point[1])
    # The x coordinate at which each of these edges crosses the ray.
    x = x0[crossed] + (point[1] - y0[crossed]) * (x1 - x0)[crossed] / (y1 - y0)[crossed]
    return int((x > point[0]).sum()) % 2 == 1


def place_objects(
    class_ids: Sequence[int],
    finish_ids: Sequence[int],
    *,
    image_size: int,
    max_rotation: float,
    rng: np.random.Generator,
) -> list[SceneObject]:
    """Place one object for every class id, inside the image and with little overlap.

    Args:
        class_ids: The classes to draw, in drawing order.
        finish_ids: The finish of each object.
        image_size: Width and height of the image in pixels.
        max_rotation: Largest rotation of an object in either direction, in degrees.
        rng: Random generator; the same state results in the same scene.

    Returns:
        One object for each class id, in the same order.
    """
    placed_objects: list[SceneObject] = []
    for class_id, finish_id in zip(class_ids, finish_ids, strict=True):
        candidates = []
        for _ in range(_NUM_CANDIDATES):
            radius = image_size * (0.08 + 0.08 * float(rng.random()))
            # The margin keeps the whole object inside the image.
            margin = radius + 1
            x, y = margin + rng.random(2) * (image_size - 2 * margin)
            candidates.append(
                SceneObject(
                    class_id=class_id,
                    finish_id=finish_id,
                    centre=(float(x), float(y)),
                    radius=radius,
                    rotation=math.radians((2 * float(rng.random()) - 1) * max_rotation),
                    colour=random_colour(rng),
                )
            )
        placed_objects.append(least_overlapping(candidates, placed_objects))
    return placed_objects


def least_overlapping(candidates: Sequence[_RoundT], placed_objects: Sequence[_RoundT]) -> _RoundT:
    """Return the candidate that overlaps the placed objects least; a crowded scene may have none without overlap."""

    def overlap(candidate: _RoundT) -> float:
        """Return how much a candidate falls short of the smallest distance to the placed objects, in pixels."""
        overlaps = [
            _MIN_DISTANCE * (candidate.radius + placed.radius) - math.dist(candidate.centre, placed.centre)
            for placed in placed_objects
        ]
        return max([0.0, *overlaps])

    return min(candidates, key=overlap)


def render_scene(objects: Sequence[SceneObject], *, image_size: int, rng: np.random.Generator) -> Image.Image:
    """Draw a scene over a textured, noisy background.

    Args:
        objects: The objects, the last on top.
        image_size: Width and height in pixels.
        rng: Random generator for background and noise.

    Returns:
        An RGB image of ``image_size`` x ``image_size``.
    """

    def draw(canvas: Image.Image, scale: int) -> None:
        draw_objects(canvas, objects, scale=scale)

    return render_over_background(draw, image_size=image_size, rng=rng)


def render_over_background(
    draw: Callable[[Image.Image, int], None], *, image_size: int, rng: np.random.Generator
) -> Image.Image:
    """Draw over a textured background, and add noise.

    Args:
        draw: Function of an RGB image and of the factor by which it is larger than the result.
        image_size: Width and height in pixels.
        rng: Random generator for background and noise.

    Returns:
        An RGB image of ``image_size`` x ``image_size``.
    """
    large = image_size * _SUPERSAMPLING
    # A smooth background of medium brightness; objects are darker or brighter in one channel, see `random_colour`.
    coarse = 60 + rng.random((6, 6, 3)) * 130
    image = Image.fromarray(coarse.astype(np.uint8)).resize((large, large), Image.Resampling.BICUBIC)
    draw(image, _SUPERSAMPLING)
    small = np.asarray(image.reduce(_SUPERSAMPLING), dtype=np.float64)
    noise = (rng.random(small.shape) - 0.5) * 50
    return Image.fromarray(np.clip(small + noise, 0, 255).astype(np.uint8))


def draw_objects(canvas: Image.Image, objects: Sequence[SceneObject], *, scale: int) -> None:
    """Draw objects onto an RGB image that is ``scale`` times as large as the scene, the last on top."""
    draw = ImageDraw.Draw(canvas)
    for scene_object in objects:
        finish = FINISH_NAMES[scene_object.finish_id]
        corners = outline(scene_object)
        mask = Image.new("1", canvas.size)
        mask_draw = ImageDraw.Draw(mask)
        # Pillow rounds coordinates down to the pixel that contains them.
        mask_draw.polygon((corners * scale).ravel().tolist(), fill=1)
        if finish == "hollow":
            hole = outline(scene_object, scale=_HOLE_RADIUS)
            mask_draw.polygon((hole * scale).ravel().tolist(), fill=0)
        canvas.paste(scene_object.colour, mask=mask)
        if finish == "dotted":
            # Black or white, by the brightness of the object (ITU-R BT.601).
            contrast = 255 if np.dot(scene_object.colour, (0.299, 0.587, 0.114)) < 128 else 0
            # Four tips for a square, five for the others.
            tips = corners[:: max(1, len(corners) // 5)]
            # One dot at the centre, the others halfway to the tips.
            for x, y in scale * (np.vstack([scene_object.centre, tips]) + scene_object.centre) / 2:
                draw.circle((x, y), _DOT_RADIUS * scene_object.radius * scale, fill=(contrast,) * 3)


def random_colour(rng: np.random.Generator) -> tuple[int, int, int]:
    """Draw a colour with one channel near 0 or 255, unlike any background."""
    channels = (rng.random(3) * 256).astype(int)
    channels[int(rng.random() * 3)] = 12 if rng.random() < 0.5 else 243
    red, green, blue = channels.tolist()
    return red, green, blue
