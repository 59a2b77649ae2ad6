"""Cost of a few slow samples: one in a hundred takes 200 ms, the others 1 ms; two workers; a unit is a batch."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from zlib import crc32

from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

from benchmarks.overhead import WORKERS
from benchmarks.rounds import Pass, compare, judge, passes, run
from lit_loader import DataLoader

EPOCHS = 2


class Tailed(Dataset[int]):
    """Waits 1 ms for most samples and 200 ms for the hundredth of them with the lowest hash."""

    def __init__(self, length: int) -> None:
        by_hash = sorted(range(length), key=lambda index: crc32(str(index).encode()))
        slow = frozenset(by_hash[: length // 100])
        self.seconds = [0.2 if index in slow else 0.001 for index in range(length)]

    def __len__(self) -> int:
        return len(self.seconds)

    def __getitem__(self, index: int) -> int:
        time.sleep(self.seconds[index])
        return index


def contenders(dataset: Tailed, batch_size: int) -> dict[str, Pass]:
    """Return epochs of torch's loader, in order and not, and of lit_loader's in order."""
    ours: Any = DataLoader
    loaders = passes(
        {
            "torch, in_order=False": TorchDataLoader(dataset, batch_size, in_order=False, **WORKERS),
            "torch, in order": TorchDataLoader(dataset, batch_size, **WORKERS),
            "ours, in order, processes": ours(dataset, batch_size, seed=0, **WORKERS),
            "ours, in order, threads": ours(dataset, batch_size, seed=0, worker_method="thread", **WORKERS),
        },
        epochs=EPOCHS,
    )
    return {**loaders, "bare loop, two threads": lambda: bare(dataset, batch_size)}


def bare(dataset: Tailed, batch_size: int) -> int:
    """Make all samples in two threads, without batches."""
    with ThreadPoolExecutor(2) as pool:
        for _ in range(EPOCHS):
            pool.map(dataset.__getitem__, range(len(dataset)))
    return EPOCHS * len(dataset) // batch_size


def main(rounds: int) -> None:
    """Compare batches of 32, and of 4 for information."""
    for batch_size, length in ((32, 1600), (4, 400)):
        dataset = Tailed(length)
        limit_us = sum(dataset.seconds) / 2 / (length / batch_size) * 1e6
        question = f"one sample in 100 is slow, batch {batch_size}; the limit is {limit_us:.0f} us a batch"
        figures = compare(question, contenders(dataset, batch_size), rounds=rounds, unit="batch")
        for ours in ("ours, in order, processes", "ours, in order, threads") if batch_size == 32 else ():
            rates = figures.rate_ratio(ours, "torch, in_order=False")
            judge(f"{ours}, rate of torch's out of order", rates, at_least=1)


if __name__ == "__main__":
    run(main, rounds=3)
