"""Images and objects as a reader found them: flat typed columns, so that a row costs bytes, not objects."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

import numpy as np

from lit_loader.formats.text_file import MAX_NAME_CHARS

__all__ = [
    "BoxKind",
    "CollectedAttribute",
    "CollectedAttributes",
    "CollectedImages",
    "CollectedObjects",
    "MAX_ATTRIBUTES",
    "MAX_NAMES",
    "MAX_POINTS",
    "MAX_ROWS",
    "TooManyError",
    "wrong_name",
]

# NOTE [why rows are bounded]
# A reader bounds the bytes of its file, but a row of four bytes costs some hundred as an object of a table. So
# rows, names and points are bounded too; ImageNet's 1,281,167 images fit.
MAX_ROWS: Final = 1_300_000
MAX_NAMES: Final = 100_000
MAX_ATTRIBUTES: Final = 256
MAX_POINTS: Final = 2**25
_MAX_VALUES: Final = 2**25


class TooManyError(Exception):
    """There is more of something than a table may hold; the message says of what."""

    def __init__(self, what: str, limit: int) -> None:
        super().__init__(f"there are more than {limit} {what}; check the columns, or split the data set")


class BoxKind(IntEnum):
    """Where an object's box comes from."""

    GIVEN = 0
    AROUND_POINTS = 1
    WHOLE = 2


def _column(kind: str) -> array[int]:
    return array(kind)


def _floats(kind: str) -> array[float]:
    return array(kind)


@dataclass
class CollectedImages:
    """One row an image.

    Attributes:
        paths: Relative to the root.
        ids: What the annotations call them.
        widths: Pixels, 0 = unknown.
        heights: Pixels, 0 = unknown.
        keep: 0 where the policy drops the image.
        exists: Whether there is a file.
        files: Number of the annotation file.
        lines: Line in it, 0 = unknown.
    """

    paths: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    widths: array[int] = field(default_factory=lambda: _column("i"))
    heights: array[int] = field(default_factory=lambda: _column("i"))
    keep: bytearray = field(default_factory=bytearray)
    exists: bytearray = field(default_factory=bytearray)
    files: array[int] = field(default_factory=lambda: _column("i"))
    lines: array[int] = field(default_factory=lambda: _column("i"))

    def add(
        self, path: str, *, image_id: str, size: tuple[int, int], exists: bool, place: tuple[int, int]
    ) -> None:
        """Add an image; ``place`` is the number of its annotation file and a line."""
        if len(self.paths) >= MAX_ROWS:
            raise TooManyError("images", MAX_ROWS)
        self.paths.append(path)
        self.ids.append(image_id)
        self.widths.append(size[0])
        self.heights.append(size[1])
        self.keep.append(True)
        self.exists.append(exists)
        self.files.append(place[0])
        self.lines.append(place[1])


