"""Which collate functions are ours: they draw nothing and ask nothing of the worker they run in."""

from __future__ import annotations

from functools import partial
from types import FunctionType
from typing import Any

from torch.utils.data import default_collate as torch_default_collate
from torch.utils.data import default_convert as torch_default_convert

from lit_loader.collate.default import default_collate, has_torchs_table

__all__ = ["is_own_collate"]


def is_own_collate(collate_fn: Any) -> bool:
    """Whether a collate function is one of this package's or one of torch's defaults.

    A subclass of ours that is defined elsewhere is not: it may do more. Neither is default collation while torch's
    table for it holds entries of the user's: they may draw.
    """
    while isinstance(collate_fn, partial):
        collate_fn = collate_fn.func
    if collate_fn in (torch_default_collate, default_collate):
        return has_torchs_table()
    if collate_fn is torch_default_convert:
        return True
    home = collate_fn if isinstance(collate_fn, FunctionType) else type(collate_fn)
    return str(getattr(home, "__module__", "")).startswith("lit_loader.collate")
