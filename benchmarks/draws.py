"""Time and memory of an epoch's order for weighted draws with replacement, compared with torch's sampler.

torch's sampler is only iterated, which is the least that a loader does with it; lit_loader's is read in slices of 4096.
Memory, and the values of the picture, are measured in a fresh process, starting before the sampler is created.
``torch.multinomial`` refuses more than 2**24 weights, so torch's curves end there.
"""

from __future__ import annotations

import argparse
import collections
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
import torch.utils.data
from matplotlib.figure import Figure

from benchmarks.rounds import Rounds, compare, judge
from lit_loader.samplers import RandomSampler, WeightedRandomSampler
from lit_loader.types import Order

NUM_WEIGHTS = 10**7
MOST_WEIGHTS = 10**8
TORCH_LIMIT = 2**24
SLICE = 4096
OUT = Path("outputs/draws.png")


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
    ready = WeightedRandomSampler(weights).order(seed=0, epoch=0)

    def built() -> int:
        WeightedRandomSampler(weights).order(seed=0, epoch=0)
        return 1

    names = "torch, iterated", "ours, drawing", "ours, table alone", "ours, table and drawing"
    figures = compare(
        f"an epoch of {NUM_WEIGHTS:,} draws from as many weights",
        {
            names[0]: lambda: iterated(theirs),
            names[1]: lambda: drawn(ready),
            names[2]: built,
            names[3]: lambda: drawn(WeightedRandomSampler(weights).order(seed=0, epoch=0)),
        },
        rounds=rounds,
        unit="epoch",
    )
    judge("drawing, times torch's rate", figures.rate_ratio(names[1], names[0]), at_least=10)
    judge("table and drawing, times torch's rate", figures.rate_ratio(names[3], names[0]), at_least=6)


def judge_memory(rounds: int) -> None:
    """Compare the memory peaks of fresh processes, and measure the largest supported set."""
    print(f"\npeak memory of sampler and epoch, {NUM_WEIGHTS:,} weights in a float64 array that both are given")
    shares: Rounds = []
    for _ in range(rounds):
        torchs, ours = (in_fresh_process(who, NUM_WEIGHTS)["grown_bytes"] for who in ("torch", "ours"))
        shares.append(ours / torchs)
        bytes_per_weight = (f"{name} {grown / NUM_WEIGHTS:.1f}" for name, grown in (("torch", torchs), ("ours", ours)))
        print(f"  bytes a weight: {', '.join(bytes_per_weight)}")
    judge("ours, of torch's", shares, at_most=0.35)
    print(f"\n{MOST_WEIGHTS:,} weights, a memory-mapped .npy column")
    figures = in_fresh_process("ours", MOST_WEIGHTS, mapped=True)
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


def in_fresh_process(whose: str, num_weights: int, *, mapped: bool = False) -> dict[str, float]:
    """Run `measured` in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.draws", "--measure", whose, str(num_weights)]
    command += ["--mapped"] if mapped else []
    process = subprocess.run(command, check=True, capture_output=True, text=True)
    figures: dict[str, float] = json.loads(process.stdout)
    return figures


def measured(whose: str, num_weights: int, *, mapped: bool) -> dict[str, float]:
    """Draw an epoch; return seconds, the growth of this process at its peak, and the peak itself."""
    sampler: Any = WeightedRandomSampler if whose == "ours" else torch.utils.data.WeightedRandomSampler
    with tempfile.TemporaryDirectory() as folder:
        _epoch_of(sampler(np.ones(64), 64))  # loads modules that are imported at first use
        if mapped:
            column = np.lib.format.open_memmap(
                Path(folder) / "weights.npy", mode="w+", dtype=np.float64, shape=(num_weights,)
            )
            rng = np.random.default_rng(0)
            for begin in range(0, num_weights, 1 << 20):
                column[begin : begin + (1 << 20)] = rng.random(min(1 << 20, num_weights - begin))
            column.flush()
            del column
            weights: list[Any] = [np.load(Path(folder) / "weights.npy", mmap_mode="r")]
        else:
            weights = [np.random.default_rng(0).random(num_weights)]
        start_bytes = psutil.Process().memory_info().rss
        start = time.perf_counter()
        tested_sampler = sampler(
            weights.pop() if mapped else weights[0], num_weights
        )  # a column is let go once it is copied
        if whose == "ours":
            tested_sampler.order(seed=0, epoch=0)
        ready = time.perf_counter()
        _epoch_of(tested_sampler)
        end = time.perf_counter()
    peak = _peak_bytes()
    return {
        "build_s": ready - start,
        "draw_s": end - ready,
        "grown_bytes": max(peak - start_bytes, 4096),
        "peak_bytes": peak,
    }


def _epoch_of(sampler: Any) -> None:
    if isinstance(sampler, WeightedRandomSampler):
        drawn(sampler.order(seed=0, epoch=0))
    else:
        iterated(sampler)


def _peak_bytes() -> int:
    """Return the memory peak of this process; ``ru_maxrss`` would include the parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024


