"""A callback that counts the classes that training batches bring."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from lightning.pytorch import Callback, LightningModule, Trainer

from lit_loader.collate import batch_targets

__all__ = ["ClassMixMonitor"]


class ClassMixMonitor(Callback):
    """Counts the objects of each class in the training batches ``(images, targets)`` of this rank.

    Under several ranks each counts its own share; nothing is summed over ranks.

    Args:
        num_classes: Number of classes.
        first_label: Label of the first class.

    Attributes:
        counts: int64 ``(num_classes,)``, objects seen so far.
    """

    def __init__(self, num_classes: int, *, first_label: int = 1) -> None:
        self.counts = np.zeros(num_classes, dtype=np.int64)
        self._first_label = first_label

    @property
    def mix(self) -> npt.NDArray[np.float64]:
        """Share of each class among the objects seen; zeros before the first."""
        return self.counts / max(1, int(self.counts.sum()))

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Count a batch; raises TypeError for targets that come as columns."""
        for target in batch_targets(batch):
            labels = target["labels"].cpu().numpy() - self._first_label
            self.counts += np.bincount(labels, minlength=len(self.counts))
