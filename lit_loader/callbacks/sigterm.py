"""A callback that saves a checkpoint when the system asks a run to end."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, WeightAveraging
from lightning.pytorch.utilities.exceptions import SIGTERMException

from lit_loader.callbacks.attached import find_callback
from lit_loader.callbacks.ema_weights import EmaWeights

__all__ = ["SigtermCheckpoint"]


class SigtermCheckpoint(Checkpoint):
    """Saves a checkpoint when SIGTERM ends a fit. Schedulers of clusters and containers send it before SIGKILL.

    Lightning ends the fit after the current batch, or within a validation. The checkpoint contains the state after this
    batch. Several ranks agree every ``every_n_steps`` batches and at the end of an epoch whether one of them received
    the signal, and then save and stop together.

    Args:
        dirpath: Folder of the checkpoint.
        filename: File name without the extension ``.ckpt``; an existing file of this name is replaced.
        every_n_steps: Number of training batches between two agreements of several ranks. Each agreement waits for all
            ranks and for the device, so a small number slows training down; with a large one, the scheduler may not
            wait long enough.

    Raises:
        ValueError: If ``every_n_steps`` is below 1.

    Attributes:
        path: Path of the checkpoint.
        has_saved: Whether the signal was received and the checkpoint written.
        received: With several ranks, whether this rank received the signal.
    """

    def __init__(self, dirpath: str | Path, filename: str = "last", *, every_n_steps: int = 10) -> None:
        if every_n_steps < 1:
            raise ValueError(f"every_n_steps={every_n_steps} must be at least 1")
        self.every_n_steps = every_n_steps
        self.path = Path(dirpath) / f"{filename}.ckpt"
        self.has_saved = False
        self.received = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Reset for a second fit; with several ranks, handle the signal until Lightning's teardown."""
        self.has_saved = False
        self.received = False
        # Lightning's handler (2.6) broadcasts to all ranks while these may wait in the reduction of gradients: a
        # deadlock. So during training this callback handles the signal instead and only records it.
        # Python allows signal handlers only in the main thread.
        if trainer.world_size > 1 and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._note_signal)

    def _note_signal(self, number: int, frame: FrameType | None) -> None:
        self.received = True

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save after the batch in which the signal was received, in the hook in which other checkpoints are saved.

        Raises:
            SIGTERMException: With several ranks, on all of them.
        """
        if trainer.world_size == 1:
            if trainer.received_sigterm:
                self._save(trainer)
            return
        # A collective, so every rank has to call it after the same batches, whether it received the signal or not.
        is_due = (batch_idx + 1) % self.every_n_steps == 0 or trainer.is_last_batch
        if is_due and trainer.strategy.reduce_boolean_decision(self.received, all=False):
            self._save(trainer)
            raise SIGTERMException

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Save if the signal ended a validation."""
        if not isinstance(exception, SIGTERMException) or trainer.state.fn != "fit" or self.has_saved:
            return
        # During a validation the model has the averaged weights. Lightning's callbacks would save them as those that
        # training continues from.
        averaging = find_callback(trainer, WeightAveraging)
        if averaging is None or isinstance(averaging, EmaWeights) or not trainer.validating:
            self._save(trainer)

    def _save(self, trainer: Trainer) -> None:
        # The sanity check precedes training, so there is nothing to save.
        is_dry_run = trainer.fast_dev_run  # type: ignore[attr-defined] # set by a connector of Lightning
        if not is_dry_run and not trainer.sanity_checking:
            trainer.save_checkpoint(self.path, weights_only=False)
            self.has_saved = True
