"""Callbacks that record a run's trainer, and that stop a run."""

from __future__ import annotations

import os
import signal
import sys

from lightning.pytorch import Callback

from lit_loader.collate import ClassificationBatch

seen = []


class Recorder(Callback):
    """Callback that records the trainer, the command line and the images of each training batch."""

    def __init__(self) -> None:
        self.batches = []

    def on_train_start(self, trainer, pl_module):
        self.trainer = trainer
        self.model = pl_module
        self.words = list(sys.argv)
        self.start = (trainer.current_epoch, trainer.global_step)
        seen.append(self)

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        is_classification = isinstance(batch, ClassificationBatch)
        ids = batch.image_ids if is_classification else [target["image_id"] for target in batch[1]]
        self.batches.append(list(map(int, ids)))


class Stopper(Callback):
    """Sends this process a signal at a step, or raises KeyboardInterrupt for SIGINT.

    Step -1 is the fit's end, -2 the test.
    """

    def __init__(self, step: int, name: str = "SIGTERM") -> None:
        self.step = step
        self.name = name

    def _stop(self) -> None:
        if self.name == "SIGINT":
            raise KeyboardInterrupt
        os.kill(os.getpid(), getattr(signal, self.name))

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.global_step == self.step:
            self._stop()

    def on_test_batch_start(self, trainer, pl_module, batch, batch_idx, dataloader_idx=0):
        if self.step == -2:
            self._stop()

    def on_train_end(self, trainer, pl_module):
        if self.step == -1:
            self._stop()
