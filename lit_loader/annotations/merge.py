"""Tables of several files or splits: brought to the same classes, attributes and points, or put end to end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lit_loader.annotations.columns import joined_offsets
from lit_loader.annotations.keypoints import KeypointSchema
from lit_loader.annotations.problems import ReadReport
from lit_loader.annotations.table import COLUMNS, AnnotationTable, Attribute
from lit_loader.types import IndexArray

__all__ = ["concatenate", "with_same_names"]


def concatenate(tables: Sequence[AnnotationTable], *, split: str | None = None) -> AnnotationTable:
    """Return the images of all tables in one, in the order of the tables.

    Nothing is merged: an image that two tables hold is there twice. Where another table has them, objects of a
    table without keypoints or masks get absent ones, and -1 or NaN is filled in for attributes, ids and areas that
    theirs lacks.

    Args:
        tables: At least one; all of the same root, and of the same keypoint schema where they have keypoints.
        split: Name of the result's split; default: the one that all tables have, else None.

    Returns:
        The table; classes, attributes and their values in the order of their first occurrence, the
        reports added up. It has ``category_ids`` if each class has one and the tables agree on it.

    Raises:
        ValueError: If there are no tables, or their roots or keypoint schemas differ.
    """
    if not tables:
        raise ValueError("tables is empty; give at least one")
    first = tables[0]
    for table in tables[1:]:
        if table.root != first.root:
            roots = f"{first.root} and {table.root}"
            raise ValueError(f"roots {roots} differ; read both sets under one folder that holds them")
    if split is None and len({table.split for table in tables}) == 1:
        split = first.split
    if len(tables) == 1 and split == first.split:
        return first
    attributes = _attribute_values(tables, _union)
    schema = _common_schema(tables)
    same = _with_names(tables, _union(table.class_names for table in tables), attributes, schema)
    columns = {
        name: spec.join(
            [getattr(table, name) for table in same],
            [table.num_images if spec.rows == "images" else table.num_objects for table in same],
            num_points=len(schema.names) if schema else 0,
        )
        for name, spec in COLUMNS.items()
        if spec.rows != "classes"
    }
    report = ReadReport(max_details=max(table.report.max_details for table in tables))
    for table in tables:
        report.merge(table.report)
    return replace(
        same[0],
        offsets=joined_offsets(table.offsets for table in same),
        attributes={
            name: Attribute(ids=np.concatenate([table.attributes[name].ids for table in same]), names=names)
            for name, names in attributes.items()
        },
        category_ids=_category_ids(tables, same[0].class_names),
        split=split,
        report=report,
        **columns,
    )


def with_same_names(tables: Sequence[AnnotationTable]) -> list[AnnotationTable]:
    """Return tables that number classes and attribute values alike, and have the same points.

    Where tables disagree, the names are those of the table that has them all, else all of them, sorted. A
    table that has its attributes and points right stays a view of its cache file. Classes that a table lacks get the
    ``category_ids`` that another one gives them, if each class has one and the tables agree.

    Args:
        tables: Of the same root.

    Raises:
        ValueError: If two tables have points of different schemas.
    """
    attributes = _attribute_values(tables, _widest)
    class_names = _widest(table.class_names for table in tables)
    return _with_names(tables, class_names, attributes, _common_schema(tables))


def _with_names(
    tables: Sequence[AnnotationTable],
    class_names: tuple[str, ...],
    attributes: Mapping[str, tuple[str, ...]],
    schema: KeypointSchema | None,
) -> list[AnnotationTable]:
    """Return the tables with these classes, attributes and points; one that has them already stays what it is."""
    category_ids = _category_ids(tables, class_names)
    same = []
    for given in tables:
        table = given.with_class_names(class_names, category_ids=category_ids)
        values = [(name, attribute.names) for name, attribute in table.attributes.items()]
        if values != list(attributes.items()) or table.keypoint_schema != schema:
            points: dict[str, Any] = {}
            if schema is not None and table.keypoints is None:
                shape = (table.num_objects, len(schema.names))
                points = {
                    "keypoints": np.zeros((*shape, 2), np.float32),
                    "visibility": np.zeros(shape, np.uint8),
                }
                points |= schema.columns()
            named = {name: _attribute(table, name, values) for name, values in attributes.items()}
            table = replace(table, attributes=named, **points)
        same.append(table)
    return same


def _attribute_values(
    tables: Sequence[AnnotationTable], join: Callable[[Iterable[tuple[str, ...]]], tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    names = _union(table.attributes for table in tables)
    return {n: join(table.attributes[n].names for table in tables if n in table.attributes) for n in names}


def _attribute(table: AnnotationTable, name: str, names: tuple[str, ...]) -> Attribute:
    given = table.attributes.get(name)
    if given is None:
        return Attribute(ids=np.full(table.num_objects, -1, dtype=np.int64), names=names)
    places = {value: place for place, value in enumerate(names)}
    lookup = np.array([*(places[value] for value in given.names), -1], dtype=np.int64)  # -1 is the last one
    return Attribute(ids=lookup[given.ids], names=names)


def _category_ids(tables: Sequence[AnnotationTable], class_names: tuple[str, ...]) -> IndexArray | None:
    pairs = {
        pair
        for table in tables
        if table.category_ids is not None
        for pair in zip(table.class_names, table.category_ids.tolist(), strict=True)
    }
    known = dict(pairs)
    if not len(pairs) == len(known) == len(set(known.values())) == len(class_names):
        return None
    return np.array([known[name] for name in class_names], dtype=np.int64)


def _common_schema(tables: Sequence[AnnotationTable]) -> KeypointSchema | None:
    schemas = [schema for table in tables if (schema := table.keypoint_schema) is not None]
    for schema in schemas[1:]:
        if schema != schemas[0]:
            raise ValueError(f"keypoints of {schemas[0]} and of {schema} differ; read both with one schema")
    return schemas[0] if schemas else None


def _union(names: Iterable[Iterable[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for each in names for name in each))


def _widest(listings: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the names of the listing that has all of them, else all names, sorted."""
    given = list(listings)
    every = {name for names in given for name in names}
    return next((names for names in given if len(names) == len(every)), tuple(sorted(every)))
