"""Alternating rounds: contenders take turns, so that noise of the machine affects all of them.

Times are medians over the rounds. Ratios are computed within a round, and printed with their range.

NOTE [A fair start]
    A seeded lit_loader loader makes the first batches of the next epoch in advance. It would do so while another
    contender is timed, and would get them for free when it is timed itself. So a round starts when all processes are
    idle, and a seeded loader is set to an epoch that it has not started.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import psutil
import torch
from torch.utils.data import DataLoader as TorchDataLoader

from lit_loader import DataLoader

__all__ = ["Figures", "Pass", "Rounds", "compare", "cpu_seconds", "in_fresh_process", "judge", "passes", "run"]

# Does the work once and returns the number of units.
Pass: TypeAlias = Callable[[], int]
# One value per round.
Rounds: TypeAlias = list[float]


@dataclass(frozen=True)
class Figures:
    """Seconds and CPU seconds per unit for each contender, one value per round."""

    seconds: dict[str, Rounds] = field(default_factory=dict)
    cpu_seconds: dict[str, Rounds] = field(default_factory=dict)

    def ratio(self, contender: str, reference: str) -> Rounds:
        """Return the contender's time divided by the reference's."""
        return [a / b for a, b in zip(self.seconds[contender], self.seconds[reference], strict=True)]

    def rate_ratio(self, contender: str, reference: str) -> Rounds:
        """Return the contender's rate divided by the reference's."""
        return self.ratio(reference, contender)

    def cpu_ratio(self, contender: str, reference: str) -> Rounds:
        """Return the contender's CPU time divided by the reference's; a busy machine hardly changes it."""
        pairs = zip(self.cpu_seconds[contender], self.cpu_seconds[reference], strict=True)
        return [a / b for a, b in pairs]

    def microseconds_more(self, contender: str, reference: str, *, per: int = 1) -> Rounds:
        """Return the contender's additional time in microseconds, for one of ``per`` parts of a unit."""
        pairs = zip(self.seconds[contender], self.seconds[reference], strict=True)
        return [(a - b) * 1e6 / per for a, b in pairs]


def passes(loaders: Mapping[str, TorchDataLoader[Any]], *, epochs: int = 1, size: int = 1) -> dict[str, Pass]:
    """Return passes over some epochs of each loader; a batch counts as ``size`` units."""
    return {name: _passing(loader, epochs, size) for name, loader in loaders.items()}


def _passing(loader: TorchDataLoader[Any], epochs: int, size: int) -> Pass:
    unexpected = itertools.count(1000, 1000)

    def work() -> int:
        if isinstance(loader, DataLoader) and loader.seed is not None:
            # See NOTE [A fair start].
            loader.set_epoch(next(unexpected))
        return size * sum(1 for _ in range(epochs) for _ in loader)

    return work


def compare(
    question: str, contenders: Mapping[str, Pass], *, rounds: int = 7, unit: str = "unit", as_rates: bool = False
) -> Figures:
    """Time each contender once per round; print time and CPU time per unit, and the ratio to the first one.

    Args:
        question: Printed title.
        contenders: Passes by name; the first one is the reference.
        rounds: Number of counted rounds, after one warm-up round.
        unit: Name of a unit.
        as_rates: Whether to print units per second and their ratio instead of times.
    """
    figures = Figures({name: [] for name in contenders}, {name: [] for name in contenders})
    # The first round warms up caches, workers and the page cache, and does not count.
    for number in range(rounds + 1):
        for name, work in contenders.items():
            _settle()
            # CPU time is read outside of the timed part, because listing the children takes time itself.
            cpu_start = cpu_seconds()
            start = time.perf_counter()
            units = work()
            elapsed = time.perf_counter() - start
            if number:
                figures.seconds[name].append(elapsed / units)
                figures.cpu_seconds[name].append((cpu_seconds() - cpu_start) / units)
    print(f"\n{question}")
    reference = next(iter(contenders))
    for name in contenders:
        time_us = statistics.median(figures.seconds[name]) * 1e6
        cpu_us = statistics.median(figures.cpu_seconds[name]) * 1e6
        ratios = figures.rate_ratio(name, reference) if as_rates else figures.ratio(name, reference)
        pace = f"{1e6 / time_us:8.0f} {unit}s a second" if as_rates else f"{time_us:12.1f} us a {unit}"
        print(f"  {name:34s} {pace}, CPU {cpu_us:12.1f} us   ratio {_spread(ratios, '')}")
    return figures


def judge(
    name: str, values: Sequence[float], *, at_most: float = math.inf, at_least: float = -math.inf, unit: str = ""
) -> None:
    """Print the median of the rounds, the bar, and whether it is met.

    Args:
        name: Printed name.
        values: One value per round.
        at_most: Largest accepted median.
        at_least: Smallest accepted median, instead of ``at_most``.
        unit: Printed after the values.
    """
    verdict = "met" if at_least <= statistics.median(values) <= at_most else "MISSED"
    bar = f"<= {at_most}" if at_most < math.inf else f">= {at_least}"
    print(f"  -> {name}: {_spread(values, unit)}, bar {bar}{unit}: {verdict}")


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and all of its children so far, including those that have ended."""
    process = psutil.Process()
    total = 0.0
    for member in (process, *process.children(recursive=True)):
        # A child may end after it was listed.
        with suppress(psutil.NoSuchProcess):
            # User, system, and both of its children that ended.
            total += sum(member.cpu_times()[:4])
    return total


def in_fresh_process(module: str, *arguments: object) -> Any:
    """Run a benchmark's module in a process of its own, and return the JSON value that it prints.

    A fresh process has its own memory peak, and finds no import and no server of another measurement.
    """
    command = [sys.executable, "-m", module, *map(str, arguments)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _settle() -> None:
    """Wait until this process and its children are idle: see NOTE [A fair start]."""
    gc.collect()
    last_s = -math.inf
    while (now_s := cpu_seconds()) - last_s >= 0.01:
        last_s = now_s
        time.sleep(0.1)


def run(main: Callable[[int], None], *, rounds: int = 7) -> None:
    """Run a benchmark from the command line, with one intra-op thread for all contenders.

    Args:
        main: The benchmark; takes the number of rounds.
        rounds: Default of ``--rounds``.
    """
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--rounds", type=int, default=rounds, help="counted rounds (%(default)s)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    main(arguments.rounds)


def _spread(values: Sequence[float], unit: str) -> str:
    low = min(values)
    high = max(values)
    return f"{statistics.median(values):.3g}{unit} ({low:.3g} to {high:.3g})"
