"""What all recipes share: metrics and their report, the optimizer and its schedule."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, TypeAlias, cast

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from lit_loader.recipes.metrics import Report
from lit_loader.recipes.network import check_range
from lit_loader.recipes.without_duplicates import WithoutDuplicates

__all__ = ["RecipeModule", "learning_rate_factor"]

Metric: TypeAlias = WithoutDuplicates[Any]


class RecipeModule(LightningModule):
    """A LightningModule that a script can fit, test and report on without knowing its task.

    The optimizer is AdamW, without weight decay on biases and normalisation. Several validation or test sets are
    scored as one.

    Args:
        learning_rate: Peak learning rate of AdamW.
        weight_decay: Weight decay of AdamW.
        warmup_steps: Optimizer steps of linear warm-up; after it the rate falls along a cosine to 0 at the
            trainer's last step.

    Attributes:
        monitor: Name of the validation metric that picks the best checkpoint.
        monitor_mode: Whether the best is its smallest or its largest value.
        test_scores: The scores of the last test, or None before a test.
        val_scores: The scores of the last validation, or None before one.

    Raises:
        ValueError: If an argument is out of range.
    """

    monitor: ClassVar[str]
    monitor_mode: ClassVar[Literal["min", "max"]]

    def __init__(self, *, learning_rate: float, weight_decay: float, warmup_steps: int) -> None:
        super().__init__()
        check_range(0, math.inf, warmup_steps=warmup_steps)
        self.learning_rate, self.weight_decay, self.warmup_steps = learning_rate, weight_decay, warmup_steps
        self.val_scores: Any = None
        self.test_scores: Any = None

    def set_metric(self, make: Callable[[], nn.Module]) -> None:
        """Give validation and tests a metric each.

        Args:
            make: Makes a metric whose ``compute_scores`` returns an object with ``logged``, the scores to log by name,
                and ``report()``, see `Report`.
        """
        self.val_metric, self.test_metric = WithoutDuplicates(make()), WithoutDuplicates(make())

    def collect(self, batch: Any, metric: Metric) -> None:
        """Predict on a batch of validation or test and update its metric."""
        raise NotImplementedError

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Update the metric of validation."""
        self.collect(batch, self.val_metric)

    def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Update the metric of tests."""
        self.collect(batch, self.test_metric)

    def on_validation_epoch_end(self) -> None:
        """Compute and log the scores of the validation."""
        self.val_scores = self._score("val", self.val_metric)

    def on_test_epoch_end(self) -> None:
        """Compute and log the scores of the test."""
        self.test_scores = self._score("test", self.test_metric)

    def _score(self, stage: str, metric: Metric) -> Any:
        scores = metric.metric.compute_scores()
        metric.reset()
        # Every rank has the scores of all ranks; their mean changes nothing and spares Lightning's warning.
        values = {f"{stage}/{name}": value for name, value in scores.logged.items()}
        self.log_dict(values, prog_bar=stage == "val", sync_dist=True)
        return scores

    def test_report(self) -> Report:
        """Return the scores of the last test as titled sections of named numbers, see `Report`.

        Raises:
            RuntimeError: If no test has run.
        """
        if self.test_scores is None:
            raise RuntimeError(
                "there is nothing to report before a test; call trainer.test(model, ...) first"
            )
        return cast(Report, self.test_scores.report())

    def log_sum(self, losses: Mapping[str, Tensor], *, batch_size: int) -> Tensor:
        """Return the sum of losses, and log it as ``train/loss`` and each under its name."""
        total = torch.stack(list(losses.values())).sum()
        values = {f"train/{name}": loss.detach() for name, loss in losses.items()}
        self.log_dict({"train/loss": total.detach(), **values}, batch_size=batch_size)
        return total

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Return AdamW, and the warm-up and cosine by step.

        The trainer's ``estimated_stepping_batches`` is not read here but at a step: here it would set the loaders up
        before a checkpoint is loaded, and their state would then never be loaded.
        """
        weights = [p for p in self.parameters() if p.ndim > 1]
        others = [p for p in self.parameters() if p.ndim <= 1]
        optimizer = torch.optim.AdamW(
            [{"params": weights, "weight_decay": self.weight_decay}, {"params": others, "weight_decay": 0.0}],
            lr=self.learning_rate,
        )

        def factor(step: int) -> float:
            # Step 0 comes before the loaders are set up and needs no total, which is -1 or infinite without an end.
            total = self.trainer.estimated_stepping_batches if step else math.inf
            known = int(total) if 0 < total < math.inf else None
            return learning_rate_factor(step, warmup_steps=self.warmup_steps, total_steps=known)

        schedule = {"scheduler": LambdaLR(optimizer, factor), "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": schedule}  # type: ignore[return-value] # a TypedDict's dict


def learning_rate_factor(step: int, *, warmup_steps: int, total_steps: int | None) -> float:
    """Return the learning rate of a step as a share of its peak.

    Linear from ``1 / (warmup_steps + 1)`` to 1 over the warm-up, then half a cosine from 1 to 0 at
    ``total_steps``; 1 throughout where ``total_steps`` is None.

    Args:
        step: Optimizer steps done, from 0.
        warmup_steps: Steps of the warm-up, 0 for none.
        total_steps: Steps of the whole fit, or None if they are not known.
    """
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    if total_steps is None or total_steps <= warmup_steps:
        return 1.0
    done = min(1.0, (step - warmup_steps) / (total_steps - warmup_steps))
    return 0.5 * (1.0 + math.cos(math.pi * done))
