"""A model that learns nothing and records its batches by stage, and a stub of a Trainer for data modules."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
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


def stub_trainer(device="cpu", *, rank=0, world_size=1, epoch=0, batch=0) -> SimpleNamespace:
    """Return the attributes of a training Trainer that data modules read; ``batch`` is the next batch of the epoch."""
    progress = SimpleNamespace(current=SimpleNamespace(ready=batch))
    return SimpleNamespace(
        training=True,
        strategy=SimpleNamespace(root_device=torch.device(device)),
        fit_loop=SimpleNamespace(epoch_loop=SimpleNamespace(batch_progress=progress)),
        global_rank=rank,
        world_size=world_size,
        num_devices=world_size,
        current_epoch=epoch,
    )
