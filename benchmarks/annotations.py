"""Reading of annotations: cold and warm time, memory, bytes per object, and copies in workers.

    python -m benchmarks.annotations --rounds 5
    python -m benchmarks.annotations --coco-images 1000000 --voc-files 1000000 --rounds 1

NOTE [Comparisons]
    COCO: a JSON file of images with five objects each; the image files are empty, a thousand per folder. Cold and warm
    reads run in fresh processes, so that each has its own memory peak. VOC: files with five objects each, compared
    with two processes that parse every file with ElementTree and keep nothing. A cold read fills an empty cache. A warm
    read checks that the files are unchanged, and opens the cached table.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import random
import resource
import sys
import tempfile
import time
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

import numpy as np
import psutil
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

from benchmarks.rounds import Pass, compare, cpu_seconds, in_fresh_process, judge
from lit_loader import DataLoader
from lit_loader.annotations import AnnotationTable
from lit_loader.annotations.formats import read_annotations
from lit_loader.datasets.targets import object_target

NUM_IMAGES = 100_000
OBJECTS_AN_IMAGE = 5
EPOCHS = 10
_CLASSES: Final = [f"class {number}" for number in range(80)]
_XML: Final = """<annotation>
\t<folder>VOC</folder>
\t<filename>{name}.jpg</filename>
\t<source><database>generated</database></source>
\t<size><width>500</width><height>375</height><depth>3</depth></size>
\t<segmented>0</segmented>
{objects}</annotation>
"""
_OBJECT: Final = """\t<object>
\t\t<name>{name}</name>
\t\t<pose>Unspecified</pose>
\t\t<truncated>{truncated}</truncated>
\t\t<difficult>0</difficult>
\t\t<bndbox>
\t\t\t<xmin>{box[0]}</xmin>
\t\t\t<ymin>{box[1]}</ymin>
\t\t\t<xmax>{box[2]}</xmax>
\t\t\t<ymax>{box[3]}</ymax>
\t\t</bndbox>
\t</object>
"""


# -- data ---------------------------------------------------------------------------------------------------


def write_coco(root: Path, num_images: int, *, polygons: bool = False) -> Path:
    """Write ``all.json`` and its empty image files, a thousand per folder; return the path of the JSON file."""
    path = root / "all.json"
    draws = random.Random(0)
    categories = [{"id": number + 1, "name": name} for number, name in enumerate(_CLASSES)]
    with path.open("w") as file:
        # Row by row, because the objects of a million images do not fit in memory as dicts.
        file.write(f'{{"categories": {json.dumps(categories)},\n"images": [')
        for number in range(num_images):
            name = f"images/{number // 1000:04d}/{number:07d}.jpg"
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).touch()
            image = {"id": number + 1, "file_name": name, "width": 640, "height": 480}
            file.write(f"{',' * (number > 0)}\n{json.dumps(image)}")
        file.write('],\n"annotations": [')
        for number in range(num_images * OBJECTS_AN_IMAGE):
            box = [draws.randrange(400), draws.randrange(400), 50.5, 40.25]
            item = {"id": number + 1, "image_id": number // OBJECTS_AN_IMAGE + 1, "bbox": box}
            item |= {"category_id": draws.randint(1, len(_CLASSES)), "area": 2032.625, "iscrowd": 0}
            if polygons:
                num_values = 2 * draws.randint(8, 30)
                item["segmentation"] = [[round(draws.uniform(0, 400), 2) for _ in range(num_values)]]
            file.write(f"{',' * (number > 0)}\n{json.dumps(item)}")
        file.write("]}\n")
    return path


def write_voc(root: Path, num_files: int) -> None:
    """Write a VOC set with one split of all, and empty images."""
    rng = np.random.default_rng(0)
    for folder in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (root / folder).mkdir(parents=True)
    names = [f"{number:07d}" for number in range(num_files)]
    for number, name in enumerate(names):
        corners = rng.integers(0, 300, (OBJECTS_AN_IMAGE, 2)).tolist()
        objects = "".join(
            _OBJECT.format(name=_CLASSES[(number + x) % 20], truncated=x % 2, box=(x, y, x + 50, y + 40))
            for x, y in corners
        )
        (root / "Annotations" / f"{name}.xml").write_text(_XML.format(name=name, objects=objects))
        (root / "JPEGImages" / f"{name}.jpg").touch()
    (root / "ImageSets/Main/all.txt").write_text("\n".join(names))


# -- reading ------------------------------------------------------------------------------------------------


def read_once(format: str, root: str, name: str, cache: str) -> dict[str, float]:
    """Read a set, and return seconds, CPU seconds, and the memory peaks before and after in bytes."""
    start_peak = _peak()
    start = time.perf_counter()
    cpu_start = cpu_seconds()
    table = read_annotations(format, root, name, cache_dir=cache, progress=False)
    seconds = time.perf_counter() - start
    cpu = cpu_seconds() - cpu_start
    assert table.num_objects
    return {"seconds": seconds, "cpu": cpu, "peak": _peak(), "before": start_peak}


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def coco(num_images: int, rounds: int) -> None:
    """Report cold and warm reads of a COCO file."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "set")
        root.mkdir()
        size = write_coco(root, num_images).stat().st_size
        print(f"\nCOCO, {num_images:,} images, {num_images * OBJECTS_AN_IMAGE:,} objects, {size / 2**20:.0f} MiB")
        # The first read of a round fills an empty cache, the second opens it.
        caches = [Path(folder, f"cache{number}") for number in range(rounds)]
        reads = [
            [in_fresh_process("benchmarks.annotations", "read", "coco", root, "all.json", cache) for _ in range(2)]
            for cache in caches
        ]
        for state, results in zip(("cold", "warm"), zip(*reads, strict=True), strict=True):
            seconds = ", ".join(f"{result['seconds']:.2f} (CPU {result['cpu']:.2f})" for result in results)
            grown = max(result["peak"] - result["before"] for result in results) / 2**20
            print(f"  {state}: {seconds} s, peak {grown:.0f} MiB above the start")
        cache_bytes = sum(path.stat().st_size for path in caches[0].rglob("*.arrow"))
        bytes_an_object = cache_bytes / (num_images * OBJECTS_AN_IMAGE)
        print(f"  in the cache: {bytes_an_object:.1f} bytes an object, its share of the images included")
        judge("warm open", [warm["seconds"] for _, warm in reads], at_most=1, unit=" s")


