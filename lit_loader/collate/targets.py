"""Targets of a batch: kept one per sample, or padded field by field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["convert_targets", "pad_fields_of"]

_CLASSIC_COLUMNS = 5  # x1, y1, x2, y2, class


def convert_targets(targets: Sequence[Any]) -> list[Any]:
    """Return one target per sample: dicts as they are, rows of numbers as float32 tensors.

    Args:
        targets: Mappings, or rows ``N x K`` as a list, array or tensor (classically K = 5: a box and its
            class). An empty list has K columns too, K being that of the batch's other targets, or 5.

    Returns:
        Dicts, or float32 tensors of shape ``(N, K)``.

    Raises:
        ValueError: Rows of numbers are not ``N x K``.
    """
    rows = [target if isinstance(target, Mapping) else _as_rows(target) for target in targets]
    widths = [len(row[0]) for row in rows if isinstance(row, Tensor) and row.ndim == 2 and len(row)]
    width = widths[0] if widths else _CLASSIC_COLUMNS
    return [
        row.reshape(0, width) if isinstance(row, Tensor) and row.ndim == 1 and not len(row) else row
        for row in rows
    ]


def _as_rows(target: Any) -> Tensor:
    if isinstance(target, Tensor):
        rows = target.as_subclass(Tensor).to(torch.float32)
    else:  # np.array copies: the batch must not share memory with an array that the data set keeps
        rows = torch.from_numpy(np.array(target, dtype=np.float32))
    if rows.ndim != 2 and rows.shape != (0,):
        raise ValueError(
            f"a target has shape {tuple(rows.shape)}; the rule is N x K numbers, one row an object, or a "
            "dict. For one label an image use torch's default_collate."
        )
    return rows


def pad_fields_of(targets: Sequence[Any], pad_fields: Mapping[str, float]) -> dict[str, Any]:
    """Turn a list of dicts into a dict of columns, padding some of them.

    Args:
        targets: One dict per sample, all with the same names.
        pad_fields: Name of each field to pad, and the value to pad it with. A field is a tensor of shape
            ``(N, ...)``, N free and the rest equal over the batch.

    Returns:
        For a padded field a plain tensor ``(B, max N, ...)`` and beside it ``<field>_mask``, bool
        ``(B, max N)``, True on real rows; for any other field the list of its B values.

    Raises:
        TypeError: The targets are no dicts, or a field to pad is no tensor.
        ValueError: Names differ over the batch, a field to pad is missing or does not fit, or a mask's name
            is taken.
    """
    for target in targets:
        if not isinstance(target, Mapping):
            raise TypeError(
                f"pad_fields={dict(pad_fields)} names fields of dict targets, but a target is a "
                f"{type(target).__name__}; leave pad_fields out or give dicts."
            )
        if target.keys() != targets[0].keys():
            raise ValueError(
                f"targets of a batch have different fields: {sorted(targets[0])} and {sorted(target)}; "
                "columns need the same fields in every sample."
            )
    missing = [name for name in pad_fields if name not in targets[0]]
    if missing:
        raise ValueError(f"pad_fields names {missing}, the targets have {sorted(targets[0])}.")
    columns: dict[str, Any] = {}
    for name in targets[0]:
        values = [target[name] for target in targets]
        if name not in pad_fields:
            columns[name] = values
            continue
        mask_name = f"{name}_mask"
        if mask_name in targets[0]:
            raise ValueError(f"the targets have a field {mask_name!r}, which padding {name!r} would replace.")
        columns[name], columns[mask_name] = _pad(name, values, value=pad_fields[name])
    return columns


def _pad(name: str, values: Sequence[Any], *, value: float) -> tuple[Tensor, Tensor]:
    for rows in values:
        if not isinstance(rows, Tensor) or rows.ndim == 0:
            found = "a 0-d tensor" if isinstance(rows, Tensor) else f"a {type(rows).__name__}"
            raise TypeError(
                f"field {name!r} of pad_fields is {found}; the rule is a tensor of shape (N, ...)."
            )
    kinds = {(str(rows.dtype), tuple(rows.shape[1:])) for rows in values}
    if len(kinds) > 1:
        raise ValueError(
            f"field {name!r} of pad_fields differs over the batch in (dtype, shape of a row): "
            f"{sorted(kinds)}; only the number of rows may differ."
        )
    plain = [rows.as_subclass(Tensor) for rows in values]
    longest = max(len(rows) for rows in plain)
    batch = plain[0].new_full((len(plain), longest, *plain[0].shape[1:]), value)
    mask = torch.zeros((len(plain), longest), dtype=torch.bool)
    for target, real, rows in zip(batch, mask, plain, strict=True):
        target[: len(rows)] = rows
        real[: len(rows)] = True
    return batch, mask
