"""CSV tables with one object a row: columns by the names in the header, or by number."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import ClassVar, Final, Literal, NoReturn, TypeAlias

from lit_loader.annotations.formats.keypoints_txt import BoxFormat, Columns, LineReader
from lit_loader.annotations.formats.rows import Rows
from lit_loader.annotations.formats.text_file import check_separator, read_rows
from lit_loader.annotations.problems import shorten
from lit_loader.errors import AnnotationError

__all__ = ["Column", "KeypointsCsvReader"]

Column: TypeAlias = str | int
_LOOKED_AT: Final = 100  # rows that decide whether a column holds numbers
_BOX_FORMATS: Final[Mapping[BoxFormat, Sequence[str]]] = {
    "xyxy": ("xmin", "ymin", "xmax", "ymax"),
    "xywh": ("xmin", "ymin", "width", "height"),
    "cxcywh": ("xcenter", "ycenter", "width", "height"),
}
_COLUMN_NAMES: Final = {
    **dict.fromkeys(("x", "x0", "x1", "left", "xtl"), "xmin"),
    **dict.fromkeys(("y", "y0", "y1", "top", "ytl"), "ymin"),
    **dict.fromkeys(("x2", "right", "xbr"), "xmax"),
    **dict.fromkeys(("y2", "bottom", "ybr"), "ymax"),
    **dict.fromkeys(("cx", "xc", "xcentre", "centerx", "centrex"), "xcenter"),
    **dict.fromkeys(("cy", "yc", "ycentre", "centery", "centrey"), "ycenter"),
    **{"w": "width", "h": "height"},
}
"""Names of the columns of a box, in lower case and without signs between words, as `_BOX_FORMATS` has them."""


@dataclass(frozen=True, kw_only=True)
class KeypointsCsvReader(LineReader):
    """Reads a CSV file in which every row is an object.

    Where no option names them, columns called ``xmin``, ``ymin``, ``xmax`` and ``ymax`` are the box, and one called
    ``class`` or ``label`` the class; with such a box, ``width`` and ``height`` are the size of the image, as in the
    tables of TensorFlow's object detection (``filename,width,height,class,xmin,ymin,xmax,ymax``).

    Every column that is not used is named in the report. A table in which such columns look like coordinates is
    refused: where more than one of them holds numbers, or where points are those left over and one more holds some.

    Args:
        path_column: Name or number, from 0, of the column with the image's path.
        point_columns: The 2 K columns of x and y of each point, or the first of 2 K side by side. None, with
            a schema, for the first 2 K columns that no other option names.
        class_column: The column with the class, or None for one called ``class`` or ``label``, if there is one and
            ``class_name`` is None.
        box_columns: The four columns of the box, in the order of ``box_format``, or None for the corners' names
            above. Without ``box_format`` their names
            in the header decide it: ``x``, ``y``, ``w``, ``h`` are ``"xywh"``. Names that are in another order than
            any format, or mean a corner or the centre of fractions, are refused.
        attribute_columns: Columns of attributes, or the column of each attribute by its name.
        ignore_columns: Columns that are not read, whatever they hold; ``"rest"`` for all that no option names.
        separator: The character between columns.
        header: Whether the first row holds names; without it, columns go by number.
    """

    format: ClassVar[str] = "keypoints_csv"
    description: ClassVar[str] = "CSV, a row an object, with points or boxes; also called csv; NAME: the file"

    path_column: Column = 0
    point_columns: Sequence[Column] | Column | None = None
    class_column: Column | None = None
    box_columns: Sequence[Column] | None = None
    attribute_columns: Sequence[Column] | Mapping[str, Column] = ()
    ignore_columns: Sequence[Column] | Literal["rest"] = ()
    separator: str = ","
    header: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_separator(self.separator)
        has_class, has_box = self.class_column is not None, self.box_columns is not None
        self.check_options(has_class=has_class, has_attributes=bool(self.attribute_columns), has_box=has_box)
        count, points = self._num_points(), self.point_columns
        if points is not None and count == 0:
            raise ValueError("point_columns need a schema")
        if points is not None and not isinstance(points, str | int) and len(points) != 2 * count:
            raise ValueError(f"point_columns are {len(points)}; {count} points have {2 * count}")
        if self.box_columns is not None and len(self.box_columns) != 4:
            raise ValueError(f"box_columns={self.box_columns} must be 4 columns")

    def read(self, rows: Rows, unit: str) -> None:
        """Add the rows of a table."""
        table = read_rows(rows.root, unit, separator=self.separator)
        first = list(islice(table, _LOOKED_AT))
        if not first:
            return
        line, head = first[0]
        first = first[1:] if self.header else first
        columns, unused = self._columns(rows, head, [fields for _, fields in first], line=line)
        self.begin(rows, columns)
        count = 0
        for line, fields in chain(first, table):
            self.add(rows, columns, fields, line=line)
            count += 1
        for place in unused if count else ():
            rows.not_read(f"column {repr(shorten(head[place])) if self.header else place}", count)

    def _columns(
        self, rows: Rows, head: list[str], sample: Sequence[list[str]], *, line: int
    ) -> tuple[Columns, list[int]]:
        """Return where the columns stand, and those that nothing reads.

        Args:
            rows: For the file's name.
            head: The first row.
            sample: The first rows that are objects.
            line: Line of the first row.

        Raises:
            AnnotationError: If a column is missing, a name is in the header twice, or columns that nothing reads look
                like coordinates.
        """
        count, needed = len(head), 2 * self._num_points()

        def refuse(message: str) -> NoReturn:
            raise AnnotationError(message, path=rows.root / rows.file, line=line)

        def place(column: Column) -> int:
            if isinstance(column, int):
                if not 0 <= column < count:
                    refuse(f"there is no column {column}; the first row has {count}, counted from 0")
                return column
            if not self.header:
                refuse(f"column {column!r} is a name; a file without a header has numbers")
            times = head.count(column)
            if times != 1:
                known = shorten(", ".join(map(repr, head)))
                refuse(f"column {column!r} occurs {times} times in the header, which has {known}")
            return head.index(column)

        attributes, given = self._attribute_columns(), self.point_columns
        class_column, box_columns, size_columns = self._usual_columns(head, sample)
        if isinstance(given, str | int):
            given = range(place(given), place(given) + needed)
        ignored = () if self.ignore_columns == "rest" else self.ignore_columns
        classes = () if class_column is None else (class_column,)
        named = [self.path_column, *classes, *(given or ()), *box_columns]
        named += [*attributes.values(), *ignored, *size_columns]
        used = set(map(place, named))
        if len(used) < len(named):
            refuse(f"columns {shorten(str(named))} name one column twice")
        rest = [i for i in range(count) if i not in used]
        points = rest[:needed] if given is None else list(map(place, given))
        if len(points) < needed:
            refuse(f"{len(points)} columns are left for {needed // 2} points, which ask for {needed}")
        rest = rest[needed:] if given is None else rest
        if self.ignore_columns != "rest":
            numeric = {i: _count_numbers(fields[i] for fields in sample if i < len(fields)) for i in rest}
            allowed = 0 if needed and self.point_columns is None else 1
            if sum(numeric.values()) > allowed:
                found = shorten(str([head[i] if self.header else i for i in rest if numeric[i]]))
                remedy = "name them in point_columns (with a schema), box_columns, class_column"
                refuse(f"columns {found} hold numbers that nothing reads; {remedy}, ... or ignore_columns")
        box = [place(column) for column in box_columns]
        box_format: BoxFormat = "xyxy"
        if box and self.header and self.box_format is None:
            box_names = [head[position] for position in box]
            try:
                box_format = _named_box_format(box_names, normalized=self.normalized)
            except ValueError as error:
                refuse(str(error))
        size = [place(column) for column in size_columns]
        columns = Columns(
            count=count,
            rule=f"the first row has {count}",
            path=place(self.path_column),
            class_name=place(classes[0]) if classes else None,
            points=points,
            box=box,
            box_format=box_format,
            size=size,
            attributes=[(name, place(column)) for name, column in attributes.items()],
        )
        return columns, sorted([*rest, *map(place, ignored)])

    def _usual_columns(
        self, head: Sequence[str], sample: Sequence[list[str]]
    ) -> tuple[Column | None, Sequence[Column], Sequence[Column]]:
        """Return the columns of the class, the box and the image's size, by the options, else by usual names."""
        options = [self.path_column, *self._attribute_columns().values(), *self.ignore_columns]
        options += (
            [self.point_columns] if isinstance(self.point_columns, str | int) else self.point_columns or ()
        )
        options += [*(self.box_columns or ()), *(() if self.class_column is None else (self.class_column,))]
        positions = dict(enumerate(head))
        used_names = {positions.get(column) if isinstance(column, int) else column for column in options}
        names = [name for name in head if name not in used_names and head.count(name) == 1]
        columns = {*names}

        def usual(*usual_names: str) -> list[str]:
            """Return the columns with these names, if the header has all of them and no option names one."""
            return [*usual_names] if columns >= {*usual_names} else []

        class_column: Column | None = self.class_column
        box_columns: Sequence[Column] = self.box_columns or ()
        if not self.header or self.ignore_columns == "rest":
            return class_column, box_columns, ()
        if class_column is None and self.class_name is None:
            class_column = next(iter(usual("class") or usual("label")), None)
        if self.box_columns is None:
            box_columns = usual(*_BOX_FORMATS["xyxy"])
        box_names = [
            column if isinstance(column, str) else positions.get(column, "") for column in box_columns
        ]
        if box_names != [*_BOX_FORMATS["xyxy"]] or not {*box_names} <= {*head}:
            return class_column, box_columns, ()
        size_columns = usual("width", "height")
        places = [head.index(name) for name in (*box_names, *size_columns)]
        rows = [[fields[i] for i in places] for fields in sample if len(fields) == len(head)]
        if size_columns and all(map(_has_size_of_box, rows)):
            size_columns = []
        return class_column, box_columns, size_columns

    def _num_points(self) -> int:
        schema = self.given_keypoints()
        return 0 if schema is None else len(schema.names)

    def _attribute_columns(self) -> dict[str, Column]:
        columns = self.attribute_columns
        return dict(columns) if isinstance(columns, Mapping) else {str(column): column for column in columns}


