"""Scenes of shapes, the images of the embedded data set: what an object is, where it stands, how it is drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from lit_loader.annotations.keypoints import KeypointSchema

__all__ = [
    "FINISH_NAMES",
    "MAX_ROTATION",
    "POINTS",
    "SHAPE_NAMES",
    "SceneObject",
    "box_of",
    "draw_objects",
    "outline",
    "place_objects",
    "points_of",
    "render_scene",
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
_HOLE = 0.65  # of the radius: the inner outline of a hollow object
_NUM_CORNERS = {"disc": 40, "square": 4, "star": 10}
_FIRST_CORNER = {"disc": -90.0, "square": -135.0, "star": -90.0}  # degrees from the x axis, clockwise as seen
_POINT_CORNERS = {  # which point of `POINTS` each corner of the outline is
    "disc": {},
    "square": {0: "top_left", 1: "top_right", 2: "bottom_right", 3: "bottom_left"},
    "star": {0: "top", 2: "top_right", 4: "bottom_right", 6: "bottom_left", 8: "top_left"},
}

_SUPERSAMPLING = 4  # drawn this many times larger, then averaged: smooth edges
_PLACES_TRIED = 10
_NEAREST = 0.75  # of the sum of two radii: nearer than that, too much of what is drawn first would be hidden
_DOT = 0.15  # of the radius: that of a dot


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


def outline(scene_object: SceneObject, *, scale: float = 1.0) -> npt.NDArray[np.float64]:
    """Return the corners of an object in drawing order, float64 pixels, shape ``(num_corners, 2)``.

    Args:
        scene_object: The object.
        scale: Multiplies the radius.
    """
    name = SHAPE_NAMES[scene_object.class_id]
    first = math.radians(_FIRST_CORNER[name]) + scene_object.rotation
    angles = first + np.arange(_NUM_CORNERS[name]) * (2 * math.pi / _NUM_CORNERS[name])
    corners = scene_object.radius * scale * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    if name == "star":
        corners[1::2] *= _STAR_INNER_RADIUS
    return np.asarray(scene_object.centre + corners)


def box_of(scene_object: SceneObject) -> tuple[int, int, int, int]:
    """Return the tight box ``(xmin, ymin, xmax, ymax)`` in whole pixels."""
    corners = outline(scene_object)
    low, high = np.floor(corners.min(axis=0)), np.ceil(corners.max(axis=0))
    return int(low[0]), int(low[1]), int(high[0]), int(high[1])


def points_of(objects: Sequence[SceneObject]) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]]:
    """Return the named points of a scene's objects.

    Args:
        objects: The scene, in drawing order.

    Returns:
        float32 ``(num_objects, K, 2)`` pixels, 0 where absent, K as in `POINTS`; uint8 ``(num_objects, K)``
        visibility: 0 absent, 1 hidden by an object that is drawn later, 2 visible.
    """
    visibility = np.zeros((len(objects), len(POINTS.names)), dtype=np.uint8)
    points = np.zeros((*visibility.shape, 2), dtype=np.float32)
    for i, scene_object in enumerate(objects):
        corners = outline(scene_object)
        for corner, name in _POINT_CORNERS[SHAPE_NAMES[scene_object.class_id]].items():
            place = i, POINTS.names.index(name)
            points[place] = corners[corner]
            visibility[place] = 1 if any(_covers(one, corners[corner]) for one in objects[i + 1 :]) else 2
    return points, visibility


def _covers(scene_object: SceneObject, point: npt.NDArray[np.float64]) -> bool:
    """Whether an object is painted over a point."""
    is_hollow = FINISH_NAMES[scene_object.finish_id] == "hollow"
    in_hole = is_hollow and _inside(outline(scene_object, scale=_HOLE), point)
    return _inside(outline(scene_object), point) and not in_hole


def _inside(corners: npt.NDArray[np.float64], point: npt.NDArray[np.float64]) -> bool:
    """Whether a polygon holds a point: a ray from it to the right crosses the edges an odd number of times."""
    (x0, y0), (x1, y1) = corners.T, np.roll(corners, -1, axis=0).T
    crossed = (y0 > point[1]) != (y1 > point[1])
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
        finish_ids: The finish of each.
        image_size: Width and height of the image in pixels.
        max_rotation: Degrees that an object leans to either side at most.
        rng: Source of the scene; the same state gives the same scene.

    Returns:
        As many objects as class ids, in the same order.
    """
    placed: list[SceneObject] = []

    def overlap(one: SceneObject) -> float:
        """How far an object is too near to those placed, in pixels; 0 if it is not."""
        gaps = [_NEAREST * (one.radius + o.radius) - math.dist(one.centre, o.centre) for o in placed]
        return max([0.0, *gaps])

    for class_id, finish_id in zip(class_ids, finish_ids, strict=True):
        candidates = []
        for _ in range(_PLACES_TRIED):
            radius = image_size * (0.08 + 0.08 * float(rng.random()))
            margin = radius + 1  # the object lies wholly inside the image
            x, y = margin + rng.random(2) * (image_size - 2 * margin)
            candidates.append(
                SceneObject(
                    class_id=class_id,
                    finish_id=finish_id,
                    centre=(float(x), float(y)),
                    radius=radius,
                    rotation=math.radians((2 * float(rng.random()) - 1) * max_rotation),
                    colour=_colour(rng),
                )
            )
        placed.append(min(candidates, key=overlap))
    return placed


