"""Packing of small images: rate, size and index, and bytes read from the shards, beside LitData and Lance.

    python -m benchmarks.pack [--images 100000] [--peers FOLDER]
    pip install --no-deps --target FOLDER litdata boto3 botocore s3transfer jmespath
    pip install --no-deps --target FOLDER pylance lance-namespace lance-namespace-urllib3-client

The images are generated JPEGs of about 2 KB, with a box and a class each, as files of one folder. All contenders store
the same bytes on this host: a plain tar file by `tarfile`, shards by `pack_tables` on two threads, chunks by LitData's
``optimize`` with two workers, and a Lance data set. Then the encoded bytes of all images are read in one process: from
lit_loader's shards and from Lance in one random order, from LitData's ``StreamingDataset`` in its own order, because
its random access reads a chunk at once. Every contender runs once, so the figures show orders of magnitude.
"""

from __future__ import annotations

import argparse
import io
import resource
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from lit_loader.annotations import AnnotationTable
from lit_loader.annotations.packing import pack_tables, verify_packed
from lit_loader.datasets import PackedSource
from lit_loader.storage.images import LocalImages
from lit_loader.storage.pack_target import FolderTarget

NUM_CLASSES = 100
SIDE = 64
NUM_PICTURES = 64
SHARD_BYTES = 64 << 20
BATCH = 64


def write_images(folder: Path, count: int) -> AnnotationTable:
    """Write images that all differ, and return their table."""
    rng = np.random.default_rng(0)
    pictures = []
    for _ in range(NUM_PICTURES):
        pixels = rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(pixels).resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=90)
        pictures.append(buffer.getvalue())
    folder.mkdir()
    for number in range(count):
        # Bytes after the end of a JPEG are ignored.
        (folder / f"{number:07d}.jpg").write_bytes(pictures[number % NUM_PICTURES] + number.to_bytes(4, "little"))
    corners = rng.integers(0, SIDE // 2, (count, 2))
    return AnnotationTable(
        root=folder,
        image_paths=[f"{number:07d}.jpg" for number in range(count)],
        class_names=[f"class {number}" for number in range(NUM_CLASSES)],
        widths=[SIDE] * count,
        heights=[SIDE] * count,
        offsets=np.arange(count + 1),
        boxes=np.concatenate([corners, corners + SIDE // 2], axis=1).astype(np.float32),
        labels=rng.integers(0, NUM_CLASSES, count),
    )


def write_tar(table: AnnotationTable, path: Path) -> None:
    """Write all images to one tar file."""
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        for name in table.image_paths:
            tar.add(table.root / name, arcname=name)


def write_lance(table: AnnotationTable, folder: Path) -> None:
    """Write all images to a Lance data set."""
    lance: Any = import_module("lance")
    schema = pa.schema([("image", pa.large_binary()), ("label", pa.int64())])

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, len(table), 1000):
            names = table.image_paths[start : start + 1000]
            images = [(table.root / name).read_bytes() for name in names]
            yield pa.record_batch([images, table.labels[start : start + 1000]], schema=schema)

    lance.write_dataset(pa.RecordBatchReader.from_batches(schema, batches()), str(folder))


def litdata_sample(item: tuple[str, int]) -> dict[str, Any]:
    """Return a sample as LitData stores it."""
    return {"image": Path(item[0]).read_bytes(), "label": item[1]}


def write_litdata(table: AnnotationTable, folder: Path) -> None:
    """Write all images to LitData's chunks."""
    litdata: Any = import_module("litdata")

    inputs = [(str(table.root / name), int(label)) for name, label in zip(table.image_paths, table.labels, strict=True)]
    litdata.optimize(litdata_sample, inputs, output_dir=str(folder), chunk_bytes=SHARD_BYTES, num_workers=2)


def timed(title: str, count: int, action: Callable[[], object], folder: Path | None = None) -> None:
    """Run an action once, and print its rate, its CPU time an image and the size of its result."""
    cpu_before = cpu_seconds()
    start = time.perf_counter()
    action()
    seconds = time.perf_counter() - start
    cpu = (cpu_seconds() - cpu_before) / count * 1e6
    size = "" if folder is None else f", {sum(path.stat().st_size for path in files_of(folder)) / 1e6:,.1f} MB"
    print(f"  {title:44s} {count / seconds:10,.0f} images/s, {cpu:6.0f} us CPU an image{size}")


def cpu_seconds() -> float:
    """Return the CPU time of this process and of its ended children."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def files_of(path: Path) -> list[Path]:
    """Return a file, or all files in a folder."""
    return [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]


def read_packed(folder: Path, order: np.ndarray) -> None:
    """Read all images of the shards in an order."""
    source = PackedSource(folder, val=None, test=None, cache_dir=str(folder.parent / "cache"), progress=False)
    (table,) = source.tables("train")
    catalog = source.__dict__["_place"].catalog
    store = LocalImages(catalog)
    paths = list(table.image_paths)
    for row in order.tolist():
        store.read(paths[row])


def read_lance(folder: Path, order: np.ndarray) -> None:
    """Take all images of a Lance data set in an order, a batch at once."""
    lance: Any = import_module("lance")

    dataset = lance.dataset(str(folder))
    for start in range(0, len(order), BATCH):
        dataset.take(order[start : start + BATCH], columns=["image"])["image"].to_pylist()


def read_litdata(folder: Path) -> None:
    """Read all samples of LitData's chunks in their own order."""
    litdata: Any = import_module("litdata")

    for sample in litdata.StreamingDataset(str(folder), shuffle=False):
        sample["image"]


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=100_000, help="number of images")
    parser.add_argument("--peers", help="folder with the packages litdata and lance")
    arguments = parser.parse_args()
    count = arguments.images
    order = np.random.default_rng(1).permutation(count)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        table = write_images(folder / "images", count)
        num_bytes = sum(path.stat().st_size for path in files_of(folder / "images"))
        print(f"{count:,} images of {num_bytes / count:,.0f} bytes, {num_bytes / 1e6:,.1f} MB")
        print("written")
        timed("tarfile, one tar file", count, lambda: write_tar(table, folder / "plain.tar"), folder / "plain.tar")
        packed = folder / "packed"
        target = FolderTarget(packed)
        pack = lambda: pack_tables({"train": table}, target, shard_bytes=SHARD_BYTES, num_workers=2)  # noqa: E731
        timed("lit_loader, shards and index", count, pack, packed)
        index = sum(path.stat().st_size for path in packed.glob("*.arrow"))
        print(f"    the index is {index / 1e6:,.1f} MB of these, {index / count:.0f} bytes an image")
        timed("lit_loader, verified", count, lambda: verify_packed(target, progress=False))
        if arguments.peers:
            sys.path.append(arguments.peers)
            timed("LitData, chunks", count, lambda: write_litdata(table, folder / "litdata"), folder / "litdata")
            timed("Lance, data set", count, lambda: write_lance(table, folder / "lance"), folder / "lance")
        print("read, encoded bytes")
        timed("lit_loader, random order", count, lambda: read_packed(packed, order))
        if arguments.peers:
            timed("Lance, take in random order", count, lambda: read_lance(folder / "lance", order))
            timed("LitData, own order", count, lambda: read_litdata(folder / "litdata"))


if __name__ == "__main__":
    main()
