"""Which collate functions are ours: they draw nothing and ask nothing of the worker they run in."""

from __future__ import annotations

from functools import partial
from types import FunctionType
from typing import Any

from torch.utils.data import default_collate, default_convert

__all__ = ["is_own_collate"]


def is_own_collate(collate_fn: Any) -> bool:
    """Whether a collate function is one of this package's or one of torch's defaults.

    A subclass of ours that is defined elsewhere is not: it may do more.
    """
    while isinstance(collate_fn, partial):
        collate_fn = collate_fn.func
    if collate_fn is default_collate or collate_fn is default_convert:
        return True
    home = collate_fn if isinstance(collate_fn, FunctionType) else type(collate_fn)
    return str(getattr(home, "__module__", "")).startswith("lit_loader.collate")
