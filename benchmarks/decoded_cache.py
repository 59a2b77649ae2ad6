"""Rate of classification batches from decoded pixels: RandomResizedCrop(224), flip, batch 64; a unit is an image.

torch's loader decodes each image every time and returns float32, like torchvision's recipe. The others read pixels that
were decoded before and return uint8, which the device converts to floats. FFCV uses its raw format.
"""

from __future__ import annotations

import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader as TorchDataLoader

from benchmarks.bare_steps import BareSteps, bare_passes, draw_crops, write_pixels
from benchmarks.classification import (
    BATCH_SIZE,
    REFERENCE,
    SIDE,
    SIZES,
    WORKERS,
    Recipe,
    epoch_order,
    our_dataset,
    our_loaders,
)
from benchmarks.peers import ffcv_pass, has_ffcv
from benchmarks.photographs import write_photographs
from benchmarks.rounds import compare, judge, passes, run
from lit_loader.collate import ClassificationCollate
from lit_loader.datasets import ClassificationDataset
from lit_loader.images import CacheSettings

EPOCHS = 2
BARS = {
    (500, 375): {"our data set, processes, cached uint8": 5.0, "our data set, threads, cached uint8": 3.0},
    (1280, 960): {"our data set, processes, cached uint8": 6.5},
}


def main(rounds: int) -> None:
    """Compare rates and CPU time on small and large files; print size and build time of the cache."""
    for size in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            _compare(Path(folder), size, rounds)


def _compare(folder: Path, size: tuple[int, int], rounds: int) -> None:
    order = epoch_order(size)
    root = folder / "images"
    paths = write_photographs(root / "all", SIZES[size][0], size=size)
    pixels = write_pixels(paths, folder / "pixels.npy")
    steps = BareSteps(paths=paths, crops=draw_crops(size, SIDE), kind="cached", pixels=pixels)
    with bare_passes({"bare, cached uint8": steps}, order * EPOCHS) as bare:
        cached = {"our data set, *, cached uint8": _cached_dataset(root, folder)}
        loaders: dict[str, TorchDataLoader[Any]] = {
            REFERENCE: TorchDataLoader(Recipe(paths, torch.float32), BATCH_SIZE, sampler=order, **WORKERS),
            **our_loaders(cached, order, ClassificationCollate()),
        }
        work = passes(loaders, epochs=EPOCHS, size=BATCH_SIZE)
        if has_ffcv():
            images = np.load(pixels, mmap_mode="r")
            crops = partial(ffcv_pass, side=SIDE, order=order * EPOCHS, batch_size=BATCH_SIZE)
            work["FFCV, raw, uint8"] = crops(images, folder / "raw.beton", mode="raw")
        question = f"cached {size[0]}x{size[1]}, RandomResizedCrop({SIDE}), batch {BATCH_SIZE}"
        figures = compare(question, work | bare, rounds=rounds, unit="image", as_rates=True)
    for name, bar in BARS[size].items():
        judge(f"{name}, torch's rate", figures.rate_ratio(name, REFERENCE), at_least=bar)


def _cached_dataset(root: Path, folder: Path) -> ClassificationDataset:
    start = time.perf_counter()
    dataset = our_dataset(root, decode="fast", to_float=False, cache=CacheSettings(cache_dir=folder))
    assert dataset.cache is not None
    size = dataset.cache.num_bytes / 2**20
    print(f"  the cache takes {size:.0f} MiB once a host, and was made in {time.perf_counter() - start:.2f} s")
    return dataset


if __name__ == "__main__":
    run(main, rounds=5)
