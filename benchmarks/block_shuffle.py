"""Quality of block order against its requests an image, for numbers of open shards and sizes of blocks, and a picture.

The set is made of numbers alone: shards of 256 MiB with images of 59 KB, packed class by class, so that neighbours are
similar. Requests count for a first epoch, with a cache for all images, and for a quarter of them.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from lit_loader import BlockShuffleSampler, RandomSampler, SequentialSampler, ShuffleQuality, shuffle_quality
from lit_loader.annotations import LabelSets
from lit_loader.samplers import OrderSampler
from lit_loader.storage.catalog import Catalog
from lit_loader.storage.images import StoredSamples
from lit_loader.storage.request_estimate import requests_per_image
from lit_loader.storage.settings import StorageSettings

NUM_SHARDS: Final = 64
IMAGE_BYTES: Final = 59_000
SHARD_SIZE: Final = (256 << 20) // (IMAGE_BYTES + 1024)
NUM_CLASSES: Final = 10
OPEN_SHARDS: Final = (1, 2, 4, 8, 16)
BLOCK_SIZES: Final = (None, 256, 64)


class Result(NamedTuple):
    """Figures of one sampler.

    Attributes:
        quality: Quality of three epochs, batches of 64.
        requests: Requests an image with a cache for all images.
        requests_small: Requests an image with a cache for a quarter of the images.
    """

    quality: ShuffleQuality
    requests: float
    requests_small: float


def stored_samples(share: float) -> StoredSamples:
    """Return the samples in a store whose cache holds a share of them."""
    count = NUM_SHARDS * SHARD_SIZE
    catalog = Catalog(
        root="s3://bucket/set",
        objects=[f"{shard}.tar" for shard in range(NUM_SHARDS)],
        versions=[""] * NUM_SHARDS,
        object_of=np.repeat(np.arange(NUM_SHARDS, dtype=np.int32), SHARD_SIZE),
        starts=np.tile(np.arange(SHARD_SIZE) * (IMAGE_BYTES + 1024), NUM_SHARDS).astype(np.int64),
        lengths=np.full(count, IMAGE_BYTES, dtype=np.int64),
        path_hashes=np.arange(count, dtype=np.uint64),
    )
    budget = round(share * count * 61_440)  # an image takes whole pages of 4096 bytes
    store: Any = SimpleNamespace(catalog=catalog, settings=StorageSettings(url=catalog.root, cache_budget=budget))
    return StoredSamples(0, np.arange(count, dtype=np.int32), store)


def measure(sampler: OrderSampler, everything: StoredSamples, quarter: StoredSamples) -> Result:
    """Return the figures of a sampler."""
    count = NUM_SHARDS * SHARD_SIZE
    classes = np.arange(count) * NUM_CLASSES // count
    epochs = [sampler.order(seed=0, epoch=epoch)[0:count] for epoch in range(3)]
    quality = shuffle_quality(
        epochs, np.arange(count) // SHARD_SIZE, batch_size=64, labels=LabelSets(np.arange(count + 1), classes)
    )
    order = sampler.order(seed=0, epoch=0)
    requests, requests_small = (requests_per_image(samples, order) or 0.0 for samples in (everything, quarter))
    return Result(quality, requests, requests_small)


def draw(results: dict[str, Result], path: Path) -> None:
    """Save a picture of the missing quality against the requests."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for block_size, marker in zip(BLOCK_SIZES, "osD", strict=True):
        rows = [results[_name(number, block_size)] for number in OPEN_SHARDS]
        label = "whole shards" if block_size is None else f"blocks of {block_size}"
        axes.plot([row.requests for row in rows], [1 - row.quality.score for row in rows], marker, ls="-", label=label)
        for number, row in zip(OPEN_SHARDS, rows, strict=True):
            axes.annotate(str(number), (row.requests, 1 - row.quality.score), (4, 4), textcoords="offset points")
    random = results["random"]
    axes.plot([random.requests], [max(1e-4, abs(1 - random.quality.score))], "k*", label="random")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("requests an image, first epoch")
    axes.set_ylabel("1 - score of the shuffle (0 = full shuffle)")
    axes.set_title("block order: numbers are open_shards")
    axes.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)


def _name(open_shards: int, block_size: int | None) -> str:
    return f"open_shards={open_shards} block_size={block_size}"


def main(out: Path) -> None:
    """Print the figures of all samplers, and draw them."""
    count = NUM_SHARDS * SHARD_SIZE
    samplers: dict[str, OrderSampler] = {"random": RandomSampler(count), "sequential": SequentialSampler(count)}
    for block_size in BLOCK_SIZES:
        for number in OPEN_SHARDS:
            sizes = [SHARD_SIZE] * NUM_SHARDS
            sampler = BlockShuffleSampler(shard_sizes=sizes, open_shards=number, block_size=block_size)
            samplers[_name(number, block_size)] = sampler
    stores = [stored_samples(share) for share in (1.0, 0.25)]
    print(f"{NUM_SHARDS} shards of {SHARD_SIZE} images, batches of 64; in brackets: cache for a quarter of the images")
    print(f"  {'':32s} {'score':>7s} {'class deviation':>16s} {'epoch correlation':>18s} {'requests an image':>18s}")
    results = {}
    for name, order_sampler in samplers.items():
        result = results[name] = measure(order_sampler, stores[0], stores[1])
        quality = result.quality
        deviation = quality.class_deviation / quality.class_deviation_shuffled
        print(
            f"  {name:32s} {quality.score:7.4f} {deviation:13.2f} x {quality.epoch_correlation:18.4f} "
            f"{result.requests:8.4f} ({result.requests_small:.4f})",
            flush=True,
        )
    draw(results, out)
    print(f"\n{out}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("outputs/block_shuffle.png"), help="picture (%(default)s)")
    main(parser.parse_args().out)
