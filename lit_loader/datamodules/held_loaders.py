"""The loaders of ours that a trainer's loops hold."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

from lightning.pytorch import Trainer

from lit_loader.loader import DataLoader

__all__ = ["held_loaders", "train_loaders"]

_LOOPS = ("fit_loop", "fit_loop.epoch_loop.val_loop", "validate_loop", "test_loop", "predict_loop")


def held_loaders(trainer: Trainer | None) -> Iterator[DataLoader[Any]]:
    """Yield the loaders that a trainer's loops hold: it makes its own of ours for a prediction."""
    for path in _LOOPS:
        loop = operator.attrgetter(path)(trainer) if trainer is not None else None
        held = getattr(loop, "_combined_loader", None)
        yield from (loader for loader in getattr(held, "flattened", ()) if isinstance(loader, DataLoader))


def train_loaders(trainer: Trainer | None) -> list[DataLoader[Any]]:
    """Return the training loaders of ours that a trainer's fit loop holds, in its order."""
    held = None if trainer is None else trainer.fit_loop._combined_loader
    return [loader for loader in getattr(held, "flattened", ()) if isinstance(loader, DataLoader)]
