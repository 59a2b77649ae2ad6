"""Tables made of another one's rows: which columns are taken along, and how such a table is pickled."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from lit_loader.annotations.table_file import PER_OBJECT, Attribute, TableParts
from lit_loader.annotations.text_column import gather_ragged
from lit_loader.types import IndexArray

__all__ = ["Lineage", "checked_rows", "parts_of_images", "parts_of_objects"]

# NOTE [a derived table is rows of a file]
# Images may be selected, objects be made samples of their own and classes renumbered in any order and number
# of times. What results is always one of two things: images of the table in the cache file with all of their
# objects, or single objects of it, under some class names. So a derived table is pickled as file, key, row
# numbers, which of the two it is, and class names; other work on rows must keep to that or drop the lineage.


@dataclass(frozen=True, kw_only=True, eq=False)
class Lineage:
    """Which rows of which cache file a table holds; see NOTE [a derived table is rows of a file].

    Attributes:
        path: The cache file.
        key: The key that it was written under.
        offsets: int64, ``offsets`` of the table in the file.
        rows: int64, images of the file's table, or objects of it when ``by_object``; None = all of them.
        by_object: Whether each image of the table holds exactly one object.
    """

    path: str
    key: str
    offsets: IndexArray
    rows: IndexArray | None = None
    by_object: bool = False

    def of_images(self, rows: IndexArray) -> Lineage:
        """Return the lineage of these images of the table."""
        return replace(self, rows=rows if self.rows is None else self.rows[rows])

    def of_objects(self, rows: IndexArray | None) -> Lineage:
        """Return the lineage of these objects of the table, all of them by default."""
        in_file = self.rows
        if in_file is not None and not self.by_object:
            in_file, _ = gather_ragged(self.offsets, in_file)
        if rows is not None:
            in_file = rows if in_file is None else in_file[rows]
        return replace(self, rows=in_file, by_object=True)


def checked_rows(given: npt.ArrayLike, *, limit: int, what: str) -> IndexArray:
    """Return row numbers as int64.

    Args:
        given: Integers ``(n,)`` in ``[0, limit)``.
        limit: Rows of the table.
        what: What a row is, for messages.

    Raises:
        TypeError: If they are not a vector of integers.
        IndexError: If one is outside the table.
    """
    rows = np.asarray(given)
    if rows.size and rows.dtype.kind not in "iu":
        raise TypeError(f"indices are {rows.dtype}, not integers; for a mask pass numpy.flatnonzero(mask)")
    if rows.ndim != 1:
        raise TypeError(f"indices of shape {rows.shape} must be a vector")
    if rows.size and (rows.min() < 0 or rows.max() >= limit):
        raise IndexError(f"indices {rows.min()}..{rows.max()} leave the table of {limit} {what}")
    return rows.astype(np.int64)


def parts_of_images(parts: TableParts, rows: IndexArray) -> TableParts:
    """Return the parts of a table of the given images, with all of their objects."""
    positions, offsets = gather_ragged(parts["offsets"], rows)
    return _taken(parts, images=rows, objects=positions) | {"offsets": offsets}


def parts_of_objects(parts: TableParts, rows: IndexArray) -> TableParts:
    """Return the parts of a table that holds one image for each of the given objects."""
    images = np.searchsorted(parts["offsets"], rows, side="right") - 1
    return _taken(parts, images=images, objects=rows) | {"offsets": np.arange(len(rows) + 1)}


def _taken(parts: TableParts, *, images: IndexArray, objects: IndexArray) -> TableParts:
    taken = dict(parts)
    for name in ("image_paths", "image_ids"):
        taken[name] = parts[name].take(images)
    for name in ("widths", "heights"):
        taken[name] = _frozen(parts[name][images])
    for name in PER_OBJECT:
        taken[name] = None if parts[name] is None else _frozen(parts[name][objects])
    taken["attributes"] = {
        name: Attribute(ids=_frozen(attribute.ids[objects]), names=attribute.names)
        for name, attribute in parts["attributes"].items()
    }
    return taken


def _frozen(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    column.flags.writeable = False  # nobody else has it, so the table need not copy it
    return column
