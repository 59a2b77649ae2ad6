"""A callback for the exact resume of training loaders that users create themselves."""

from __future__ import annotations

import weakref
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from lit_loader.datamodules.resuming import ResumeStates

__all__ = ["ResumeLoaders"]


class ResumeLoaders(ResumeStates):
    """Saves the state of every `lit_loader.DataLoader` used for training, and loads it before the first batch.

    For loaders that you create yourself; lit_loader's data modules have this built in.
    ``lit_loader/datamodules/resuming.py`` describes what Lightning does without it.

    Raises:
        ValueError: At the start of training, if a state does not fit its loader and the loader has a seed.
    """

    def __init__(self) -> None:
        super().__init__()
        # Weak, because a callback that outlives the fit would otherwise keep the loaders and their workers alive.
        self._trainer: weakref.ref[Trainer] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_trainer": None}  # `setup` sets it again

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Remember the trainer, whose loaders are saved."""
        super().setup(trainer, pl_module, stage)
        self._trainer = weakref.ref(trainer)

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the loaders and the position of the fit loop, during and after training."""
        trainer = None if self._trainer is None else self._trainer()
        if trainer is None:
            return {"loaders": []}
        states, position = self.saved(trainer)
        return {"loaders": states, "position": position}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Store the states until training starts; in other stages than fit, a checkpoint changes nothing."""
        trainer = None if self._trainer is None else self._trainer()
        # Only stored: the loaders do not exist yet when Lightning restores the callbacks.
        if trainer is None or trainer.state.fn == "fit":
            self.load_later(list(state_dict.get("loaders", ())), state_dict.get("position"))
