"""Scenes of shapes: what stands where in one image of the embedded data set, and how it is drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

__all__ = ["SHAPE_NAMES", "SceneObject", "box_of", "outline", "place_objects", "render_scene"]

SHAPE_NAMES: tuple[str, ...] = ("disc", "square", "star")
"""Class names, the most frequent first."""

_SUPERSAMPLING = 2  # drawn this many times larger, then averaged: smooth edges
_MAX_IOU = 0.15  # two boxes may overlap this much, so that nothing is hidden by what is drawn later
_PLACEMENT_TRIES = 30
_STAR_INNER_RADIUS = 0.45  # of the outer radius


@dataclass(frozen=True, kw_only=True)
class SceneObject:
    """One object of a scene.

    Args:
        class_id: Position in `SHAPE_NAMES`.
        centre: x and y in pixels from the image's top left corner.
        radius: Distance from the centre to the outermost point, in pixels.
        rotation: Radians, clockwise as seen.
        colour: Red, green, blue in 0..255.
    """

    class_id: int
    centre: tuple[float, float]
    radius: float
    rotation: float
    colour: tuple[int, int, int]


def outline(scene_object: SceneObject) -> npt.NDArray[np.float64]:
    """Return the corners of an object in drawing order, float64 pixels, shape ``(num_corners, 2)``."""
    name = SHAPE_NAMES[scene_object.class_id]
    num_corners = {"disc": 40, "square": 4, "star": 10}[name]
    angles = scene_object.rotation + np.arange(num_corners) * (2 * math.pi / num_corners)
    radii = np.full(num_corners, scene_object.radius)
    if name == "star":
        radii[1::2] *= _STAR_INNER_RADIUS
    x, y = scene_object.centre
    return np.stack([x + radii * np.cos(angles), y + radii * np.sin(angles)], axis=1)


def box_of(scene_object: SceneObject) -> tuple[int, int, int, int]:
    """Return the tight box ``(xmin, ymin, xmax, ymax)`` in whole pixels."""
    corners = outline(scene_object)
    low, high = np.floor(corners.min(axis=0)), np.ceil(corners.max(axis=0))
    return int(low[0]), int(low[1]), int(high[0]), int(high[1])


def place_objects(
    class_ids: Sequence[int], *, image_size: int, rng: np.random.Generator
) -> list[SceneObject]:
    """Place one object for every class id, inside the image and with little overlap.

    Args:
        class_ids: The classes to draw, in drawing order.
        image_size: Width and height of the image in pixels.
        rng: Source of the scene; the same state gives the same scene.

    Returns:
        As many objects as class ids, in the same order.
    """
    placed: list[SceneObject] = []
    for class_id in class_ids:
        best: tuple[float, SceneObject] | None = None
        for _ in range(_PLACEMENT_TRIES):
            candidate = _random_object(class_id, image_size=image_size, rng=rng)
            overlap = max((_iou(box_of(candidate), box_of(other)) for other in placed), default=0.0)
            if best is None or overlap < best[0]:
                best = (overlap, candidate)
            if overlap <= _MAX_IOU:
                break
        assert best is not None
        placed.append(best[1])
    return placed


def render_scene(objects: Sequence[SceneObject], *, image_size: int, rng: np.random.Generator) -> Image.Image:
    """Draw a scene over a textured, noisy background with lines that belong to no class.

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
    draw = ImageDraw.Draw(image)
    for _ in range(3 + int(rng.random() * 5)):
        ends = rng.random(4) * large
        width = int((1 + rng.random() * 2) * _SUPERSAMPLING)
        draw.line([float(v) for v in ends], fill=_random_colour(rng), width=width)
    for scene_object in objects:
        corners = outline(scene_object) * _SUPERSAMPLING
        draw.polygon([(float(x), float(y)) for x, y in corners], fill=scene_object.colour)
    small = np.asarray(image.reduce(_SUPERSAMPLING), dtype=np.float64)
    noise = (rng.random(small.shape) - 0.5) * 50
    return Image.fromarray(np.clip(small + noise, 0, 255).astype(np.uint8))


def _random_object(class_id: int, *, image_size: int, rng: np.random.Generator) -> SceneObject:
    """Draw size, place, rotation and colour from ``rng``; the object lies wholly inside the image."""
    radius = image_size * (0.08 + 0.08 * float(rng.random()))
    margin = radius + 1
    x, y = margin + rng.random(2) * (image_size - 2 * margin)
    rotation = float(rng.random()) * 2 * math.pi
    return SceneObject(
        class_id=class_id,
        centre=(float(x), float(y)),
        radius=radius,
        rotation=rotation,
        colour=_random_colour(rng),
    )


def _random_colour(rng: np.random.Generator) -> tuple[int, int, int]:
    red, green, blue = (int(v) for v in rng.random(3) * 256)
    return red, green, blue


def _iou(a: tuple[int, int, int, int], b: tuple[int, int, int, int]) -> float:
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0.0
    overlap = width * height
    return overlap / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - overlap)
