"""How many padded pixels do groups save? A made-up photo collection, batches of 16, plain against 2 and k buckets."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from benchmarks.rounds import Rounds, judge, run
from lit_loader.samplers import GroupedSampler, RandomSampler, aspect_ratio_buckets, size_buckets
from lit_loader.types import IndexArray, Order

NUM_IMAGES, BATCH, NUM_BUCKETS = 20_000, 16, (4, 8, 16, 32)
SHORTER, LONGEST = 800, 1333

Sides: TypeAlias = npt.NDArray[Any]
Groups: TypeAlias = Callable[[Sides, Sides, int], IndexArray]


def photo_sizes(*, seed: int) -> tuple[IndexArray, IndexArray]:
    """Return widths and heights like those of a photo collection.

    Most are of a camera's ratio (4:3, 3:2, 16:9 or square), one in three of these upright; one in five was cropped by
    hand. The pixels of an image are log-normal around half a megapixel.
    """
    rng = np.random.default_rng(seed)
    ratio = rng.choice([4 / 3, 3 / 2, 16 / 9, 1.0], NUM_IMAGES, p=[0.45, 0.35, 0.12, 0.08])
    ratio = np.where(rng.random(NUM_IMAGES) < 1 / 3, 1 / ratio, ratio)
    cropped = rng.random(NUM_IMAGES) < 0.2
    ratio[cropped] *= np.exp(rng.normal(0, 0.35, int(cropped.sum())))
    area = np.exp(rng.normal(np.log(5e5), 0.8, NUM_IMAGES))
    widths, heights = np.sqrt(area * ratio), np.sqrt(area / ratio)
    return np.maximum(np.rint(widths), 32).astype(np.int64), np.maximum(np.rint(heights), 32).astype(np.int64)


def resized(widths: Sides, heights: Sides) -> tuple[Sides, Sides]:
    """Return the sizes after a resize to a shorter side of 800 pixels, or a longer one of 1333 if that is less."""
    shorter, longer = np.minimum(widths, heights), np.maximum(widths, heights)
    scale = np.minimum(SHORTER / shorter, LONGEST / longer)
    return np.rint(widths * scale), np.rint(heights * scale)


def padded_share(order: Order, widths: Sides, heights: Sides) -> float:
    """Return padded pixels over all pixels of an epoch's full batches."""
    whole = order[0 : len(order) // BATCH * BATCH].reshape(-1, BATCH)
    pixels = float((widths[whole] * heights[whole]).sum())
    total = float((widths[whole].max(axis=1) * heights[whole].max(axis=1)).sum() * BATCH)
    return 1 - pixels / total


def orientation(widths: Sides, heights: Sides, num_buckets: int) -> IndexArray:
    """Return 0 for upright images and 1 for the others: the two groups that people use."""
    assert num_buckets == 2
    return (widths >= heights).astype(np.int64)


def measure(
    name: str, groups: Groups, sizes: tuple[Sides, Sides], batched: tuple[Sides, Sides], rounds: int
) -> None:
    """Print the share of padded pixels, and judge k buckets beside the better of two ways to have two.

    Args:
        name: What is measured.
        groups: From widths, heights and a number of buckets.
        sizes: Widths and heights of the files, by which images are grouped.
        batched: Those that are batched.
        rounds: Epochs, of which each gives a figure.
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
    # Padded pixels for each pixel of an image, since the images are the same ones.
    padded = {label: [share / (1 - share) for share in found] for label, found in shares.items()}
    saved = {
        label: [1 - a / b for a, b in zip(found, padded[two], strict=True)] for label, found in padded.items()
    }
    print(f"\n{name}: {NUM_IMAGES} images, batches of {BATCH}")
    print(f"  {'':20s} {'padded share':>14s} {'per image pixel':>16s} {f'saved against {two}':>34s}")
    for label in samplers:
        share, extra, less = (statistics.median(of[label]) for of in (shares, padded, saved))
        print(f"  {label:20s} {share:14.1%} {extra:16.3f} {less:34.1%}")
    for k in NUM_BUCKETS:
        judge(f"fewer padded pixels with {k} buckets than with {two}", saved[f"{k} buckets"], at_least=0.3)


def main(rounds: int) -> None:
    """Measure both: by ratio and resized, by size and as they are."""
    sizes = photo_sizes(seed=0)
    measure("by aspect ratio, resized to 800/1333", aspect_ratio_buckets, sizes, resized(*sizes), rounds)
    measure("by size, not resized", size_buckets, sizes, sizes, rounds)


if __name__ == "__main__":
    run(main)
