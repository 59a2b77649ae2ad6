"""Rate of tiles of 640 pixels from JPEG files of 4000x3000 with small objects; a unit is a tile.

The reference is torch's loader over a data set that decodes the whole image and crops the tile, with torchvision's
decoder. All loaders have two workers, read the same tiles in the same random order, and mirror half of them.

``python -m benchmarks.tiles --map`` trains a small detector twice with equally many steps: on whole images that are
shrunk to its input, and on tiles. It prints the mAP of both on the same whole images.
"""

from __future__ import annotations

import argparse
import functools
import logging
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset
from torchvision import tv_tensors
from torchvision.io import decode_jpeg, read_file
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from benchmarks.classification import WORKERS, our_loaders
from benchmarks.detection import collate
from benchmarks.photographs import write_photographs
from benchmarks.rounds import compare, judge, passes
from lit_loader import DetectionDataModule, DetectionDataset, RandomSamplerConfig
from lit_loader.annotations import AnnotationTable, Tiling, tile_table
from lit_loader.datasets import Stage, TableSource
from lit_loader.images import CacheSettings
from lit_loader.recipes import DetectionTask, WarmupCosineLR, fcos_small
from lit_loader.transforms import detection_transforms

__all__ = ["write_small_objects"]

SIZE = (4000, 3000)
NUM_FILES = 8
NUM_OBJECTS = 40
OBJECT_SIDES = (12, 32)
NUM_TILES = 128
BATCH_SIZE = 4
TILING = Tiling(640)
REFERENCE = "torch, whole image and crop"
BARS = {
    "our data set, processes, exact": 2.8,
    "our data set, threads, exact": 2.8,
    "our data set, processes, cached": 30.0,
}

# Of the comparison of mAP. A step sees fewer pixels of tiles than of whole images, and far fewer objects: with 24
# objects of 12 to 32 pixels in 1280x960, which the shrunk images still show, tiles lose (mAP 0.39 to 0.73).
MAP_SIZE = SIZE
MAP_IMAGES: dict[Stage, int] = {"train": 16, "val": 3}
MAP_OBJECTS = 300
MAP_OBJECT_SIDES = (6, 14)
MAP_INPUT = (256, 341)
MAP_TILING = Tiling(256, overlap=0.25)
MAP_BATCH_SIZE = 8
MAP_STEPS = 300


class WholeImages(Dataset[tuple[Tensor, dict[str, Any]]]):
    """Tiles as users write them without a tiling: decode the whole image, crop, mirror."""

    def __init__(self, tiles: AnnotationTable) -> None:
        assert tiles.regions is not None
        self.paths = [str(tiles.image_path(tile)) for tile in range(len(tiles))]
        self.regions = tiles.regions.tolist()
        self.boxes = [torch.tensor(tiles.boxes[tiles.objects(tile)]) for tile in range(len(tiles))]
        self.transform = v2.RandomHorizontalFlip()

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, dict[str, Any]]:
        x0, y0, x1, y1 = self.regions[index]
        image = tv_tensors.Image(decode_jpeg(read_file(self.paths[index])))
        # A clone, because a batch of views would hold the memory of whole images.
        tile = functional.crop(image, y0, x0, y1 - y0, x1 - x0).clone()
        boxes = tv_tensors.BoundingBoxes(self.boxes[index], format="XYXY", canvas_size=tile.shape[-2:])
        sample: tuple[Tensor, dict[str, Any]] = self.transform(tile, {"boxes": boxes})
        return sample


def write_small_objects(
    folder: Path, number: int, *, size: tuple[int, int], num_objects: int, sides: tuple[int, int], seed: int = 0
) -> AnnotationTable:
    """Write photographs with small bright squares and discs, and return their table.

    Args:
        folder: Folder of the files.
        number: Number of files.
        size: Width and height in pixels.
        num_objects: Objects in each photograph; class 0 is a square, class 1 a disc.
        sides: Smallest and largest side of an object in pixels.
        seed: Seed of photographs and objects.
    """
    draws = np.random.default_rng(seed)
    boxes = []
    labels = []
    paths = write_photographs(folder, number, size=size, seed=seed)
    for path in paths:
        with Image.open(path) as photograph:
            image = photograph.convert("RGB")
        draw = ImageDraw.Draw(image)
        for _ in range(num_objects):
            side = int(draws.integers(sides[0], sides[1] + 1))
            x, y = (int(draws.integers(0, length - side)) for length in size)
            label = int(draws.integers(2))
            shape = draw.ellipse if label else draw.rectangle
            # Pillow includes the last row and column.
            shape((x, y, x + side - 1, y + side - 1), fill=(250, 40 + 180 * label, 20), outline=(20, 20, 60))
            boxes.append([x, y, x + side, y + side])
            labels.append(label)
        image.save(path, quality=90)
    return AnnotationTable(
        root=folder,
        image_paths=[path.name for path in paths],
        class_names=["square", "disc"],
        widths=[size[0]] * number,
        heights=[size[1]] * number,
        offsets=np.arange(number + 1) * num_objects,
        boxes=np.array(boxes, dtype=np.float32).reshape(-1, 4),
        labels=np.array(labels, dtype=np.int64),
    )


