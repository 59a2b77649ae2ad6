"""Padded pixels saved by grouping, on a synthetic photo collection: batches of 16, plain, 2 and k buckets."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from benchmarks.rounds import Rounds, judge, run
from lit_loader.samplers import GroupedSampler, RandomSampler, aspect_ratio_buckets, size_buckets
from lit_loader.types import IndexArray, Order

NUM_IMAGES = 20_000
BATCH = 16
NUM_BUCKETS = (4, 8, 16, 32)
SHORTER = 800
LONGEST = 1333

Sides: TypeAlias = npt.NDArray[Any]
Groups: TypeAlias = Callable[[Sides, Sides, int], IndexArray]


def photo_sizes(*, seed: int) -> tuple[IndexArray, IndexArray]:
    """Return widths and heights as in a photo collection.

    Most have a camera's aspect ratio (4:3, 3:2, 16:9 or square), a third of these upright; one in five is cropped. The
    number of pixels is log-normal around half a megapixel.
    """
    rng = np.random.default_rng(seed)
    ratio = rng.choice([4 / 3, 3 / 2, 16 / 9, 1.0], NUM_IMAGES, p=[0.45, 0.35, 0.12, 0.08])
    ratio = np.where(rng.random(NUM_IMAGES) < 1 / 3, 1 / ratio, ratio)
    cropped = rng.random(NUM_IMAGES) < 0.2
    ratio[cropped] *= np.exp(rng.normal(0, 0.35, int(cropped.sum())))
    area = np.exp(rng.normal(np.log(5e5), 0.8, NUM_IMAGES))
    widths = np.sqrt(area * ratio)
    heights = np.sqrt(area / ratio)
    return np.maximum(np.rint(widths), 32).astype(np.int64), np.maximum(np.rint(heights), 32).astype(np.int64)


def resized(widths: Sides, heights: Sides) -> tuple[Sides, Sides]:
    """Return the sizes after a resize to a shorter side of 800 pixels, or a longer one of 1333 if that is less."""
    shorter = np.minimum(widths, heights)
    longer = np.maximum(widths, heights)
    scale = np.minimum(SHORTER / shorter, LONGEST / longer)
    return np.rint(widths * scale), np.rint(heights * scale)


def padded_share(order: Order, widths: Sides, heights: Sides) -> float:
    """Return the fraction of padded pixels in an epoch's full batches."""
    full_batches = order[0 : len(order) // BATCH * BATCH].reshape(-1, BATCH)
    pixels = float((widths[full_batches] * heights[full_batches]).sum())
    total = float((widths[full_batches].max(axis=1) * heights[full_batches].max(axis=1)).sum() * BATCH)
    return 1 - pixels / total


def orientation(widths: Sides, heights: Sides, num_buckets: int) -> IndexArray:
    """Return 0 for upright images and 1 for all others, the usual two groups."""
    assert num_buckets == 2
    return (widths >= heights).astype(np.int64)


def measure(name: str, groups: Groups, sizes: tuple[Sides, Sides], batched: tuple[Sides, Sides], rounds: int) -> None:
    """Print the fraction of padded pixels, and compare k buckets with the better of two ways to use two groups.

    Args:
        name: Printed title.
        groups: Function of widths, heights and a number of buckets that returns the bucket of each image.
        sizes: Widths and heights of the files, by which images are grouped.
        batched: Widths and heights of the images in batches.
        rounds: Number of epochs.
    """
    inner = RandomSampler(NUM_IMAGES)
    samplers: dict[str, RandomSampler | GroupedSampler] = {
        "plain": inner,
        "2, upright or not": GroupedSampler(inner, orientation(*sizes, 2)),
        **{f"{k} buckets": GroupedSampler(inner, groups(*sizes, k)) for k in (2, *NUM_BUCKETS)},
    }
    shares: dict[str, Rounds] = {
        label: [
            padded_share(sampler.batch_order(seed=0, epoch=epoch, global_batch=BATCH), *batched)
            for epoch in range(rounds)
        ]
        for label, sampler in samplers.items()
    }
    two = min(("2, upright or not", "2 buckets"), key=lambda label: statistics.median(shares[label]))
    # Padded pixels per image pixel, because the number of image pixels is constant.
    padded = {label: [share / (1 - share) for share in epoch_values] for label, epoch_values in shares.items()}
    saved = {
        label: [1 - a / b for a, b in zip(epoch_values, padded[two], strict=True)]
        for label, epoch_values in padded.items()
    }
    print(f"\n{name}: {NUM_IMAGES} images, batches of {BATCH}")
    print(f"  {'':20s} {'padded share':>14s} {'per image pixel':>16s} {f'saved against {two}':>34s}")
    for label in samplers:
        share, extra, less = (statistics.median(values[label]) for values in (shares, padded, saved))
        print(f"  {label:20s} {share:14.1%} {extra:16.3f} {less:34.1%}")
    for k in NUM_BUCKETS:
        judge(f"fewer padded pixels with {k} buckets than with {two}", saved[f"{k} buckets"], at_least=0.3)


def main(rounds: int) -> None:
    """Measure images grouped by aspect ratio and resized, and grouped by size without a resize."""
    sizes = photo_sizes(seed=0)
    measure("by aspect ratio, resized to 800/1333", aspect_ratio_buckets, sizes, resized(*sizes), rounds)
    measure("by size, not resized", size_buckets, sizes, sizes, rounds)


if __name__ == "__main__":
    run(main)
