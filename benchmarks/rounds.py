"""Alternating rounds: the contenders take turns, so that a noisy machine is noisy for all of them."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping

__all__ = ["compare"]


def compare(question: str, contenders: Mapping[str, Callable[[], int]], *, rounds: int = 7) -> None:
    """Time each contender once a round and print seconds a unit, and the ratio to the first one.

    Args:
        question: Printed above the figures.
        contenders: Name to a function that does the work and returns how many units it did; the first is
            the reference.
        rounds: Counted rounds, after one for warming up.
    """
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, work in contenders.items():
            gc.collect()
            start = time.perf_counter()
            units = work()
            elapsed = time.perf_counter() - start
            if number:
                times[name].append(elapsed / units)
    reference = next(iter(contenders))
    print(f"\n{question}")
    for name, found in times.items():
        ratios = [a / b for a, b in zip(found, times[reference], strict=True)]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        median = statistics.median(found)
        print(
            f"  {name:34s} {median * 1e6:12.1f} us a unit   ratio {statistics.median(ratios):5.2f} ({spread})"
        )
