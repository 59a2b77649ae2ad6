"""A callback that validates, tests and saves a moving average of the weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import WeightAveraging
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

__all__ = ["EmaWeights"]


class EmaWeights(WeightAveraging):
    """Keeps an exponential moving average of the weights, which is validated, saved as ``state_dict`` and tested.

    Update n of the average is ``average = d * average + (1 - d) * weights`` with
    ``d = min(decay, (1 + n) / (10 + n))``: with a constant 0.999, the random weights of the first step would still be
    60 % of the average after 500 steps. Until the first update, the weights themselves are validated and saved. Buffers
    of whole numbers, such as counters and tables of positions, are copied.

    A checkpoint of a fit holds the average as ``state_dict``, so everything that reads a checkpoint uses the average,
    and the weights that training continues from as ``current_model_state``. A resumed fit continues both. A fit that
    resumes from a checkpoint without an average starts one with its next update.

    It differs from ``lightning.pytorch.callbacks.EMAWeightAveraging`` (Lightning 2.6), which

    - loads ``current_model_state`` in a test that follows the fit, so another model than the best checkpoint's average;
    - validates and saves the initial weights until ``update_starting_at_step``;
    - has a constant decay, and rounds averages of whole numbers down.

    Args:
        decay: Largest share of the average that an update leaves, in [0, 1).
        update_every_n_steps: Number of optimizer steps between two updates.
        update_starting_at_step: First optimizer step, from 0, that updates the average.
        use_buffers: Also average buffers, such as the statistics of batch normalisation.
        device: Device of the average, or None for the model's.

    Raises:
        ValueError: If an argument is out of range.

    Source:
        The warm-up of the decay is the one of TensorFlow's ``ExponentialMovingAverage`` with ``num_updates``.
    """

    def __init__(
        self,
        *,
        decay: float = 0.999,
        update_every_n_steps: int = 1,
        update_starting_at_step: int = 0,
        use_buffers: bool = True,
        device: str | None = None,
    ) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"decay={decay} must be in [0, 1), such as 0.999")
        if update_every_n_steps < 1:
            raise ValueError(f"update_every_n_steps={update_every_n_steps} must be at least 1")
        if update_starting_at_step < 0:
            raise ValueError(f"update_starting_at_step={update_starting_at_step} must be at least 0")
        super().__init__(device, use_buffers, multi_avg_fn=self._update)
        self.decay = decay
        self.update_every_n_steps = update_every_n_steps
        self.update_starting_at_step = update_starting_at_step
        # Whether the model has the average, and the average model the weights that are trained.
        self._is_swapped = False

    def _update(self, averages: Any, values: Any, num_averaged: Tensor | int) -> None:
        # torch groups the tensors by type. Averages of integers would be cut off: a counter would fall behind, and a
        # table of positions select wrong rows.
        if not averages[0].is_floating_point():
            for average, value in zip(averages, values, strict=True):
                average.copy_(value)
            return
        # torch has read the number on the CPU before this call, so another read costs no further wait.
        count = int(num_averaged)
        decay = min(self.decay, (1 + count) / (10 + count))
        update: Any = get_ema_multi_avg_fn
        update(decay)(averages, values, num_averaged)

    @property
    def has_started(self) -> bool:
        """Whether the average was updated at least once, in this fit or in the one that it resumes."""
        return self._average_model is not None and int(self._average_model.n_averaged) > 0

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        """Return True if an optimizer step, counted from 0, updates the average."""
        if step_idx is None or step_idx < self.update_starting_at_step:
            return False
        return step_idx % self.update_every_n_steps == 0

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Prepare an empty average for a fit."""
        super().setup(trainer, pl_module, stage)
        if stage == "fit":
            # An earlier fit leaves the models swapped, and its steps do not count in this one. A checkpoint to resume
            # from is loaded after this hook.
            self._is_swapped = False
            self._latest_update_step = trainer.global_step

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Give the model the average for a validation of the fit."""
        # After a fit, `trainer.validate` validates the weights that it was given.
        if trainer.state.fn == "fit":
            self._swap(pl_module)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Return the weights that are trained to the model."""
        if trainer.state.fn == "fit":
            self._swap(pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the average in the model."""
        # Not copied over the weights of training, which checkpoints at the end of the fit still save.
        self._swap(pl_module)

    def _swap(self, pl_module: LightningModule) -> None:
        if self.has_started:
            self._swap_models(pl_module)
            self._is_swapped = not self._is_swapped

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Save the average as ``state_dict``, and the weights that are trained as ``current_model_state``."""
        if self._average_model is None or not self.has_started or trainer.state.fn != "fit":
            return
        super().on_save_checkpoint(trainer, pl_module, checkpoint)
        # At the end of a fit, and where SIGTERM ends a validation.
        if self._is_swapped:
            averages: Mapping[str, Any] = checkpoint["current_model_state"]
            checkpoint["current_model_state"] = checkpoint["state_dict"]
            checkpoint["state_dict"] = averages

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Restore the average and the weights that are trained, in a fit only."""
        # A test needs the average, which Lightning has already loaded from `state_dict`. Without an average in the
        # checkpoint, the first update starts one.
        if trainer.state.fn == "fit" and "averaging_state" in checkpoint:
            super().on_load_checkpoint(trainer, pl_module, checkpoint)
