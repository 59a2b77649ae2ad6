"""Several tables as one: images one after the other, names of classes and attributes united."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lit_loader.annotations.keypoints import KeypointSchema
from lit_loader.annotations.report import ReadReport
from lit_loader.annotations.table import AnnotationTable, Attribute
from lit_loader.annotations.text_column import TextColumn
from lit_loader.types import IndexArray

__all__ = ["concatenate"]

_FLAGS = ("difficult", "truncated", "occluded", "crowd")


def concatenate(tables: Sequence[AnnotationTable], *, split: str | None = None) -> AnnotationTable:
    """Return the images of all tables in one, in the order of the tables.

    Nothing is merged: an image that two tables hold stands there twice. Objects of a table without
    keypoints get absent ones when another table has some, and -1 for attributes that theirs lacks.

    Args:
        tables: At least one; all of the same root, and of the same keypoint schema where they have keypoints.
        split: Name of the result's split; default: the one that all tables have, else None.

    Returns:
        The table; classes, attributes and their values in the order of their first occurrence, the
        reports added up.

    Raises:
        ValueError: If there are no tables, or their roots or keypoint schemas differ.
    """
    if not tables:
        raise ValueError("tables is empty; give at least one")
    first = tables[0]
    for table in tables[1:]:
        if table.root != first.root:
            raise ValueError(
                f"roots {first.root} and {table.root} differ; read both sets under one folder that holds them"
            )
    schema = _common_schema(tables)
    splits = {table.split for table in tables}
    if split is None and len(splits) == 1:
        split = first.split
    if len(tables) == 1 and split == first.split:
        return first
    class_names = _united(table.class_names for table in tables)
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(table, name) for table in tables])
        for name in ("widths", "heights", "boxes", *_FLAGS)
    }
    if schema is not None:
        columns |= _keypoints(tables, schema)
    return AnnotationTable(
        root=first.root,
        image_paths=TextColumn.joined([table.image_paths for table in tables]),
        image_ids=TextColumn.joined([table.image_ids for table in tables]),
        class_names=class_names,
        offsets=np.concatenate([[0], *(np.diff(table.offsets) for table in tables)]).cumsum(),
        labels=np.concatenate(
            [_renumbered(table.labels, table.class_names, class_names) for table in tables]
        ),
        attributes={name: _attribute(name, tables) for name in _united(table.attributes for table in tables)},
        split=split,
        report=_report(tables),
        **columns,
    )


def _common_schema(tables: Sequence[AnnotationTable]) -> KeypointSchema | None:
    schemas = [schema for table in tables if (schema := table.keypoint_schema) is not None]
    for schema in schemas[1:]:
        if schema != schemas[0]:
            raise ValueError(f"keypoints of {schemas[0]} and of {schema} differ; read both with one schema")
    return schemas[0] if schemas else None


def _united(names: Iterable[Iterable[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for each in names for name in each))


def _renumbered(ids: IndexArray, names: Sequence[str], united: Sequence[str]) -> IndexArray:
    """Return ids by ``names`` as ids by ``united``; -1 stays."""
    places = {name: place for place, name in enumerate(united)}
    lookup = np.array([*(places[name] for name in names), -1], dtype=np.int64)
    return lookup[ids]


def _attribute(name: str, tables: Sequence[AnnotationTable]) -> Attribute:
    names = _united(table.attributes[name].names for table in tables if name in table.attributes)
    ids = []
    for table in tables:
        attribute = table.attributes.get(name)
        if attribute is None:
            ids.append(np.full(table.num_objects, -1, dtype=np.int64))
        else:
            ids.append(_renumbered(attribute.ids, attribute.names, names))
    return Attribute(ids=np.concatenate(ids), names=names)


def _keypoints(tables: Sequence[AnnotationTable], schema: KeypointSchema) -> dict[str, Any]:
    points: list[npt.NDArray[np.float32]] = []
    visibility: list[npt.NDArray[np.uint8]] = []
    for table in tables:
        shape = (table.num_objects, len(schema.names))
        absent = (np.zeros((*shape, 2), np.float32), np.zeros(shape, np.uint8))
        points.append(absent[0] if table.keypoints is None else table.keypoints)
        visibility.append(absent[1] if table.visibility is None else table.visibility)
    return {
        "keypoints": np.concatenate(points),
        "visibility": np.concatenate(visibility),
        "keypoint_names": schema.names,
        "flip_pairs": schema.flip_pairs,
        "interocular": schema.interocular,
    }


def _report(tables: Sequence[AnnotationTable]) -> ReadReport:
    report = ReadReport(max_details=max(table.report.max_details for table in tables))
    for table in tables:
        report.merge(table.report)
    return report
