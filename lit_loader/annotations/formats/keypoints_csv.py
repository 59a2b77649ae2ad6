"""CSV tables with one object per row: columns by name, as in the header, or by number."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import ClassVar, Final, Literal, NoReturn, TypeAlias

from lit_loader.annotations.formats.keypoints_txt import BoxFormat, Columns, LineReader
from lit_loader.annotations.formats.rows import Rows
from lit_loader.annotations.formats.text_file import check_separator, read_rows
from lit_loader.annotations.problems import shorten
from lit_loader.errors import AnnotationError

__all__ = ["Column", "KeypointsCsvReader"]

_logger = logging.getLogger(__name__)

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

    Unused columns are named in the report, and without a class a warning names columns of text that may be it. A table
    whose unused columns look like coordinates is refused: if more than one of them contains numbers, or if any does
    while the points are read from the columns that no option names.

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
        options = {"class": self.class_column, "attribute": self.attribute_columns or None, "box": self.box_columns}
        self.check_options([role for role, columns in options.items() if columns is not None])
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
        # Read ahead, because the first rows show which columns have numbers. The file is read only once.
        sample = list(islice(table, _NUM_SAMPLE_ROWS))
        if not sample:
            return
        head = _Head(sample[0][1], has_names=self.header, path=rows.root / unit, line=sample[0][0])
        if self.header:
            del sample[0]
        columns, unused = self._columns(head, [fields for _, fields in sample])
        self.begin(rows, columns)
        count = 0
        for line, fields in chain(sample, table):
            self.add(rows, columns, fields, line=line)
            count += 1
        if not count:
            return
        for place in unused:
            rows.not_read(f"column {head.label(place)}", count)
        if candidates := self._class_candidates(columns, unused, [fields for _, fields in sample]):
            # A detector would train on the one class "object".
            labels = [head.label(place) for place in candidates]
            message = f"column {' or '.join(labels)} may be the class; pass class_column={labels[0]}"
            _logger.warning("%s: %s", rows.root / unit, message)
            rows.problem("unread_class", "keep", message, line=head.line)

    def _columns(self, head: _Head, sample: Sequence[list[str]]) -> tuple[Columns, list[int]]:
        """Return the positions of the columns, and the positions of unused columns.

        Args:
            head: The first row.
            sample: The first rows that are objects.

        Raises:
            AnnotationError: If a column is missing or repeated in the header, or unused columns look like coordinates.
        """
        num_coordinates = 2 * self._num_points()
        class_column, box_columns, size_columns = self._usual_columns(head, sample)
        attributes = self._attribute_columns()
        point_columns = self.point_columns
        if isinstance(point_columns, str | int):
            # Only the first column is named; its neighbours are checked like any other position.
            first = head.place(point_columns)
            point_columns = range(first, first + num_coordinates)
        columns_by_role: dict[str, Sequence[Column]] = {
            "path": [self.path_column],
            "class": [] if class_column is None else [class_column],
            "points": point_columns or (),
            "box": box_columns,
            "size": size_columns,
            "attributes": [*attributes.values()],
            "ignored": () if self.ignore_columns == "rest" else self.ignore_columns,
        }
        places = {role: [head.place(column) for column in columns] for role, columns in columns_by_role.items()}
        used = [*chain.from_iterable(places.values())]
        if len(set(used)) < len(used):
            listed = shorten(str([*chain.from_iterable(columns_by_role.values())]))
            head.refuse(f"columns {listed} name one column twice")
        unused = [place for place in range(len(head.cells)) if place not in used]
        if point_columns is None:
            places["points"] = unused[:num_coordinates]
            unused = unused[num_coordinates:]
        if len(places["points"]) < num_coordinates:
            num_points = num_coordinates // 2
            head.refuse(f"{num_points} points need {num_coordinates} columns, got {len(places['points'])} unused ones")
        if self.ignore_columns != "rest":
            self._check_unused(head, sample, unused)
        box_format: BoxFormat = "xyxy"
        if places["box"] and self.header and self.box_format is None:
            box_format = _named_box_format(head, places["box"], normalized=self.normalized)
        columns = Columns(
            count=len(head.cells),
            rule=f"the first row has {len(head.cells)}",
            places=places,
            attributes=dict(zip(attributes, places["attributes"], strict=True)),
            box_format=box_format,
        )
        return columns, sorted(unused + places["ignored"])

    def _class_candidates(self, columns: Columns, unused: Sequence[int], sample: Sequence[list[str]]) -> list[int]:
        """Return the unread columns of text if no column and no option is the class."""
        if columns.places["class"] or self.class_name is not None or self.ignore_columns == "rest":
            return []
        texts = {place: [fields[place] for fields in sample if place < len(fields)] for place in unused}
        return [
            place
            for place, cells in texts.items()
            if place not in columns.places["ignored"] and any(cells) and not _count_numbers(cells)
        ]

    def _check_unused(self, head: _Head, sample: Sequence[list[str]], unused: Sequence[int]) -> None:
        """Refuse unused numbers: they are probably coordinates that an option should name."""
        counts = {place: _count_numbers(fields[place] for fields in sample if place < len(fields)) for place in unused}
        # One column may be a score or an id, unless the points themselves were guessed.
        allowed = 0 if self._num_points() and self.point_columns is None else 1
        if sum(counts.values()) > allowed:
            listed = shorten(", ".join(head.label(place) for place, count in counts.items() if count))
            remedy = "name them in point_columns (with a schema), box_columns, class_column, ... or ignore_columns"
            head.refuse(f"columns {listed} hold numbers that nothing reads; {remedy}")

    def _usual_columns(
        self, head: _Head, sample: Sequence[list[str]]
    ) -> tuple[Column | None, Sequence[Column], Sequence[Column]]:
        """Return the columns of the class, the box and the image's size, from options or by their usual names."""
        class_column = self.class_column
        box_columns: Sequence[Column] = self.box_columns or ()
        # Without names no column is usual, and with "rest" the options name all columns that matter.
        if not self.header or self.ignore_columns == "rest":
            return class_column, box_columns, ()
        points = self.point_columns
        options = [self.path_column, *self._attribute_columns().values(), *self.ignore_columns, *box_columns]
        options += [points] if isinstance(points, str | int) else points or ()
        options += [] if class_column is None else [class_column]
        name_by_place = dict(enumerate(head.cells))
        used_names = {name_by_place.get(column) if isinstance(column, int) else column for column in options}
        # A name that occurs twice is ambiguous, and one that an option uses has a role already.
        free_names = {name for name in head.cells if name not in used_names and head.cells.count(name) == 1}
        # `class_name` is a class for all rows, next to which a usual column is only unread.
        if class_column is None and self.class_name is None:
            class_column = next((name for name in ("class", "label") if name in free_names), None)
        corners = list(_BOX_FORMATS["xyxy"])
        if self.box_columns is None and free_names.issuperset(corners):
            box_columns = corners
        box_names = [name_by_place.get(column) if isinstance(column, int) else column for column in box_columns]
        if box_names != corners or not {"width", "height"} <= free_names or not set(corners) <= set(head.cells):
            return class_column, box_columns, ()
        # Some tables have the width and height of the box instead.
        places = [head.cells.index(name) for name in (*corners, "width", "height")]
        sizes = [[fields[place] for place in places] for fields in sample if len(fields) == len(head.cells)]
        return class_column, box_columns, () if all(map(_has_size_of_box, sizes)) else ("width", "height")

    def _attribute_columns(self) -> dict[str, Column]:
        columns = self.attribute_columns
        return dict(columns) if isinstance(columns, Mapping) else {str(column): column for column in columns}


