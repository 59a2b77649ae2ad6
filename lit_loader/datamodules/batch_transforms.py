"""Transforms of whole batches on the device, and the keys of their random draws.

NOTE [Draws of a batch]
    Device augmentation that drew from the global generators would depend on every earlier draw: on dropout, on resuming
    a run, on the number of validations. So each batch has a key, a hash of (seed, stage, loader, rank, epoch, batch),
    and afterwards the generators of the process and of the device get their earlier states back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import Trainer
from torch import nn

from lit_loader.loader.device import seeded_batch
from lit_loader.seeding import key64

__all__ = ["apply_to_batch", "transform_batch"]


def apply_to_batch(
    transform: Callable[[Any], Any] | None, batch: Any, trainer: Trainer, *, seed: int, dataloader_idx: int
) -> Any:
    """Transform a batch, with random draws as in NOTE [Draws of a batch].

    Args:
        transform: Takes a batch and returns a batch, or None for no change. A module is moved to the device.
        batch: The batch, on the device.
        trainer: The trainer that runs the batch.
        seed: Seed of the data module.
        dataloader_idx: Index of the stage's loader that made the batch.
    """
    if transform is None:
        return batch
    stage, number = _next_batch(trainer)
    return transform_batch(
        transform,
        batch,
        device=trainer.strategy.root_device,
        key=key64(seed, "batch transforms", stage, dataloader_idx),
        epoch=trainer.current_epoch,
        number=number,
        rank=trainer.global_rank,
    )


def transform_batch(
    transform: Callable[[Any], Any], batch: Any, *, device: torch.device, key: int, epoch: int, number: int, rank: int
) -> Any:
    """Transform a batch with draws that depend on the key, the epoch, the batch's number and the rank alone.

    Args:
        transform: Takes a batch and returns a batch. A module is moved to the device.
        batch: The batch, on the device.
        device: The device of the draws.
        key: 64 bits that identify the stage and the loader.
        epoch: The epoch, from 0.
        number: Number of the batch in its epoch and rank, from 0.
        rank: The rank.
    """
    if isinstance(transform, nn.Module):
        tensors = (*transform.parameters(), *transform.buffers())
        # Lightning moves only the model's modules.
        if any(tensor.device != device for tensor in tensors):
            # Validation may run first, in inference mode, and training could not change parameters that are made there.
            with torch.inference_mode(False):
                transform.to(device)
    with seeded_batch(key, epoch, number, device, rank=rank):
        return transform(batch)


def _next_batch(trainer: Trainer) -> tuple[str, int]:
    """Return the stage, and the number of the batch that its loop passes to the next step."""
    # The loop counts batches, so accumulating gradients changes nothing. In evaluation it counts over all loaders.
    if trainer.training:
        return "train", trainer.fit_loop.epoch_loop.batch_progress.current.ready
    stage = "predict" if trainer.predicting else "test" if trainer.testing else "val"
    # The active loop has no public name. During a fit it is the validation loop of the fit loop.
    loop: Any = trainer._active_loop
    return stage, loop.batch_progress.current.ready
