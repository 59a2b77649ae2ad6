"""Images in object storage against local files: latency, requests, bytes, CPU, disk, and readers of other packages.

``python -m benchmarks.object_storage --bars latency cost`` runs some of the questions. The store is a server on this
machine that delays each reply. Photographs have about 59 KB, and two worker processes decode them.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset
from torchvision import tv_tensors
from torchvision.io import decode_jpeg
from torchvision.transforms import v2

from benchmarks.photographs import write_photographs
from benchmarks.rounds import judge
from lit_loader import DataLoader
from lit_loader.annotations import AnnotationTable
from lit_loader.annotations.formats import read_annotations
from lit_loader.collate import ClassificationCollate
from lit_loader.datasets import ClassificationDataset
from lit_loader.images import ImageReading
from lit_loader.samplers import BlockShuffleSampler, OrderSampler, RandomSampler, WeightedRandomSampler
from lit_loader.storage.catalog import Catalog
from lit_loader.transforms import classification_transforms
from tests.support.object_server import ObjectServer
from tests.support.remote_sets import end_stores, fetch_processes, packed_catalog, raw_catalog, remote_reading

BATCH_SIZE: Final = 32
SIDE: Final = 224
NUM_WORKERS: Final = 2
SIZE: Final = (500, 375)
NUM_PHOTOGRAPHS: Final = 256
IMAGES_PER_SHARD: Final = 512
DELAY_MS: Final = 30
# Of the rate of local files.
PACE: Final = 0.6


@dataclass(frozen=True)
class Epoch:
    """Times of one epoch.

    Attributes:
        first_s: Seconds from the iterator to the first batch.
        seconds: Seconds from the first batch to the last one.
        waiting_s: Seconds of these that the consumer waited for batches.
        num_images: Images after the first batch.
    """

    first_s: float
    seconds: float
    waiting_s: float
    num_images: int

    @property
    def rate(self) -> float:
        """Images a second."""
        return self.num_images / self.seconds


def run_epoch(loader: TorchDataLoader[Any], *, rate: float = math.inf) -> Epoch:
    """Consume an epoch; with a rate, the consumer works for so long on each batch."""
    begin = time.perf_counter()
    batches = iter(loader)
    next(batches)
    start = time.perf_counter()
    waiting_s = 0.0
    num_batches = 0
    while True:
        time.sleep(BATCH_SIZE / rate)
        begin_wait = time.perf_counter()
        if next(batches, None) is None:
            break
        waiting_s += time.perf_counter() - begin_wait
        num_batches += 1
        end = time.perf_counter()
    return Epoch(start - begin, end - start, waiting_s, num_batches * BATCH_SIZE)


@dataclass(frozen=True)
class StoredSet:
    """A set of images in the store.

    Attributes:
        name: Printed name.
        table: The same images as local files.
        catalog: The images in the store.
        sampler: Sampler of an epoch.
    """

    name: str
    table: AnnotationTable
    catalog: Catalog
    sampler: OrderSampler


class Bench:
    """Server, images and folders of a run."""

    def __init__(self, server: ObjectServer, table: AnnotationTable, scratch: Path) -> None:
        self.server = server
        self.table = table
        self.scratch = scratch
        num_images = table.num_images
        packed = packed_catalog(server, table, images_per_shard=IMAGES_PER_SHARD)
        random_order = RandomSampler(num_images)
        blocks = BlockShuffleSampler(packed.object_of, open_shards=2)
        self.sets = {
            "raw": StoredSet("raw files", table, raw_catalog(server, table), random_order),
            "blocks": StoredSet("shards, blocks", table, packed, blocks),
            "random": StoredSet("shards, full shuffle", table, packed, random_order),
        }

    @property
    def num_bytes(self) -> int:
        """Bytes of all images."""
        return int(self.sets["raw"].catalog.lengths.sum())

    @contextmanager
    def local(self) -> Iterator[DataLoader[Any]]:
        """Yield a loader over the local files."""
        with self._loader(ImageReading(), self.sets["raw"].sampler) as loader:
            yield loader

    @contextmanager
    def remote(self, stored: StoredSet, cache: Path | None = None, **settings: Any) -> Iterator[DataLoader[Any]]:
        """Yield a loader over stored images, with an empty cache unless ``cache`` names one."""
        with ExitStack() as stack:
            folder = cache or Path(stack.enter_context(tempfile.TemporaryDirectory(dir=self.scratch)))
            reading = remote_reading(self.server, stored.table, stored.catalog, folder, **settings)
            # It would live for some seconds, beside the next contender.
            stack.callback(end_stores)
            yield stack.enter_context(self._loader(reading, stored.sampler))

    def _loader(self, reading: ImageReading, sampler: OrderSampler) -> DataLoader[Any]:
        transforms = classification_transforms(True, size=SIDE, to_float=False)
        dataset = ClassificationDataset(self.table, transforms=transforms, reading=reading)
        return DataLoader(
            dataset,
            BATCH_SIZE,
            sampler=sampler,
            collate_fn=ClassificationCollate(),
            seed=0,
            num_workers=NUM_WORKERS,
            persistent_workers=True,
            drop_last=True,
        )


def fetch_cpu_seconds() -> float:
    """Return the CPU seconds of the fetch processes so far."""
    return sum(sum(process.cpu_times()[:2]) for process in fetch_processes())


def fetched(server: ObjectServer) -> tuple[int, int]:
    """Return the number of requests for objects, and of bytes, since the last reset."""
    counts = server.counts
    return counts["get"] + counts["get_range"] + counts["head"], counts["bytes_out"]


def latency(bench: Bench, rounds: int) -> None:
    """Cold epochs at 30 ms over cold epochs at 0 ms, paced and not."""
    with bench.local() as loader:
        local_rate = statistics.median(run_epoch(loader).rate for _ in range(3))
    print(f"\ncold epochs: {DELAY_MS} ms over 0 ms; local files: {local_rate:.0f} images/s")
    for pace, bar in (("paced", 0.95), ("unpaced", 0.90)):
        rate = PACE * local_rate if pace == "paced" else math.inf
        for stored in bench.sets.values():
            epochs: dict[int, list[Epoch]] = {0: [], DELAY_MS: []}
            for number in range(rounds):
                # The first one of a round has the emptier machine; they take turns.
                for delay_ms in sorted(epochs, reverse=bool(number % 2)):
                    bench.server.set(delay_ms=delay_ms)
                    with bench.remote(stored) as loader:
                        epochs[delay_ms].append(run_epoch(loader, rate=rate))
            rates = {delay_ms: [epoch.rate for epoch in some] for delay_ms, some in epochs.items()}
            ratios = [slow / fast for slow, fast in zip(rates[DELAY_MS], rates[0], strict=True)]
            medians = [statistics.median(rates[delay_ms]) for delay_ms in (0, DELAY_MS)]
            judge(f"{stored.name}, {pace}: {medians[0]:.0f} and {medians[1]:.0f} images/s", ratios, at_least=bar)
            if pace == "paced":
                waits = [100 * epoch.waiting_s / epoch.seconds for epoch in epochs[DELAY_MS]]
                judge(f"{stored.name}, {pace}: time in which the consumer waits", waits, at_most=6, unit=" %")
            first = [epoch.first_s for epoch in epochs[DELAY_MS]]
            judge(f"{stored.name}, {pace}: first batch", first, at_most=1, unit=" s")
    bench.server.set(delay_ms=0)


def cost(bench: Bench, rounds: int) -> None:
    """CPU time of the fetch process, requests and bytes of a cold epoch."""
    print("\ncost of a cold epoch")
    num_images = bench.table.num_images
    bars = {"raw": (300, 1.0), "blocks": (150, 0.02), "random": (math.inf, math.inf)}
    for key, (cpu_bar, requests_bar) in bars.items():
        stored = bench.sets[key]
        cpu_us = []
        requests = []
        ratios = []
        for _ in range(rounds):
            with bench.remote(stored) as loader:
                bench.server.set(reset=True)
                # The start of an interpreter costs as much as a thousand images, in any epoch. It has ended when the
                # first image was read.
                assert loader.dataset[0] is not None
                start_s = fetch_cpu_seconds()
                run_epoch(loader)
                cpu_us.append(1e6 * (fetch_cpu_seconds() - start_s) / num_images)
                num_requests, num_bytes = fetched(bench.server)
            requests.append(num_requests / num_images)
            ratios.append(num_bytes / bench.num_bytes)
        judge(f"{stored.name}: CPU of the fetch process an image", cpu_us, at_most=cpu_bar, unit=" us")
        judge(f"{stored.name}: requests an image", requests, at_most=requests_bar)
        judge(f"{stored.name}: bytes over the bytes of the images", ratios, at_most=1.03)


def budget(bench: Bench, rounds: int) -> None:
    """Bytes of the second epoch with a cache for a quarter of the images."""
    print("\nsecond epoch with a cache for 25 % of the bytes")
    num_images = bench.table.num_images
    # With this power of the rank the best possible eviction reads 25 % again.
    weights = np.random.default_rng(0).permutation(np.arange(1, num_images + 1) ** -0.7)
    skewed = WeightedRandomSampler(weights, num_images)
    raw = bench.sets["raw"]
    cases = [(raw, 0.77), (replace(raw, name="raw files, skewed weights", sampler=skewed), 0.30)]
    cases += [(bench.sets["blocks"], math.inf)]
    for stored, bar in cases:
        ratios = []
        excess = []
        for _ in range(rounds):
            with tempfile.TemporaryDirectory(dir=bench.scratch) as cache:
                limit = bench.num_bytes // 4
                settings = {"cache_budget": limit, "window": num_images // 16}
                with bench.remote(stored, Path(cache), **settings) as loader, watched_disk(Path(cache)) as peak:
                    run_epoch(loader)
                    bench.server.set(reset=True)
                    run_epoch(loader)
                    # Both ends of the second epoch have the same number of images in advance.
                    ratios.append(fetched(bench.server)[1] / bench.num_bytes)
                excess.append((peak[0] - limit) / num_images)
        judge(f"{stored.name}: bytes over all bytes", ratios, at_most=bar)
        judge(f"{stored.name}: disk above the budget, for each image", excess, at_most=4096, unit=" bytes")


@contextmanager
def watched_disk(folder: Path) -> Iterator[list[int]]:
    """Yield a list whose only item is the largest number of bytes on disk that a folder had."""
    peak = [0]
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.05):
            used = sum(512 * path.stat().st_blocks for path in folder.rglob("*") if path.is_file())
            peak[0] = max(peak[0], used)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        stop.set()
        thread.join()


def warm(bench: Bench, rounds: int) -> None:
    """Epochs whose images are all in the cache, over epochs of local files."""
    print("\nwarm epochs over local files")
    for key in ("raw", "random"):
        stored = bench.sets[key]
        with bench.local() as local, bench.remote(stored) as remote:
            run_epoch(remote)
            run_epoch(local)
            ratios = []
            for number in range(rounds):
                rates = {}
                for loader in (local, remote) if number % 2 else (remote, local):
                    rates[id(loader)] = run_epoch(loader).rate
                ratios.append(rates[id(remote)] / rates[id(local)])
        judge(f"{stored.name}: rate", ratios, at_least=0.95)


class PeerImages(Dataset[tuple[torch.Tensor, int]]):
    """Samples whose files a worker reads when it needs them.

    Args:
        connect: Called once in each worker; returns the function that reads an object.
        keys: Names of the objects.
    """

    def __init__(self, connect: Callable[[], Callable[[str], bytes]], keys: Sequence[str]) -> None:
        self.connect = connect
        self.keys = keys
        self.read: Callable[[str], bytes] | None = None
        self.transforms = v2.Compose([v2.RandomResizedCrop(SIDE), v2.RandomHorizontalFlip()])

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self.read is None:
            self.read = self.connect()
        data = np.frombuffer(self.read(self.keys[index]), dtype=np.uint8)
        return self.transforms(tv_tensors.Image(decode_jpeg(torch.from_numpy(data.copy())))), index % 10


def connect_boto3(endpoint: str, bucket: str) -> Callable[[str], bytes]:
    """Return a function that reads an object by boto3."""
    boto3 = importlib.import_module("boto3")
    botocore = importlib.import_module("botocore")
    config = importlib.import_module("botocore.config").Config(signature_version=botocore.UNSIGNED)
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", config=config)
    return lambda key: client.get_object(Bucket=bucket, Key=key)["Body"].read()


def connect_s3fs(endpoint: str, bucket: str) -> Callable[[str], bytes]:
    """Return a function that reads an object by s3fs."""
    files = importlib.import_module("s3fs").S3FileSystem(anon=True, endpoint_url=endpoint, skip_instance_cache=True)
    return lambda key: files.cat_file(f"{bucket}/{key}")


def peers(bench: Bench, rounds: int) -> None:
    """Cold epochs of readers that get an object when a worker needs it, beside reading ahead."""
    connectors = {"boto3": connect_boto3, "s3fs": connect_s3fs}
    stored = bench.sets["raw"]
    keys = [f"photographs/{path}" for path in stored.table.image_paths]
    print("\ncold epochs of raw files, images/s")
    for delay_ms in (0, DELAY_MS):
        bench.server.set(delay_ms=delay_ms)
        rates: dict[str, list[float]] = {}
        for _ in range(rounds):
            with bench.remote(stored) as loader:
                rates.setdefault("lit_loader, ahead", []).append(run_epoch(loader).rate)
            for name, connect in connectors.items():
                if importlib.util.find_spec(name) is None:
                    continue
                # A tenth of an epoch: at 30 ms two workers read 60 images a second.
                dataset = PeerImages(partial(connect, bench.server.endpoint, bench.server.bucket), keys[::10])
                readers = TorchDataLoader(dataset, BATCH_SIZE, shuffle=True, num_workers=NUM_WORKERS, drop_last=True)
                rates.setdefault(f"{name} in workers", []).append(run_epoch(readers).rate)
        for name, values in rates.items():
            spread = f"{min(values):.0f} to {max(values):.0f}"
            print(f"  {delay_ms:2d} ms, {name:22s} {statistics.median(values):7.0f} ({spread})")
    missing = [name for name in connectors if importlib.util.find_spec(name) is None]
    if missing:
        print(f"  not installed: {', '.join(missing)}; pip install --target FOLDER them, and pass --peers FOLDER")
    bench.server.set(delay_ms=0)


BARS: Final[Mapping[str, Callable[[Bench, int], None]]] = {
    "latency": latency,
    "cost": cost,
    "budget": budget,
    "warm": warm,
    "peers": peers,
}


def write_set(folder: Path, num_images: int) -> AnnotationTable:
    """Write photographs to a folder, and return their table; each is there several times, as files of their own."""
    originals = write_photographs(folder / "all", min(NUM_PHOTOGRAPHS, num_images), size=SIZE)
    for number in range(len(originals), num_images):
        shutil.copyfile(originals[number % len(originals)], folder / "all" / f"{number:06d}.jpg")
    return read_annotations("image_folder", folder, use_cache=False, num_workers=0, progress=False)


def main() -> None:
    """Run the chosen questions against a server on this machine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bars", nargs="+", choices=BARS, default=list(BARS), help="questions (default: all)")
    parser.add_argument("--rounds", type=int, default=5, help="counted rounds (%(default)s)")
    parser.add_argument("--images", type=int, default=4096, help="images of the set (%(default)s)")
    parser.add_argument("--folder", type=Path, help="folder for images and caches (default: a temporary one)")
    parser.add_argument("--peers", type=Path, help="folder where pip install --target put boto3, s3fs")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.peers:
        sys.path.append(str(arguments.peers))
    with tempfile.TemporaryDirectory(dir=arguments.folder) as scratch, ObjectServer(Path(scratch, "store")) as server:
        table = write_set(server.folder / "photographs", arguments.images)
        bench = Bench(server, table, Path(scratch))
        print(f"{arguments.images} photographs of {bench.num_bytes / arguments.images / 1e3:.0f} KB")
        for name in arguments.bars:
            BARS[name](bench, arguments.rounds)


if __name__ == "__main__":
    main()
