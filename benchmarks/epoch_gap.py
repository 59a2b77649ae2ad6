"""Waiting time of training between two epochs: 5 ms per sample, batch 32, two workers, so 80 ms per batch."""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

from benchmarks.rounds import Rounds, judge
from lit_loader import DataLoader

SAMPLE_S = 0.005
BUSY_S = 0.110
NUM_BATCHES = 9
WORKERS: dict[str, Any] = {"batch_size": 32, "num_workers": 2, "persistent_workers": True}


class Slow(Dataset[int]):
    """Waits for every sample."""

    def __len__(self) -> int:
        return NUM_BATCHES * 32

    def __getitem__(self, index: int) -> int:
        time.sleep(SAMPLE_S)
        return index


def waits(loader: TorchDataLoader[Any], *, busy_s: float, epochs: int) -> tuple[Rounds, Rounds]:
    """Return, for each epoch except the first, the wait for its first batch and the mean of the other waits.

    The first wait starts when the work on the last batch of the previous epoch is done, so it includes the end of that
    epoch and ``iter()``.
    """
    first: Rounds = []
    steady: Rounds = []
    ready = time.perf_counter()
    for epoch in range(epochs + 1):
        waited: Rounds = []
        for _ in loader:
            waited.append(time.perf_counter() - ready)
            time.sleep(busy_s)
            ready = time.perf_counter()
        if epoch:
            first.append(waited[0])
            steady.append(statistics.mean(waited[1:]))
    return first, steady


def contenders() -> dict[str, TorchDataLoader[Any]]:
    """Return the loaders, with a seed if they take one."""
    ours: Any = DataLoader
    return {
        "torch": TorchDataLoader(Slow(), **WORKERS),
        "ours, processes": ours(Slow(), seed=0, **WORKERS),
        "ours, threads": ours(Slow(), seed=0, worker_method="thread", **WORKERS),
    }


def main(rounds: int) -> None:
    """Measure the gap for a consumer that is slower than the workers, and for one that is faster."""
    loaders = contenders()
    for consumer, busy_s in (("busy consumer, 110 ms a batch", BUSY_S), ("fast consumer", 0.0)):
        print(f"\n{consumer}")
        for name, loader in loaders.items():
            first, steady = waits(loader, busy_s=busy_s, epochs=rounds)
            print(
                f"  {name:20s} first batch of an epoch {statistics.median(first) * 1e3:7.1f} ms "
                f"({min(first) * 1e3:.1f} to {max(first) * 1e3:.1f}), "
                f"the others {statistics.median(steady) * 1e3:7.1f} ms"
            )
            if name == "torch":
                continue
            if busy_s:
                judge(name, [wait * 1e3 for wait in first], at_most=2, unit=" ms")
            else:
                # Compared with the mean of all epochs, because an epoch starts with batches that were made in advance.
                mean = statistics.mean(steady)
                judge(f"{name}, of the steady time", [wait / mean for wait in first], at_most=1.15)


def draw(path: Path) -> None:
    """Save a picture of three epochs: when the consumer worked, and when it waited for a batch."""
    loaders = contenders()
    figure = Figure(figsize=(7, 2.6), layout="constrained")
    axis = figure.subplots()
    for row, loader in enumerate(loaders.values()):
        for _ in loader:
            # The workers are there.
            pass
        start = ready = time.perf_counter()
        waited = []
        worked = []
        for _ in range(3):
            for _ in loader:
                received_at = time.perf_counter()
                time.sleep(BUSY_S)
                waited.append((ready - start, received_at - ready))
                ready = time.perf_counter()
                worked.append((received_at - start, ready - received_at))
        axis.broken_barh(worked, (row - 0.3, 0.6), color="tab:green", label=None if row else "step")
        axis.broken_barh(waited, (row - 0.3, 0.6), color="tab:red", label=None if row else "waiting")
        total = sum(seconds for _, seconds in waited)
        axis.text(ready - start + 0.05, row, f"waited {total:.2f} s", va="center", fontsize=8)
    axis.set_yticks(range(len(loaders)), list(loaders))
    axis.invert_yaxis()
    axis.set_xlim(0, axis.get_xlim()[1] * 1.15)
    axis.set_xlabel("seconds; three epochs of 9 batches, a step of 110 ms, two workers")
    figure.legend(loc="outside upper right", ncols=2)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    print(path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="counted rounds (%(default)s)")
    parser.add_argument("--picture", type=Path, help="plot the waits of three epochs to this file instead")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.picture:
        draw(arguments.picture)
    else:
        main(arguments.rounds)
