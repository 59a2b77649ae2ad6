"""The points and attributes of VOC objects as the table's columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from lit_loader.annotations.table import Attribute
from lit_loader.formats.voc_columns import AttributeRows, PointRows

__all__ = ["PointTable", "attribute_columns"]

_SHOWN: Final = 3
_Mask: TypeAlias = npt.NDArray[np.bool_]


class PointTable:
    """The points of all objects, one row each, while they are judged.

    Args:
        rows: What the files say.
        names: The points of the table, in the order of its columns.
        num_objects: Number of objects.
        shift: Subtracted from every coordinate.
    """

    def __init__(self, rows: PointRows, names: Sequence[str], *, num_objects: int, shift: float) -> None:
        places = {name: place for place, name in enumerate(names)}
        lookup = np.array([places.get(name, -1) for name in rows.names], dtype=np.int64)
        self.num_objects, self.num_names = num_objects, len(names)
        self._names = rows.names
        self._rows = rows
        self._column = lookup[rows.name_ids] if rows.names else np.zeros(0, dtype=np.int64)
        with np.errstate(over="ignore", invalid="ignore"):
            self._xy = (rows.places - shift).astype(np.float32)
        self._there: _Mask = np.ones(len(rows.objects), dtype=np.bool_)

    def unknown(self) -> _Mask:
        """Return which points are none of the table's."""
        return self._column < 0

    def not_finite(self) -> _Mask:
        """Return which points are NaN or beyond float32."""
        wrong: _Mask = ~np.isfinite(self._xy).all(axis=1) & self._there
        return wrong

    def outside(self, sizes: npt.NDArray[np.int32]) -> _Mask:
        """Return which points lie beyond the image, given the size of each object's, 0 = unknown."""
        size = sizes[self._rows.objects]
        known = (size > 0).all(axis=1)
        wrong: _Mask = ((self._xy < 0) | (self._xy > size)).any(axis=1) & known & self._there
        return wrong

    def make_absent(self, points: _Mask) -> None:
        """Take points away."""
        self._there &= ~points

    def objects_with(self, points: _Mask) -> _Mask:
        """Return which objects have one of the points, bool ``(num_objects,)``."""
        return np.bincount(self._rows.objects[points], minlength=self.num_objects) > 0

    def words(self, row: int, points: _Mask) -> str:
        """Return the names and places of an object's points, for a message."""
        first, last = np.searchsorted(self._rows.objects, [row, row + 1]).tolist()
        found = first + np.flatnonzero(points[first:last])
        shown = ", ".join(
            f"{self._names[self._rows.name_ids[i]]!r} {self._rows.places[i].tolist()}" for i in found[:_SHOWN]
        )
        return f"{len(found)} points ({shown}{', ...' if len(found) > _SHOWN else ''})"

    def boxes(self, objects: _Mask, boxes: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the boxes with the tight ones of their points for ``objects``; zeros without a point."""
        there = np.flatnonzero(self._there & objects[self._rows.objects])
        low = np.full((self.num_objects, 2), np.inf)
        high = np.full((self.num_objects, 2), -np.inf)
        np.minimum.at(low, self._rows.objects[there], self._xy[there])
        np.maximum.at(high, self._rows.objects[there], self._xy[there])
        tight = np.hstack([low, high])
        return np.where(objects[:, None], np.where(np.isfinite(tight), tight, 0.0), boxes)

    def columns(self, kept: _Mask) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]]:
        """Return keypoints ``(num_kept, K, 2)`` and visibility ``(num_kept, K)`` of the objects kept."""
        place = np.cumsum(kept) - 1
        there = np.flatnonzero(self._there & kept[self._rows.objects])
        rows, columns = place[self._rows.objects[there]], self._column[there]
        keypoints = np.zeros((int(kept.sum()), self.num_names, 2), dtype=np.float32)
        visibility = np.zeros(keypoints.shape[:2], dtype=np.uint8)
        keypoints[rows, columns] = self._xy[there]
        visibility[rows, columns] = self._rows.visibility[there]
        return keypoints, visibility


def attribute_columns(
    rows: AttributeRows, listed: Sequence[tuple[str, tuple[str, ...]]], *, kept: _Mask
) -> dict[str, Attribute]:
    """Return the attributes of the objects kept.

    Args:
        rows: What the files say.
        listed: Names and values of all attributes, in order; every value of ``rows`` is among them.
        kept: bool ``(num_objects,)``.
    """
    place = np.cumsum(kept) - 1
    there = np.flatnonzero(kept[rows.objects])
    ids = {name: {value: i for i, value in enumerate(values)} for name, values in listed}
    numbers = {name: i for i, (name, _) in enumerate(listed)}
    pair_attribute = np.array([numbers[name] for name, _ in rows.pairs], dtype=np.int64)
    pair_value = np.array([ids[name][value] for name, value in rows.pairs], dtype=np.int64)
    found = np.full((len(listed), int(kept.sum())), -1, dtype=np.int64)
    if rows.pairs:
        pairs = rows.pair_ids[there]
        found[pair_attribute[pairs], place[rows.objects[there]]] = pair_value[pairs]
    return {name: Attribute(ids=found[i], names=values) for i, (name, values) in enumerate(listed)}
