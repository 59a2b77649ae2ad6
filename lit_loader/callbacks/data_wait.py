"""A callback that measures how long training waits for data."""

from __future__ import annotations

import time
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

__all__ = ["DataWaitMonitor"]


class DataWaitMonitor(Callback):
    """Sums the time between training steps: waiting for a batch and moving it to the device.

    Validation and what runs between epochs do not count.

    Attributes:
        wait_s: Seconds waited so far.
        step_s: Seconds spent in training steps so far.
        num_batches: Training batches so far.

    Logs ``data/wait_fraction``, the share of the epoch's loop time that was spent waiting, at the epoch's end:
    the mean of all ranks, while the attributes are this rank's.
    """

    def __init__(self) -> None:
        self.wait_s = self.step_s = 0.0
        self.num_batches = 0
        self._mark: float | None = None
        self._epoch_start = (0.0, 0.0)

    @property
    def wait_fraction(self) -> float:
        """Share of the loop's time that was spent waiting, over the whole fit."""
        return _fraction(self.wait_s, self.step_s)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock."""
        self._epoch_start = (self.wait_s, self.step_s)
        self._mark = time.perf_counter()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """The batch is here."""
        now = time.perf_counter()
        if self._mark is not None:
            self.wait_s += now - self._mark
        self._mark = now

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """The step is over; the wait for the next batch begins."""
        now = time.perf_counter()
        if self._mark is not None:
            self.step_s += now - self._mark
        self._mark = now
        self.num_batches += 1

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A validation inside the epoch is no wait."""
        self._mark = time.perf_counter()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the epoch's share."""
        wait, step = self.wait_s - self._epoch_start[0], self.step_s - self._epoch_start[1]
        pl_module.log("data/wait_fraction", _fraction(wait, step), sync_dist=True)


def _fraction(wait_s: float, step_s: float) -> float:
    total = wait_s + step_s
    return wait_s / total if total else 0.0
