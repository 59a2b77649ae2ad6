"""Category ids of the training data in a checkpoint, so that predictions on other images have the same ids."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from lightning.pytorch.utilities import rank_zero_only

from lit_loader.annotations import AnnotationTable

__all__ = ["category_ids_of", "read_category_ids", "save_category_ids"]

_KEY: Final = "lit_loader_category_ids"
_MAX_CLASSES: Final = 100_000
_MAX_NAME: Final = 1000  # characters

_warn = rank_zero_only(logging.getLogger(__name__).warning)


def category_ids_of(table: AnnotationTable) -> dict[str, int]:
    """Return the category id of each class of a table by name; empty if its file has none."""
    if table.category_ids is None:
        return {}
    return dict(zip(table.class_names, table.category_ids.tolist(), strict=True))


def save_category_ids(checkpoint: dict[str, Any], category_ids: Mapping[str, int]) -> None:
    """Put category ids by class name into a checkpoint."""
    checkpoint[_KEY] = dict(category_ids)


def read_category_ids(checkpoint: Mapping[str, Any]) -> dict[str, int]:
    """Return the category ids by class name in an untrusted checkpoint.

    Returns:
        Distinct ids of at least 0. Empty if the checkpoint has no record, or, with a warning, if the record is damaged.
    """
    record = checkpoint.get(_KEY, {})
    if not _is_valid(record):
        _warn("the checkpoint's record of category ids is damaged; predictions count categories from 1")
        return {}
    return dict(record)


def _is_valid(record: Any) -> bool:
    # Exact types, because a subclass could define what its methods do, and bool is a subclass of int.
    if type(record) is not dict or len(record) > _MAX_CLASSES:
        return False
    if not all(type(name) is str and len(name) <= _MAX_NAME for name in record):
        return False
    ids = list(record.values())
    return all(type(value) is int and 0 <= value < 2**53 for value in ids) and len(set(ids)) == len(ids)
