"""What all recipes share: the optimiser, the checkpoint's metric, and a report that any script can print."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, TypeAlias, TypeVar

from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.types import OptimizerLRScheduler

from lit_loader.recipes.schedule import adamw_with_warmup

__all__ = ["RecipeModule", "Report", "tested"]

Report: TypeAlias = list[tuple[str, dict[str, float]]]
Scores = TypeVar("Scores")


class RecipeModule(LightningModule):
    """A LightningModule that a script can fit, test and report on without knowing its task.

    Args:
        learning_rate: Peak learning rate of AdamW.
        weight_decay: Weight decay of AdamW; none on biases and normalisation.
        warmup_steps: Optimiser steps of linear warm-up; after it the rate falls along a cosine to 0 at the
            trainer's last step.

    Attributes:
        monitor: Name of the validation metric that picks the best checkpoint.
        monitor_mode: Whether the best is its smallest or its largest value.

    Raises:
        ValueError: If an argument is out of range.
    """

    monitor: ClassVar[str]
    monitor_mode: ClassVar[Literal["min", "max"]]

    def __init__(self, *, learning_rate: float, weight_decay: float, warmup_steps: int) -> None:
        super().__init__()
        if warmup_steps < 0:
            raise ValueError(f"warmup_steps={warmup_steps} is negative; give 0 or more")
        self.learning_rate, self.weight_decay, self.warmup_steps = learning_rate, weight_decay, warmup_steps

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Return AdamW and the schedule, see `adamw_with_warmup`."""
        return adamw_with_warmup(
            self,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            warmup_steps=self.warmup_steps,
        )

    def test_report(self) -> Report:
        """Return what the last test found as titled sections of named numbers, to be printed as they come.

        The first section holds the figures of the whole set; sections behind it hold one figure by class,
        attribute value and so on. A number may be NaN: then there was nothing to measure it on.

        Raises:
            RuntimeError: No test has run.
        """
        raise NotImplementedError

    def log_scores(self, stage: str, scores: Mapping[str, float]) -> None:
        """Log scores of all ranks under ``stage/name``; in validation on the progress bar too."""
        # Every rank has the scores of all ranks; their mean changes nothing and spares Lightning's warning.
        values = {f"{stage}/{name}": value for name, value in scores.items()}
        self.log_dict(values, prog_bar=stage == "val", sync_dist=True)


def tested(scores: Scores | None) -> Scores:
    """Return scores, or refuse where there are none yet."""
    if scores is None:
        raise RuntimeError("there is nothing to report before a test; call trainer.test(model, ...) first")
    return scores
