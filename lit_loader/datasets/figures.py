"""Drawn dataset of figures with limbs: people and animals whose joints are named points, as unified VOC."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw
from rich.progress import Progress

from lit_loader.annotations import AnnotationTable, KeypointSchema
from lit_loader.annotations.formats import write_annotations
from lit_loader.datasets.drawn import check_shares, drawing_settings, drawn_folder, shuffled_quotas
from lit_loader.datasets.scenes import is_inside, least_overlapping, random_colour, render_over_background
from lit_loader.seeding import key64

__all__ = ["FIGURE_NAMES", "FIGURE_POINTS", "NUM_FIGURE_IMAGES", "draw_figures"]

FIGURE_NAMES: Final = ("person", "animal")
"""Class names, the most frequent first."""

_JOINTS: Final = ("shoulder", "elbow", "hand", "hip", "knee", "foot")

FIGURE_POINTS: Final = KeypointSchema(
    names=("head", *(f"{side}_{joint}" for joint in _JOINTS for side in ("left", "right"))),
    flip_pairs=tuple((point, point + 1) for point in range(1, 13, 2)),
    # COCO's numbers for an ear and for the joints of the same name, wrist and ankle.
    sigmas=(0.035, *(sigma for sigma in (0.079, 0.072, 0.062, 0.107, 0.087, 0.089) for _ in ("left", "right"))),
    skeleton=(
        *((0, 1), (0, 2), (1, 2), (7, 8), (1, 7), (2, 8)),
        *((1, 3), (3, 5), (2, 4), (4, 6), (7, 9), (9, 11), (8, 10), (10, 12)),
    ),
)
"""Keypoint schema: the head, and six joints on each side. A person faces the viewer, and an animal, seen from above,
walks towards the lower edge, so that "left", the figure's own left, is the right side of both in the image."""

NUM_FIGURE_IMAGES: Final[Mapping[str, int]] = {"train": 1000, "val": 200, "test": 200}
"""Images per split."""

# Version of the drawing; increase it whenever the same settings would result in other images or annotations.
_DRAWING: Final = 1
# Positions of shoulder, elbow and hand, and of hip, knee and foot, on the left; the right ones follow each.
_LIMBS: Final = ((1, 3, 5), (7, 9, 11))
# Shoulders and hips around the trunk, in drawing order.
_TRUNK: Final = [1, 2, 8, 7]
# Lengths as fractions of the figure's radius.
_THICKNESS: Final = 0.13
_HEAD_RADIUS: Final = 0.19
_NUM_CANDIDATES: Final = 10


@dataclass(frozen=True, kw_only=True)
class _Build:
    """Proportions of a class, as fractions of the radius, x to the right and y down, and its poses in degrees.

    Attributes:
        head: y of the head.
        roots: x and y of the left shoulder, and of the left hip.
        lengths: Length of each half of an arm, and of a leg.
        first_angles: Smallest and largest angle of upper arms, and of thighs: 0 down, 90 away from the trunk.
        bends: Smallest and largest change of the angle at elbows, and at knees.
    """

    head: float
    roots: tuple[tuple[float, float], tuple[float, float]]
    lengths: tuple[float, float]
    first_angles: tuple[tuple[float, float], tuple[float, float]]
    bends: tuple[tuple[float, float], tuple[float, float]]


_BUILDS: Final = (
    _Build(
        head=-0.75,
        roots=((0.24, -0.42), (0.15, 0.14)),
        lengths=(0.32, 0.4),
        first_angles=((10, 130), (0, 35)),
        bends=((-30, 60), (-25, 10)),
    ),
    _Build(
        head=0.72,
        roots=((0.2, 0.38), (0.18, -0.42)),
        lengths=(0.26, 0.26),
        first_angles=((60, 120), (70, 130)),
        bends=((-70, -10), (-70, -10)),
    ),
)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Figure:
    """A figure of a scene; coordinates in pixels start at the image's top left corner.

    Attributes:
        class_id: Position in ``FIGURE_NAMES``.
        centre: x and y between shoulders and hips.
        radius: Pixels for a length of 1 in its build.
        points: float64 ``(13, 2)``, in the order of ``FIGURE_POINTS``.
        colour: Red, green, blue in 0..255.
    """

    class_id: int
    centre: tuple[float, float]
    radius: float
    points: npt.NDArray[np.float64]
    colour: tuple[int, int, int]

    def lines(self) -> npt.NDArray[np.float64]:
        """Return the ends of all limbs, ``(num_lines, 2, 2)``."""
        ends: npt.NDArray[np.float64] = self.points[np.array(FIGURE_POINTS.skeleton)]
        return ends

    def box(self, image_size: int) -> tuple[float, float, float, float]:
        """Return the tight box in whole pixels, clipped to the image."""
        # A head reaches further from its point than a limb.
        reach = np.full((len(self.points), 1), self.radius * _THICKNESS / 2)
        reach[0] = self.radius * _HEAD_RADIUS
        low = np.floor((self.points - reach).min(axis=0)).clip(0, image_size)
        high = np.ceil((self.points + reach).max(axis=0)).clip(0, image_size)
        return (float(low[0]), float(low[1]), float(high[0]), float(high[1]))

    def covers(self, point: npt.NDArray[np.float64]) -> bool:
        """Return True if the figure is painted over a point."""
        start, end = self.lines().swapaxes(0, 1)
        along = end - start
        # The nearest place on each line, between its ends.
        share = ((point - start) * along).sum(axis=1) / (along**2).sum(axis=1)
        distances = np.linalg.norm(start + share.clip(0, 1)[:, None] * along - point, axis=1)
        in_head = math.dist(self.points[0], point) < self.radius * _HEAD_RADIUS
        is_on_limb = float(distances.min()) < self.radius * _THICKNESS / 2
        return in_head or is_on_limb or is_inside(self.points[_TRUNK], point)


