"""One optimiser and one learning rate for every recipe: AdamW, a linear warm-up and a cosine, by step."""

from __future__ import annotations

import math

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch.optim.lr_scheduler import LambdaLR

__all__ = ["adamw_with_warmup", "learning_rate_factor", "total_steps"]


def adamw_with_warmup(
    module: LightningModule, *, learning_rate: float, weight_decay: float, warmup_steps: int
) -> OptimizerLRScheduler:
    """Return AdamW, without weight decay on biases and normalisation, and a warm-up and cosine by step.

    The trainer's ``estimated_stepping_batches`` is not asked: it would set the loaders up before a
    checkpoint is read, and their state would then never be loaded.

    Args:
        module: The module to train; its trainer knows how long the fit is.
        learning_rate: Peak learning rate.
        weight_decay: Weight decay of parameters with two axes or more.
        warmup_steps: Optimiser steps of linear warm-up.
    """
    weights = [p for p in module.parameters() if p.ndim > 1]
    others = [p for p in module.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": weights, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}],
        lr=learning_rate,
    )

    def factor(step: int) -> float:
        # Step 0 is asked for before the trainer knows how long an epoch is; the first step needs no total.
        total = None if step == 0 else total_steps(module.trainer)
        return learning_rate_factor(step, warmup_steps=warmup_steps, total_steps=total)

    return {
        "optimizer": optimizer,
        "lr_scheduler": {"scheduler": LambdaLR(optimizer, factor), "interval": "step"},
    }


def learning_rate_factor(step: int, *, warmup_steps: int, total_steps: int | None) -> float:
    """Return the learning rate of a step as a share of its peak.

    Linear from ``1 / (warmup_steps + 1)`` to 1 over the warm-up, then half a cosine from 1 to 0 at
    ``total_steps``; 1 throughout where ``total_steps`` is None.

    Args:
        step: Optimiser steps done, from 0.
        warmup_steps: Steps of the warm-up, 0 for none.
        total_steps: Steps of the whole fit, or None where they are not known.
    """
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    if total_steps is None or total_steps <= warmup_steps:
        return 1.0
    done = min(1.0, (step - warmup_steps) / (total_steps - warmup_steps))
    return 0.5 * (1.0 + math.cos(math.pi * done))


def total_steps(trainer: Trainer) -> int | None:
    """Return the optimiser steps of a whole fit, None where the trainer has no end."""
    ends = [trainer.max_steps] if trainer.max_steps > 0 else []
    batches = trainer.num_training_batches
    if trainer.max_epochs is not None and trainer.max_epochs > 0 and math.isfinite(batches):
        ends.append(trainer.max_epochs * math.ceil(batches / trainer.accumulate_grad_batches))
    return min(ends, default=None)
