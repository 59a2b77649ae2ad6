"""What VOC files say, as columns, unjudged; and the columns of several chunks as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from lit_loader.annotations.report import ReadReport
from lit_loader.formats.voc_schema import VocSchema

__all__ = ["AttributeRows", "PointRows", "VocColumns", "join_columns"]

KeyT = TypeVar("KeyT")


@dataclass(frozen=True, kw_only=True)
class PointRows:
    """Every point that is written, one row each, in the order of the objects.

    Attributes:
        objects: int64 ``(num_points,)`` the object, counted over all files.
        names: The names that occur.
        name_ids: int64 ``(num_points,)`` positions in ``names``.
        places: float64 ``(num_points, 2)`` x, y as written.
        visibility: uint8 ``(num_points,)`` 1 hidden, 2 visible.
    """

    objects: npt.NDArray[np.int64]
    names: list[str]
    name_ids: npt.NDArray[np.int64]
    places: npt.NDArray[np.float64]
    visibility: npt.NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class AttributeRows:
    """Every value of an attribute that is written, one row each.

    Attributes:
        objects: int64 ``(num_values,)`` the object, counted over all files.
        pairs: The attributes with their values that occur.
        pair_ids: int64 ``(num_values,)`` positions in ``pairs``.
    """

    objects: npt.NDArray[np.int64]
    pairs: list[tuple[str, str]]
    pair_ids: npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class VocColumns:
    """What a number of VOC files say, unjudged.

    Attributes:
        readable: bool ``(num_files,)``: False where the file is malformed and has no objects here.
        filenames: ``<filename>`` of each file, or None.
        sizes: int32 ``(num_files, 2)`` width and height, 0 where absent or not positive.
        counts: int64 ``(num_files,)`` objects of each file.
        schemas: The schemas that occur.
        schema_ids: int64 ``(num_files,)`` positions in ``schemas``, -1 for a file without one.
        names: The names that occur.
        name_ids: int64 ``(num_objects,)`` positions in ``names``.
        corners: float64 ``(num_objects, 4)`` xmin, ymin, xmax, ymax as written; NaN without a box.
        boxed: bool ``(num_objects,)``: False for an object with points and without a box.
        flags: bool ``(num_objects, 4)`` difficult, truncated, occluded, crowd.
        positions: int64 ``(num_objects,)`` position of each object in its file.
        points: The points.
        attributes: The attributes' values.
        report: Malformed files and objects, odd flags, what is not read.
    """

    readable: npt.NDArray[np.bool_]
    filenames: list[str | None]
    sizes: npt.NDArray[np.int32]
    counts: npt.NDArray[np.int64]
    schemas: list[VocSchema]
    schema_ids: npt.NDArray[np.int64]
    names: list[str]
    name_ids: npt.NDArray[np.int64]
    corners: npt.NDArray[np.float64]
    boxed: npt.NDArray[np.bool_]
    flags: npt.NDArray[np.bool_]
    positions: npt.NDArray[np.int64]
    points: PointRows
    attributes: AttributeRows
    report: ReadReport


def join_columns(parts: Sequence[VocColumns]) -> VocColumns:
    """Return the columns of consecutive files as one; there must be at least one part."""
    report = ReadReport()
    for part in parts:
        report.merge(part.report)
    starts = np.cumsum([0, *(len(part.positions) for part in parts[:-1])]).tolist()
    names, name_ids = _united([(part.names, part.name_ids) for part in parts])
    schemas, schema_ids = _united([(part.schemas, part.schema_ids) for part in parts])
    point_names, point_ids = _united([(part.points.names, part.points.name_ids) for part in parts])
    pairs, pair_ids = _united([(part.attributes.pairs, part.attributes.pair_ids) for part in parts])
    return VocColumns(
        readable=np.concatenate([part.readable for part in parts]),
        filenames=[filename for part in parts for filename in part.filenames],
        sizes=np.concatenate([part.sizes for part in parts]),
        counts=np.concatenate([part.counts for part in parts]),
        schemas=schemas,
        schema_ids=schema_ids,
        names=names,
        name_ids=name_ids,
        corners=np.concatenate([part.corners for part in parts]),
        boxed=np.concatenate([part.boxed for part in parts]),
        flags=np.concatenate([part.flags for part in parts]),
        positions=np.concatenate([part.positions for part in parts]),
        points=PointRows(
            objects=np.concatenate(
                [p.points.objects + start for p, start in zip(parts, starts, strict=True)]
            ),
            names=point_names,
            name_ids=point_ids,
            places=np.concatenate([part.points.places for part in parts]),
            visibility=np.concatenate([part.points.visibility for part in parts]),
        ),
        attributes=AttributeRows(
            objects=np.concatenate(
                [p.attributes.objects + start for p, start in zip(parts, starts, strict=True)]
            ),
            pairs=pairs,
            pair_ids=pair_ids,
        ),
        report=report,
    )


def _united(
    parts: Sequence[tuple[list[KeyT], npt.NDArray[np.int64]]],
) -> tuple[list[KeyT], npt.NDArray[np.int64]]:
    """Number the keys of all parts alike; -1 stays."""
    keys: dict[KeyT, int] = {}
    columns = []
    for found, ids in parts:
        lookup = np.array([*(keys.setdefault(key, len(keys)) for key in found), -1], dtype=np.int64)
        columns.append(lookup[ids])
    return list(keys), np.concatenate(columns)