def draw_figures(
    cache_dir: Path | str | None = None,
    *,
    num_images: Mapping[str, int] = NUM_FIGURE_IMAGES,
    image_size: int = 128,
    objects_per_image: Sequence[int] = (1, 4),
    class_shares: Sequence[float] = (0.7, 0.3),
    max_rotation: float = 25.0,
    seed: int = 0,
    progress: bool = True,
) -> Path:
    """Draw people and animals and write them as VOC XML and JPEG, unless they already exist.

    Every figure has a box, a class and the points ``FIGURE_POINTS``: hidden behind a figure that is drawn later, and
    absent outside of the image. The number of figures of a class in a split is exactly its share, rounded, and never 0.
    The same settings result in the same annotations to the byte, and in the same pixels with the same version of
    Pillow.

    Args:
        cache_dir: Folder to create the dataset's folder, ``figures-<fingerprint>``, in, or None for the user's cache
            folder.
        num_images: Number of images in each split; the names become files in ``ImageSets/Main``.
        image_size: Width and height in pixels, at least 64.
        objects_per_image: Smallest and largest number of figures in an image, drawn uniformly.
        class_shares: Share of all figures for each of ``FIGURE_NAMES``; positive, sum 1.
        max_rotation: Largest rotation of a figure in either direction, in degrees, below 90, so that left and right
            remain distinguishable.
        seed: Seed of all random numbers.
        progress: Show a progress bar while drawing.

    Returns:
        The folder of the dataset, with ``JPEGImages``, ``Annotations`` and ``ImageSets/Main``.

    Raises:
        ValueError: A setting is out of range, or a split is too small to contain both classes.
        TypeError: A number is not whole.
    """
    settings = {
        "drawing": _DRAWING,
        **drawing_settings(
            num_images=num_images,
            image_size=image_size,
            objects_per_image=objects_per_image,
            max_rotation=max_rotation,
            seed=seed,
            min_image_size=64,
        ),
        "class_shares": [float(share) for share in class_shares],
    }
    check_shares("class_shares", class_shares, FIGURE_NAMES)
    if not 0 <= max_rotation < 90:
        raise ValueError(f"max_rotation={max_rotation} must be in [0, 90) degrees; beyond it, left looks like right")
    return drawn_folder(
        "figures", settings, partial(_write_splits, settings=settings, progress=progress), cache_dir=cache_dir
    )


def _write_splits(folder: Path, *, settings: Mapping[str, Any], progress: bool) -> None:
    """Draw every split into a new folder."""
    (folder / "JPEGImages").mkdir(parents=True)
    size = settings["image_size"]
    with Progress(disable=not progress) as bar:
        task = bar.add_task("Drawing figures", total=sum(settings["num_images"].values()))
        for split, num_images in settings["num_images"].items():
            paths = []
            scenes = []
            for index, class_ids in enumerate(_class_ids(split, num_images, settings)):
                path = f"JPEGImages/{split}_{index:05d}.jpg"
                # A generator per image, so that an image does not depend on the number of images before it.
                rng = np.random.default_rng(key64("figures", settings["seed"], split, index))
                scene = _scene(class_ids, settings, rng)
                image = render_over_background(partial(_draw, scene), image_size=size, rng=rng)
                image.save(folder / path, quality=90)
                paths.append(path)
                scenes.append(scene)
                bar.advance(task)
            write_annotations("voc", _table(folder, paths, scenes, size), folder, split, progress=False)


def _class_ids(split: str, num_images: int, settings: Mapping[str, Any]) -> list[npt.NDArray[np.int64]]:
    """Return the classes of the figures of each image."""
    rng = np.random.default_rng(key64("figure classes", settings["seed"], split))
    low, high = settings["objects_per_image"]
    counts = rng.integers(low, high + 1, num_images)
    return np.split(shuffled_quotas(int(counts.sum()), settings["class_shares"], rng), np.cumsum(counts)[:-1])


