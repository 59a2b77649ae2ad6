"""The end of a validation: nothing of it stays on the device.

With ``limit_val_batches``, and after the sanity check, Lightning leaves the iterators of validation loaders in the
middle of an epoch until the next validation begins. Each would keep a batch that was copied ahead, and its slot.
"""

from __future__ import annotations

import operator

from lightning.pytorch import Callback, LightningModule, Trainer

from lit_loader.iterator import LoaderIterator

__all__ = ["close_after_validation"]

_LOOPS = ("fit_loop.epoch_loop.val_loop", "validate_loop")


class CloseAfterValidation(Callback):
    """Closes the iterators of validation loaders when a validation ends."""

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Close them; the next validation makes others."""
        for path in _LOOPS:
            combined = operator.attrgetter(path)(
                trainer
            )._combined_loader  # no public name; written for Lightning 2.6
            iterator = None if combined is None else combined._iterator
            for loader_iterator in () if iterator is None else iterator.iterators:
                if isinstance(loader_iterator, LoaderIterator):
                    loader_iterator.close()


def close_after_validation(trainer: Trainer | None) -> None:
    """Have a trainer close the iterators of validation loaders when a validation ends."""
    callbacks: list[Callback] = getattr(trainer, "callbacks", [])
    if not any(isinstance(callback, CloseAfterValidation) for callback in callbacks):
        callbacks.insert(0, CloseAfterValidation())
