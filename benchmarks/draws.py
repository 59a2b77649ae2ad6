"""Time and memory of an epoch's order for weighted draws with replacement, compared with torch's sampler.

torch's sampler is only iterated, which is the least that a loader does with it; lit_loader's is read in slices of 4096.
Memory is measured in a fresh process, starting before the sampler is created. ``torch.multinomial`` refuses more than
2**24 weights.
"""

from __future__ import annotations

import collections
import json
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
import torch.utils.data

from benchmarks.rounds import Rounds, compare, in_fresh_process, judge, run
from lit_loader.samplers import RandomSampler, WeightedRandomSampler
from lit_loader.types import Order

NUM_WEIGHTS = 10**7
MOST_WEIGHTS = 10**8
TORCH_LIMIT = 2**24
SLICE = 4096


def drawn(order: Order) -> int:
    """Read an order slice by slice, as a loader does; return 1 (epoch)."""
    for start in range(0, len(order), SLICE):
        order[start : start + SLICE]
    return 1


def iterated(sampler: torch.utils.data.WeightedRandomSampler) -> int:
    """Iterate over torch's sampler; return 1 (epoch)."""
    collections.deque(iter(sampler), maxlen=0)
    return 1


def judge_time(rounds: int) -> None:
    """Draw an epoch, with and without building the table."""
    weights = np.random.default_rng(0).random(NUM_WEIGHTS)
    theirs = torch.utils.data.WeightedRandomSampler(weights, NUM_WEIGHTS)  # type: ignore[arg-type] # as_tensor takes it
    # With its table built, so that this contender only draws.
    ready = WeightedRandomSampler(weights).order(seed=0, epoch=0)

    contenders = {
        "torch, iterated": lambda: iterated(theirs),
        "ours, drawing": lambda: drawn(ready),
        "ours, table and drawing": lambda: drawn(WeightedRandomSampler(weights).order(seed=0, epoch=0)),
    }
    question = f"an epoch of {NUM_WEIGHTS:,} draws from as many weights"
    figures = compare(question, contenders, rounds=rounds, unit="epoch")
    for name, least in (("ours, drawing", 10), ("ours, table and drawing", 6)):
        judge(f"{name}, times torch's rate", figures.rate_ratio(name, "torch, iterated"), at_least=least)


def judge_memory(rounds: int) -> None:
    """Compare the memory peaks of fresh processes, and measure the largest supported set."""
    print(f"\npeak memory of sampler and epoch, {NUM_WEIGHTS:,} weights in a float64 array that both are given")
    measure = partial(in_fresh_process, "benchmarks.draws", "measure")
    shares: Rounds = []
    for _ in range(rounds):
        torchs, ours = (measure(who, NUM_WEIGHTS)["grown_bytes"] for who in ("torch", "ours"))
        shares.append(ours / torchs)
        print(f"  bytes a weight: torch {torchs / NUM_WEIGHTS:.1f}, ours {ours / NUM_WEIGHTS:.1f}")
    judge("ours, of torch's", shares, at_most=0.35)
    print(f"\n{MOST_WEIGHTS:,} weights, a memory-mapped .npy column")
    figures = measure("ours", MOST_WEIGHTS, "mapped")
    print(f"  table {figures['build_s']:.1f} s, drawing {figures['draw_s']:.1f} s")
    judge("peak of the whole process", [figures["peak_bytes"] / 1e9], at_most=3, unit=" GB")
    try:
        iterated(torch.utils.data.WeightedRandomSampler(torch.ones(TORCH_LIMIT + 1), 1))  # type: ignore[arg-type]
    except RuntimeError as error:
        print(f"  torch, {TORCH_LIMIT + 1:,} weights: RuntimeError: {str(error).splitlines()[0]}")


def judge_first(rounds: int) -> None:
    """Measure the time to a shuffle's first batch."""
    print(f"\nthe first 64 indices of a shuffle of {MOST_WEIGHTS:,}")
    sampler = RandomSampler(MOST_WEIGHTS)
    waits = []
    for epoch in range(max(rounds, 3)):
        start = time.perf_counter()
        sampler.order(seed=0, epoch=epoch)[:64]
        waits.append((time.perf_counter() - start) * 1e3)
    judge("from nothing", waits, at_most=5, unit=" ms")


def measured(whose: str, num_weights: str, mapped: str = "") -> dict[str, float]:
    """Draw an epoch; return seconds, the growth of this process at its peak, and the peak itself."""
    sampler: Any = WeightedRandomSampler if whose == "ours" else torch.utils.data.WeightedRandomSampler
    count = int(num_weights)
    # Loads modules that are imported at first use.
    _epoch_of(sampler(np.ones(64), 64))
    with tempfile.TemporaryDirectory() as folder:
        weights: Any = np.random.default_rng(0).random(count) if not mapped else _mapped_weights(folder, count)
        start_bytes = psutil.Process().memory_info().rss
        start = time.perf_counter()
        tested_sampler = sampler(weights, count)
        if mapped:
            # The pages of a mapped column are released once it is copied.
            del weights
        if whose == "ours":
            tested_sampler.order(seed=0, epoch=0)
        ready = time.perf_counter()
        _epoch_of(tested_sampler)
        end = time.perf_counter()
    peak = _peak_bytes()
    grown = max(peak - start_bytes, 4096)
    return {"build_s": ready - start, "draw_s": end - ready, "grown_bytes": grown, "peak_bytes": peak}


def _mapped_weights(folder: str, count: int) -> Any:
    """Write a column of weights in parts, which never are in memory together, and map it."""
    path = Path(folder, "weights.npy")
    column = np.lib.format.open_memmap(path, mode="w+", dtype=np.float64, shape=(count,))
    rng = np.random.default_rng(0)
    for part in np.array_split(column, max(1, count >> 20)):
        part[:] = rng.random(len(part))
    column.flush()
    return np.load(path, mmap_mode="r")


def _epoch_of(sampler: Any) -> None:
    if isinstance(sampler, WeightedRandomSampler):
        drawn(sampler.order(seed=0, epoch=0))
    else:
        iterated(sampler)


def _peak_bytes() -> int:
    """Return the memory peak of this process; ``ru_maxrss`` would include the parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024


def main(rounds: int) -> None:
    """Measure time, memory and the first indices."""
    judge_time(rounds)
    judge_memory(min(rounds, 3))
    judge_first(rounds)


if __name__ == "__main__":
    if sys.argv[1:2] == ["measure"]:
        torch.set_num_threads(1)
        print(json.dumps(measured(*sys.argv[2:])))
    else:
        run(main, rounds=5)
