"""A module of one weight with fixed predictions, and trainers for it."""

from __future__ import annotations

import torch
from lightning.pytorch import LightningModule, Trainer

from lit_loader.collate import batch_images
from tests.support.lightning_ranks import QUIET


class Tiny(LightningModule):
    """Trains one weight on the images' sum.

    Args:
        find: Function from a batch to the return value of ``predict_step``; None for no detections in any image.
        attributes: Set on the module, such as ``class_names``.
    """

    def __init__(self, find=None, **attributes):
        super().__init__()
        self.find = find
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.seen = []
        for name, value in attributes.items():
            setattr(self, name, value)

    def training_step(self, batch, batch_idx):
        total = sum(image.sum() for image in batch_images(batch))
        self.seen.append((float(total), float(torch.rand(()))))
        return self.weight * total * 1e-6

    def validation_step(self, batch, batch_idx):
        pass

    def test_step(self, batch, batch_idx):
        pass

    def predict_step(self, batch, batch_idx, dataloader_idx=0):
        if self.find is not None:
            return self.find(batch)
        empty = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64), "scores": torch.zeros(0)}
        return [empty for _ in batch_images(batch)]

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trainer_of(folder, *callbacks, **arguments):
    settings = {"max_epochs": 1, "num_sanity_val_steps": 0, "log_every_n_steps": 1, "callbacks": list(callbacks)}
    return Trainer(default_root_dir=folder, **QUIET | settings | arguments)
