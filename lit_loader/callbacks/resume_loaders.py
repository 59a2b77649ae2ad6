"""A callback that makes stopping and resuming exact for the training loaders of a user's own code."""

from __future__ import annotations

import weakref
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from lit_loader.datamodules.resuming import ResumeStates, num_unused_batches, saved_states

__all__ = ["ResumeLoaders"]


class ResumeLoaders(ResumeStates):
    """Saves the state of every `lit_loader.DataLoader` that is trained on, and loads it before the first batch.

    For loaders of your own code: our data modules do so themselves, and need it only if their training set is an
    iterable dataset. What Lightning would do without it stands in ``lit_loader/datamodules/resuming.py``.

    Raises:
        ValueError: At the start of training, if a state does not fit its loader, which has a seed.
    """

    def __init__(self) -> None:
        super().__init__()
        self._trainer: weakref.ref[Trainer] | None = None
        self._num_unused: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_trainer": None}  # found again by setup

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Know whose loaders to save."""
        self._trainer, self._num_unused = weakref.ref(trainer), None

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remember what the fetcher holds before it is gone: a checkpoint may be saved after training."""
        self._num_unused = num_unused_batches(trainer)

    def state_dict(self) -> dict[str, Any]:
        """Return the loaders' states, in training and after it."""
        trainer = None if self._trainer is None else self._trainer()
        return {"loaders": saved_states(trainer, self._num_unused)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the states until training starts; a checkpoint that is tested changes nothing."""
        trainer = None if self._trainer is None else self._trainer()
        if trainer is None or trainer.state.fn == "fit":
            self.states = list(state_dict.get("loaders", ()))
