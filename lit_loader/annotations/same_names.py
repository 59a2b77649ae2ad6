"""Tables of several splits brought to the same classes and attributes, so that an id means one thing in all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from lit_loader.annotations.concatenate import concatenate
from lit_loader.annotations.table import AnnotationTable, Attribute

__all__ = ["with_same_names"]


def with_same_names(tables: Sequence[AnnotationTable]) -> list[AnnotationTable]:
    """Return tables that number classes and attribute values alike, and have the same points.

    Where tables disagree, the names are those of the table that has them all, else all of them, sorted. A
    table that has its attributes and points right stays a view of its cache file.

    Args:
        tables: Of the same root.

    Raises:
        ValueError: If two tables have points of different schemas.
    """
    names = _merged(table.class_names for table in tables)
    named = [table.with_class_names(names) for table in tables]
    attributes = {
        name: _merged(table.attributes[name].names for table in named if name in table.attributes)
        for name in dict.fromkeys(name for table in named for name in table.attributes)
    }
    schema = next((table.keypoint_schema for table in named if table.keypoints is not None), None)
    same = []
    for table in named:
        values = {name: attribute.names for name, attribute in table.attributes.items()}
        if list(values.items()) == list(attributes.items()) and table.keypoint_schema == schema:
            same.append(table)
            continue
        points: dict[str, Any] = {}
        if schema is not None:
            points = {
                "keypoints": np.zeros((0, len(schema.names), 2)),
                "visibility": np.zeros((0, len(schema.names))),
                "keypoint_names": schema.names,
                "flip_pairs": schema.flip_pairs,
                "interocular": schema.interocular,
            }
        frame = AnnotationTable(
            root=table.root,
            image_paths=[],
            class_names=names,
            offsets=[0],
            boxes=[],
            labels=[],
            attributes={
                name: Attribute(ids=np.empty(0, np.int64), names=v) for name, v in attributes.items()
            },
            **points,
        )
        same.append(concatenate([frame, table], split=table.split))
    return same


def _merged(listings: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the names of the listing that has all of them, else all names, sorted."""
    given = list(listings)
    every = {name for names in given for name in names}
    return next((names for names in given if len(names) == len(every)), tuple(sorted(every)))
