"""The mark of duplicates: samples that only fill up the last batches, so that all ranks have equally many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["duplicate_column", "duplicate_marks"]


def duplicate_marks(targets: Sequence[Any]) -> list[Any]:
    """Return the field ``is_duplicate`` of every target.

    Raises:
        TypeError: A target is no mapping.
        ValueError: A target has no such field.
    """
    for target in targets:
        if not isinstance(target, Mapping):
            raise TypeError(f"a target is a {type(target).__name__}; the rule is a dict of fields.")
        if "is_duplicate" not in target:
            raise ValueError(
                f"a target has no field 'is_duplicate', only {sorted(target)}; let the data set's __getitem__ add "
                '"is_duplicate": lit_loader.is_duplicate(), and keep it in the transforms.'
            )
    return [target["is_duplicate"] for target in targets]


def duplicate_column(marks: Sequence[Any]) -> Tensor:
    """Return marks as one tensor, bool ``(B,)``.

    Raises:
        TypeError: A mark is no bool.
    """
    for mark in marks:
        if not isinstance(mark, bool):
            raise TypeError(
                f"is_duplicate={mark!r} is a {type(mark).__name__}; the rule is the bool of lit_loader.is_duplicate()."
            )
    return torch.tensor(marks, dtype=torch.bool)
