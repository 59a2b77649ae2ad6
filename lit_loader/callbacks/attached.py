"""Objects that are attached to a trainer: its data module and its callbacks."""

from __future__ import annotations

from typing import Any, TypeVar

from lightning.pytorch import Callback, Trainer

from lit_loader.datamodules import TableDataModule

CallbackT = TypeVar("CallbackT", bound=Callback)


def find_callback(trainer: Trainer, kind: type[CallbackT]) -> CallbackT | None:
    """Return a trainer's first callback of a type, or None."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined] # set by a connector of Lightning
    return next((callback for callback in callbacks if isinstance(callback, kind)), None)


def table_datamodule(trainer: Trainer, user: str, *, remedy: str) -> TableDataModule:
    """Return a trainer's data module.

    Args:
        trainer: The trainer.
        user: Name of the callback that needs it, for the message.
        remedy: What else to do, for the message.

    Raises:
        ValueError: If the trainer has none, or a data module that does not read annotation tables.
    """
    # Lightning sets the attribute only if `fit`, `test` or `predict` is given a data module.
    datamodule: Any = getattr(trainer, "datamodule", None)
    if isinstance(datamodule, TableDataModule):
        return datamodule
    kind = "no data module" if datamodule is None else f"a {type(datamodule).__name__}"
    raise ValueError(f"{user} expected a data module of lit_loader with annotation tables, got {kind}; {remedy}")
