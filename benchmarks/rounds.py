"""Alternating rounds: the contenders take turns, so that a noisy machine is noisy for all of them.

A figure is the median over the rounds; a ratio is made within a round, and its spread is printed beside it.

NOTE [A fair start]
    lit_loader's loader with a seed makes the first batches of the next epoch before they are asked for. Left alone it
    would do that while another contender is timed, and would have them at no cost when it is timed itself. So a
    round begins when all processes are idle, and a loader with a seed is set to an epoch that it has not begun.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import resource
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import psutil
import torch
from torch.utils.data import DataLoader as TorchDataLoader

from lit_loader import DataLoader

__all__ = ["Figures", "Pass", "Rounds", "compare", "cpu_seconds", "judge", "passes", "run"]

Pass: TypeAlias = Callable[[], int]  # does the work once and returns how many units it did
Rounds: TypeAlias = list[float]  # one figure a round


@dataclass(frozen=True)
class Figures:
    """What the rounds gave for each contender: seconds and CPU seconds a unit, one of each a round."""

    seconds: dict[str, Rounds] = field(default_factory=dict)
    cpu_seconds: dict[str, Rounds] = field(default_factory=dict)

    def ratio(self, contender: str, reference: str) -> Rounds:
        """Return the contender's time as a share of the reference's."""
        return [a / b for a, b in zip(self.seconds[contender], self.seconds[reference], strict=True)]

    def rate_ratio(self, contender: str, reference: str) -> Rounds:
        """Return how many times the reference's rate the contender reaches."""
        return self.ratio(reference, contender)

    def cpu_ratio(self, contender: str, reference: str) -> Rounds:
        """Return the contender's CPU time as a share of the reference's."""
        return [a / b for a, b in zip(self.cpu_seconds[contender], self.cpu_seconds[reference], strict=True)]

    def microseconds_more(self, contender: str, reference: str, *, per: int = 1) -> Rounds:
        """Return by how many microseconds the contender takes longer, for one of ``per`` parts of a unit."""
        pairs = zip(self.seconds[contender], self.seconds[reference], strict=True)
        return [(a - b) * 1e6 / per for a, b in pairs]


def passes(loaders: Mapping[str, TorchDataLoader[Any]], *, epochs: int = 1, size: int = 1) -> dict[str, Pass]:
    """Return passes over some epochs of each loader; ``size``: units a batch."""
    return {name: _passing(loader, epochs, size) for name, loader in loaders.items()}


def _passing(loader: TorchDataLoader[Any], epochs: int, size: int) -> Pass:
    unexpected = itertools.count(1000, 1000)

    def work() -> int:
        if isinstance(loader, DataLoader) and loader.seed is not None:
            loader.set_epoch(next(unexpected))  # see NOTE [A fair start]
        return size * sum(1 for _ in range(epochs) for _ in loader)

    return work


def compare(
    question: str,
    contenders: Mapping[str, Pass],
    *,
    rounds: int = 7,
    unit: str = "unit",
    as_rates: bool = False,
) -> Figures:
    """Time each contender once a round; print time and CPU time a unit, and the ratio to the first one.

    Args:
        question: Printed above the figures.
        contenders: The first is the reference.
        rounds: Counted rounds, after one for warming up.
        unit: What is counted.
        as_rates: Print units a second in place of the time, and the ratio of these.
    """
    figures = Figures({name: [] for name in contenders}, {name: [] for name in contenders})
    for number in range(rounds + 1):
        for name, work in contenders.items():
            _settle()
            cpu_start, start = cpu_seconds(), time.perf_counter()
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
        found = figures.rate_ratio(name, reference) if as_rates else figures.ratio(name, reference)
        pace = f"{1e6 / time_us:8.0f} {unit}s a second" if as_rates else f"{time_us:12.1f} us a {unit}"
        print(f"  {name:34s} {pace}, CPU {cpu_us:12.1f} us   ratio {_spread(found, '')}")
    return figures


def judge(
    name: str,
    found: Sequence[float],
    *,
    at_most: float | None = None,
    at_least: float | None = None,
    unit: str = "",
) -> bool:
    """Print the median of the rounds beside the bar, and whether it is met.

    Args:
        name: What is judged.
        found: One figure a round.
        at_most: The bar, from below.
        at_least: The bar, from above.
        unit: Printed behind the figures.
    """
    median = statistics.median(found)
    met = (at_most is None or median <= at_most) and (at_least is None or median >= at_least)
    bar = f"<= {at_most}" if at_most is not None else f">= {at_least}"
    print(f"  -> {name}: {_spread(found, unit)}, bar {bar}{unit}: {'met' if met else 'MISSED'}")
    return met


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and all of its children, ended ones too, until now."""
    usages = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    total = sum(usage.ru_utime + usage.ru_stime for usage in usages)
    for child in psutil.Process().children(recursive=True):
        try:
            total += sum(child.cpu_times()[:4])  # user, system, and both of its children that ended
        except psutil.NoSuchProcess:
            continue
    return total


def _settle() -> None:
    """Wait until neither this process nor its children do anything: see NOTE [A fair start]."""
    gc.collect()
    before = cpu_seconds()
    while True:
        time.sleep(0.1)
        now = cpu_seconds()
        if now - before < 0.01:
            return
        before = now


def run(main: Callable[[int], None], *, rounds: int = 7) -> None:
    """Run one question from the command line, with one intra-op thread for everybody.

    Args:
        main: The question; takes the number of rounds.
        rounds: What ``--rounds`` is without being given.
    """
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--rounds", type=int, default=rounds, help="counted rounds (%(default)s)")
    given = parser.parse_args()
    torch.set_num_threads(1)
    main(given.rounds)


def _spread(found: Sequence[float], unit: str) -> str:
    low, high = min(found), max(found)
    return f"{statistics.median(found):.3g}{unit} ({low:.3g} to {high:.3g})"
