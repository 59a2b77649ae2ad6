"""Scenes of shapes: where things stand in one image of the embedded data set, and how they are drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from lit_loader.datasets.scene_objects import (
    FINISH_NAMES,
    SHAPE_NAMES,
    SceneObject,
    box_of,
    directions,
    hole,
    outline,
)

__all__ = ["draw_objects", "place_objects", "render_scene"]

_SUPERSAMPLING = 4  # drawn this many times larger, then averaged: smooth edges
_MAX_IOU = 0.15  # two boxes may overlap this much, so that little is hidden by what is drawn later
_PLACEMENT_TRIES = 30
_BOLDNESS = 100  # of 127.5: distance of a channel from grey; the background's keeps below 68
_DOTS = (0.5, 0.15)  # of the radius: how far from the centre dots lie, and their own radius


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
    for class_id, finish_id in zip(class_ids, finish_ids, strict=True):
        best: tuple[float, SceneObject] | None = None
        for _ in range(_PLACEMENT_TRIES):
            candidate = _random_object(
                class_id, finish_id, image_size=image_size, max_rotation=max_rotation, rng=rng
            )
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
    draw_objects(image, objects, scale=_SUPERSAMPLING)
    small = np.asarray(image.reduce(_SUPERSAMPLING), dtype=np.float64)
    noise = (rng.random(small.shape) - 0.5) * 50
    return Image.fromarray(np.clip(small + noise, 0, 255).astype(np.uint8))


def draw_objects(canvas: Image.Image, objects: Sequence[SceneObject], *, scale: int) -> None:
    """Draw objects onto an RGB image that is ``scale`` times as large as the scene, the last on top."""
    draw = ImageDraw.Draw(canvas)
    for scene_object in objects:
        finish = FINISH_NAMES[scene_object.finish_id]
        if finish == "hollow":
            mask = Image.new("L", canvas.size, 0)
            pen = ImageDraw.Draw(mask)
            pen.polygon(_on_canvas(outline(scene_object), scale), fill=255)
            pen.polygon(_on_canvas(hole(scene_object), scale), fill=0)
            canvas.paste(scene_object.colour, mask=mask)
            continue
        draw.polygon(_on_canvas(outline(scene_object), scale), fill=scene_object.colour)
        if finish == "dotted":
            reach = _DOTS[1] * scene_object.radius
            for dot in _dots(scene_object):
                corners = _on_canvas(np.stack([dot - reach, dot + reach]), scale)
                draw.ellipse(corners, fill=_contrast(scene_object.colour))


def _on_canvas(points: npt.NDArray[np.float64], scale: int) -> list[tuple[float, float]]:
    """Return points of a scene as Pillow takes them; it cuts them down to the pixels that hold them."""
    return [(float(x), float(y)) for x, y in points * scale]


def _dots(scene_object: SceneObject) -> npt.NDArray[np.float64]:
    """Return the centres of an object's dots: one in the middle, the others towards its tips."""
    angles = directions(scene_object, 4 if SHAPE_NAMES[scene_object.class_id] == "square" else 5)
    ring = _DOTS[0] * scene_object.radius * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    dots: npt.NDArray[np.float64] = scene_object.centre + np.concatenate([np.zeros((1, 2)), ring])
    return dots


def _contrast(colour: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return black or white, whichever a colour is farther from, by its brightness (ITU-R BT.601)."""
    red, green, blue = colour
    dark = 0.299 * red + 0.587 * green + 0.114 * blue < 128
    return (255, 255, 255) if dark else (0, 0, 0)


def _random_object(
    class_id: int, finish_id: int, *, image_size: int, max_rotation: float, rng: np.random.Generator
) -> SceneObject:
    """Draw size, place, rotation and colour from ``rng``; the object lies wholly inside the image."""
    radius = image_size * (0.08 + 0.08 * float(rng.random()))
    margin = radius + 1
    x, y = margin + rng.random(2) * (image_size - 2 * margin)
    rotation = math.radians((2 * float(rng.random()) - 1) * max_rotation)
    return SceneObject(
        class_id=class_id,
        finish_id=finish_id,
        centre=(float(x), float(y)),
        radius=radius,
        rotation=rotation,
        colour=_bold_colour(rng),
    )


def _bold_colour(rng: np.random.Generator) -> tuple[int, int, int]:
    """Return a colour with at least one channel that no background has."""
    while True:
        colour = _random_colour(rng)
        if max(abs(channel - 127.5) for channel in colour) >= _BOLDNESS:
            return colour


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
