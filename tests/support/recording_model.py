"""A model that learns nothing and records its batches by stage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import LightningModule


class RecordingModel(LightningModule):
    """Records something of every batch that a Trainer passes to it.

    Args:
        record: Function of a batch that returns its record.

    Attributes:
        seen: Records by stage: ``train``, ``val``, ``test``, ``predict``.
    """

    def __init__(self, record: Callable[[Any], Any]) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.record = record
        self.seen: dict[str, list[Any]] = {stage: [] for stage in ("train", "val", "test", "predict")}

    def training_step(self, batch, batch_idx):
        self.seen["train"].append(self.record(batch))
        return self.weight.sum()

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        self.seen["val"].append(self.record(batch))

    def test_step(self, batch, batch_idx):
        self.seen["test"].append(self.record(batch))

    def predict_step(self, batch, batch_idx, dataloader_idx=0):
        self.seen["predict"].append(self.record(batch))
        return 0

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
