"""How fast are classification batches from decoded images? JPEG 500x375, RandomResizedCrop(224), flip, batch 64.

torch's loader decodes and gives float32, as torchvision's recipe does; lit_loader's reads the decoded cache and gives
uint8, which the device turns into floats. Exact: the image is copied, then transformed; fast: the crop is read from the
cache. The pixels are the same. A unit is an image.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset
from torchvision import tv_tensors
from torchvision.io import decode_jpeg, read_file
from torchvision.transforms import v2

from benchmarks.detection import NUM_FILES, draw_images
from benchmarks.rounds import compare, judge, passes, run
from lit_loader import DataLoader
from lit_loader.annotations import AnnotationTable
from lit_loader.collate import ClassificationCollate
from lit_loader.datasets import CacheSettings, ClassificationDataset, ImageReading
from lit_loader.datasets.reading import Decode
from lit_loader.transforms import DecodeAwareCompose, RandomHorizontalFlip, ToUInt8

NUM_IMAGES, BATCH_SIZE = 768, 64
CASES: tuple[Decode, ...] = ("fast", "exact")
WORKERS: dict[str, Any] = {"num_workers": 2, "persistent_workers": True}


class Recipe(Dataset[tuple[torch.Tensor, int]]):
    """torchvision's recipe: decode, crop, flip, float32."""

    def __init__(self, folder: Path) -> None:
        self.paths = [str(folder / f"{i % NUM_FILES}.jpg") for i in range(NUM_IMAGES)]
        self.transform = v2.Compose(
            [v2.RandomResizedCrop(224), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)]
        )

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = tv_tensors.Image(decode_jpeg(read_file(self.paths[index])))
        return self.transform(image), index % 10


def table_of(folder: Path) -> AnnotationTable:
    """Return a table of the images, each with one object that is the whole image."""
    return AnnotationTable(
        root=folder,
        image_paths=[f"{i % NUM_FILES}.jpg" for i in range(NUM_IMAGES)],
        class_names=[str(i) for i in range(10)],
        widths=[500] * NUM_IMAGES,
        heights=[375] * NUM_IMAGES,
        offsets=np.arange(NUM_IMAGES + 1),
        boxes=np.tile(np.array([[0, 0, 500, 375]], dtype=np.float32), (NUM_IMAGES, 1)),
        labels=np.arange(NUM_IMAGES) % 10,
    )


def main(rounds: int) -> None:
    """Compare rates; say what the caches take and how long they are built."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "images")
        root.mkdir()
        draw_images(root)
        kept = {decode: _dataset(root, CacheSettings(cache_dir=folder), decode) for decode in CASES}
        ours: Any = DataLoader
        settings = {"batch_size": BATCH_SIZE, "collate_fn": ClassificationCollate(), "seed": 0, **WORKERS}
        loaders: dict[str, TorchDataLoader[Any]] = {
            "torch, decoded each time": TorchDataLoader(Recipe(root), batch_size=BATCH_SIZE, **WORKERS),
            "ours, fast, processes": ours(kept["fast"], **settings),
            "ours, fast, threads": ours(kept["fast"], worker_method="thread", **settings),
            "ours, exact, processes": ours(kept["exact"], **settings),
        }
        found = compare(
            "classification, batch 64",
            passes(loaders, epochs=2, size=BATCH_SIZE),
            rounds=rounds,
            unit="image",
        )
        for name in list(loaders)[1:3]:
            judge(f"{name}, torch's rate", found.rate_ratio(name, "torch, decoded each time"), at_least=3.0)


def _dataset(root: Path, cache: CacheSettings, decode: Decode) -> ClassificationDataset:
    recipe = DecodeAwareCompose([v2.RandomResizedCrop(224), RandomHorizontalFlip(flip_pairs=[]), ToUInt8()])
    start = time.perf_counter()
    dataset = ClassificationDataset(
        table_of(root), transforms=recipe, cache=cache, reading=ImageReading(decode=decode)
    )
    elapsed, kept = time.perf_counter() - start, dataset.cache
    assert kept is not None
    print(f"  {decode}: {kept.num_bytes / 2**20:.0f} MiB once a host, opened in {elapsed:.2f} s")
    return dataset


if __name__ == "__main__":
    run(main, rounds=5)
