"""Batches with other fields."""

from __future__ import annotations

from typing import TypeVar

Batch = TypeVar("Batch")


def with_fields(batch: Batch, **fields: object) -> Batch:
    """Return a batch, a named tuple, with other values in some fields."""
    return batch._replace(**fields)  # type: ignore[attr-defined, no-any-return] # every batch is a named tuple
