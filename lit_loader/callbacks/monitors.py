"""Callbacks that measure training: the classes that batches bring, and the time that it waits for data."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from lit_loader.collate import batch_labels
from lit_loader.types import FIRST_LABEL

__all__ = ["ClassMixMonitor", "DataWaitMonitor"]


class ClassMixMonitor(Callback):
    """Counts the labels of each class in the training batches of all ranks, whatever kind of batch they are.

    Batches are ``(images, targets)``, `LandmarkBatch`, `ClassificationBatch` or `MultiTaskBatch`. Ranks add their
    counts when an epoch ends; until then each has its own of that epoch.

    Args:
        num_classes: Number of classes, or of the attribute's values.
        first_label: Label of the first class in batches of detection and of several tasks; attributes and the
            other batches count from 0.
        label: The attribute to count, or None for the class, or for what a `ClassificationBatch` is labelled by.
    """

    def __init__(self, num_classes: int, *, first_label: int = FIRST_LABEL, label: str | None = None) -> None:
        # Of all ranks in the epochs that ended, and of this rank in the current one.
        self._of_all, self._own = np.zeros((2, num_classes), dtype=np.int64)
        self._first_label, self._label = first_label, label

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """int64 ``(num_classes,)``, labels seen so far."""
        return self._of_all + self._own

    @property
    def mix(self) -> npt.NDArray[np.float64]:
        """Share of each class among the labels seen; zeros before the first."""
        return self.counts / max(1, int(self.counts.sum()))

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Count a batch.

        Raises:
            TypeError: If targets come as columns, or the batch has no attributes.
            ValueError: If there is no such attribute, or a label lies outside ``num_classes``.
        """
        labels = batch_labels(batch, label=self._label, first_label=self._first_label).cpu().numpy()
        if labels.size and labels.max() >= len(self._own):
            raise ValueError(
                f"a batch holds class {labels.max()}, counted from 0, and num_classes={len(self._own)}; "
                "give the number of classes, and first_label as the data module has it"
            )
        self._own += np.bincount(labels, minlength=len(self._own))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Add the epoch's counts of all ranks."""
        own = torch.tensor(self._own, device=pl_module.device)
        self._of_all += trainer.strategy.reduce(own, reduce_op="sum").cpu().numpy()
        self._own[:] = 0


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
        self._mark = 0.0
        self._epoch_start = (0.0, 0.0)

    @property
    def wait_fraction(self) -> float:
        """Share of the loop's time that was spent waiting, over the whole fit."""
        return self.wait_s / max(self.wait_s + self.step_s, 1e-9)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin the wait for the first batch."""
        self._epoch_start = (self.wait_s, self.step_s)
        self._mark = time.perf_counter()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """End the wait for the batch."""
        now = time.perf_counter()
        self.wait_s += now - self._mark
        self._mark = now

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """End the step and begin the wait for the next batch."""
        now = time.perf_counter()
        self.step_s += now - self._mark
        self._mark = now
        self.num_batches += 1

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave a validation inside the epoch out."""
        self._mark = time.perf_counter()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the epoch's share."""
        wait, step = self.wait_s - self._epoch_start[0], self.step_s - self._epoch_start[1]
        pl_module.log("data/wait_fraction", wait / max(wait + step, 1e-9), sync_dist=True)
