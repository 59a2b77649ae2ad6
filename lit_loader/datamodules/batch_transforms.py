"""Transforms of whole batches on the device: which stage has which, and what their draws depend on.

NOTE [Draws of a batch]
    Device augmentation that drew from the global generators would depend on every draw before it: on dropout, on a
    resumed run, on how often the model was validated. So each batch has a key of its own, a hash of (seed, stage,
    loader, rank, epoch, batch), and the generators of the process and of the device are given back afterwards.
    Batches are those of the loop, so that accumulating gradients changes nothing. In evaluation with several loaders
    they are counted over all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import Trainer
from torch import nn

from lit_loader.loader.device import seeded_batch
from lit_loader.seeding import key64

__all__ = ["apply_to_batch"]


def apply_to_batch(
    transform: Callable[[Any], Any] | None, batch: Any, trainer: Trainer, *, seed: int, dataloader_idx: int
) -> Any:
    """Return a batch transformed; what is drawn is decided by NOTE [Draws of a batch].

    Args:
        transform: Takes a batch and returns one, or None for no change. A module is moved to the device.
        batch: On the device.
        trainer: Whose batch it is.
        seed: The data module's.
        dataloader_idx: Which of the stage's loaders the batch comes from.
    """
    if transform is None:
        return batch
    device = trainer.strategy.root_device
    if isinstance(transform, nn.Module):
        held = (*transform.parameters(), *transform.buffers())
        if any(each.device != device for each in held):  # Lightning moves the model's modules only
            # Validation may come first, in inference mode: parameters made there could not be changed in training.
            with torch.inference_mode(False):
                transform.to(device)
    stage, number = _next_batch(trainer)
    key = key64(seed, "batch transforms", stage, dataloader_idx, trainer.global_rank)
    with seeded_batch(key, trainer.current_epoch, number, device):
        return transform(batch)


def _next_batch(trainer: Trainer) -> tuple[str, int]:
    """Return the stage, and the number of the batch that its loop is about to give to a step."""
    if trainer.training:
        return "train", trainer.fit_loop.epoch_loop.batch_progress.current.ready
    stage = "predict" if trainer.predicting else "test" if trainer.testing else "val"
    loop: Any = trainer._active_loop  # no public name; a validation's loop is another one in a fit
    return stage, loop.batch_progress.current.ready
