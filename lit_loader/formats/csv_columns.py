"""Which columns of a CSV file hold what: names or numbers as users give them, found in the header."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from lit_loader.annotations.report import shorten
from lit_loader.errors import AnnotationError
from lit_loader.formats.list_columns import ListColumns

__all__ = ["Column", "CsvColumns"]

Column: TypeAlias = str | int


class CsvColumns:
    """What is said of a file's columns, before the file is seen.

    Args:
        path: The column of the image's path.
        class_name: The column of the class, or None.
        points: 2 K columns, the first of as many that stand together, or None for those left over.
        box: Four columns, or None.
        attributes: Columns, or columns by the attribute's name.
        num_points: K, or 0.
        has_header: Whether the first row holds names.

    Raises:
        ValueError: If the numbers of columns are wrong, a column is used twice, or names come without a
            header.
        TypeError: If a column is neither a name nor a number.
    """

    def __init__(
        self,
        *,
        path: Column,
        class_name: Column | None,
        points: Sequence[Column] | Column | None,
        box: Sequence[Column] | None,
        attributes: Sequence[Column] | Mapping[str, Column],
        num_points: int,
        has_header: bool,
    ) -> None:
        if isinstance(attributes, str) or isinstance(box, str):
            raise TypeError("box_columns and attribute_columns must be sequences of columns, not one string")
        if points is not None and num_points == 0:
            raise ValueError("point_columns need a schema")
        self.path, self.class_name, self.num_points = path, class_name, num_points
        self.points = points if points is None or isinstance(points, str | int) else tuple(points)
        self.box = None if box is None else tuple(box)
        self.attributes: dict[str, Column] = (
            dict(attributes)
            if isinstance(attributes, Mapping)
            else {str(column): column for column in attributes}
        )
        if isinstance(self.points, tuple) and len(self.points) != 2 * num_points:
            raise ValueError(
                f"point_columns are {len(self.points)}; {num_points} points have {2 * num_points}"
            )
        if self.box is not None and len(self.box) != 4:
            raise ValueError(f"box_columns={self.box} must be 4 columns")
        named = self._named()
        for column in named:
            if isinstance(column, bool) or not isinstance(column, str | int):
                raise TypeError(f"column {column!r} must be a name or a number")
            if isinstance(column, str) and not has_header:
                raise ValueError(f"column {column!r} is a name; a file without a header has numbers")
            if isinstance(column, int) and column < 0:
                raise ValueError(f"column {column} must be counted from 0")
        if len(set(named)) != len(named):
            raise ValueError(f"columns {named} name one column twice")
        self._has_header = has_header

    def settings(self) -> list[object]:
        """Return all of it as plain values."""
        return [self.path, self.class_name, self.points, self.box, self.attributes, self.num_points]

    def places(self, fields: Sequence[str], *, path: Path, line: int) -> ListColumns:
        """Return where the columns stand.

        Args:
            fields: The first row.
            path: The file, for messages.
            line: Its line.

        Raises:
            AnnotationError: If a column is missing, or a name stands in the header twice.
        """
        count = len(fields)

        def place(column: Column) -> int:
            if isinstance(column, int):
                if column >= count:
                    message = f"there is no column {column}; the first row has {count}, counted from 0"
                    raise AnnotationError(message, path=path, line=line)
                return column
            found = [i for i, field in enumerate(fields) if field == column]
            if len(found) != 1:
                known = shorten(", ".join(map(repr, fields)))
                message = f"column {column!r} stands {len(found)} times in the header, which has {known}"
                raise AnnotationError(message, path=path, line=line)
            return found[0]

        wanted = 2 * self.num_points
        used = [place(column) for column in self._named()]
        if len(set(used)) != len(used):
            raise AnnotationError(f"columns {self._named()} name one column twice", path=path, line=line)
        points: tuple[int, ...] = ()
        if isinstance(self.points, tuple):
            points = tuple(place(column) for column in self.points)
        elif isinstance(self.points, str | int):
            first = place(self.points)
            points = tuple(range(first, first + wanted))
            if points[-1] >= count or set(points) & (set(used) - {first}):
                message = (
                    f"{wanted} columns from {self.points!r} on are not free for {self.num_points} points"
                )
                raise AnnotationError(message, path=path, line=line)
        elif wanted:
            points = tuple(i for i in range(count) if i not in set(used))[:wanted]
            if len(points) < wanted:
                message = (
                    f"{len(points)} columns are left for {self.num_points} points, which ask for {wanted}"
                )
                raise AnnotationError(message, path=path, line=line)
        box = None if self.box is None else [place(column) for column in self.box]
        return ListColumns(
            names=(),
            count=count,
            path=place(self.path),
            class_name=None if self.class_name is None else place(self.class_name),
            points=points or None,
            has_visibility=False,
            box=None if box is None else (box[0], box[1], box[2], box[3]),
            attributes=tuple((name, place(column)) for name, column in self.attributes.items()),
        )

    def _named(self) -> list[Column]:
        """Return every column that is named by itself."""
        single = [self.path, *([] if self.class_name is None else [self.class_name])]
        points = (
            self.points if isinstance(self.points, tuple) else () if self.points is None else (self.points,)
        )
        return [*single, *points, *(self.box or ()), *self.attributes.values()]