def parse_alone(paths: list[str]) -> None:
    """Parse files without using the result."""
    for path in paths:
        with open(path, "rb") as file:  # noqa: PTH123 # the fastest that a plain loop can be
            ElementTree.fromstring(file.read())


def voc(num_files: int, rounds: int) -> None:
    """Compare reading VOC with two processes that only parse."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "set")
        write_voc(root, num_files)
        paths = [entry.path for entry in os.scandir(root / "Annotations")]
        context = multiprocessing.get_context("fork")
        caches = itertools.count()

        def bare() -> int:
            halves = paths[: num_files // 2], paths[num_files // 2 :]
            workers = [context.Process(target=parse_alone, args=(half,)) for half in halves]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            return num_files

        def read(cache: str = "", **options: Any) -> int:
            cache_dir = f"{folder}/{cache or next(caches)}"
            read_annotations("voc", root, "all", progress=False, num_workers=2, cache_dir=cache_dir, **options)
            return num_files

        read("warm")
        contenders: dict[str, Pass] = {
            "two processes that parse": bare,
            "the table, and the cache filled": read,
            "the table, without a cache": partial(read, use_cache=False),
            "the table from the cache": partial(read, "warm"),
        }
        question = f"VOC, {num_files:,} files of {OBJECTS_AN_IMAGE} objects"
        figures = compare(question, contenders, rounds=rounds, unit="file")
        names = list(contenders)
        judge("rate with an empty cache", figures.rate_ratio(names[1], names[0]), at_least=0.8)


# -- copies in workers --------------------------------------------------------------------------------------


class FromTable(Dataset[dict[str, Any]]):
    """The targets of a table, without the images."""

    def __init__(self) -> None:
        num_objects = NUM_IMAGES * OBJECTS_AN_IMAGE
        corners = np.random.default_rng(0).uniform(0, 400, (num_objects, 2)).astype(np.float32)
        self.table = AnnotationTable(
            root="/annotations",
            image_paths=[f"images/{number:06d}.jpg" for number in range(NUM_IMAGES)],
            class_names=("cell", "other"),
            widths=np.full(NUM_IMAGES, 640, np.int32),
            heights=np.full(NUM_IMAGES, 480, np.int32),
            offsets=np.arange(0, num_objects + 1, OBJECTS_AN_IMAGE),
            boxes=np.concatenate([corners, corners + 50], axis=1),
            labels=np.arange(num_objects) % 2,
        )

    def __len__(self) -> int:
        return NUM_IMAGES

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return the target of an image."""
        return object_target(
            self.table, index, canvas_size=(480, 640), first_label=1, extra_fields=(), keypoints=False, attributes=()
        )


