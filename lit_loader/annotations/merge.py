"""Concatenate tables of several files or splits, or give them the same classes, attributes and points."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lit_loader.annotations.columns import offsets_of
from lit_loader.annotations.keypoints import KeypointSchema, common_schema
from lit_loader.annotations.problems import ReadReport
from lit_loader.annotations.table import COLUMNS, AnnotationTable, Attribute
from lit_loader.types import IndexArray

__all__ = ["concatenate", "with_same_names"]


def concatenate(tables: Sequence[AnnotationTable], *, split: str | None = None) -> AnnotationTable:
    """Return one table with the images of all tables, in the order of the tables.

    An image in two tables appears twice. If only some tables have keypoints, masks, attributes, ids or areas, the
    objects of the others get absent keypoints and masks, and -1 or NaN for the rest.

    Args:
        tables: At least one table; all with the same root, and the same keypoint schema if they have keypoints.
        split: Split of the result; default: the common split of all tables, else None.

    Returns:
        The table, with classes, attributes and their values in the order of first occurrence, and the merged reports.
        It has ``category_ids`` if every class has one and the tables agree.

    Raises:
        ValueError: If ``tables`` is empty, or their roots, keypoint schemas or unlabelled classes differ.
    """
    if not tables:
        raise ValueError("tables is empty; pass at least one")
    first = tables[0]
    for table in tables[1:]:
        if table.root != first.root:
            raise ValueError(
                f"roots {first.root} and {table.root} differ; read both sets with a common parent folder as root"
            )
    unlabelled_classes = _common_unlabelled_classes(tables)
    if split is None and len({table.split for table in tables}) == 1:
        split = first.split
    # A single table stays a view of its cache file.
    if len(tables) == 1 and split == first.split:
        return first
    # All tables get the same columns first, so that joining is plain concatenation.
    attributes = _attribute_values(tables, _union)
    schema = common_schema(table.keypoint_schema for table in tables)
    aligned = _with_names(tables, _union(table.class_names for table in tables), attributes, schema)
    columns = {
        name: spec.join(
            [getattr(table, name) for table in aligned],
            [table.num_images if spec.rows == "images" else table.num_objects for table in aligned],
            num_points=len(schema.names) if schema else 0,
        )
        for name, spec in COLUMNS.items()
        if spec.rows != "classes"
    }
    # A new report, because merging changes it and tables are immutable.
    report = ReadReport(max_details=max(table.report.max_details for table in tables))
    for table in tables:
        report.merge(table.report)
    return replace(
        aligned[0],
        offsets=offsets_of(*(np.diff(table.offsets) for table in aligned)),
        attributes={
            name: Attribute(ids=np.concatenate([table.attributes[name].ids for table in aligned]), names=names)
            for name, names in attributes.items()
        },
        category_ids=_category_ids(tables, aligned[0].class_names),
        unlabelled_classes=unlabelled_classes,
        split=split,
        report=report,
        **columns,
    )


def with_same_names(tables: Sequence[AnnotationTable]) -> list[AnnotationTable]:
    """Return the tables with common numbers of classes and attribute values, and with the same points.

    If tables disagree, the names of a table that has all of them are used, else all names, sorted. A table whose
    attributes and points need no change stays a view of its cache file. The tables have ``category_ids`` if every
    class has one in some table and the tables agree.

    Args:
        tables: Tables of the same root.

    Raises:
        ValueError: If two tables have different keypoint schemas.
    """
    attributes = _attribute_values(tables, _widest)
    class_names = _widest(table.class_names for table in tables)
    return _with_names(tables, class_names, attributes, common_schema(table.keypoint_schema for table in tables))


def _with_names(
    tables: Sequence[AnnotationTable],
    class_names: tuple[str, ...],
    attributes: Mapping[str, tuple[str, ...]],
    schema: KeypointSchema | None,
) -> list[AnnotationTable]:
    """Return the tables with some classes, attributes and points; a table that has them already is unchanged."""
    category_ids = _category_ids(tables, class_names)
    aligned = []
    for original in tables:
        table = original.with_class_names(class_names, category_ids=category_ids)
        values = [(name, attribute.names) for name, attribute in table.attributes.items()]
        # Any other change than renaming classes drops the table's link to its cache file, so it is made only if needed.
        if values != list(attributes.items()) or table.keypoint_schema != schema:
            points: dict[str, Any] = {} if schema is None else schema.columns()
            if schema is not None and table.keypoints is None:
                shape = (table.num_objects, len(schema.names))
                points["keypoints"] = np.zeros((*shape, 2), np.float32)
                points["visibility"] = np.zeros(shape, np.uint8)
            columns = {name: _attribute(table, name, names) for name, names in attributes.items()}
            table = replace(table, attributes=columns, **points)
        aligned.append(table)
    return aligned


def _attribute_values(
    tables: Sequence[AnnotationTable], join: Callable[[Iterable[tuple[str, ...]]], tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    # Order of first occurrence, which `_with_names` compares with the order in each table.
    names = _union(table.attributes for table in tables)
    return {n: join(table.attributes[n].names for table in tables if n in table.attributes) for n in names}


def _attribute(table: AnnotationTable, name: str, names: tuple[str, ...]) -> Attribute:
    """Return an attribute of a table with its values numbered as in ``names``, all -1 if the table lacks it."""
    attribute = table.attributes.get(name)
    if attribute is None:
        return Attribute(ids=np.full(table.num_objects, -1, dtype=np.int64), names=names)
    new_ids = {value: value_id for value_id, value in enumerate(names)}
    # Id -1, no value, selects the last entry.
    lookup = np.array([*(new_ids[value] for value in attribute.names), -1], dtype=np.int64)
    return Attribute(ids=lookup[attribute.ids], names=names)


def _category_ids(tables: Sequence[AnnotationTable], class_names: tuple[str, ...]) -> IndexArray | None:
    pairs = {
        pair
        for table in tables
        if table.category_ids is not None
        for pair in zip(table.class_names, table.category_ids.tolist(), strict=True)
    }
    id_by_name = dict(pairs)
    # Fewer names than pairs: tables disagree. Fewer ids than names: two classes share one. Else a class may lack one.
    if not len(pairs) == len(id_by_name) == len(set(id_by_name.values())) == len(class_names):
        return None
    return np.array([id_by_name[name] for name in class_names], dtype=np.int64)


def _common_unlabelled_classes(tables: Sequence[AnnotationTable]) -> tuple[str, ...]:
    """Return the classes that the tables do not label; a table without images counts only if no other has any."""
    by_set = {frozenset(table.unlabelled_classes): table.unlabelled_classes for table in tables if table.num_images}
    # Images without objects of a class mean different things where it is labelled and where it is not.
    if len(by_set) > 1:
        lists = sorted(by_set.values())
        raise ValueError(f"unlabelled_classes {lists} differ; keep the tables apart, as a MixedSource does")
    return next(iter(by_set.values()), tables[0].unlabelled_classes)


def _union(listings: Iterable[Iterable[str]]) -> tuple[str, ...]:
    """Return all names, in the order of first occurrence."""
    return tuple(dict.fromkeys(name for names in listings for name in names))


def _widest(listings: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the first listing that has all names, else all names, sorted."""
    listings = list(listings)
    all_names = {name for names in listings for name in names}
    return next((names for names in listings if len(names) == len(all_names)), tuple(sorted(all_names)))
