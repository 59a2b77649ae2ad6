"""Callback that frees the device memory of validation loaders when a validation ends.

With ``limit_val_batches``, and after the sanity check, Lightning leaves the iterators of validation loaders in the
middle of an epoch until the next validation begins. Each iterator would hold a prefetched batch, and its slot.
"""

from __future__ import annotations

from lightning.pytorch import Callback, LightningModule, Trainer

from lit_loader.datamodules.resuming import held_iterators
from lit_loader.loader.iterator import LoaderIterator

__all__ = ["close_after_validation"]

_LOOPS = ("fit_loop.epoch_loop.val_loop", "validate_loop")


class CloseAfterValidation(Callback):
    """Closes the iterators of validation loaders when a validation ends."""

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Close the iterators; the next validation makes new ones."""
        for iterator in held_iterators(trainer, _LOOPS):
            if isinstance(iterator, LoaderIterator):
                iterator.close()


def close_after_validation(trainer: Trainer | None) -> None:
    """Add a `CloseAfterValidation` to a trainer's callbacks, unless it has one."""
    # setup() runs several times with the same trainer. Without a trainer the list is discarded.
    callbacks: list[Callback] = getattr(trainer, "callbacks", [])
    if not any(isinstance(callback, CloseAfterValidation) for callback in callbacks):
        callbacks.insert(0, CloseAfterValidation())
