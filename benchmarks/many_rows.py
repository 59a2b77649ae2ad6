"""Memory, time to the first batch and time to resume with 10^8 rows that nothing is stored for, compared with torch.

The data set computes each row from its index. Every figure is of a fresh process. torch's loader cannot resume; as the
least that a loop would do, its sampler is iterated up to the middle of the epoch.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from typing import Any, Final

import numpy as np
import psutil
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, DistributedSampler

from benchmarks.draws import _peak_bytes
from benchmarks.rounds import in_fresh_process
from lit_loader import BlockShuffleSampler, DataLoader, RandomSampler, WeightedRandomSampler

NUM_ROWS: Final = 10**8
BATCH_SIZE: Final = 64
WORLD_SIZE: Final = 4
SHARD_SIZE: Final = 10_000
# Weights are data of 8 bytes a row, so draws from them are measured with fewer rows.
WEIGHTED_PART: Final = 10


class Rows(Dataset[int]):
    """Row i is the number i."""

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows

    def __len__(self) -> int:
        return self.num_rows

    def __getitem__(self, index: int) -> int:
        return index


def ours(name: str, rows: Rows) -> DataLoader[Any]:
    """Return a loader of lit_loader."""
    if name == "random":
        return DataLoader(rows, BATCH_SIZE, sampler=RandomSampler(rows), seed=0)
    if name == "random, rank 3 of 4":
        return DataLoader(rows, BATCH_SIZE, shuffle=True, seed=0, rank=3, world_size=WORLD_SIZE)
    if name == "weighted":
        weights = torch.ones(len(rows), dtype=torch.float64)
        return DataLoader(rows, BATCH_SIZE, sampler=WeightedRandomSampler(weights), seed=0)
    sizes = np.full(len(rows) // SHARD_SIZE, SHARD_SIZE)
    block_size = 64 if name == "blocks of 64" else None
    return DataLoader(rows, BATCH_SIZE, sampler=BlockShuffleSampler(shard_sizes=sizes, block_size=block_size), seed=0)


def torchs(name: str, rows: Rows) -> TorchDataLoader[Any]:
    """Return a loader of torch."""
    if name == "random":
        return TorchDataLoader(rows, BATCH_SIZE, shuffle=True)
    sampler: Any = DistributedSampler(rows, num_replicas=WORLD_SIZE, rank=WORLD_SIZE - 1)
    return TorchDataLoader(rows, BATCH_SIZE, sampler=sampler)


def measure(whose: str, name: str, action: str, num_rows: int) -> dict[str, float]:
    """Return the seconds to a batch and the growth of this process at its peak, in bytes.

    Args:
        whose: ``"ours"`` or ``"torch"``.
        name: Name of the sampler.
        action: ``"first"`` batch of an epoch, or ``"resume"`` in its middle.
        num_rows: Number of rows.
    """
    # Loads modules that are imported at first use.
    next(iter(ours("whole shards", Rows(4 * SHARD_SIZE))))
    next(iter(TorchDataLoader(Rows(4), 2, shuffle=True)))
    rows = Rows(num_rows)
    state: dict[str, Any] = {}
    if action == "resume" and whose == "ours":
        loader = ours(name, rows)
        next(iter(loader))
        # The position is the only value of a state that changes within an epoch.
        state = {**loader.state_dict(), "position": BATCH_SIZE * loader_world(name) * (len(loader) // 2)}
        del loader
    start_bytes = psutil.Process().memory_info().rss
    start = time.perf_counter()
    if whose == "ours":
        our_loader = ours(name, rows)
        if state:
            our_loader.load_state_dict(state)
        next(iter(our_loader))
    else:
        torch_loader = torchs(name, rows)
        iterator = iter(torch_loader.batch_sampler or ())
        if action == "resume":
            next(itertools.islice(iterator, len(torch_loader) // 2, None))
        next(iterator)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "grown_bytes": max(_peak_bytes() - start_bytes, 0)}


def loader_world(name: str) -> int:
    """Return the number of ranks of a loader of `ours`."""
    return WORLD_SIZE if "rank" in name else 1


def main(rounds: int, num_rows: int) -> None:
    """Print the median of fresh processes for each sampler."""
    contenders = [("ours", name) for name in ("random", "random, rank 3 of 4", "whole shards", "blocks of 64")]
    contenders += [("ours", "weighted"), ("torch", "random"), ("torch", "random, rank 3 of 4")]
    print(f"{num_rows:,} rows, batches of {BATCH_SIZE}; weighted: {num_rows // WEIGHTED_PART:,} rows")
    print(f"  {'':28s} {'first batch':>12s} {'resumed':>12s} {'memory':>10s}")
    for whose, name in contenders:
        count = num_rows // WEIGHTED_PART if name == "weighted" else num_rows
        results: dict[str, list[dict[str, float]]] = {"first": [], "resume": []}
        for _ in range(rounds if whose == "ours" else 1):
            for action, figures in results.items():
                figures.append(in_fresh_process("benchmarks.many_rows", "measure", whose, name, action, count))
        seconds = {action: statistics.median(f["seconds"] for f in figures) for action, figures in results.items()}
        grown = statistics.median(f["grown_bytes"] for f in itertools.chain(*results.values()))
        print(
            f"  {whose + ': ' + name:28s} {seconds['first']:10.3f} s {seconds['resume']:10.3f} s {grown / 1e6:7.1f} MB",
            flush=True,
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["measure"]:
        torch.set_num_threads(1)
        print(json.dumps(measure(*sys.argv[2:5], int(sys.argv[5]))))  # type: ignore[call-arg]
    else:
        parser = argparse.ArgumentParser(description=__doc__)
        parser.add_argument("--rounds", type=int, default=3, help="fresh processes a loader (%(default)s)")
        parser.add_argument("--rows", type=int, default=NUM_ROWS, help="number of rows (%(default)s)")
        arguments = parser.parse_args()
        main(arguments.rounds, arguments.rows)