def _named_box_format(names: Sequence[str], *, normalized: bool) -> BoxFormat:
    """Return the format of a box that the names of its four columns say, corners if they say none.

    Raises:
        ValueError: If the names are in another order than the format, or may mean two formats.
    """
    plain_names = [
        re.sub(r"^(bbox|box|bb)|[^a-z0-9]", "", re.sub(r"[\s_.-]", "", name.lower())) for name in names
    ]
    second_corner = {"x1": "xmax", "y1": "ymax"} if "x0" in plain_names else {}
    roles = [second_corner.get(name) or _COLUMN_NAMES.get(name, name) for name in plain_names]
    listed = shorten(", ".join(names))
    remedy = f"box_columns {listed}: choose a box_format of 'xyxy', 'xywh' and 'cxcywh'"
    for box_format, ordered in _BOX_FORMATS.items():
        if sorted(roles) == sorted(ordered):
            if roles != list(ordered):
                raise ValueError(
                    f"box_columns {listed} are not in the order {', '.join(ordered)}; list them in it"
                )
            if normalized and box_format == "xywh" and plain_names[:2] == ["x", "y"]:
                raise ValueError(f"{remedy}; x and y of fractions may be a corner or the centre")
            return box_format
    if {"width", "height", "xcenter", "ycenter"} & {*roles}:
        raise ValueError(f"{remedy}; their names fit no format")
    return "xyxy"


def _has_size_of_box(texts: Sequence[str]) -> bool:
    """Return whether the last two of six numbers are width and height of the box whose corners are the first four."""
    try:
        xmin, ymin, xmax, ymax, width, height = map(float, texts)
    except ValueError:
        return False
    return abs(xmax - xmin - width) <= 1 and abs(ymax - ymin - height) <= 1


def _count_numbers(cells: Iterable[str]) -> int:
    """Return how many numbers a column has in a cell, such as 4 in "[1, 2, 3, 4]"; 0 if a cell is something else."""
    most = 0
    for cell in cells:
        parts = re.split(r"[\s,;]+", cell.strip("[](){} ")) if cell else []
        try:
            most = max(most, len([float(part) for part in parts]))
        except ValueError:
            return 0
    return most
