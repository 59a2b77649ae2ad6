"""A callback for the exact resume of training loaders that users create themselves."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from lit_loader.datamodules.resuming import LoopPosition, ResumeStates, loop_position, saved_states

__all__ = ["ResumeLoaders"]


class ResumeLoaders(ResumeStates):
    """Saves the state of every `lit_loader.DataLoader` used for training, and loads it before the first batch.

    For loaders that you create yourself. lit_loader's data modules have this built in; they need the callback only if
    their training set is an iterable dataset. ``lit_loader/datamodules/resuming.py`` describes what Lightning does
    without it.

    Raises:
        ValueError: At the start of training, if a state does not fit its loader and the loader has a seed.
    """

    def __init__(self) -> None:
        super().__init__()
        # Weak, because a callback that outlives the fit would otherwise keep the loaders and their workers alive.
        self._trainer: weakref.ref[Trainer] | None = None
        self._last_position: LoopPosition | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_trainer": None}  # `setup` sets it again

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Remember the trainer, whose loaders are saved."""
        self._trainer = weakref.ref(trainer)
        self._last_position = None

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remember the position for a checkpoint that is saved after training, when the fetcher is gone."""
        self._last_position = loop_position(trainer, self._flags(trainer))

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the loaders and the position of the fit loop, during and after training."""
        trainer = None if self._trainer is None else self._trainer()
        if trainer is None:
            return {"loaders": []}
        # During training the position changes with every batch, so it is computed for each checkpoint.
        position = self._last_position or loop_position(trainer, self._flags(trainer))
        return {"loaders": saved_states(trainer, position), "position": position.fields()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Store the states until training starts; in other stages than fit, a checkpoint changes nothing."""
        trainer = None if self._trainer is None else self._trainer()
        # Only stored: the loaders do not exist yet when Lightning restores the callbacks.
        if trainer is None or trainer.state.fn == "fit":
            self.states = list(state_dict.get("loaders", ()))
            position = state_dict.get("position")
            self.position = position if isinstance(position, Mapping) else {}
