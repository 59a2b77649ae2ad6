"""CPU time of one sample in microseconds, in one thread: decode, resample, Python, hand-over.

``decode`` and ``resample`` are the bare calls (`benchmarks.bare_steps`); the limit is their sum. ``Python`` is the time
of ``dataset[index]`` beyond the limit, ``hand-over`` the further time of a loader without workers, which fetches and
collates. Datasets draw their crops and sizes at random, the bare calls use a list.
"""

from __future__ import annotations

import functools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from benchmarks import classification, detection
from benchmarks.bare_steps import BareSteps, CropParameters, draw_crops, draw_sizes, write_pixels
from benchmarks.photographs import write_photographs
from benchmarks.rounds import run
from lit_loader import DataLoader
from lit_loader.collate import ClassificationCollate
from lit_loader.images import CacheSettings

NUM_FILES = 32
NUM_SAMPLES = 96
COLUMNS = ("whole", "decode", "resample", "Python", "hand-over", "limit")


@dataclass(frozen=True)
class Work:
    """A case for images of a size (width, height): parameters of the bare calls, dataset and collate function."""

    name: str
    size: tuple[int, int]
    crops: Sequence[CropParameters]
    dataset: Callable[..., Dataset[Any]]
    collate: Callable[[Any], Any]


def main(rounds: int) -> None:
    """Print a table for classification on small and large files, and for detection."""
    for size in classification.SIZES:
        crops = draw_crops(size, classification.SIDE)
        _profile(Work("classification", size, crops, classification.our_dataset, ClassificationCollate()), rounds)
    sizes = draw_sizes(detection.SIZE, detection.SIDES, detection.LONGEST)
    _profile(Work("detection", detection.SIZE, sizes, detection.our_dataset, detection.collate), rounds)


def _profile(work: Work, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        images = Path(folder, "images")
        paths = write_photographs(images / "all", NUM_FILES, size=work.size)
        pixels = write_pixels(paths, Path(folder, "pixels.npy"))
        steps = functools.partial(BareSteps, paths=paths, crops=work.crops, pixels=pixels)
        ours = functools.partial(work.dataset, images)
        cache = CacheSettings(cache_dir=folder)
        cases = {
            "exact float32": (ours(decode="exact", to_float=True), steps(kind="exact")),
            "fast uint8": (ours(decode="fast", to_float=False), steps(kind="fast")),
            "cached uint8": (ours(decode="fast", to_float=False, cache=cache), steps(kind="cached")),
        }
        results: dict[str, list[dict[str, float]]] = {name: [] for name in cases}
        for number in range(rounds + 1):
            for name, (dataset, bare) in cases.items():
                figures = _measure(dataset, bare, work.collate)
                # The first round is a warm-up.
                if number:
                    results[name].append(figures)
    size = f"{work.size[0]}x{work.size[1]}"
    print(f"\n{work.name} {size}, us of CPU time a sample, one thread, median of {rounds} rounds")
    print(f"  {'':16s}" + "".join(f"{column:>10s}" for column in COLUMNS))
    for name, rows in results.items():
        medians = (statistics.median(row[column] for row in rows) for column in COLUMNS)
        print(f"  {name:16s}" + "".join(f"{median:10.0f}" for median in medians))


def _measure(dataset: Dataset[Any], bare: BareSteps, collate: Callable[[Any], Any]) -> dict[str, float]:
    order = [number % NUM_FILES for number in range(NUM_SAMPLES)]
    ours: Any = DataLoader
    torch.manual_seed(0)
    decode = _microseconds(map(bare.decode, range(NUM_SAMPLES)))
    limit = _microseconds(map(bare, range(NUM_SAMPLES)))
    sample = _microseconds(map(dataset.__getitem__, order))
    # The same draws again.
    torch.manual_seed(0)
    total = _microseconds(iter(ours(dataset, batch_size=4, sampler=order, collate_fn=collate)))
    return {
        "whole": total,
        "decode": decode,
        "resample": limit - decode,
        "Python": sample - limit,
        "hand-over": total - sample,
        "limit": limit,
    }


def _microseconds(results: Iterator[Any]) -> float:
    start = time.process_time()
    for _ in results:
        pass
    return (time.process_time() - start) * 1e6 / NUM_SAMPLES


if __name__ == "__main__":
    run(main, rounds=5)