@dataclass
class CollectedObjects:
    """One row an object.

    Attributes:
        images: Number of the image.
        labels: Number of the class name, in order of occurrence.
        boxes: Four numbers each, as written.
        kinds: ``BoxKind``.
        flags: Bits: difficult, truncated, occluded, crowd.
        points: 2 K float32 each, if there is a schema.
        visibility: K each, if there is a schema.
        files: Number of the annotation file.
        lines: Line in it, 0 = unknown.
        indices: Position in it, -1 = unknown.
    """

    images: array[int] = field(default_factory=lambda: _column("i"))
    labels: array[int] = field(default_factory=lambda: _column("i"))
    boxes: array[float] = field(default_factory=lambda: _floats("d"))
    kinds: bytearray = field(default_factory=bytearray)
    flags: bytearray = field(default_factory=bytearray)
    points: array[float] = field(default_factory=lambda: _floats("f"))
    visibility: bytearray = field(default_factory=bytearray)
    files: array[int] = field(default_factory=lambda: _column("i"))
    lines: array[int] = field(default_factory=lambda: _column("i"))
    indices: array[int] = field(default_factory=lambda: _column("i"))

    def add(
        self,
        *,
        image: int,
        label: int,
        box: Sequence[float],
        kind: BoxKind,
        flags: int,
        place: tuple[int, int, int],
    ) -> None:
        """Add an object; ``place`` is the number of its annotation file, a line, and a position."""
        if len(self.images) >= MAX_ROWS:
            raise TooManyError("objects", MAX_ROWS)
        if label >= MAX_NAMES:
            raise TooManyError("class names", MAX_NAMES)
        corners = _numbers(box)
        if len(corners) != 4:
            raise ValueError(f"a box has 4 numbers; got {len(corners)}")
        self.images.append(image)
        self.labels.append(label)
        self.boxes.extend(corners)
        self.kinds.append(kind)
        self.flags.append(flags)
        self.files.append(place[0])
        self.lines.append(place[1])
        self.indices.append(place[2])

    def add_points(self, count: int, points: Any, visibility: Any) -> None:
        """Add the points of the object that is added next.

        Args:
            count: Points of an object.
            points: ``(count, 2)``, or None for absent ones.
            visibility: ``(count,)``, or None for visible ones.

        Raises:
            ValueError: If points or visibility are of another shape.
            TooManyError: Beyond ``MAX_POINTS``.
        """
        if len(self.visibility) + count > MAX_POINTS:
            raise TooManyError("points", MAX_POINTS)
        if points is None:
            self.points.frombytes(bytes(8 * count))
            self.visibility.extend(bytes(count))
            return
        try:
            exact = np.asarray(points, dtype=np.float64)
        except OverflowError:  # integers of hundreds of digits
            exact = np.array([_numbers(point) for point in points], dtype=np.float64)
        with np.errstate(over="ignore"):
            coordinates = exact.astype(np.float32)
        seen = np.full(count, 2, dtype=np.uint8) if visibility is None else np.asarray(visibility)
        if coordinates.shape != (count, 2) or seen.shape != (count,):
            raise ValueError(
                f"points {coordinates.shape} and visibility {seen.shape} must be those of {count} points"
            )
        self.points.frombytes(coordinates.tobytes())
        self.visibility.extend(seen.astype(np.uint8).tobytes())


@dataclass
class CollectedAttribute:
    """The objects that have a value of an attribute.

    Attributes:
        names: Values and their numbers, in order of occurrence.
        rows: Numbers of objects.
        ids: Numbers of values.
    """

    names: dict[str, int] = field(default_factory=dict)
    rows: array[int] = field(default_factory=lambda: _column("i"))
    ids: array[int] = field(default_factory=lambda: _column("i"))


@dataclass
class CollectedAttributes:
    """Every attribute by its name, in order of occurrence."""

    columns: dict[str, CollectedAttribute] = field(default_factory=dict)
    _num_names: int = 0

    def declare(self, name: str, values: Sequence[str]) -> None:
        """Say which values an attribute can have."""
        self.columns[name] = CollectedAttribute({value: place for place, value in enumerate(values)})

    def add(self, row: int, name: str, value: str) -> None:
        """Give an object a value; raises TooManyError beyond ``MAX_ATTRIBUTES`` or ``MAX_NAMES`` values."""
        column = self.columns.get(name)
        if column is None:
            if len(self.columns) >= MAX_ATTRIBUTES:
                raise TooManyError("attributes", MAX_ATTRIBUTES)
            column = self.columns[name] = CollectedAttribute()
        if value not in column.names:
            if self._num_names >= MAX_NAMES:
                raise TooManyError("values of attributes", MAX_NAMES)
            self._num_names += 1
        if len(self.columns) * (row + 1) > _MAX_VALUES:  # a table holds every attribute for every object
            raise TooManyError("attributes times objects", _MAX_VALUES)
        column.rows.append(row)
        column.ids.append(column.names.setdefault(value, len(column.names)))


def wrong_name(what: str, name: str) -> str | None:
    """Return what is wrong with a name, or None."""
    if not name:
        return f"the name of the {what} is empty"
    if len(name) > MAX_NAME_CHARS:
        return f"the name of the {what} has {len(name)} characters; at most {MAX_NAME_CHARS} are read"
    return None


def _numbers(values: Sequence[float]) -> list[float]:
    try:
        return [float(value) for value in values]
    except OverflowError:  # an integer of hundreds of digits
        return [np.inf if abs(value) > 1e308 else float(value) for value in values]
