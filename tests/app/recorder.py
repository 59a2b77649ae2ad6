"""A callback that keeps what a run's trainer has."""

from __future__ import annotations

import sys

from lightning.pytorch import Callback

seen = []


class Recorder(Callback):
    """Keeps the trainer, the words of the process and each training batch's images."""

    def __init__(self) -> None:
        self.batches, self.words, self.start = [], None, None

    def on_train_start(self, trainer, pl_module):
        self.trainer, self.model, self.words = trainer, pl_module, list(sys.argv)
        self.start = (trainer.current_epoch, trainer.global_step)
        seen.append(self)

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.batches.append([int(target["image_id"]) for target in batch[1]])