def draw_picture(out: Path, *, rounds: int) -> None:
    """Plot time and memory over the number of weights: medians, except for the largest, which is drawn once."""
    results: dict[str, dict[int, tuple[float, float]]] = {"torch": {}, "ours": {}}
    for size in (10**power for power in range(4, 9)):
        contenders = [whose for whose in results if whose == "ours" or size <= TORCH_LIMIT]
        turns = [
            {whose: in_fresh_process(whose, size) for whose in contenders}
            for _ in range(1 if size == MOST_WEIGHTS else rounds)
        ]
        for whose in contenders:
            seconds = statistics.median(turn[whose]["build_s"] + turn[whose]["draw_s"] for turn in turns)
            megabytes = statistics.median(turn[whose]["grown_bytes"] / 1e6 for turn in turns)
            results[whose][size] = seconds, megabytes
            print(f"  {whose:6s} {size:>12,} weights {seconds:10.4f} s {megabytes:10.1f} MB")
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    time_axes, memory_axes = figure.subplots(1, 2)
    labels = {"torch": "torch's WeightedRandomSampler", "ours": "lit_loader's, table included"}
    for whose, colour in (("torch", "tab:orange"), ("ours", "tab:blue")):
        for axes, column in ((time_axes, 0), (memory_axes, 1)):
            values = [result[column] for result in results[whose].values()]
            axes.plot(list(results[whose]), values, "o-", color=colour, label=labels[whose])
    time_axes.set(title="time of an epoch's order", ylabel="seconds")
    memory_axes.set(title="peak memory, beyond the weights given", ylabel="MB")
    for axes in (time_axes, memory_axes):
        axes.set(xscale="log", yscale="log", xlabel="weights, and as many draws")
        axes.axvline(TORCH_LIMIT, color="grey", linestyle=":", label="most that torch.multinomial takes")
        axes.grid(alpha=0.3)
    time_axes.legend(loc="lower right", fontsize="small")
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=120)
    print(f"  saved to {out}")


def main(rounds: int, out: Path = OUT) -> None:
    """Measure time, memory and the first indices; draw the picture."""
    judge_time(rounds)
    judge_memory(min(rounds, 3))
    judge_first(rounds)
    print("\ntime and memory against the number of weights")
    draw_picture(out, rounds=min(rounds, 3))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="counted rounds (%(default)s)")
    parser.add_argument("--out", type=Path, default=OUT, help="where the picture is saved (%(default)s)")
    parser.add_argument("--measure", nargs=2, metavar=("WHOSE", "NUM_WEIGHTS"), help=argparse.SUPPRESS)
    parser.add_argument("--mapped", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.measure:
        whose, num_weights = arguments.measure
        print(json.dumps(measured(whose, int(num_weights), mapped=arguments.mapped)))
    else:
        main(arguments.rounds, arguments.out)
