"""Window in which the rate of a loader, or of a loop with one, is measured."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

from lit_loader.loader import DataLoader
from lit_loader.monitoring import DataReport

__all__ = ["WARM_UP_SHARE", "Window", "sufficient_s"]

WARM_UP_SHARE: Final = 0.3
"""Share of a measurement after which its warm-up ends, if each worker has delivered a batch."""

# Turns, of a batch of each worker, below which a rate is called uncertain.
_MIN_TURNS: Final = 4


class Window:
    """Window of a measurement: it begins after a warm-up, and ends after some seconds and whole turns.

    A turn is one batch of each worker. Batches arrive in bursts of that size, and any other number would count parts of
    a burst. The first turn never counts: workers start one after another.

    Args:
        loaders: The loaders of the measured loop.
        seconds: Duration of the window; the warm-up takes up to `WARM_UP_SHARE` of it more.
        min_skipped: Number of batches that the warm-up takes at least.

    Attributes:
        is_warm: True if the window has begun.
        is_over: True if it has ended.
    """

    def __init__(self, loaders: Sequence[DataLoader[Any]], seconds: float, *, min_skipped: int = 1) -> None:
        self.is_warm = False
        self.is_over = False
        self._seconds = seconds
        self._turn = max([1, *(loader.num_workers for loader in loaders)])
        self._min_skipped = max(min_skipped, self._turn)
        # Batches that are made ahead before the first one is taken would raise the rate.
        self._num_skipped = max([self._min_skipped, *map(_num_ahead, loaders)])
        self._num_batches = 0
        self._begin_s = 0.0

    def begin(self) -> None:
        """Begin the warm-up."""
        self._begin_s = time.perf_counter()

    def add_batch(self) -> bool:
        """Count a batch that arrived, or was used; return True if the window has ended."""
        self._num_batches += 1
        elapsed_s = time.perf_counter() - self._begin_s
        if self.is_warm:
            self.is_over = elapsed_s >= self._seconds and self._num_batches % self._turn == 0
        elif self._num_batches > self._num_skipped or (
            self._num_batches > self._min_skipped and elapsed_s > WARM_UP_SHARE * self._seconds
        ):
            self.is_warm = True
            self._num_batches = 0
            self._begin_s = time.perf_counter()
        return self.is_over


def _num_ahead(loader: DataLoader[Any]) -> int:
    # In addition to the batches that the workers are making.
    return loader.num_workers * (1 + (loader.prefetch_factor or 0))


def sufficient_s(report: DataReport) -> float | None:
    """Return the seconds for a warm-up and enough turns of a loader, or None if its report has as many."""
    turn = max(1, report.settings.num_workers)
    if report.num_steps >= _MIN_TURNS * turn:
        return None
    # The longest warm-up, and the turns.
    num_batches = turn * (2 + (report.settings.prefetch_factor or 0) + _MIN_TURNS)
    return num_batches * report.total_s / max(report.num_steps, 1)
