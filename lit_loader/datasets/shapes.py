"""The built-in dataset: scenes of shapes with rare classes, drawn on first use and written as unified VOC."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import Progress

from lit_loader.annotations import AnnotationTable, Attribute
from lit_loader.annotations.formats import write_annotations
from lit_loader.annotations.masks import Masks
from lit_loader.datasets.drawn import check_shares, drawing_settings, drawn_folder, shuffled_quotas
from lit_loader.datasets.scenes import (
    FINISH_NAMES,
    MAX_ROTATION,
    POINTS,
    SHAPE_NAMES,
    box_of,
    mask_outline,
    place_objects,
    points_of,
    render_scene,
)
from lit_loader.seeding import key64

__all__ = ["DEFAULT_NUM_IMAGES", "draw_shapes"]

DEFAULT_NUM_IMAGES: Mapping[str, int] = {"train": 3000, "val": 300, "test": 1400}
"""Images per split; 1,400 images with four objects on average contain 56 objects of a class with a share of 1 %."""

# Version of the drawing; increase it whenever the same settings would result in other images or annotations.
_DRAWING = 5


def draw_shapes(
    cache_dir: Path | str | None = None,
    *,
    num_images: Mapping[str, int] = DEFAULT_NUM_IMAGES,
    image_size: int = 96,
    objects_per_image: Sequence[int] = (2, 6),
    class_shares: Sequence[float] = (0.90, 0.09, 0.01),
    finish_shares: Sequence[float] = (0.88, 0.10, 0.02),
    max_rotation: float = 25.0,
    seed: int = 0,
    masks: bool = False,
    progress: bool = True,
) -> Path:
    """Draw scenes of discs, squares and stars and write them as VOC XML and JPEG, unless they already exist.

    The dataset suits every task: an object has a box, a class, the points of `lit_loader.datasets.scenes.POINTS`
    (corners of a square, tips of a star, none of a disc) and, independently, a ``finish``: plain, dotted or hollow.

    The number of objects of each class in a split is exactly its share of the split's objects, rounded, and never 0;
    the same holds for each finish. The same settings result in the same annotations to the byte, and in the same pixels
    with the same version of Pillow.

    Args:
        cache_dir: Folder to create the dataset's folder, ``shapes-<fingerprint>``, in, or None for the user's cache
            folder.
        num_images: Number of images in each split; the names become files in ``ImageSets/Main``.
        image_size: Width and height in pixels, at least 32.
        objects_per_image: Smallest and largest number of objects in an image, drawn uniformly.
        class_shares: Share of all objects for each of `SHAPE_NAMES`; positive, sum 1.
        finish_shares: Share of all objects for each of `FINISH_NAMES`; positive, sum 1.
        max_rotation: Largest rotation of an object in either direction, in degrees; below `MAX_ROTATION`, so that its
            points remain distinguishable.
        seed: Seed of all random numbers.
        masks: Also write COCO JSON with the masks of whole objects, ``annotations/SPLIT.json``, into another folder.
        progress: Show a progress bar while drawing.

    Returns:
        The folder of the dataset, with ``JPEGImages``, ``Annotations`` and ``ImageSets/Main``.

    Raises:
        ValueError: A setting is out of range, or a split is too small to contain every class and finish.
        TypeError: A number is not whole.
    """
    settings: dict[str, Any] = {
        "drawing": _DRAWING,
        **drawing_settings(
            num_images=num_images,
            image_size=image_size,
            objects_per_image=objects_per_image,
            max_rotation=max_rotation,
            seed=seed,
            min_image_size=32,
        ),
        "class_shares": [float(share) for share in class_shares],
        "finish_shares": [float(share) for share in finish_shares],
        **({"masks": True} if masks else {}),  # absent without masks, so that such a folder is reused
    }
    _check_settings(settings)
    draw = partial(_write_splits, settings=settings, progress=progress)
    return drawn_folder("shapes", settings, draw, cache_dir=cache_dir)


def _check_settings(settings: Mapping[str, Any]) -> None:
    check_shares("class_shares", settings["class_shares"], SHAPE_NAMES)
    check_shares("finish_shares", settings["finish_shares"], FINISH_NAMES)
    if not 0 <= settings["max_rotation"] < MAX_ROTATION:
        rule = f"must be in [0, {MAX_ROTATION:g}) degrees; beyond it, another tip of a star is its top"
        raise ValueError(f"max_rotation={settings['max_rotation']} {rule}")


def _write_splits(folder: Path, *, settings: Mapping[str, Any], progress: bool) -> None:
    """Draw every split into a new folder."""
    (folder / "JPEGImages").mkdir(parents=True)
    size = settings["image_size"]
    with Progress(disable=not progress) as bar:
        task = bar.add_task("Drawing shapes", total=sum(settings["num_images"].values()))
        for split, num_images in settings["num_images"].items():
            paths = []
            scenes = []
            for index, (scene_classes, scene_finishes) in enumerate(_class_and_finish_ids(split, num_images, settings)):
                path = f"JPEGImages/{split}_{index:05d}.jpg"
                # A generator per image, so that an image does not depend on the number of images before it.
                rng = np.random.default_rng(key64("scene", settings["seed"], split, index))
                scene = place_objects(
                    scene_classes, scene_finishes, image_size=size, max_rotation=settings["max_rotation"], rng=rng
                )
                render_scene(scene, image_size=size, rng=rng).save(folder / path, quality=90)
                paths.append(path)
                scenes.append(scene)
                bar.advance(task)
            objects = [scene_object for scene in scenes for scene_object in scene]
            finish_ids = np.array([scene_object.finish_id for scene_object in objects])
            # Scene by scene, because only objects of the same scene hide a point.
            points, visibility = zip(*map(points_of, scenes), strict=True)
            table = AnnotationTable(
                root=folder,
                image_paths=paths,
                image_ids=[Path(path).stem for path in paths],
                widths=[size] * num_images,
                heights=[size] * num_images,
                class_names=SHAPE_NAMES,
                offsets=np.cumsum([0, *map(len, scenes)]),
                boxes=[box_of(scene_object) for scene_object in objects],
                labels=[scene_object.class_id for scene_object in objects],
                keypoints=np.concatenate(points),
                visibility=np.concatenate(visibility),
                **POINTS.columns(),
                attributes={"finish": Attribute(ids=finish_ids, names=FINISH_NAMES)},
            )
            write_annotations("voc", table, folder, split, allow_loss=True, progress=False)
            if settings.get("masks"):
                outlines = Masks.from_rows([mask_outline(scene_object)] for scene_object in objects)
                file = f"annotations/{split}.json"
                write_annotations("coco", replace(table, masks=outlines), folder, file, allow_loss=True, progress=False)


def _class_and_finish_ids(
    split: str, num_images: int, settings: Mapping[str, Any]
) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the class ids and the finish ids of the objects of each image in a split."""
    rng = np.random.default_rng(key64("classes", settings["seed"], split))
    min_objects, max_objects = settings["objects_per_image"]
    counts = min_objects + np.floor(rng.random(num_images) * (max_objects - min_objects + 1)).astype(np.int64)
    class_ids = shuffled_quotas(int(counts.sum()), settings["class_shares"], rng)
    # A generator of its own makes the finish independent of the class.
    rng = np.random.default_rng(key64("finishes", settings["seed"], split))
    finish_ids = shuffled_quotas(int(counts.sum()), settings["finish_shares"], rng)
    ends = np.cumsum(counts)[:-1]
    for image_classes, image_finishes in zip(np.split(class_ids, ends), np.split(finish_ids, ends), strict=True):
        yield image_classes.tolist(), image_finishes.tolist()
