"""The figures of the progress bar, and the line of each epoch."""

from __future__ import annotations

import logging
import re
import sys
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from rich.file_proxy import FileProxy

from lit_loader.callbacks import DataMonitor, EpochLines, TrainingProgressBar


@pytest.fixture
def trainer():
    """A trainer within an epoch, with a monitor that reports rates."""
    monitor = DataMonitor()
    monitor.epoch_rates = lambda: {"wait_fraction": 0.25, "images_per_s": 4.0}
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.02)
    return SimpleNamespace(
        callbacks=[monitor, EpochLines()],
        optimizers=[optimizer],
        accumulate_grad_batches=2,
        current_epoch=1,
        max_epochs=10,
        global_step=2,
        is_global_zero=True,
        training=True,
        progress_bar_metrics={"val/map": 0.25},
    )


def train_batches(callback, trainer):
    callback.on_train_epoch_start(trainer, None)
    for loss in (1.0, 3.0):
        callback.on_train_batch_end(trainer, None, {"loss": torch.tensor(loss) / 2}, None, 0)


def test_epoch_prints_one_line_with_its_mean_loss_and_rates(trainer, capsys):
    lines = EpochLines()
    train_batches(lines, trainer)
    lines.on_train_epoch_end(trainer, None)
    (line,) = capsys.readouterr().out.splitlines()
    assert line == "epoch 1/9  step 2  loss 2  lr 0.02  images/s 4  waited 25%  0 s"


def test_line_has_metrics_only_after_a_validation_in_the_epoch(trainer, capsys):
    lines = EpochLines()
    lines.on_train_epoch_start(trainer, None)
    lines.on_validation_end(trainer, None)
    lines.on_train_epoch_end(trainer, None)
    lines.on_train_epoch_start(trainer, None)
    lines.on_train_epoch_end(trainer, None)
    first, second = capsys.readouterr().out.splitlines()
    assert "val/map 0.250" in first
    assert "val/map" not in second


def test_only_rank_zero_prints(trainer, capsys):
    trainer.is_global_zero = False
    EpochLines().on_train_epoch_end(trainer, None)
    assert capsys.readouterr().out == ""


def test_line_is_logged_if_a_bar_captures_standard_output(trainer, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    lines = EpochLines()
    lines.on_train_epoch_end(trainer, None)
    assert caplog.text == ""
    monkeypatch.setattr(sys, "stdout", FileProxy(Console(), sys.stdout))
    lines.on_train_epoch_end(trainer, None)
    assert re.search("epoch 1/9  step 2", caplog.text)


def test_bar_has_loss_learning_rate_images_per_second_and_waiting(trainer):
    bar = TrainingProgressBar()
    bar.disable()  # as without a terminal
    train_batches(bar, trainer)
    assert bar.get_metrics(trainer, None) == {"loss": 3.0, "lr": "0.02", "images/s": "4", "waited": "25%"}


def test_bar_without_a_monitor_has_the_learning_rate(trainer):
    trainer.callbacks = [EpochLines()]
    bar = TrainingProgressBar()
    assert bar.get_metrics(trainer, None) == {"lr": "0.02"}


@pytest.mark.parametrize("is_terminal", [False, True])
def test_bar_is_drawn_only_on_terminals(monkeypatch, is_terminal):
    monkeypatch.setattr(Console, "is_terminal", is_terminal)
    bar = TrainingProgressBar()
    bar.setup(SimpleNamespace(is_global_zero=True), None, "fit")
    assert bar.is_enabled is is_terminal
