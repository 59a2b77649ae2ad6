"""CSV tables with one object per row: columns by name, as in the header, or by number."""

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
_NUM_SAMPLE_ROWS: Final = 100  # rows that decide whether a column contains numbers
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
"""Names in `_BOX_FORMATS` by other names of the same columns, in lower case and without separators."""


@dataclass(frozen=True, kw_only=True)
class KeypointsCsvReader(LineReader):
    """Reads a CSV file with one object per row.

    Unless options name other columns, ``xmin``, ``ymin``, ``xmax`` and ``ymax`` are the box, and ``class`` or
    ``label`` is the class; next to such a box, ``width`` and ``height`` are the size of the image, as in the tables of
    TensorFlow's object detection (``filename,width,height,class,xmin,ymin,xmax,ymax``).

    Unused columns are named in the report. A table whose unused columns look like coordinates is refused: if more than
    one of them contains numbers, or if any does while the points are read from the columns that no option names.

    Args:
        path_column: Name, or number from 0, of the column with the image's path.
        point_columns: The 2 K columns of x and y of each point, or the first of 2 K adjacent ones. With a schema, None
            takes the first 2 K columns that no other option names.
        class_column: Column with the class. None takes ``class`` or ``label`` if there is one and ``class_name`` is
            None.
        box_columns: The four columns of the box in the order of ``box_format``, or None for the names above. Without
            ``box_format``, their names in the header determine it: ``x``, ``y``, ``w``, ``h`` mean ``"xywh"``. Names
            that match no format's order, or could mean either a corner or the centre, are refused.
        attribute_columns: Columns of attributes, or a mapping from each attribute's name to its column.
        ignore_columns: Columns to ignore, whatever they contain; ``"rest"`` for all that no option names.
        separator: Character between columns.
        header: Whether the first row contains names; if not, columns are given by number.
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
        self.check_options(
            has_class=self.class_column is not None,
            has_attributes=bool(self.attribute_columns),
            has_box=self.box_columns is not None,
        )
        num_points = self._num_points()
        points = self.point_columns
        if points is not None and num_points == 0:
            raise ValueError("point_columns need a schema")
        if points is not None and not isinstance(points, str | int) and len(points) != 2 * num_points:
            raise ValueError(f"point_columns are {len(points)}; {num_points} points have {2 * num_points}")
        if self.box_columns is not None and len(self.box_columns) != 4:
            raise ValueError(f"box_columns={self.box_columns} must be 4 columns")

    def read(self, rows: Rows, unit: str) -> None:
        """Add the rows of a table."""
        table = read_rows(rows.root, unit, separator=self.separator)
        sample = list(islice(table, _NUM_SAMPLE_ROWS))
        if not sample:
            return
        line, head = sample[0]
        if self.header:
            del sample[0]
        columns, unused = self._columns(rows, head, [fields for _, fields in sample], line=line)
        self.begin(rows, columns)
        count = 0
        for line, fields in chain(sample, table):
            self.add(rows, columns, fields, line=line)
            count += 1
        for place in unused if count else ():
            rows.not_read(f"column {repr(shorten(head[place])) if self.header else place}", count)

    def _columns(
        self, rows: Rows, head: list[str], sample: Sequence[list[str]], *, line: int
    ) -> tuple[Columns, list[int]]:
        """Return the positions of the columns, and those of the unused ones.

        Args:
            rows: Names the file in errors.
            head: The first row.
            sample: The first rows that are objects.
            line: Line of the first row.

        Raises:
            AnnotationError: If a column is missing or repeated in the header, or unused columns look like coordinates.
        """
        count = len(head)
        num_coordinates = 2 * self._num_points()

        def refuse(message: str) -> NoReturn:
            raise AnnotationError(message, path=rows.root / rows.file, line=line)

        def place(column: Column) -> int:
            if isinstance(column, int):
                if not 0 <= column < count:
                    refuse(f"there is no column {column}; the first row has {count}, counted from 0")
                return column
            if not self.header:
                refuse(f"column {column!r} is a name; a file without a header has numbers")
            num_matches = head.count(column)
            if num_matches != 1:
                listed = shorten(", ".join(map(repr, head)))
                refuse(f"column {column!r} occurs {num_matches} times in the header, which has {listed}")
            return head.index(column)

        attributes = self._attribute_columns()
        point_columns = self.point_columns
        class_column, box_columns, size_columns = self._usual_columns(head, sample)
        if isinstance(point_columns, str | int):
            point_columns = range(place(point_columns), place(point_columns) + num_coordinates)
        ignored = () if self.ignore_columns == "rest" else self.ignore_columns
        classes = () if class_column is None else (class_column,)
        named = [self.path_column, *classes, *(point_columns or ()), *box_columns]
        named += [*attributes.values(), *ignored, *size_columns]
        used = set(map(place, named))
        if len(used) < len(named):
            refuse(f"columns {shorten(str(named))} name one column twice")
        unused = [i for i in range(count) if i not in used]
        if point_columns is None:
            points = unused[:num_coordinates]
            unused = unused[num_coordinates:]
        else:
            points = list(map(place, point_columns))
        if len(points) < num_coordinates:
            message = f"{len(points)} columns are left for {num_coordinates // 2} points"
            refuse(f"{message}, which ask for {num_coordinates}")
        # Unread numbers are probably coordinates that an option should name, as of a box or of further points. One
        # column may be a score or an id, unless the points themselves were guessed.
        if self.ignore_columns != "rest":
            numeric = {i: _count_numbers(fields[i] for fields in sample if i < len(fields)) for i in unused}
            allowed = 0 if num_coordinates and self.point_columns is None else 1
            if sum(numeric.values()) > allowed:
                listed = shorten(str([head[i] if self.header else i for i in unused if numeric[i]]))
                remedy = "name them in point_columns (with a schema), box_columns, class_column"
                refuse(f"columns {listed} hold numbers that nothing reads; {remedy}, ... or ignore_columns")
        box = [place(column) for column in box_columns]
        box_format: BoxFormat = "xyxy"
        if box and self.header and self.box_format is None:
            box_names = [head[position] for position in box]
            try:
                box_format = _named_box_format(box_names, normalized=self.normalized)
            except ValueError as error:
                refuse(str(error))
        columns = Columns(
            count=count,
            rule=f"the first row has {count}",
            path=place(self.path_column),
            class_name=place(classes[0]) if classes else None,
            points=points,
            box=box,
            box_format=box_format,
            size=[place(column) for column in size_columns],
            attributes=[(name, place(column)) for name, column in attributes.items()],
        )
        return columns, sorted([*unused, *map(place, ignored)])

    def _usual_columns(
        self, head: Sequence[str], sample: Sequence[list[str]]
    ) -> tuple[Column | None, Sequence[Column], Sequence[Column]]:
        """Return the columns of the class, the box and the image's size: those of the options, or usual names."""
        points = self.point_columns
        options = [self.path_column, *self._attribute_columns().values(), *self.ignore_columns]
        options += [points] if isinstance(points, str | int) else points or ()
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
        box_names = [column if isinstance(column, str) else positions.get(column, "") for column in box_columns]
        if box_names != [*_BOX_FORMATS["xyxy"]] or not {*box_names} <= {*head}:
            return class_column, box_columns, ()
        size_columns = usual("width", "height")
        # In some tables width and height are those of the box.
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
    """Return the box format that the names of the four columns imply, corners if they imply none.

    Raises:
        ValueError: If the names are not in the order of the format, or could mean two formats.
    """
    plain_names = [re.sub(r"^(bbox|box|bb)|[^a-z0-9]", "", re.sub(r"[\s_.-]", "", name.lower())) for name in names]
    second_corner = {"x1": "xmax", "y1": "ymax"} if "x0" in plain_names else {}
    roles = [second_corner.get(name) or _COLUMN_NAMES.get(name, name) for name in plain_names]
    listed = shorten(", ".join(names))
    remedy = f"box_columns {listed}: choose a box_format of 'xyxy', 'xywh' and 'cxcywh'"
    for box_format, ordered in _BOX_FORMATS.items():
        if sorted(roles) == sorted(ordered):
            if roles != list(ordered):
                raise ValueError(f"box_columns {listed} are not in the order {', '.join(ordered)}; list them in it")
            if normalized and box_format == "xywh" and plain_names[:2] == ["x", "y"]:
                raise ValueError(f"{remedy}; x and y of fractions may be a corner or the centre")
            return box_format
    if {"width", "height", "xcenter", "ycenter"} & {*roles}:
        raise ValueError(f"{remedy}; their names fit no format")
    return "xyxy"


def _has_size_of_box(texts: Sequence[str]) -> bool:
    """Return True if the last two of six numbers are the width and height of the box in the first four."""
    try:
        xmin, ymin, xmax, ymax, width, height = map(float, texts)
    except ValueError:
        return False
    return abs(xmax - xmin - width) <= 1 and abs(ymax - ymin - height) <= 1


def _count_numbers(cells: Iterable[str]) -> int:
    """Return the most numbers in a cell of a column, such as 4 for "[1, 2, 3, 4]"; 0 if a cell has anything else."""
    most_numbers = 0
    for cell in cells:
        parts = re.split(r"[\s,;]+", cell.strip("[](){} ")) if cell else []
        try:
            most_numbers = max(most_numbers, len([float(part) for part in parts]))
        except ValueError:
            return 0
    return most_numbers
