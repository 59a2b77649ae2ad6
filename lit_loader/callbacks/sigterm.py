"""A callback that saves the state to resume from when the system asks a run to end."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, WeightAveraging
from lightning.pytorch.utilities.exceptions import SIGTERMException

__all__ = ["SigtermCheckpoint"]


class SigtermCheckpoint(Checkpoint):
    """Saves a checkpoint when SIGTERM ends a fit, as schedulers of clusters and containers send it before SIGKILL.

    Lightning ends the fit after the current batch, or within a validation. The checkpoint holds the state after this
    batch.

    NOTE Several ranks. Lightning's handler (2.6) broadcasts to all ranks while these may wait in the reduction of
    gradients: both wait forever. In training this callback handles the signal instead. It notes the signal, the ranks
    agree every ``every_n_steps`` batches and at the end of an epoch whether one of them was signalled, and all save and
    stop together.

    Args:
        dirpath: Folder of the checkpoint.
        filename: Its name without the extension ``.ckpt``; an earlier file of this name is replaced.
        every_n_steps: With several ranks, training batches between two agreements. Each waits for all ranks and for
            the device, so a small number slows training down; a large one may take longer than the scheduler waits.

    Raises:
        ValueError: If ``every_n_steps`` is below 1.

    Attributes:
        path: The file.
        has_saved: Whether a signal came and the file was written.
        received: Whether the signal came to this rank, of several.
    """

    def __init__(self, dirpath: str | Path, filename: str = "last", *, every_n_steps: int = 10) -> None:
        if every_n_steps < 1:
            raise ValueError(f"every_n_steps={every_n_steps} must be 1 or more")
        self.every_n_steps = every_n_steps
        self.path = Path(dirpath) / f"{filename}.ckpt"
        self.has_saved = False
        self.received = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Reset for a second fit; with several ranks, handle the signal until Lightning's teardown."""
        self.has_saved = False
        self.received = False
        if trainer.world_size > 1 and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._note_signal)

    def _note_signal(self, number: int, frame: FrameType | None) -> None:
        self.received = True

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save after the batch in which the signal came, at the moment at which other checkpoints are saved.

        Raises:
            SIGTERMException: With several ranks, on all of them.
        """
        if trainer.world_size == 1:
            if trainer.received_sigterm:
                self._save(trainer)
            return
        is_due = (batch_idx + 1) % self.every_n_steps == 0 or trainer.is_last_batch
        if is_due and trainer.strategy.reduce_boolean_decision(self.received, all=False):
            self._save(trainer)
            raise SIGTERMException

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Save where the signal ended a validation."""
        if not isinstance(exception, SIGTERMException) or trainer.state.fn != "fit" or self.has_saved:
            return
        callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined] # set by a connector of Lightning
        averages = any(isinstance(callback, WeightAveraging) for callback in callbacks)
        if trainer.validating and averages:
            return  # the model holds the averaged weights, from which no training may go on
        self._save(trainer)

    def _save(self, trainer: Trainer) -> None:
        is_dry_run = trainer.fast_dev_run  # type: ignore[attr-defined] # set by a connector of Lightning
        if not is_dry_run and not trainer.sanity_checking:
            trainer.save_checkpoint(self.path, weights_only=False)
            self.has_saved = True
