"""A folder with one tiny set of each format, for reading it by its path and by its URL."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from PIL import Image

from lit_loader.annotations.formats import write_annotations
from tests.support.drawn_set import draw_set

IMAGE_DIRS = {"coco": "images", "yolo": "images", "voc": "JPEGImages"}
NUM_IMAGES = 5


def write_sets(root: Path) -> None:
    """Write the sets ``coco``, ``yolo``, ``voc``, ``classes``, ``list`` and ``plain`` into a folder."""
    for format, image_dir in IMAGE_DIRS.items():
        folder = root / format
        drawn = draw_set(folder / image_dir, num_images=NUM_IMAGES, objects=2)
        # YOLO has no points of single objects without all of them.
        drawn = replace(drawn, keypoints=None, visibility=None, keypoint_names=(), flip_pairs=(), attributes={})
        ids = [str(number) for number in range(NUM_IMAGES)]
        paths = [f"{image_dir}/{path}" for path in drawn.image_paths]
        table = replace(drawn, root=folder, image_paths=paths, image_ids=ids, split="train")
        name = "train.json" if format == "coco" else "train"
        write_annotations(format, table, folder, name, allow_loss=True, progress=False)
    for number in range(NUM_IMAGES):
        for path in (
            f"classes/{'ab'[number % 2]}/{number}.jpg",
            f"list/{number}.jpg",
            f"plain/{number % 2}/{number}.png",
        ):
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (20 + number, 10), (number * 40, 0, 0)).save(root / path)
    lines = [f"{number}.jpg {number} 1 {number + 9} 8" for number in range(NUM_IMAGES)]
    (root / "list/train.txt").write_text("\n".join(lines))