def render_scene(objects: Sequence[SceneObject], *, image_size: int, rng: np.random.Generator) -> Image.Image:
    """Draw a scene over a textured, noisy background.

    Args:
        objects: What to draw, the last on top.
        image_size: Width and height in pixels.
        rng: Source of background and noise.

    Returns:
        An RGB image of ``image_size`` x ``image_size``.
    """
    large = image_size * _SUPERSAMPLING
    coarse = 60 + rng.random((6, 6, 3)) * 130
    image = Image.fromarray(coarse.astype(np.uint8)).resize((large, large), Image.Resampling.BICUBIC)
    draw_objects(image, objects, scale=_SUPERSAMPLING)
    small = np.asarray(image.reduce(_SUPERSAMPLING), dtype=np.float64)
    noise = (rng.random(small.shape) - 0.5) * 50
    return Image.fromarray(np.clip(small + noise, 0, 255).astype(np.uint8))


def draw_objects(canvas: Image.Image, objects: Sequence[SceneObject], *, scale: int) -> None:
    """Draw objects onto an RGB image that is ``scale`` times as large as the scene, the last on top."""
    draw = ImageDraw.Draw(canvas)
    for scene_object in objects:
        finish, corners = FINISH_NAMES[scene_object.finish_id], outline(scene_object)
        mask = Image.new("1", canvas.size)
        pen = ImageDraw.Draw(mask)
        # Pillow cuts points down to the pixels that hold them.
        pen.polygon((corners * scale).ravel().tolist(), fill=1)
        if finish == "hollow":
            pen.polygon((outline(scene_object, scale=_HOLE) * scale).ravel().tolist(), fill=0)
        canvas.paste(scene_object.colour, mask=mask)
        if finish == "dotted":
            # black or white, by brightness (ITU-R BT.601)
            contrast = 255 if np.dot(scene_object.colour, (0.299, 0.587, 0.114)) < 128 else 0
            tips = corners[:: max(1, len(corners) // 5)]  # four of a square, five of the others
            # one dot at the centre, the others half-way to the tips
            for x, y in scale * (np.vstack([scene_object.centre, tips]) + scene_object.centre) / 2:
                draw.circle((x, y), _DOT * scene_object.radius * scale, fill=(contrast,) * 3)


def _colour(rng: np.random.Generator) -> tuple[int, int, int]:
    """Return a colour with a channel that is nearly 0 or 255, as no background's is."""
    channels = (rng.random(3) * 256).astype(int)
    channels[int(rng.random() * 3)] = 12 if rng.random() < 0.5 else 243
    red, green, blue = channels.tolist()
    return red, green, blue
