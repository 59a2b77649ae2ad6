"""Cost of mixed samples of 640 pixels, and rate of mosaics next to a buffer of images; a unit is a sample.

The first tables compare a mosaic, a sample with pasted objects and a mixup with a plain sample of the same data module.
Without workers the figure that counts is CPU time. Photographs are 640x480 with 7 objects, as large and as crowded as
COCO's.

The last table compares mosaics of this package with a data set with a buffer in torch's loader, as
detection projects write it. All read the same files, with two workers.

``python -m benchmarks.mixing --map --bccd FOLDER`` trains a small detector with and without mixing, see
`benchmarks.mixing_study`. Runs that the file of ``--results`` has are not repeated, so a study may be made in parts:
``--sets bccd --variants mosaic --seeds 0`` makes one run. With no seeds, ``--seeds``, it prints the table alone.

NOTE [Work of a buffer]
    The buffer holds images that its worker decoded for earlier samples, so a mosaic decodes one image, and this
    package decodes four unless a cache has them. In return the samples of a buffer depend on the number of workers.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset
from torchvision.io import decode_jpeg, read_file
from torchvision.transforms.v2 import functional

from benchmarks.classification import WORKERS
from benchmarks.detection import collate
from benchmarks.mixing_study import VARIANTS, print_results, run_study, study_sets
from benchmarks.photographs import write_photographs
from benchmarks.rounds import Figures, compare, judge, passes
from lit_loader import DetectionDataModule
from lit_loader.datasets import FormatSource
from lit_loader.images import ImageReading
from lit_loader.mixing import Mix
from lit_loader.transforms import CopyPaste, MixUp, Mosaic

__all__ = ["BufferMosaic", "write_objects"]

SIZE = (640, 480)
SIDE = 640
NUM_FILES = 256
NUM_OBJECTS = 7
OBJECT_SIDES = (24, 200)
NUM_CORNERS = 16
NUM_CLASSES = 3
BATCH_SIZE = 8
EPOCHS = 1
KINDS = ("exact", "fast", "cached")
REFERENCE = "plain"
MIXES: dict[str, Mix | None] = {
    REFERENCE: None,
    "mosaic": Mosaic(size=SIDE),
    "copy-paste": CopyPaste(),
    "mixup": MixUp(),
}
# Largest cost, in plain samples. Without a cache a mosaic decodes four images.
BARS: dict[str, dict[str, float]] = {"exact": {"mosaic": 4.2}, "fast": {"mosaic": 4.2}, "cached": {"mosaic": 2.5}}
PEER = "torch, buffer of a worker"
LABELS = "objects.json"


def write_objects(folder: Path, number: int, *, sources: Sequence[Path] = ()) -> None:
    """Write photographs, and boxes and polygons of ellipses on them in COCO's format.

    Args:
        folder: Folder of ``images`` and ``objects.json``.
        number: Number of photographs.
        sources: Photographs to crop; empty for `find_photographs`.
    """
    draws = np.random.default_rng(0)
    paths = write_photographs(folder / "images", number, size=SIZE, sources=sources)
    angles = np.linspace(0, 2 * math.pi, NUM_CORNERS, endpoint=False)
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    annotations = []
    for image_id, object_id in itertools.product(range(number), range(NUM_OBJECTS)):
        sides = draws.integers(*OBJECT_SIDES, size=2)
        corner = draws.uniform(0, np.array(SIZE) - sides)
        polygon = corner + sides * (circle + 1) / 2
        annotations.append(
            {
                "id": image_id * NUM_OBJECTS + object_id,
                "image_id": image_id,
                "category_id": int(draws.integers(NUM_CLASSES)),
                "bbox": [*corner.tolist(), *sides.tolist()],
                "area": float(sides.prod() * math.pi / 4),
                "iscrowd": 0,
                "segmentation": [polygon.ravel().tolist()],
            }
        )
    images = [
        {"id": image_id, "file_name": f"images/{path.name}", "width": SIZE[0], "height": SIZE[1]}
        for image_id, path in enumerate(paths)
    ]
    categories = [{"id": label, "name": f"class {label}"} for label in range(NUM_CLASSES)]
    written = {"images": images, "categories": categories, "annotations": annotations}
    (folder / LABELS).write_text(json.dumps(written))


class BufferMosaic(Dataset[tuple[Tensor, dict[str, Tensor]]]):
    """Mosaics of four images as detection projects make them; see NOTE [Work of a buffer].

    Each worker has a buffer of the images that it decoded last, and draws the partners of an image from it. Boxes are
    moved and clipped, and dropped with less than a tenth of their area.

    Args:
        folder: Folder that `write_objects` wrote.
        side: Height and width of a mosaic in pixels.
        capacity: Images in the buffer.
    """

    def __init__(self, folder: Path, *, side: int = SIDE, capacity: int = 8 * BATCH_SIZE) -> None:
        content = json.loads((folder / LABELS).read_text())
        self.paths = [str(folder / image["file_name"]) for image in content["images"]]
        boxes: list[list[list[float]]] = [[] for _ in self.paths]
        labels: list[list[int]] = [[] for _ in self.paths]
        for annotation in content["annotations"]:
            x, y, width, height = annotation["bbox"]
            boxes[annotation["image_id"]].append([x, y, x + width, y + height])
            labels[annotation["image_id"]].append(annotation["category_id"] + 1)
        self.boxes = [torch.tensor(rows).reshape(-1, 4) for rows in boxes]
        self.labels = [torch.tensor(rows, dtype=torch.int64) for rows in labels]
        self.side = side
        self.capacity = capacity
        self.buffer: dict[int, Tensor] = {}

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, dict[str, Tensor]]:
        self._read(index)
        partners = random.choices(list(self.buffer), k=3)
        # The channels of each pixel adjacent in memory, as in decoded and resized images.
        image = torch.full((self.side, self.side, 3), 114, dtype=torch.uint8).permute(2, 0, 1)
        centre = [int(random.uniform(0.25, 0.75) * self.side) for _ in range(2)]
        boxes = []
        for number, part in enumerate((index, *partners)):
            boxes.append(self._paste(image, self._read(part), self.boxes[part], centre, number))
        moved = torch.cat(boxes)
        clipped = moved.clamp(0, self.side)
        visible = _areas(clipped) > 0.1 * _areas(moved)
        labels = torch.cat([self.labels[part] for part in (index, *partners)])
        return image, {"boxes": clipped[visible], "labels": labels[visible]}

    def _read(self, index: int) -> Tensor:
        if index not in self.buffer:
            self.buffer[index] = decode_jpeg(read_file(self.paths[index]))
            if len(self.buffer) > self.capacity:
                # A dict yields its oldest key first.
                del self.buffer[next(iter(self.buffer))]
        return self.buffer[index]

    def _paste(self, image: Tensor, part: Tensor, boxes: Tensor, centre: Sequence[int], quadrant: int) -> Tensor:
        """Paste an image so that one of its corners is at the centre, and return its boxes there."""
        height, width = part.shape[-2:]
        zoom = self.side / max(height, width) * random.uniform(0.5, 1.5)
        part = functional.resize(part, [round(height * zoom), round(width * zoom)])
        height, width = part.shape[-2:]
        x = centre[0] - (width if quadrant % 2 == 0 else 0)
        y = centre[1] - (height if quadrant < 2 else 0)
        columns = slice(max(x, 0), min(x + width, self.side))
        rows = slice(max(y, 0), min(y + height, self.side))
        image[:, rows, columns] = part[:, rows.start - y : rows.stop - y, columns.start - x : columns.stop - x]
        return boxes * zoom + torch.tensor([x, y, x, y])


def _areas(boxes: Tensor) -> Tensor:
    return (boxes[:, 2:] - boxes[:, :2]).prod(dim=1)


def make_datamodule(
    folder: Path, kind: str, *, num_workers: int, masks: bool = False, mixing: Mix | None = None
) -> DetectionDataModule:
    """Return a data module over `write_objects`' files, ready for training.

    Args:
        folder: Folder that `write_objects` wrote.
        kind: ``"exact"`` and ``"fast"`` decode every image, ``"cached"`` reads decoded pixels.
        num_workers: Worker processes.
        masks: Whether samples have masks.
        mixing: How samples are mixed, or None.
    """
    datamodule = DetectionDataModule(
        FormatSource("coco", folder, train=LABELS, cache_dir=str(folder), progress=False),
        batch_size=BATCH_SIZE,
        num_workers=num_workers,
        mixing=mixing,
        train_transforms={"size": [SIDE, SIDE], "letterbox": True, "fill": 114, "to_float": False},
        reading=ImageReading(decode="fast" if kind == "fast" else "exact"),
        cache=kind == "cached",
        cache_dir=str(folder) if kind == "cached" else None,
        masks=masks,
        drop_last=True,
        check_repeatability=False,
        seed=0,
    )
    datamodule.prepare_data()
    datamodule.setup("fit")
    return datamodule


def compare_costs(folder: Path, kind: str, *, num_workers: int, masks: bool, rounds: int, epochs: int) -> Figures:
    """Compare mixed samples with plain ones; see `make_datamodule`."""
    samples = "boxes and masks" if masks else "boxes"
    question = f"{kind}, {num_workers} workers, {samples}, {SIDE} pixels, batch {BATCH_SIZE}"
    settings: dict[str, Any] = {"kind": kind, "num_workers": num_workers, "masks": masks}
    datamodules = {name: make_datamodule(folder, mixing=mixing, **settings) for name, mixing in MIXES.items()}
    work = passes(_loaders(datamodules), epochs=epochs, size=BATCH_SIZE)
    figures = compare(question, work, rounds=rounds, unit="sample", as_rates=num_workers > 0)
    _end(datamodules)
    for name in MIXES:
        bars = BARS[kind] if num_workers == 0 and not masks else {}
        if name in bars:
            judge(f"{name}, plain samples of CPU time", figures.cpu_ratio(name, REFERENCE), at_most=bars[name])
    return figures


def compare_peers(folder: Path, *, rounds: int, epochs: int) -> Figures:
    """Compare mosaics of a buffer and of this package, with two workers."""
    datamodules = {
        f"ours, {kind}": make_datamodule(folder, kind, num_workers=2, mixing=MIXES["mosaic"]) for kind in KINDS
    }
    buffer = BufferMosaic(folder)
    loaders: dict[str, TorchDataLoader[Any]] = {
        PEER: TorchDataLoader(buffer, BATCH_SIZE, shuffle=True, drop_last=True, collate_fn=collate, **WORKERS)
    }
    work = passes(loaders | _loaders(datamodules), epochs=epochs, size=BATCH_SIZE)
    question = f"mosaics of {SIDE} pixels, 2 workers, batch {BATCH_SIZE}"
    figures = compare(question, work, rounds=rounds, unit="mosaic", as_rates=True)
    _end(datamodules)
    return figures


def _loaders(datamodules: Mapping[str, DetectionDataModule]) -> dict[str, TorchDataLoader[Any]]:
    return {name: datamodule.train_dataloader() for name, datamodule in datamodules.items()}


def _end(datamodules: Mapping[str, DetectionDataModule]) -> None:
    for datamodule in datamodules.values():
        datamodule.teardown("fit")


def main(rounds: int, *, num_files: int = NUM_FILES, epochs: int = EPOCHS) -> None:
    """Compare costs and rates."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_objects(folder, num_files)
        for num_workers in (0, 2):
            for kind in KINDS:
                for masks in (False, True):
                    compare_costs(folder, kind, num_workers=num_workers, masks=masks, rounds=rounds, epochs=epochs)
        compare_peers(folder, rounds=rounds, epochs=epochs)


