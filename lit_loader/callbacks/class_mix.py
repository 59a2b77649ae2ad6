"""A callback that counts the classes, or the values of an attribute, that training batches bring."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from lightning.pytorch import Callback, LightningModule, Trainer

from lit_loader.collate import batch_labels
from lit_loader.types import FIRST_LABEL

__all__ = ["ClassMixMonitor"]


class ClassMixMonitor(Callback):
    """Counts the labels of each class in the training batches of this rank, whatever kind of batch they are.

    Batches are ``(images, targets)``, `LandmarkBatch`, `ClassificationBatch` or `MultiTaskBatch`. Under several
    ranks each counts its own share; nothing is summed over ranks.

    Args:
        num_classes: Number of classes, or of the attribute's values.
        first_label: Label of the first class in batches of detection and of several tasks; attributes and the
            other batches count from 0.
        label: The attribute to count; None: the class, or what a `ClassificationBatch` is labelled by.

    Attributes:
        counts: int64 ``(num_classes,)``, labels seen so far.
    """

    def __init__(self, num_classes: int, *, first_label: int = FIRST_LABEL, label: str | None = None) -> None:
        self.counts = np.zeros(num_classes, dtype=np.int64)
        self._first_label, self._label = first_label, label

    @property
    def mix(self) -> npt.NDArray[np.float64]:
        """Share of each class among the labels seen; zeros before the first."""
        return self.counts / max(1, int(self.counts.sum()))

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Count a batch.

        Raises:
            TypeError: Targets come as columns, or the batch has no attributes.
            ValueError: There is no such attribute, or a label lies outside ``num_classes``.
        """
        labels = batch_labels(batch, label=self._label, first_label=self._first_label).cpu().numpy()
        if labels.size and labels.max() >= len(self.counts):
            raise ValueError(
                f"a batch holds class {labels.max()}, counted from 0, and num_classes={len(self.counts)}; "
                "give the number of classes, and first_label as the data module has it"
            )
        self.counts += np.bincount(labels, minlength=len(self.counts))
