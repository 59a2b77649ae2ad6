"""Delay caused by a killed worker: the longest wait for a batch after a kill, and without one."""

from __future__ import annotations

import os
import signal
import statistics
import time
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Dataset

from benchmarks.rounds import run
from lit_loader import DataLoader
from lit_loader.errors import WorkerRestartWarning

SAMPLE_S = 0.004
BATCH_SIZE = 4
NUM_WORKERS = 2
KILLS_A_ROUND = 25
# More than are ever in flight, so the lost ones are among them.
BATCHES_AFTER = 16


class Slow(Dataset[torch.Tensor]):
    """Takes four milliseconds per sample."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(SAMPLE_S)
        return torch.rand(3, 64, 64)


def longest_wait_s(batches: Iterator[Any]) -> float:
    """Return the longest wait for one of the next batches."""
    waits = []
    for _ in range(BATCHES_AFTER):
        start = time.perf_counter()
        next(batches)
        waits.append(time.perf_counter() - start)
    return max(waits)


def measure(start_method: str, kills: int) -> tuple[list[float], list[float]]:
    """Return the longest waits in seconds after kills, and without kills."""
    disturbed = []
    undisturbed = []
    with DataLoader(
        Slow(),
        batch_size=BATCH_SIZE,
        num_workers=NUM_WORKERS,
        seed=0,
        multiprocessing_context=start_method,
        max_worker_restarts=kills,
    ) as loader:
        batches = iter(loader)
        longest_wait_s(batches)
        # The process ids of workers are not public.
        pool: Any = loader._worker_manager._backends[-1]()
        for number in range(kills):
            undisturbed.append(longest_wait_s(batches))
            # At another moment of a sample each time.
            time.sleep(SAMPLE_S * (number % 10) / 10)
            os.kill(pool._workers[number % NUM_WORKERS].process.pid, signal.SIGKILL)
            disturbed.append(longest_wait_s(batches))
    return disturbed, undisturbed


def main(rounds: int) -> None:
    """Kill workers at various times within a sample."""
    warnings.simplefilter("ignore", WorkerRestartWarning)
    print(f"a worker of {NUM_WORKERS} is killed; {BATCH_SIZE} samples of {SAMPLE_S * 1e3:g} ms a batch")
    for start_method in ("fork", "forkserver"):
        disturbed, undisturbed = measure(start_method, rounds * KILLS_A_ROUND)
        for name, waits in (("after a kill", disturbed), ("undisturbed", undisturbed)):
            cuts = statistics.quantiles(waits, n=20)
            print(
                f"  {start_method:10s} {name:13s} longest wait of {BATCHES_AFTER} batches: median "
                f"{cuts[9] * 1e3:5.0f} ms, 95 % below {cuts[18] * 1e3:5.0f} ms, most {max(waits) * 1e3:5.0f} ms "
                f"({len(waits)} times)"
            )


if __name__ == "__main__":
    run(main, rounds=4)
