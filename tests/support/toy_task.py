"""A task whose model has a few dozen weights, and its trainer."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import Trainer
from torch import Tensor, nn
from torch.nn import functional

from lit_loader.recipes.metrics import ClassMetric
from lit_loader.recipes.task import Metric, Task
from tests.support.lightning_ranks import QUIET

NAMES = ("low", "high")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.ReLU())
        self.head = nn.Linear(8, 2)

    def forward(self, rows: Tensor) -> Tensor:
        return self.head(self.body(rows))


class ToyTask(Task):
    monitor = "val/accuracy"
    monitor_mode = "max"

    def __init__(self, model: Any = Net, *, class_names: Any = NAMES, weights: Any = None, **training: Any):
        super().__init__(**training)
        self.keep_arguments()
        self.set_model(Net() if isinstance(model, str) else model())
        self.set_metric(lambda: ClassMetric(class_names))
        self.rates: list[list[float]] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        rows, labels = batch
        self.rates.append([group["lr"] for group in self.optimizers().param_groups])
        loss = functional.cross_entropy(self.model(rows), labels)
        return self.log_sum({"classification": loss}, batch_size=len(rows))

    def collect(self, batch: Any, metric: Metric) -> None:
        rows, labels = batch
        answers = self.model(rows).argmax(dim=1)
        metric.update(answers, labels, is_duplicate=torch.zeros(len(rows), dtype=torch.bool))


def batches(count: int = 4) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    rows = [torch.rand(6, 3, generator=generator) for _ in range(count)]
    return [(inputs, (inputs.sum(dim=1) > 1.5).long()) for inputs in rows]


def loader(count: int = 4) -> Any:
    return torch.utils.data.DataLoader(batches(count), batch_size=None, num_workers=0)


def trainer(folder: Any, **changes: Any) -> Trainer:
    """Return a trainer without a logger, checkpoints or output, for two epochs unless ``changes`` say otherwise."""
    return Trainer(**QUIET | {"max_epochs": 2, "default_root_dir": folder, "num_sanity_val_steps": 0} | changes)
