"""How long until the first batch comes, in a script that imports torch and torchvision? Second loader of the process.

Every figure is of a fresh process, so that none finds a server or an import of another one.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

import torchvision
from torch.utils.data import DataLoader as TorchDataLoader

from benchmarks.rounds import Rounds, in_fresh_process, judge, run
from lit_loader import DataLoader

LOADERS: dict[str, Any] = {"torch": TorchDataLoader, "ours": DataLoader}


def first_batches(whose: str, start_method: str) -> list[float]:
    """Return the seconds to the first batch of two consecutive loaders with two workers each."""
    # Imported by the script, as scripts do.
    assert torchvision.__version__
    seconds = []
    for _ in range(2):
        # A range is a dataset of its numbers.
        loader = LOADERS[whose](range(64), 4, num_workers=2, multiprocessing_context=start_method)
        start = time.perf_counter()
        batches = iter(loader)
        next(batches)
        seconds.append(time.perf_counter() - start)
        del batches, loader
    return seconds


def main(rounds: int) -> None:
    """Compare start methods; the bar is for the second loader under forkserver."""
    print("\nseconds to the first batch: first and second loader of a process")
    second: dict[tuple[str, str], Rounds] = {}
    for start_method in ("forkserver", "fork", "spawn"):
        results: dict[str, list[list[float]]] = {whose: [] for whose in LOADERS}
        for _ in range(rounds):
            for whose in LOADERS:
                results[whose].append(in_fresh_process("benchmarks.startup", "first-batches", whose, start_method))
        for whose, pairs in results.items():
            firsts, seconds = ([pair[k] for pair in pairs] for k in (0, 1))
            second[whose, start_method] = seconds
            print(
                f"  {start_method:12s} {whose:6s} {statistics.median(firsts):8.3f} s, "
                f"{statistics.median(seconds):8.3f} s ({min(seconds):.3f} to {max(seconds):.3f})"
            )
    ours = second["ours", "forkserver"]
    torchs = second["torch", "forkserver"]
    ratios = [a / b for a, b in zip(ours, torchs, strict=True)]
    judge("second loader under forkserver, of torch's", ratios, at_most=0.05)


if __name__ == "__main__":
    if sys.argv[1:2] == ["first-batches"]:
        print(json.dumps(first_batches(*sys.argv[2:])))
    else:
        run(main, rounds=3)
