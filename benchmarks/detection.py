"""How fast are detection batches? JPEG 500x375, shortest side to 480-800, flip, float32, lists; a unit is an image.

What it costs that glibc gives freed images back to the system and takes them again, page by page, shows in a run with
``MALLOC_MMAP_THRESHOLD_=33554432 MALLOC_TRIM_THRESHOLD_=2147483647``.
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset
from torchvision import tv_tensors
from torchvision.io import decode_jpeg, read_file, write_jpeg
from torchvision.transforms import v2

from benchmarks.memory import peak_bytes
from benchmarks.rounds import Pass, compare, judge, passes, run
from lit_loader import DataLoader, DetectionDataset
from lit_loader.datasets import ImageReading
from lit_loader.formats import read_annotations
from lit_loader.transforms import detection_transforms

NUM_IMAGES, NUM_FILES, BATCH_SIZE = 192, 64, 4
SIDES, LONGEST = list(range(480, 801, 32)), 1333
CORNERS: list[list[float]] = [[20, 30, 200, 180], [5, 5, 90, 90], [250, 100, 480, 360]]
WORKERS: dict[str, Any] = {"num_workers": 2, "persistent_workers": True}


class Detection(Dataset[tuple[torch.Tensor, dict[str, Any]]]):
    """Images with five boxes each, decoded and transformed as detectors are trained."""

    def __init__(self, folder: Path) -> None:
        self.paths = [str(path) for path in sorted(folder.glob("*.jpg"))]
        corners = torch.tensor(CORNERS)
        self.boxes = tv_tensors.BoundingBoxes(corners, format="XYXY", canvas_size=(375, 500))
        self.transform = v2.Compose(
            [
                v2.RandomShortestSize(SIDES, max_size=LONGEST),
                v2.RandomHorizontalFlip(),
                v2.ToDtype(torch.float32, scale=True),
            ]
        )

    def __len__(self) -> int:
        return NUM_IMAGES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, dict[str, Any]]:
        image = tv_tensors.Image(decode_jpeg(read_file(self.paths[index % len(self.paths)])))
        target = {"boxes": self.boxes, "labels": torch.tensor([1, 2, 3])}
        sample: tuple[torch.Tensor, dict[str, Any]] = self.transform(image, target)
        return sample


def our_dataset(folder: Path, *, decode: Any, to_float: bool) -> DetectionDataset:
    """Return our data set of the same files, boxes and transforms, as often as `Detection` repeats them."""
    names = sorted(path.name for path in folder.glob("*.jpg"))
    boxes = [[x1, y1, x2 - x1, y2 - y1] for x1, y1, x2, y2 in CORNERS]
    written = {
        "images": [{"id": n, "file_name": name, "width": 500, "height": 375} for n, name in enumerate(names)],
        "categories": [{"id": number, "name": str(number)} for number in range(len(CORNERS))],
        "annotations": [
            {"id": len(boxes) * image + number, "image_id": image, "category_id": number, "bbox": box}
            for image in range(len(names))
            for number, box in enumerate(boxes)
        ],
    }
    (folder / "boxes.json").write_text(json.dumps(written))
    table = read_annotations("coco", folder, "boxes.json", use_cache=False, num_workers=0, progress=False)
    repeated = table.select([image % len(names) for image in range(NUM_IMAGES)])
    transforms = detection_transforms(True, shorter_sides=SIDES, max_size=LONGEST, to_float=to_float)
    return DetectionDataset(repeated, transforms=transforms, reading=ImageReading(decode=decode))


def collate(samples: list[Any]) -> tuple[Any, ...]:
    """Return the images and the targets."""
    return tuple(zip(*samples, strict=True))


def draw_images(folder: Path) -> None:
    """Write pictures of shaded shapes with some texture, about 60 KB each."""
    rows, columns = torch.meshgrid(torch.arange(375.0), torch.arange(500.0), indexing="ij")
    for number in range(NUM_FILES):
        torch.manual_seed(number)
        picture = torch.stack([rows / 375, columns / 500, (rows + columns) / 875]) * 0.6
        for _ in range(12):
            y, x, radius = (torch.rand(3) * torch.tensor([375.0, 500, 80])).tolist()
            inside = (rows - y) ** 2 + (columns - x) ** 2 < (radius + 10) ** 2
            shade = 0.8 + 0.2 * torch.sin(rows * torch.rand(1) + columns * torch.rand(1))
            picture[:, inside] = torch.rand(3, 1) * shade[inside]
        picture += torch.randn(3, 375, 500) * 0.03
        write_jpeg((picture.clamp(0, 1) * 255).byte(), str(folder / f"{number}.jpg"), quality=90)


def bare(make: Callable[..., Any], dataset: Detection) -> int:
    """Make all batches in two threads or processes that send their batches nowhere."""
    halves = [make(target=_make_batches, args=(dataset, part)) for part in range(2)]
    for half in halves:
        half.start()
    for half in halves:
        half.join()
    return NUM_IMAGES


def _make_batches(dataset: Detection, part: int) -> None:
    for first in range(part * BATCH_SIZE, NUM_IMAGES, 2 * BATCH_SIZE):
        collate([dataset[index] for index in range(first, first + BATCH_SIZE)])


def contenders(folder: Path) -> dict[str, Pass]:
    """Return passes over the loaders, and the bare loops that are the limit."""
    dataset = Detection(folder)
    exact = our_dataset(folder, decode="exact", to_float=True)
    fast = our_dataset(folder, decode="fast", to_float=False)
    ours: Any = DataLoader
    arguments = {"batch_size": BATCH_SIZE, "collate_fn": collate, **WORKERS}
    loaders: dict[str, TorchDataLoader[Any]] = {
        "torch": TorchDataLoader(dataset, **arguments),
        "ours, threads": ours(dataset, worker_method="thread", **arguments),
        "ours, threads, seed=0": ours(dataset, worker_method="thread", seed=0, **arguments),
        "ours, processes, seed=0": ours(dataset, seed=0, **arguments),
        "our data set, threads": ours(exact, worker_method="thread", **arguments),
        "our data set, processes": ours(exact, **arguments),
        "our data set, threads, fast uint8": ours(fast, worker_method="thread", **arguments),
        "our data set, processes, fast uint8": ours(fast, **arguments),
    }
    return {
        **passes(loaders, size=BATCH_SIZE),
        "bare loop, two threads": functools.partial(bare, threading.Thread, dataset),
        "bare loop, two processes": functools.partial(bare, multiprocessing.Process, dataset),
    }


def main(rounds: int) -> None:
    """Compare rates and CPU seconds, with the bare loops as the limit."""
    with tempfile.TemporaryDirectory() as folder:
        draw_images(Path(folder))
        found = compare("detection, batch 4", contenders(Path(folder)), rounds=rounds, unit="image")
        for ours in ("ours, threads", "ours, threads, seed=0"):
            judge(f"{ours}, torch's rate", found.rate_ratio(ours, "torch"), at_least=2.2)
            judge(
                f"{ours}, CPU of the bare loop", found.cpu_ratio(ours, "bare loop, two threads"), at_most=1.15
            )
        processes = found.rate_ratio("ours, processes, seed=0", "torch")
        judge("ours, processes, seed=0, torch's rate", processes, at_least=1.9)
        for method in ("threads", "processes"):
            for name, bar in ((f"our data set, {method}", 2.2), (f"our data set, {method}, fast uint8", 3.7)):
                judge(f"{name}, torch's rate", found.rate_ratio(name, "torch"), at_least=bar)
        _print_peaks(folder)


def peak_of(name: str, folder: str) -> int:
    """Return the bytes that one contender needs at most, in this process, which must be a fresh one."""
    return peak_bytes(contenders(Path(folder))[name])


def _print_peaks(folder: str) -> None:
    print("  most memory above what the process had before, workers and all:")
    for name in contenders(Path(folder)):
        command = [sys.executable, "-m", "benchmarks.detection", "--peak", name, folder]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        print(f"  {name:34s} {int(done.stdout) / 2**20:8.0f} MiB")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--peak"]:
        torch.set_num_threads(1)
        print(peak_of(*sys.argv[2:]))
    else:
        run(main, rounds=5)
