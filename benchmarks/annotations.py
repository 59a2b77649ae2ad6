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
import json
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

import numpy as np
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

from benchmarks.memory import pss_bytes
from benchmarks.rounds import compare, cpu_seconds, judge
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


def write_coco(root: Path, num_images: int) -> None:
    """Write ``all.json`` and its empty images, row by row."""
    rng = np.random.default_rng(0)
    with (root / "all.json").open("w") as file:
        categories = [{"id": number + 1, "name": name} for number, name in enumerate(_CLASSES)]
        file.write(f'{{"categories": {json.dumps(categories)},\n"images": [')
        for number in range(num_images):
            name = f"images/{number // 1000:04d}/{number:07d}.jpg"
            if number % 1000 == 0:
                (root / name).parent.mkdir(parents=True)
            os.close(os.open(f"{root}/{name}", os.O_CREAT | os.O_WRONLY, 0o644))
            row = {"id": number + 1, "file_name": name, "width": 640, "height": 480}
            file.write(f"{',' * (number > 0)}\n{json.dumps(row)}")
        file.write('],\n"annotations": [')
        for number in range(num_images):
            corners = rng.integers(0, 400, (OBJECTS_AN_IMAGE, 2)).tolist()
            labels = rng.integers(1, len(_CLASSES) + 1, OBJECTS_AN_IMAGE).tolist()
            for place, ((x, y), label) in enumerate(zip(corners, labels, strict=True)):
                row = {
                    "id": number * OBJECTS_AN_IMAGE + place + 1,
                    "image_id": number + 1,
                    "category_id": label,
                    "bbox": [x, y, 50.5, 40.25],
                    "area": 2032.625,
                    "iscrowd": 0,
                }
                file.write(f"{',' * (number + place > 0)}\n{json.dumps(row)}")
        file.write("]}\n")


def write_voc(root: Path, num_files: int) -> None:
    """Write a VOC set with one split of all, and empty images."""
    rng = np.random.default_rng(0)
    for folder in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (root / folder).mkdir(parents=True)
    for number in range(num_files):
        corners = rng.integers(0, 300, (OBJECTS_AN_IMAGE, 2)).tolist()
        objects = "".join(
            _OBJECT.format(name=_CLASSES[(number + x) % 20], truncated=x % 2, box=(x, y, x + 50, y + 40))
            for x, y in corners
        )
        name = f"{number:07d}"
        (root / "Annotations" / f"{name}.xml").write_text(_XML.format(name=name, objects=objects))
        os.close(os.open(f"{root}/JPEGImages/{name}.jpg", os.O_CREAT | os.O_WRONLY, 0o644))
    names = "".join(f"{number:07d}\n" for number in range(num_files))
    (root / "ImageSets/Main/all.txt").write_text(names)


# -- reading ------------------------------------------------------------------------------------------------


def read_once(format: str, root: str, name: str, cache: str) -> dict[str, float]:
    """Read a set, and return seconds, CPU seconds, and the memory peaks before and after in bytes."""
    start_peak = _peak()
    start = time.perf_counter()
    cpu_start = cpu_seconds()
    table = read_annotations(format, root, name, cache_dir=cache, progress=False)
    seconds = time.perf_counter() - start
    cpu = cpu_seconds() - cpu_start
    return {"seconds": seconds, "cpu": cpu, "peak": _peak(), "before": start_peak, "objects": table.num_objects}


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _in_fresh_process(*arguments: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.annotations", "read", *arguments]
    process = subprocess.run(command, check=True, capture_output=True, text=True)
    figures: dict[str, float] = json.loads(process.stdout)
    return figures


def coco(num_images: int, rounds: int) -> None:
    """Report cold and warm reads of a COCO file."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "set")
        root.mkdir()
        write_coco(root, num_images)
        size = (root / "all.json").stat().st_size
        print(f"\nCOCO, {num_images:,} images, {num_images * OBJECTS_AN_IMAGE:,} objects, {size / 2**20:.0f} MiB")
        cold = []
        warm = []
        bytes_an_object = 0.0
        for number in range(rounds):
            cache = Path(folder, f"cache{number}")
            cold.append(_in_fresh_process("coco", str(root), "all.json", str(cache)))
            warm.append(_in_fresh_process("coco", str(root), "all.json", str(cache)))
            cache_bytes = sum(path.stat().st_size for path in cache.rglob("*.arrow"))
            bytes_an_object = cache_bytes / cold[-1]["objects"]
        for state, results in (("cold", cold), ("warm", warm)):
            seconds = ", ".join(f"{result['seconds']:.2f} (CPU {result['cpu']:.2f})" for result in results)
            grown = max(result["peak"] - result["before"] for result in results) / 2**20
            print(f"  {state}: {seconds} s, peak {grown:.0f} MiB above the start")
        print(f"  in the cache: {bytes_an_object:.1f} bytes an object, its share of the images included")
        judge("warm open", [result["seconds"] for result in warm], at_most=1, unit=" s")


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
        caches = iter(range(10**6))

        def bare() -> int:
            halves = paths[: num_files // 2], paths[num_files // 2 :]
            workers = [context.Process(target=parse_alone, args=(half,)) for half in halves]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            return num_files

        def read(**options: Any) -> Callable[[], int]:
            def once() -> int:
                arguments = {"cache_dir": f"{folder}/cache{next(caches)}"} | options
                read_annotations("voc", root, "all", progress=False, num_workers=2, **arguments)
                return num_files

            return once

        read(cache_dir=f"{folder}/warm")()
        contenders = {
            "two processes that parse": bare,
            "the table, and the cache filled": read(),
            "the table, without a cache": read(use_cache=False),
            "the table from the cache": read(cache_dir=f"{folder}/warm"),
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
    loader: TorchDataLoader[Any]
    arguments: dict[str, Any] = {
        "batch_size": 256,
        "shuffle": True,
        "num_workers": 2,
        "persistent_workers": True,
        "collate_fn": len,  # the content of batches does not matter here
        "multiprocessing_context": "fork",
    }
    if whose == "torch":
        loader = TorchDataLoader(FromDicts(), **arguments)
    else:
        make: Any = DataLoader
        loader = make(FromTable(), seed=0, **arguments)
    sizes = []
    for _ in range(EPOCHS):
        for _ in loader:
            pass
        sizes.append(pss_bytes() / 2**20)
    return sizes


def copies() -> None:
    """Compare the memory of workers after the first and the last epoch, in fresh processes."""
    print(f"\n{NUM_IMAGES * OBJECTS_AN_IMAGE:,} objects, two forked workers: PSS in MiB at the end of each epoch")
    for loader_name in ("torch", "lit_loader"):
        command = [sys.executable, "-m", "benchmarks.annotations", "copies", loader_name]
        process = subprocess.run(command, check=True, capture_output=True, text=True)
        figures = [float(word) for word in process.stdout.split()]
        print(f"  {loader_name:34s} {' '.join(f'{figure:.0f}' for figure in figures)}")
        growth = [100 * (figures[-1] / figures[0] - 1)]
        if loader_name == "lit_loader":
            judge("growth from the end of the first epoch", growth, at_most=2, unit=" %")
        else:
            print(f"     growth {growth[0]:.1f} %")


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
        print(*grown(sys.argv[2]))
    else:
        main()
