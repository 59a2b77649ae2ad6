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

from lit_loader.device import seeded_batch
from lit_loader.seeding import key64

__all__ = ["BatchTransforms"]


class BatchTransforms:
    """The batch transforms of a data module.

    Args:
        training: For training batches; None: none.
        evaluation: For batches of validation, testing and prediction; None: none.

    Determinism: see NOTE [Draws of a batch].
    """

    def __init__(
        self, *, training: Callable[[Any], Any] | None, evaluation: Callable[[Any], Any] | None
    ) -> None:
        self._training, self._evaluation = training, evaluation

    def __call__(self, batch: Any, trainer: Trainer | None, *, seed: int, dataloader_idx: int) -> Any:
        """Return a batch transformed as its stage asks.

        Args:
            batch: On the device.
            trainer: Whose batch it is; None: it is nobody's, and stays as it is.
            seed: The data module's.
            dataloader_idx: Which of the stage's loaders it comes from.
        """
        if trainer is None:
            return batch
        transform = self._training if trainer.training else self._evaluation
        if transform is None:
            return batch
        device = trainer.strategy.root_device
        if isinstance(transform, nn.Module):
            _place(transform, device)
        stage, number = _moment(trainer)
        key = key64(seed, "batch transforms", stage, dataloader_idx, trainer.global_rank)
        with seeded_batch(key, trainer.current_epoch, number, device):
            return transform(batch)


def _moment(trainer: Trainer) -> tuple[str, int]:
    """Return the stage, and the number of the batch that its loop is about to give to a step."""
    if trainer.training:
        return "train", trainer.fit_loop.epoch_loop.batch_progress.current.ready
    if trainer.predicting:
        return "predict", trainer.predict_loop.batch_progress.current.ready
    if trainer.testing:
        return "test", trainer.test_loop.batch_progress.current.ready
    fitting = trainer.sanity_checking or trainer.state.fn == "fit"
    loop = trainer.fit_loop.epoch_loop.val_loop if fitting else trainer.validate_loop
    return "val", loop.batch_progress.current.ready


def _place(module: nn.Module, device: torch.device) -> None:
    """Move a module to the device, if anything of it is elsewhere: nobody else does it for a data module's."""
    for held in (*module.parameters(), *module.buffers()):
        if held.device != device:
            module.to(device)
            return
