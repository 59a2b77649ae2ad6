"""A callback that makes stopping and resuming exact for the training loaders of a user's own code."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from lit_loader.datamodules.resuming import LoopPosition, ResumeStates, loop_position, saved_states

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
        self._last_position: LoopPosition | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_trainer": None}  # found again by setup

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Know whose loaders to save."""
        self._trainer = weakref.ref(trainer)
        self._last_position = None

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remember the position before the fetcher is gone: a checkpoint may be saved after training."""
        self._last_position = loop_position(trainer, self._flags(trainer))

    def state_dict(self) -> dict[str, Any]:
        """Return the loaders' states, and the position of the fit loop, in training and after it."""
        trainer = None if self._trainer is None else self._trainer()
        if trainer is None:
            return {"loaders": []}
        position = self._last_position or loop_position(trainer, self._flags(trainer))
        return {"loaders": saved_states(trainer, position), "position": position.fields()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the states until training starts; a checkpoint that is tested changes nothing."""
        trainer = None if self._trainer is None else self._trainer()
        if trainer is None or trainer.state.fn == "fit":
            self.states = list(state_dict.get("loaders", ()))
            position = state_dict.get("position")
            self.position = position if isinstance(position, Mapping) else {}
