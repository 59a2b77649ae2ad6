"""Check of a data set: images per second beside plain decoding, and time and memory for 100,000 images.

    python -m benchmarks.check --rounds 5
    python -m benchmarks.check --images 1000000 --rounds 1

NOTE [Comparisons]
    Rate: photographs of 640x480 with a box each. The check decodes all of them, looks for copies, and applies every
    rule; a plain loop and torchvision only decode, on one thread as scripts do. Memory: small images with five objects
    each, in a fresh process, which has its own memory peak; with pixels, and with headers only.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import numpy as np
import torch
from PIL import Image
from torchvision.io import ImageReadMode
from torchvision.io import decode_image as torchvision_decode

from benchmarks.photographs import write_photographs
from benchmarks.rounds import compare, in_fresh_process, judge
from lit_loader.annotations import AnnotationTable
from lit_loader.inspection import CheckSettings, check_tables

OBJECTS_AN_IMAGE: Final = 5
_SIZE: Final = (640, 480)
_SMALL_SIZE: Final = (64, 48)
_MAX_BYTES_AN_IMAGE: Final = 2_000


def table_of(root: Path, paths: list[str], size: tuple[int, int]) -> AnnotationTable:
    """Return a table in which each image has five boxes of ten classes."""
    num_objects = len(paths) * OBJECTS_AN_IMAGE
    rng = np.random.default_rng(0)
    corners = rng.uniform(0, 0.6, (num_objects, 2)) * size
    sides = rng.uniform(0.1, 0.4, (num_objects, 2)) * size
    return AnnotationTable(
        root=root,
        image_paths=paths,
        class_names=[f"class {number}" for number in range(10)],
        widths=np.full(len(paths), size[0], np.int32),
        heights=np.full(len(paths), size[1], np.int32),
        offsets=np.arange(0, num_objects + 1, OBJECTS_AN_IMAGE),
        boxes=np.hstack([corners, corners + sides]).astype(np.float32),
        labels=np.arange(num_objects) % 10,
    )


def rate(num_images: int, rounds: int) -> None:
    """Compare the rate of a check with plain decoding."""
    with tempfile.TemporaryDirectory() as folder:
        paths = write_photographs(Path(folder), num_images, size=_SIZE)
        table = table_of(Path(folder), [path.name for path in paths], _SIZE)

        def plain_loop() -> int:
            for path in paths:
                with Image.open(path) as image:
                    image.convert("RGB")
            return num_images

        def torchvision_loop() -> int:
            for path in paths:
                torchvision_decode(str(path), ImageReadMode.RGB)
            return num_images

        def check(num_threads: int | None) -> int:
            check_tables({"train": table}, num_workers=num_threads, progress=False)
            return num_images

        contenders = {
            "plain loop of Pillow": plain_loop,
            "plain loop of torchvision": torchvision_loop,
            "check, one thread": lambda: check(1),
            "check": lambda: check(None),
        }
        question = f"{num_images} photographs of {_SIZE[0]}x{_SIZE[1]}"
        figures = compare(question, contenders, rounds=rounds, unit="image", as_rates=True)
        judge("rate beside Pillow's", figures.rate_ratio("check", "plain loop of Pillow"), at_least=1)
        judge("CPU beside Pillow's", figures.cpu_ratio("check", "plain loop of Pillow"), at_most=1.1)


def write_small_images(root: Path, num_images: int) -> None:
    """Write different small JPEG files, a thousand per folder."""
    rng = np.random.default_rng(0)
    for start in range(0, num_images, 1000):
        folder = root / f"{start // 1000:04d}"
        folder.mkdir(parents=True)
        for number, pixels in enumerate(rng.integers(0, 256, (min(1000, num_images - start), 6, 8, 3), dtype=np.uint8)):
            Image.fromarray(pixels).resize(_SMALL_SIZE).save(folder / f"{number:03d}.jpg")


def check_once(root: str, num_images: str, decode: str) -> dict[str, float]:
    """Check small images; return the seconds, and the memory peaks before and after in bytes."""
    paths = [f"{number // 1000:04d}/{number % 1000:03d}.jpg" for number in range(int(num_images))]
    table = table_of(Path(root), paths, _SMALL_SIZE)
    start_peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    start = time.perf_counter()
    findings = check_tables({"train": table}, settings=CheckSettings(decode=decode == "pixels"), progress=False)
    seconds = time.perf_counter() - start
    assert not findings.count("error")
    return {"seconds": seconds, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, "before": start_peak}


def memory(num_images: int, rounds: int) -> None:
    """Report time and memory of a check of many images."""
    with tempfile.TemporaryDirectory() as folder:
        write_small_images(Path(folder), num_images)
        for mode in ("pixels", "headers"):
            results = [in_fresh_process("benchmarks.check", "once", folder, num_images, mode) for _ in range(rounds)]
            seconds = ", ".join(f"{result['seconds']:.1f}" for result in results)
            grown = [(result["peak"] - result["before"]) / num_images for result in results]
            print(f"\n{num_images:,} small images, {num_images * OBJECTS_AN_IMAGE:,} objects, {mode}: {seconds} s")
            judge("memory above the table", grown, at_most=_MAX_BYTES_AN_IMAGE, unit=" bytes an image")


def main() -> None:
    """Run all benchmarks of this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photographs", type=int, default=256, help="0 for none (%(default)s)")
    parser.add_argument("--images", type=int, default=100_000, help="small images, 0 for none (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="counted rounds (%(default)s)")
    arguments = parser.parse_args()
    if arguments.photographs:
        rate(arguments.photographs, arguments.rounds)
    if arguments.images:
        memory(arguments.images, min(arguments.rounds, 2))


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["once"]:
        print(json.dumps(check_once(*sys.argv[2:5])))
    else:
        main()
