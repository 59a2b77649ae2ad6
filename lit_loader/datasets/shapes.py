"""The embedded data set: scenes of shapes with rare kinds, drawn on first use, written as unified VOC.

Nothing is downloaded. A folder is named after a fingerprint of the settings that drew it, so other
settings never overwrite it, and it appears under that name only when it is complete: it is drawn in a
temporary folder beside its place and renamed, under a lock that the system drops when a process dies.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from rich.progress import Progress

from lit_loader.annotations import AnnotationTable, Attribute
from lit_loader.annotations.cache import cache_folder
from lit_loader.annotations.formats import write_annotations
from lit_loader.datasets.scenes import (
    FINISH_NAMES,
    MAX_ROTATION,
    POINTS,
    SHAPE_NAMES,
    box_of,
    place_objects,
    points_of,
    render_scene,
)
from lit_loader.foundation.files import file_lock
from lit_loader.samplers.class_balanced import class_quotas
from lit_loader.seeding import key64
from lit_loader.types import IndexArray

__all__ = ["DEFAULT_NUM_IMAGES", "draw_shapes"]

DEFAULT_NUM_IMAGES: Mapping[str, int] = {"train": 3000, "val": 300, "test": 1400}
"""Images per split; 1,400 images of four objects on average hold 56 of a class with a share of 1 %."""

_DRAWING = 5  # raised whenever the same settings would be drawn differently
_SETTINGS_FILE = "shapes.json"


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
    progress: bool = True,
) -> Path:
    """Draw scenes of discs, squares and stars and write them as VOC XML and JPEG, unless they are there.

    One set serves every task: an object has a box, a class, the points of `lit_loader.datasets.scenes.POINTS`
    (a square's corners, a star's tips; a disc has none), and the attribute ``finish``, dealt out
    independently of the class: plain, dotted, or hollow.

    The number of objects of each class in a split is its share of the split's objects, exactly, to the
    nearest whole number and never 0; so is that of each finish. The same settings give the same annotations
    to the byte, and the same pixels on the same version of Pillow.

    Args:
        cache_dir: Folder under which the data set's own folder, ``shapes-<fingerprint>``, is made, or None for the
            user's cache folder.
        num_images: Images of every split; the names become files in ``ImageSets/Main``.
        image_size: Width and height in pixels, at least 32.
        objects_per_image: Fewest and most objects of an image, drawn uniformly.
        class_shares: Share of all objects for each of `SHAPE_NAMES`; positive, sums to 1.
        finish_shares: Share of all objects for each of `FINISH_NAMES`; positive, sums to 1.
        max_rotation: Degrees that an object leans to either side at most; below `MAX_ROTATION`, so that each
            point can be told from the others.
        seed: Seed of everything that is drawn.
        progress: Show a progress bar while drawing.

    Returns:
        The data set's folder, with ``JPEGImages``, ``Annotations`` and ``ImageSets/Main``.

    Raises:
        ValueError: If a setting is out of range, or a split is too small to hold every class and finish.
    """
    settings = {
        "drawing": _DRAWING,
        "num_images": {split: int(count) for split, count in num_images.items()},
        "image_size": int(image_size),
        "objects_per_image": [int(number) for number in objects_per_image],
        "class_shares": [float(share) for share in class_shares],
        "finish_shares": [float(share) for share in finish_shares],
        "max_rotation": float(max_rotation),
        "seed": int(seed),
    }
    _check(settings)
    text = json.dumps(settings, indent=1, sort_keys=True)
    target = cache_folder(cache_dir) / f"shapes-{key64(text):016x}"
    if (target / _SETTINGS_FILE).is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with file_lock(target.with_name(f".{target.name}.lock")):
        if (target / _SETTINGS_FILE).is_file():  # another process drew it while this one waited
            return target
        for abandoned in target.parent.glob(f".{target.name}.*.tmp"):
            shutil.rmtree(abandoned)  # safe: whoever holds the lock is the only one drawing
        with TemporaryDirectory(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent) as temporary:
            folder = Path(temporary, "drawn")
            _write_all(folder, settings, progress=progress)
            (folder / _SETTINGS_FILE).write_text(text + "\n")
            if target.exists():  # a folder without the settings file is not one that this function finished
                shutil.rmtree(target)
            folder.replace(target)
    return target


def _check(settings: Mapping[str, Any]) -> None:
    """Refuse settings that cannot be drawn."""
    fewest, most = settings["objects_per_image"]
    if not 1 <= fewest <= most:
        raise ValueError(f"objects_per_image=({fewest}, {most}) must be 1 <= fewest <= most, e.g. (2, 6)")
    for what, names in (("class_shares", SHAPE_NAMES), ("finish_shares", FINISH_NAMES)):
        shares = settings[what]
        if len(shares) != len(names) or not min(shares) > 0 or not abs(sum(shares) - 1) <= 1e-6:
            raise ValueError(f"{what}={shares} must be {len(names)} positive shares of sum 1, for {names}")
    if not 0 <= settings["max_rotation"] < MAX_ROTATION:
        raise ValueError(
            f"max_rotation={settings['max_rotation']} must be in [0, {MAX_ROTATION:g}) degrees; a star that "
            "leans farther has another tip on top"
        )
    if settings["image_size"] < 32:
        raise ValueError(f"image_size={settings['image_size']} is below 32, too small to tell shapes apart")
    if not settings["num_images"]:
        raise ValueError("num_images={} names no split; give e.g. {'train': 3000, 'val': 300}")
    for split, count in settings["num_images"].items():
        if count < 1 or not split or Path(split).name != split:
            raise ValueError(f"num_images[{split!r}]={count}: a split is a file name with at least one image")


def _write_all(folder: Path, settings: Mapping[str, Any], *, progress: bool) -> None:
    """Draw every split into a new folder."""
    (folder / "JPEGImages").mkdir(parents=True)
    size = settings["image_size"]
    with Progress(disable=not progress) as bar:
        task = bar.add_task("Drawing shapes", total=sum(settings["num_images"].values()))
        for split, num_images in settings["num_images"].items():
            paths, scenes, finishes = [], [], []
            for index, (class_ids, finish_ids) in enumerate(_kinds(split, num_images, settings)):
                paths.append(f"JPEGImages/{split}_{index:05d}.jpg")
                rng = np.random.default_rng(key64("scene", settings["seed"], split, index))
                leaning = settings["max_rotation"]
                objects = place_objects(class_ids, finish_ids, image_size=size, max_rotation=leaning, rng=rng)
                render_scene(objects, image_size=size, rng=rng).save(folder / paths[-1], quality=90)
                scenes.append(objects)
                finishes += finish_ids
                bar.advance(task)
            drawn = [scene_object for objects in scenes for scene_object in objects]
            # what hides a point is in its scene
            points, visibility = zip(*map(points_of, scenes), strict=True)
            table = AnnotationTable(
                root=folder,
                image_paths=paths,
                image_ids=[Path(path).stem for path in paths],
                widths=[size] * num_images,
                heights=[size] * num_images,
                class_names=SHAPE_NAMES,
                offsets=np.cumsum([0, *map(len, scenes)]),
                boxes=[box_of(scene_object) for scene_object in drawn],
                labels=[scene_object.class_id for scene_object in drawn],
                keypoints=np.concatenate(points),
                visibility=np.concatenate(visibility),
                keypoint_names=POINTS.names,
                flip_pairs=POINTS.flip_pairs,
                normalization_pair=POINTS.normalization_pair,
                attributes={"finish": Attribute(ids=np.array(finishes), names=FINISH_NAMES)},
            )
            write_annotations("voc", table, folder, split, allow_loss=True, progress=False)


def _kinds(split: str, num_images: int, settings: Mapping[str, Any]) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the class ids and the finish ids of every image of a split, the quotas dealt out at random."""
    rng = np.random.default_rng(key64("classes", settings["seed"], split))
    fewest, most = settings["objects_per_image"]
    counts = fewest + np.floor(rng.random(num_images) * (most - fewest + 1)).astype(np.int64)
    classes = _dealt(int(counts.sum()), settings["class_shares"], rng)
    rng = np.random.default_rng(key64("finishes", settings["seed"], split))
    finishes = _dealt(int(counts.sum()), settings["finish_shares"], rng)
    ends = np.cumsum(counts)[:-1]
    for class_ids, finish_ids in zip(np.split(classes, ends), np.split(finishes, ends), strict=True):
        yield class_ids.tolist(), finish_ids.tolist()


def _dealt(total: int, shares: Sequence[float], rng: np.random.Generator) -> IndexArray:
    """Return the kind of each of ``total`` objects: the shares by largest remainders, at least one of each kind."""
    if total < len(shares):
        raise ValueError(f"{total} objects cannot hold each of {len(shares)} kinds; draw more images")
    quota = class_quotas([Fraction(str(share)) for share in shares], total)
    return np.repeat(np.arange(len(quota)), quota)[np.argsort(rng.random(total), kind="stable")]