class _Head:
    """The first row of a table, in which columns are looked up.

    Args:
        cells: Its fields.
        has_names: True if they are the names of the columns.
        path: The file, for errors.
        line: The row's line.
    """

    def __init__(self, cells: list[str], *, has_names: bool, path: Path, line: int) -> None:
        self.cells = cells
        self._has_names = has_names
        self.line = line
        self._path = path

    def refuse(self, message: str) -> NoReturn:
        raise AnnotationError(message, path=self._path, line=self.line)

    def label(self, place: int) -> str:
        return repr(shorten(self.cells[place])) if self._has_names else str(place)

    def place(self, column: Column) -> int:
        """Return the position of a column.

        Raises:
            AnnotationError: If the column does not exist, or several have its name.
        """
        if isinstance(column, int):
            if not 0 <= column < len(self.cells):
                self.refuse(f"column {column} does not exist; the first row has {len(self.cells)}, counted from 0")
            return column
        if not self._has_names:
            self.refuse(f"column {column!r} is a name; a file without a header has numbers")
        num_matches = self.cells.count(column)
        if num_matches != 1:
            listed = shorten(", ".join(map(repr, self.cells)))
            self.refuse(f"column {column!r} occurs {num_matches} times in the header, which has {listed}")
        return self.cells.index(column)


def _named_box_format(head: _Head, places: Sequence[int], *, normalized: bool) -> BoxFormat:
    """Return the box format that the names of the four columns imply, corners if they imply none.

    Raises:
        AnnotationError: If the names are not in the order of the format, or could mean two formats.
    """
    names = [head.cells[place] for place in places]
    # "bbox_x", "BBox X" and "x" are one name.
    plain_names = [re.sub(r"^(bbox|box|bb)|[^a-z0-9]", "", re.sub(r"[\s_.-]", "", name.lower())) for name in names]
    # x1 is the second corner after x0, and the first one before x2.
    second_corner = {"x1": "xmax", "y1": "ymax"} if "x0" in plain_names else {}
    roles = [second_corner.get(name) or _COLUMN_NAMES.get(name, name) for name in plain_names]
    listed = shorten(", ".join(names))
    remedy = f"box_columns {listed}: choose a box_format of 'xyxy', 'xywh' and 'cxcywh'"
    for box_format, ordered in _BOX_FORMATS.items():
        if sorted(roles) == sorted(ordered):
            if roles != list(ordered):
                head.refuse(f"box_columns {listed} are not in the order {', '.join(ordered)}; list them in it")
            # YOLO has the centre in columns of these names, other tools have the corner.
            if normalized and box_format == "xywh" and plain_names[:2] == ["x", "y"]:
                head.refuse(f"{remedy}; x and y of fractions may be a corner or the centre")
            return box_format
    if {"width", "height", "xcenter", "ycenter"} & {*roles}:
        head.refuse(f"{remedy}; their names fit no format")
    return "xyxy"


def _has_size_of_box(texts: Sequence[str]) -> bool:
    """Return True if the last two of six numbers are the width and height of the box in the first four."""
    try:
        xmin, ymin, xmax, ymax, width, height = map(float, texts)
    except ValueError:
        return False
    # Some tools count the last pixel, too, so one pixel of difference is allowed.
    return abs(xmax - xmin - width) <= 1 and abs(ymax - ymin - height) <= 1


def _count_numbers(cells: Iterable[str]) -> int:
    """Return the most numbers in a cell of a column, such as 4 for "[1, 2, 3, 4]"; 0 if a cell has anything else."""
    most_numbers = 0
    for cell in cells:
        # A cell may have a whole box: "[1, 2, 3, 4]".
        parts = re.split(r"[\s,;]+", cell.strip("[](){} ")) if cell else []
        try:
            most_numbers = max(most_numbers, len([float(part) for part in parts]))
        except ValueError:
            return 0
    return most_numbers
