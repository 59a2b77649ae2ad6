"""torch's default collation, without the shared memory that torch's version allocates in workers."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data._utils.collate import collate, default_collate_fn_map

__all__ = ["default_collate"]

_torch_collate_tensors = default_collate_fn_map[torch.Tensor]


def default_collate(batch: list[Any]) -> Any:
    """Return what ``torch.utils.data.default_collate`` returns for a list of samples.

    A worker's batch goes through our own transport, so it is stacked in the worker's own memory; torch's
    would write it to new shared memory, and fail where /dev/shm is small. Entries that the user put into
    torch's ``default_collate_fn_map`` are honoured.

    Args:
        batch: Samples: tensors, numpy arrays, numbers, strings, nested in mappings and sequences.

    Raises:
        TypeError: If a sample is none of these.
        RuntimeError: If tensors or sequences differ in size.
    """
    functions = dict(default_collate_fn_map)
    if functions.get(torch.Tensor) is _torch_collate_tensors:
        functions[torch.Tensor] = _stack
    return collate(batch, collate_fn_map=functions)


def _stack(batch: list[torch.Tensor], *, collate_fn_map: Any = None) -> torch.Tensor:
    first = batch[0]
    if first.is_nested or first.layout is not torch.strided:  # torch's own errors and sparse stacking
        stacked: torch.Tensor = _torch_collate_tensors(batch, collate_fn_map=collate_fn_map)
        return stacked
    return torch.stack(batch, 0)
