"""Progress of a training run: a bar with loss, learning rate and throughput, and one line per epoch."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar
from rich.console import Console
from rich.file_proxy import FileProxy
from rich.progress import BarColumn

from lit_loader.callbacks.monitors import DataWaitMonitor

__all__ = ["EpochLines", "TrainingProgressBar"]

_log = logging.getLogger(__name__)
_REFRESH_S = 0.5
_CallbackT = TypeVar("_CallbackT", bound=Callback)


class _EpochRates:
    """Images per second and share of waiting in the current epoch, from the trainer's `DataWaitMonitor`."""

    def __init__(self) -> None:
        self._start = (0.0, 0.0, 0)

    def begin(self, trainer: Trainer) -> None:
        """Start an epoch."""
        monitor = _callback(trainer, DataWaitMonitor)
        self._start = (0.0, 0.0, 0) if monitor is None else (monitor.wait_s, monitor.step_s, monitor.num_images)

    def texts(self, trainer: Trainer) -> dict[str, str]:
        """Return the rates as text by name; empty without a monitor or before the first batch."""
        monitor = _callback(trainer, DataWaitMonitor)
        if monitor is None:
            return {}
        wait_s = monitor.wait_s - self._start[0]
        loop_s = wait_s + monitor.step_s - self._start[1]
        num_images = monitor.num_images - self._start[2]
        if loop_s <= 0:
            return {}
        images = {"images/s": f"{num_images / loop_s:.0f}"} if num_images else {}
        return {**images, "waited": f"{wait_s / loop_s:.0%}"}


def _callback(trainer: Trainer, kind: type[_CallbackT]) -> _CallbackT | None:
    """Return a trainer's first callback of a type, or None."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined] # set by a connector of Lightning
    return next((callback for callback in callbacks if isinstance(callback, kind)), None)


def _loss(outputs: Any, trainer: Trainer) -> torch.Tensor | None:
    """Return the loss of a training step on its device, or None if the step returned none."""
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    # Lightning divides the loss by the number of batches over which gradients are summed.
    return loss.detach() * trainer.accumulate_grad_batches if isinstance(loss, torch.Tensor) else None


def _learning_rate(trainer: Trainer) -> dict[str, str]:
    """Return the learning rate of the first group of parameters, as text by name."""
    rates = [group["lr"] for optimizer in trainer.optimizers for group in optimizer.param_groups if "lr" in group]
    return {"lr": f"{float(rates[0]):.3g}"} if rates else {}


class TrainingProgressBar(RichProgressBar):
    """Lightning's progress bar with loss, learning rate, images per second and the share of waiting for data.

    The rates are those of the current epoch, measured by a `DataWaitMonitor` among the callbacks. No bar is drawn if
    standard output is not a terminal; `EpochLines` prints a line per epoch in both cases.

    Args:
        refresh_rate: Updates of the bar per second; 0 for no bar.
        leave: Whether to leave the bar of each epoch on the screen.
    """

    def __init__(self, refresh_rate: int = 10, leave: bool = False) -> None:
        super().__init__(refresh_rate=refresh_rate, leave=leave)
        self._rates = _EpochRates()
        self._last_loss: torch.Tensor | None = None
        self._metrics: dict[str, Any] = {}
        self._next_metrics_s = 0.0

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Disable the bar in a pipe or a file, where each frame would be a line."""
        super().setup(trainer, pl_module, stage)
        console = Console()
        # A notebook is no terminal, but redraws the bar in place.
        if not console.is_terminal and not console.is_jupyter:
            self.disable()

    def configure_columns(self, trainer: Trainer) -> list[Any]:
        """Return Lightning's columns with a narrower bar, which leaves room for the metrics."""
        columns: list[Any] = super().configure_columns(trainer)
        for column in columns:
            if isinstance(column, BarColumn):
                column.bar_width = 16
        return columns

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the rates of an epoch."""
        self._rates.begin(trainer)
        super().on_train_epoch_start(trainer, pl_module)

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
            self._metrics = {**loss, **_learning_rate(trainer), **self._rates.texts(trainer)}
            # `EpochLines` prints the logged metrics above the bar, which then fits on one line.
            if _callback(trainer, EpochLines) is None:
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
        self._rates = _EpochRates()
        self._begin_s = time.monotonic()
        self._loss_sum: torch.Tensor | None = None
        self._num_losses = 0
        self._has_validated = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the rest of a resumed epoch, for which Lightning does not call `on_train_epoch_start`."""
        self.on_train_epoch_start(trainer, pl_module)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start an epoch."""
        self._rates.begin(trainer)
        self._begin_s = time.monotonic()
        self._loss_sum = None
        self._num_losses = 0
        self._has_validated = False

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Sum up the loss on its device."""
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
        num_epochs = trainer.max_epochs or -1
        last = "" if num_epochs == -1 else f"/{num_epochs - 1}"
        figures = {"epoch": f"{trainer.current_epoch}{last}", "step": str(trainer.global_step)}
        if self._loss_sum is not None:
            figures["loss"] = f"{self._loss_sum.item() / self._num_losses:.4g}"
        figures |= _learning_rate(trainer)
        if self._has_validated:
            figures |= {name: f"{float(value):.3f}" for name, value in trainer.progress_bar_metrics.items()}
        figures |= self._rates.texts(trainer)
        seconds = time.monotonic() - self._begin_s
        line = "  ".join(f"{name} {text}" for name, text in figures.items()) + f"  {seconds:.0f} s"
        sys.stdout.write(f"{line}\n")  # above the bar, if one is drawn
        sys.stdout.flush()
        if isinstance(sys.stdout, FileProxy):
            # The bar captures standard output, so the line would be missing in a log file.
            _log.info("%s", line)