class FromDicts(Dataset[dict[str, Any]]):
    """The same targets as a list of dicts per image, as users write it."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.targets = [
            {"file": f"images/{number:06d}.jpg", "objects": [_object(rng) for _ in range(OBJECTS_AN_IMAGE)]}
            for number in range(NUM_IMAGES)
        ]

    def __len__(self) -> int:
        return NUM_IMAGES

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return the target of an image."""
        objects = self.targets[index]["objects"]
        assert isinstance(objects, list)
        return {
            "boxes": torch.tensor([item["bbox"] for item in objects]),
            "labels": torch.tensor([item["category_id"] for item in objects]),
        }


def _object(rng: np.random.Generator) -> dict[str, Any]:
    x, y = rng.uniform(0, 400, 2).tolist()
    return {"bbox": [x, y, x + 50, y + 50], "category_id": int(x) % 2, "iscrowd": 0, "area": 2500.0}


def grown(whose: str) -> list[float]:
    """Return the PSS of this process and its workers in MiB after each epoch."""
    arguments: dict[str, Any] = {
        "batch_size": 256,
        "shuffle": True,
        "num_workers": 2,
        "persistent_workers": True,
        # The content of batches does not matter here.
        "collate_fn": len,
        "multiprocessing_context": "fork",
    }
    ours: Any = DataLoader
    is_torch = whose == "torch"
    loader = TorchDataLoader(FromDicts(), **arguments) if is_torch else ours(FromTable(), seed=0, **arguments)
    sizes = []
    for _ in range(EPOCHS):
        deque(loader, maxlen=0)
        process = psutil.Process()
        # Proportional set size, which counts shared memory once.
        members = (process, *process.children(recursive=True))
        sizes.append(sum(member.memory_full_info().pss for member in members) / 2**20)
    return sizes


def copies() -> None:
    """Compare the memory of workers after the first and the last epoch, in fresh processes."""
    print(f"\n{NUM_IMAGES * OBJECTS_AN_IMAGE:,} objects, two forked workers: PSS in MiB at the end of each epoch")
    for loader_name in ("torch", "lit_loader"):
        figures = in_fresh_process("benchmarks.annotations", "copies", loader_name)
        growth = 100 * (figures[-1] / figures[0] - 1)
        print(f"  {loader_name:34s} {' '.join(f'{figure:.0f}' for figure in figures)}, growth {growth:.1f} %")
    judge("growth from the end of the first epoch", [growth], at_most=2, unit=" %")


def main() -> None:
    """Run all benchmarks of this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--coco-images", type=int, default=100_000, help="0 for none (%(default)s)")
    parser.add_argument("--voc-files", type=int, default=20_000, help="0 for none (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="counted rounds (%(default)s)")
    arguments = parser.parse_args()
    if arguments.coco_images:
        coco(arguments.coco_images, arguments.rounds)
    if arguments.voc_files:
        voc(arguments.voc_files, arguments.rounds)
    copies()


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["read"]:
        print(json.dumps(read_once(*sys.argv[2:6])))
    elif sys.argv[1:2] == ["copies"]:
        print(json.dumps(grown(sys.argv[2])))
    else:
        main()
