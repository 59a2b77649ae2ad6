"""Rate of reading a COCO file into a table, compared with a bare pass of `ijson`. A unit is an object.

    python -m benchmarks.coco_read [--rounds 7]

Both read the same files: 20,000 images with 100,000 objects, without and with polygons. The bare pass iterates over the
events of `ijson.basic_parse`, with numbers as `Decimal` (its default) or as float. lit_loader's reader checks
everything, looks up the images, and creates the table, without the cache.
"""

from __future__ import annotations

import json
import random
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import ijson

from benchmarks.rounds import compare, judge, run
from lit_loader.annotations.formats import read_annotations

NUM_IMAGES = 20_000
NUM_OBJECTS = 100_000
NUM_CLASSES = 80
WIDTH = 640
HEIGHT = 480
LEAST_RATE = 0.5
"""The bar: lit_loader's rate as a fraction of the bare pass."""


def write_coco(root: Path, name: str, *, polygons: bool) -> None:
    """Write a file like COCO's own, in one line, and empty image files, which are not opened."""
    draw = random.Random(0)
    (root / "images").mkdir(exist_ok=True)
    images = []
    annotations = []
    for number in range(NUM_IMAGES):
        file_name = f"{number:012d}.jpg"
        (root / "images" / file_name).touch()
        url = f"http://images.cocodataset.org/train2017/{file_name}"
        size = {"height": HEIGHT, "width": WIDTH}
        images.append({"license": 1, "file_name": file_name, "coco_url": url, **size, "id": number + 1})
    for number in range(NUM_OBJECTS):
        x, y, w, h = (round(draw.uniform(5, 200), 2) for _ in range(4))
        record: dict[str, Any] = {
            "area": round(w * h, 2),
            "iscrowd": 0,
            "image_id": number * NUM_IMAGES // NUM_OBJECTS + 1,
        }
        record |= {"bbox": [x, y, w, h], "category_id": draw.randint(1, NUM_CLASSES), "id": number + 1}
        if polygons:
            count = 2 * draw.randint(8, 30)
            record["segmentation"] = [[round(draw.uniform(0, 400), 2) for _ in range(count)]]
        annotations.append(record)
    categories = [{"supercategory": "s", "id": i, "name": f"c{i}"} for i in range(1, NUM_CLASSES + 1)]
    lists = {"images": images, "annotations": annotations, "categories": categories}
    (root / name).write_text(json.dumps(lists))


def main(rounds: int) -> None:
    """Compare on both files."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name, polygons in (("boxes.json", False), ("polygons.json", True)):
            write_coco(root, name, polygons=polygons)

            def bare(name: str = name, *, use_float: bool = False) -> int:
                with (root / name).open("rb") as file:
                    for _ in ijson.basic_parse(file, use_float=use_float):
                        pass
                return NUM_OBJECTS

            def ours(name: str = name) -> int:
                options = {"image_dir": "images", "use_cache": False, "progress": False}
                return read_annotations("coco", root, name, **options).num_objects

            size = (root / name).stat().st_size / 1e6
            figures = compare(
                f"{name}: {NUM_IMAGES} images, {NUM_OBJECTS} objects, {size:.0f} MB ({ijson.backend})",
                {
                    "ijson.basic_parse": bare,
                    "ijson.basic_parse, use_float=True": partial(bare, use_float=True),
                    "read_annotations": ours,
                },
                rounds=rounds,
                unit="object",
            )
            share = figures.rate_ratio("read_annotations", "ijson.basic_parse")
            judge("rate as a fraction of the bare pass", share, at_least=LEAST_RATE)


if __name__ == "__main__":
    run(main)