def _study(arguments: argparse.Namespace) -> None:
    sets = study_sets(arguments.bccd)
    unknown_names = sorted({*(arguments.sets or ()), *(arguments.variants or ())} - {*sets, *VARIANTS})
    if unknown_names:
        raise SystemExit(
            f"unknown: {unknown_names}; sets are {list(sets)} (bccd needs --bccd), variants {list(VARIANTS)}"
        )
    chosen_sets = {name: sets[name] for name in arguments.sets or sets}
    rows = run_study(chosen_sets, arguments.variants or VARIANTS, arguments.seeds, arguments.results)
    print_results(rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="counted rounds (%(default)s)")
    parser.add_argument("--map", action="store_true", help="train, and compare mAP instead of costs")
    parser.add_argument("--bccd", type=Path, help="folder of BCCD in VOC layout, or none to leave it out")
    parser.add_argument("--results", type=Path, default=Path("outputs/mixing.jsonl"), help="file of runs (%(default)s)")
    parser.add_argument("--sets", nargs="*", help="sets to train on; all by default")
    parser.add_argument("--variants", nargs="*", help="variants to train; all by default")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2], help="seeds (%(default)s)")
    arguments = parser.parse_args()
    # More threads wait for each other when the cores have other work.
    torch.set_num_threads(1)
    _study(arguments) if arguments.map else main(arguments.rounds)