def contenders(folder: Path, tiles: AnnotationTable, order: Sequence[int]) -> dict[str, TorchDataLoader[Any]]:
    """Return the loaders by name."""
    transforms = detection_transforms(True, photometric=0, to_float=False)
    start = time.perf_counter()
    cached_dataset = DetectionDataset(tiles, transforms=transforms, cache=CacheSettings(cache_dir=folder))
    assert cached_dataset.cache is not None
    size = cached_dataset.cache.num_bytes / 2**20
    print(f"  the cache takes {size:.0f} MiB once a host, and was made in {time.perf_counter() - start:.2f} s")
    datasets: dict[str, Dataset[Any]] = {
        "our data set, *, exact": DetectionDataset(tiles, transforms=transforms),
        "our data set, *, cached": cached_dataset,
    }
    torchs = WholeImages(tiles)
    loaders: dict[str, TorchDataLoader[Any]] = {
        REFERENCE: TorchDataLoader(torchs, BATCH_SIZE, sampler=order, collate_fn=collate, **WORKERS)
    }
    return loaders | our_loaders(datasets, order, collate, BATCH_SIZE)


def main(rounds: int) -> None:
    """Compare rates and CPU time."""
    with tempfile.TemporaryDirectory() as folder:
        table = write_small_objects(
            Path(folder, "images"), NUM_FILES, size=SIZE, num_objects=NUM_OBJECTS, sides=OBJECT_SIDES
        )
        start = time.perf_counter()
        tiles = tile_table(table, TILING)
        print(f"  {len(tiles)} tiles of {len(table)} images, in {(time.perf_counter() - start) * 1e3:.1f} ms")
        order = random.Random(0).sample(range(len(tiles)), NUM_TILES)
        work = passes(contenders(Path(folder), tiles, order), size=BATCH_SIZE)
        question = f"tiles of {TILING.size} of JPEG {SIZE[0]}x{SIZE[1]}, batch {BATCH_SIZE}"
        figures = compare(question, work, rounds=rounds, unit="tile", as_rates=True)
    for name, bar in BARS.items():
        judge(f"{name}, torch's rate", figures.rate_ratio(name, REFERENCE), at_least=bar)


class TwoTables(TableSource):
    """Tables of generated photographs for training and validation."""

    def __init__(self, folder: Path) -> None:
        self._tables: dict[Stage, AnnotationTable] = {
            stage: write_small_objects(
                folder / stage, number, size=MAP_SIZE, num_objects=MAP_OBJECTS, sides=MAP_OBJECT_SIDES, seed=seed
            )
            for seed, (stage, number) in enumerate(MAP_IMAGES.items())
        }

    def prepare(self) -> None:
        """Do nothing: the files are written."""

    def tables(self, stage: Stage) -> list[AnnotationTable]:
        """Return the table of a stage."""
        return [self._tables[stage]] if stage in self._tables else []


def compare_map() -> None:
    """Train with and without tiles, and print mAP and seconds."""
    # Lightning reports its devices for every trainer.
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        source = TwoTables(Path(folder))
        sides = f"{MAP_OBJECT_SIDES[0]} to {MAP_OBJECT_SIDES[1]} pixels"
        print(f"\n{MAP_STEPS} steps of {MAP_BATCH_SIZE} samples, objects of {sides} in {MAP_SIZE[0]}x{MAP_SIZE[1]}")
        settings: dict[str, dict[str, Any]] = {
            f"whole images, shrunk to {MAP_INPUT}": {"train_transforms": {"size": MAP_INPUT}},
            f"tiles of {MAP_TILING.size}": {
                "tiling": MAP_TILING,
                "train_sampler": RandomSamplerConfig(empty_share=0.2),
            },
        }
        for name, keywords in settings.items():
            start = time.perf_counter()
            scores = _trained_scores(DetectionDataModule(source, batch_size=MAP_BATCH_SIZE, seed=0, **keywords))
            figures = ", ".join(f"{metric} {scores[metric]:.3f}" for metric in ("val/map", "val/map_50"))
            print(f"  {name:34s} {figures}, {time.perf_counter() - start:.0f} s")


def _trained_scores(datamodule: DetectionDataModule) -> dict[str, float]:
    pl.seed_everything(0, verbose=False)
    model = functools.partial(fcos_small, channels=32, strides=(4,), min_size=MAP_INPUT[0], max_size=MAP_INPUT[1])
    optimizer: Any = functools.partial(torch.optim.AdamW, lr=0.01, weight_decay=0.01)
    scheduler = functools.partial(WarmupCosineLR, warmup_steps=30)
    task = DetectionTask(
        model, class_names=datamodule.class_names, max_detections=MAP_OBJECTS, optimizer=optimizer, scheduler=scheduler
    )
    trainer = pl.Trainer(
        max_steps=MAP_STEPS,
        max_epochs=-1,
        accelerator="cpu",
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(task, datamodule=datamodule)
    validator = pl.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False)
    (scores,) = validator.validate(task, datamodule=datamodule, verbose=False)
    return dict(scores)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="counted rounds (%(default)s)")
    parser.add_argument("--map", action="store_true", help="compare mAP instead of rates")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    compare_map() if arguments.map else main(arguments.rounds)