def _scene(class_ids: npt.NDArray[np.int64], settings: Mapping[str, Any], rng: np.random.Generator) -> list[_Figure]:
    """Place one figure per class, in drawing order."""
    figures: list[_Figure] = []
    for class_id in class_ids.tolist():
        candidates = [_figure(class_id, settings, rng) for _ in range(_NUM_CANDIDATES)]
        figures.append(least_overlapping(candidates, figures))
    return figures


def _figure(class_id: int, settings: Mapping[str, Any], rng: np.random.Generator) -> _Figure:
    size = settings["image_size"]
    radius = size * rng.uniform(0.16, 0.26)
    # The trunk stays inside the image; limbs may leave it.
    centre = rng.uniform(0.7 * radius, size - 0.7 * radius, 2)
    angle = math.radians(rng.uniform(-1, 1) * settings["max_rotation"])
    rotation = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
    return _Figure(
        class_id=class_id,
        centre=(float(centre[0]), float(centre[1])),
        radius=radius,
        points=centre + radius * _pose(_BUILDS[class_id], rng) @ rotation,
        colour=random_colour(rng),
    )


def _pose(build: _Build, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """Return the points of an upright figure, ``(13, 2)``, as fractions of its radius."""
    points = np.zeros((len(FIGURE_POINTS.names), 2))
    points[0] = 0, build.head
    for kind, joints in enumerate(_LIMBS):
        for side in (0, 1):
            # The right side is the mirror image of the left one, at the next positions.
            outwards = 1 - 2 * side
            angle = rng.uniform(*build.first_angles[kind])
            root, middle, end = (joint + side for joint in joints)
            points[root] = build.roots[kind]
            points[middle] = points[root] + build.lengths[kind] * _direction(angle)
            angle += rng.uniform(*build.bends[kind])
            points[end] = points[middle] + build.lengths[kind] * _direction(angle)
            points[[root, middle, end]] *= [outwards, 1]
    return points


def _direction(angle: float) -> npt.NDArray[np.float64]:
    """Return the unit vector at an angle in degrees: 0 down, 90 to the right."""
    return np.array([math.sin(math.radians(angle)), math.cos(math.radians(angle))])


def _draw(figures: Sequence[_Figure], canvas: Image.Image, scale: int) -> None:
    """Draw figures onto an RGB image that is ``scale`` times as large as the scene, the last on top."""
    draw = ImageDraw.Draw(canvas)
    for figure in figures:
        radius = figure.radius * scale
        draw.polygon((figure.points[_TRUNK] * scale).ravel().tolist(), fill=figure.colour)
        for line in figure.lines() * scale:
            draw.line(line.ravel().tolist(), fill=figure.colour, width=round(radius * _THICKNESS))
        # Pillow's lines have square ends, which leave gaps at bent joints.
        for point in figure.points[1:] * scale:
            draw.circle(tuple(point.tolist()), radius * _THICKNESS / 2, fill=figure.colour)
        draw.circle(tuple((figure.points[0] * scale).tolist()), radius * _HEAD_RADIUS, fill=figure.colour)


def _table(folder: Path, paths: Sequence[str], scenes: Sequence[Sequence[_Figure]], size: int) -> AnnotationTable:
    figures = [figure for scene in scenes for figure in scene]
    points = np.stack([figure.points for figure in figures])
    visibility = np.concatenate([_visibility(scene, size) for scene in scenes])
    return AnnotationTable(
        root=folder,
        image_paths=paths,
        image_ids=[Path(path).stem for path in paths],
        widths=[size] * len(paths),
        heights=[size] * len(paths),
        class_names=FIGURE_NAMES,
        offsets=np.cumsum([0, *map(len, scenes)]),
        boxes=[figure.box(size) for figure in figures],
        labels=[figure.class_id for figure in figures],
        keypoints=np.where(visibility[..., None] > 0, points, 0),
        visibility=visibility,
        **FIGURE_POINTS.columns(),
    )


def _visibility(scene: Sequence[_Figure], size: int) -> npt.NDArray[np.uint8]:
    """Return 0 for points outside of the image, 1 for points behind a later figure, else 2; ``(num_figures, 13)``."""
    visibility = np.full((len(scene), len(FIGURE_POINTS.names)), 2, dtype=np.uint8)
    for row, figure in enumerate(scene):
        for column, point in enumerate(figure.points):
            if any(later.covers(point) for later in scene[row + 1 :]):
                visibility[row, column] = 1
            if not ((point >= 0) & (point < size)).all():
                visibility[row, column] = 0
    return visibility
