"""A callback that saves the state to resume from when the system asks a run to end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, WeightAveraging
from lightning.pytorch.utilities.exceptions import SIGTERMException

__all__ = ["SigtermCheckpoint"]


class SigtermCheckpoint(Checkpoint):
    """Saves a checkpoint when SIGTERM ends a fit, as schedulers of clusters and containers send it before SIGKILL.

    Lightning ends the fit after the current batch, or within a validation. The checkpoint holds the state after this
    batch.

    Args:
        dirpath: Folder of the checkpoint.
        filename: Its name without the extension ``.ckpt``; an earlier file of this name is replaced.

    Attributes:
        path: The file.
        has_saved: Whether a signal came and the file was written.
    """

    def __init__(self, dirpath: str | Path, filename: str = "last") -> None:
        self.path = Path(dirpath) / f"{filename}.ckpt"
        self.has_saved = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Reset for a second fit."""
        self.has_saved = False

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Save after the batch in which the signal came, at the moment at which other checkpoints are saved."""
        # Several ranks agree on the signal only before the next batch; until then one of them would wait alone.
        if trainer.world_size == 1 and trainer.received_sigterm:
            self._save(trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Save where the signal ended a validation, or several ranks."""
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
