"""Progress of a training run: a bar with loss, learning rate and throughput, and one line per epoch."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar
from rich.console import Console
from rich.file_proxy import FileProxy
from rich.progress import BarColumn

from lit_loader.callbacks.attached import find_callback
from lit_loader.callbacks.data_monitor import DataMonitor

__all__ = ["EpochLines", "TrainingProgressBar"]

_log = logging.getLogger(__name__)
_REFRESH_S = 0.5


def _rates(trainer: Trainer) -> dict[str, str]:
    """Return learning rate, images per second and share of waiting in the current epoch, as text by name."""
    learning_rates = [
        group["lr"] for optimizer in trainer.optimizers for group in optimizer.param_groups if "lr" in group
    ]
    texts = {"lr": f"{float(learning_rates[0]):.3g}"} if learning_rates else {}
    monitor = find_callback(trainer, DataMonitor)
    rates = {} if monitor is None else monitor.epoch_rates()
    if "images_per_s" in rates:
        texts["images/s"] = f"{rates['images_per_s']:.0f}"
    if "wait_fraction" in rates:
        texts["waited"] = f"{rates['wait_fraction']:.0%}"
    return texts


def _loss(outputs: Any, trainer: Trainer) -> torch.Tensor | None:
    """Return the loss of a training step on its device, or None if the step returned none."""
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    # Lightning divides the loss by the number of batches over which gradients are summed.
    return loss.detach() * trainer.accumulate_grad_batches if isinstance(loss, torch.Tensor) else None


class TrainingProgressBar(RichProgressBar):
    """Lightning's progress bar with loss, learning rate, images per second and the share of waiting for data.

    A `DataMonitor` among the callbacks measures the rates of the current epoch. No bar is drawn if
    standard output is not a terminal; `EpochLines` prints a line per epoch in both cases.

    Args:
        refresh_rate: Updates of the bar per second; 0 for no bar.
        leave: Whether to leave the bar of each epoch on the screen.
    """

    def __init__(self, refresh_rate: int = 10, leave: bool = False) -> None:
        super().__init__(refresh_rate=refresh_rate, leave=leave)
        self._last_loss: torch.Tensor | None = None
        self._metrics: dict[str, Any] = {}
        self._next_metrics_s = 0.0

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Disable the bar in a pipe or a file, where each frame would be a line."""
        super().setup(trainer, pl_module, stage)
        console = Console()
        # A notebook redraws the bar in place, though it is not a terminal.
        if not console.is_terminal and not console.is_jupyter:
            self.disable()

    def configure_columns(self, trainer: Trainer) -> list[Any]:
        """Return Lightning's columns with a narrower bar, which leaves room for the metrics."""
        columns: list[Any] = super().configure_columns(trainer)
        for column in columns:
            if isinstance(column, BarColumn):
                column.bar_width = 16
        return columns

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Store the loss, which is read from its device only when the bar is drawn."""
        self._last_loss = _loss(outputs, trainer)
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        """Return the metrics next to the bar, updated twice a second, because each read waits for the device."""
        now = time.monotonic()
        if now >= self._next_metrics_s or not trainer.training:
            self._next_metrics_s = now + _REFRESH_S
            loss = {} if self._last_loss is None else {"loss": self._last_loss.item()}
            self._metrics = loss | _rates(trainer)
            # `EpochLines` prints the logged metrics above the bar, which then fits on one line.
            if find_callback(trainer, EpochLines) is None:
                logged = super().get_metrics(trainer, pl_module)
                logged.pop("v_num", None)
                self._metrics |= logged
        return self._metrics


class EpochLines(Callback):
    """Prints one line per training epoch on rank 0, which remains on the screen and in a log file.

    It contains the epoch, the step, the mean loss of this rank, the learning rate, the progress-bar metrics of a
    validation, images per second, the share of waiting for data and the duration of the epoch in seconds.
    """

    def __init__(self) -> None:
        self._start_s = time.monotonic()
        self._loss_sum: torch.Tensor | None = None
        self._num_losses = 0
        self._has_validated = False

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start an epoch."""
        self._start_s = time.monotonic()
        self._loss_sum = None
        self._num_losses = 0
        self._has_validated = False

    # A fit that resumes within an epoch does not call `on_train_epoch_start`.
    on_train_start = on_train_epoch_start

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Sum up the loss on its device."""
        # Reading each loss would wait for the device after every step.
        loss = _loss(outputs, trainer)
        if loss is not None:
            self._loss_sum = loss if self._loss_sum is None else self._loss_sum + loss
            self._num_losses += 1

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remember that there are new metrics."""
        self._has_validated = True

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the line."""
        if not trainer.is_global_zero:
            return
        # -1 is Lightning's value for no limit, None for a limit of steps or time instead.
        num_epochs = trainer.max_epochs or -1
        last = "" if num_epochs == -1 else f"/{num_epochs - 1}"
        figures = {"epoch": f"{trainer.current_epoch}{last}", "step": str(trainer.global_step)}
        if self._loss_sum is not None:
            figures["loss"] = f"{self._loss_sum.item() / self._num_losses:.4g}"
        figures |= _rates(trainer)
        # Without a validation in this epoch, the metrics of an earlier one would look like new ones.
        if self._has_validated:
            figures |= {name: f"{float(value):.3f}" for name, value in trainer.progress_bar_metrics.items()}
        seconds = time.monotonic() - self._start_s
        line = "  ".join(f"{name} {text}" for name, text in figures.items()) + f"  {seconds:.0f} s"
        sys.stdout.write(f"{line}\n")  # above the bar, if one is drawn
        sys.stdout.flush()
        # The bar captures standard output, so the line would be missing in a log file.
        if isinstance(sys.stdout, FileProxy):
            _log.info("%s", line)
