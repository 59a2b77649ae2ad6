"""Text lists with one object per line: path, points, class, box, attributes; and the base class of CSV tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from lit_loader.annotations.formats.reader import Reader
from lit_loader.annotations.formats.rows import MAX_NAME_CHARS, Rows
from lit_loader.annotations.formats.rules import point_boxes
from lit_loader.annotations.formats.text_file import check_separator, numbers
from lit_loader.annotations.formats.writer import Writer, lost, write_file
from lit_loader.annotations.keypoints import KeypointSchema
from lit_loader.annotations.paths import check_relative
from lit_loader.annotations.problems import shorten
from lit_loader.annotations.table import AnnotationTable
from lit_loader.errors import AnnotationError

__all__ = ["BoxFormat", "Columns", "KeypointsTxtReader", "KeypointsTxtWriter", "LineReader", "column_names"]

BoxFormat: TypeAlias = Literal["xyxy", "xywh", "cxcywh"]
_NO_VALUE: Final = "-"
"""Text for an attribute that an object does not have."""

_COMMENT: Final = "#"
_CORNERS: Final = ("xmin", "ymin", "xmax", "ymax")
_ATTRIBUTE: Final = "attribute:"
_DEFAULT_CLASS: Final = "object"
_VISIBILITY: Final = {0.0: 0, 1.0: 1, 2.0: 2}


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The position of each value in a line.

    Attributes:
        count: Number of fields.
        rule: Explanation of that number, for the error on a line with another number of fields.
        places: Positions of the fields of ``path``, ``class``, ``points``, ``box`` (four numbers) and ``size`` (width
            and height of the image); all but ``path`` may be empty.
        attributes: Position of each attribute.
        visibility: Meaning of each point's third field, or None if points have two fields.
        box_format: Meaning of the box's four numbers, unless an option states it.
    """

    count: int
    rule: str
    places: Mapping[str, Sequence[int]]
    attributes: Mapping[str, int]
    visibility: Mapping[float, int] | None = None
    box_format: BoxFormat = "xyxy"


@dataclass(frozen=True, kw_only=True)
class LineReader(Reader):
    """Base class of the readers of lists and tables, which make one object from the fields of each line.

    Lines with the same path belong to one image. A path without an image's ending means the first file with such an
    ending. A point with an empty field is absent. An object without a box gets the tight box of its points, with sides
    of at least a tenth of the longer side (for a single point, a tenth of the image's shorter side). An object with
    neither points nor a box gets the whole image.

    Args:
        schema: Keypoint schema, as `keypoint_schema` takes it.
        image_dir: Folder that paths are relative to, itself relative to the root.
        class_name: Class of every object if no column contains it. By default "object"; but lines that contain only a
            path give images without objects.
        attribute_values: Values by the text in an attribute's column, such as ``{"0": "no", "1": "yes"}``, or None to
            use the text itself. An empty field or ``-`` means that the object does not have the attribute.
        box_format: ``"xyxy"``: xmin, ymin, xmax, ymax. ``"xywh"``: xmin, ymin, width, height. ``"cxcywh"``: centre,
            width, height. None derives it from the names of a table's columns, or else means ``"xyxy"``.
        normalized: Whether coordinates are fractions of the image.
        one_based: Whether to subtract one from every coordinate.
        y_up: Whether y counts from the lower edge of the image upwards; ymin of a box is then its lower edge.
    """

    schema: str | KeypointSchema | Mapping[str, Any] | int | None = None
    image_dir: str = "."
    class_name: str | None = None
    attribute_values: Mapping[str, str] | None = None
    box_format: BoxFormat | None = None
    normalized: bool = False
    one_based: bool = False
    y_up: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        # Neither fractions nor distances from the lower edge have a first pixel.
        if self.one_based and (self.normalized or self.y_up):
            other = "normalized" if self.normalized else "y_up"
            raise ValueError(f"one_based=True and {other}=True exclude each other: pixels count from one")

    def _num_points(self) -> int:
        schema = self.given_keypoints()
        return 0 if schema is None else len(schema.names)

    def check_options(self, roles: Iterable[str]) -> None:
        """Raise ValueError for an option of this class that would have no effect with columns of these roles."""
        if "class" in roles and self.class_name is not None:
            raise ValueError(f"class_name={self.class_name!r} and a column of classes exclude each other")
        if "attribute" not in roles and self.attribute_values is not None:
            raise ValueError("attribute_values need a column of an attribute")
        _check_box_format(self.box_format, has_box="box" in roles)

    def begin(self, rows: Rows, columns: Columns) -> None:
        """Pass on the properties that all lines of a file share."""
        rows.normalized = self.normalized
        rows.y_up = self.y_up
        # All values are declared, so that their ids do not depend on the lines of one set.
        values = sorted(set((self.attribute_values or {}).values()))
        schema = self.given_keypoints() if columns.places["points"] else None
        rows.declare(keypoints=schema, attributes=dict.fromkeys(columns.attributes, values))

    def add(self, rows: Rows, columns: Columns, fields: Sequence[str], *, line: int) -> None:
        """Add the object of a line.

        Raises:
            AnnotationError: If the line is malformed and the policy for it is ``"raise"``.
            UnsafePathError: If its path leads out of the root.
        """
        arguments: dict[str, Any] = {"box": None}
        places = columns.places
        size = [0.0, 0.0]
        try:
            if len(fields) != columns.count:
                raise AnnotationError(f"{len(fields)} fields; {columns.rule}")
            path = fields[places["path"][0]]
            if not path:
                raise AnnotationError("the path of the image is empty")
            if places["box"]:
                box = numbers([fields[place] for place in places["box"]])
                corners = _box_corners(box, self.box_format or columns.box_format)
                arguments["box"] = [corner - 1 for corner in corners] if self.one_based else corners
            if places["points"]:
                texts = [fields[place] for place in places["points"]]
                arguments["points"], arguments["visibility"] = self._points(columns, texts)
            arguments["attributes"] = self._attributes(columns, fields)
            if places["size"]:
                size = numbers([fields[place] for place in places["size"]])
        except AnnotationError as error:
            rows.malformed(error.message, line=line)
            return
        image = rows.image(path, folder=self.image_dir, line=line, width=size[0], height=size[1])
        class_name = fields[places["class"][0]] if places["class"] else self.class_name
        # A line with only a path is an image without objects.
        if class_name is not None or places["points"] or places["box"] or columns.attributes:
            name = _DEFAULT_CLASS if class_name is None else class_name
            rows.object(image, class_name=name, line=line, **arguments)

    def _points(self, columns: Columns, texts: list[str]) -> tuple[npt.NDArray[np.float64], Sequence[int] | None]:
        visibility: list[int] | None = None
        if columns.visibility is not None:
            flags = numbers(texts[2::3])
            for flag in flags:
                if flag not in columns.visibility:
                    listed = ", ".join(f"{known_flag:g}" for known_flag in columns.visibility)
                    raise AnnotationError(f"flag {flag:g} of a point must be one of {listed}; see visibility_values")
            visibility = [columns.visibility[flag] for flag in flags]
            del texts[2::3]
        # Points without annotation are empty cells in tables.
        if "" in texts:
            points = zip(texts[::2], texts[1::2], visibility or [2] * (len(texts) // 2), strict=True)
            visibility = [v if x and y else 0 for x, y, v in points]
            texts = [text or "0" for text in texts]
        return np.array(numbers(texts)).reshape(-1, 2) - float(self.one_based), visibility

    def _attributes(self, columns: Columns, fields: Sequence[str]) -> dict[str, str]:
        values = {}
        value_by_text = self.attribute_values
        for name, place in columns.attributes.items():
            text = fields[place]
            if text in ("", _NO_VALUE):
                continue
            if value_by_text is not None and text not in value_by_text:
                listed = ", ".join(map(repr, value_by_text))
                raise AnnotationError(f"attribute {name!r} is {shorten(repr(text))}; known: {listed}")
            values[name] = text if value_by_text is None else value_by_text[text]
        return values


@dataclass(frozen=True, kw_only=True)
class KeypointsTxtReader(LineReader):
    """Reads a text list with one object per line.

    ``columns="path points class"`` reads ``faces/a.jpg 31.5 40 58 41 ... happy``, and ``columns="path box
    attribute:pose"`` with ``separator=","`` reads ``a.jpg,10,12,90,80,left``. Empty lines are skipped.

    Args:
        columns: Content of each column, as names or as one string of names separated by blanks: ``path``; ``class``;
            ``points`` (x and y of each point) or ``points_v`` (x, y and a flag of each); ``box`` (four numbers) or
            ``xmin``, ``ymin``, ``xmax``, ``ymax``; ``attribute:NAME``; ``skip``.
        separator: Character between columns, or None for blanks. Paths with blanks require a character.
        visibility_values: Visibility (0 absent, 1 hidden, 2 visible) by the flag in ``points_v``, or None if the flags
            are these numbers.
        comment: Start of lines to skip, or None without comments.
        header: Number of lines to skip at the start; True means one.
    """

    format: ClassVar[str] = "keypoints_txt"
    description: ClassVar[str] = "text, a line an object: path, points, class, box as named; NAME: the file"

    columns: Sequence[str] | str
    separator: str | None = None
    visibility_values: Mapping[float, int] | None = None
    comment: str | None = _COMMENT
    header: bool | int = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._columns()
        check_separator(self.separator)
        if self.comment == "":
            raise ValueError("comment='' would skip every line; pass None for lists without comments")
        if self.header < 0:
            raise ValueError(f"header={self.header} must be a number of lines >= 0")
        self.check_options({name.partition(":")[0] for name in column_names(self.columns)})

    def read(self, rows: Rows, unit: str) -> None:
        """Add the lines of a list."""
        columns = self._columns()
        self.begin(rows, columns)
        for line, text in self.lines(rows, unit):
            content = text.lstrip()
            is_comment = self.comment is not None and content.startswith(self.comment)
            if line <= int(self.header) or not content or is_comment:
                continue
            # Several blanks are one separator, but two commas have an empty field between them.
            fields = text.split(self.separator)
            fields = fields if self.separator is None else [part.strip() for part in fields]
            self.add(rows, columns, fields, line=line)

    def _columns(self) -> Columns:
        schema = self.given_keypoints()
        return _parse_columns(self.columns, schema=schema, visibility_values=self.visibility_values)


def _parse_columns(
    columns: Sequence[str] | str, *, schema: KeypointSchema | None, visibility_values: Mapping[float, int] | None = None
) -> Columns:
    """Return the positions of the named columns.

    Args:
        columns: As in `KeypointsTxtReader`.
        schema: Determines the number of points.
        visibility_values: As in `KeypointsTxtReader`.

    Raises:
        ValueError: If a name is unknown or repeated, ``path`` or a corner is missing, or points, their flags and the
            schema do not match.
    """
    names = column_names(columns)
    num_points = 0 if schema is None else len(schema.names)
    widths = {"path": 1, "class": 1, "skip": 1, "box": 4, **dict.fromkeys(_CORNERS, 1)}
    widths |= {"points": 2 * num_points, "points_v": 3 * num_points}
    fields: dict[str, range] = {}
    count = 0
    for name in names:
        width = 1 if name.startswith(_ATTRIBUTE) and name != _ATTRIBUTE else widths.get(name)
        if width is None:
            listed = ", ".join([*widths, f"{_ATTRIBUTE}NAME"])
            raise ValueError(f"columns={names} hold {name!r}; each must be one of {listed}")
        if name in fields and name != "skip":
            raise ValueError(f"columns={names} hold {name!r} twice")
        fields[name] = range(count, count + width)
        count += width
    if "path" not in fields:
        raise ValueError(f"columns={names} have no 'path'; every line names its image")
    points = [fields[name] for name in ("points", "points_v") if name in fields]
    if len(points) > 1 or bool(points) != (schema is not None):
        have = "no schema" if schema is None else f"a schema of {num_points} points"
        raise ValueError(f"columns={names} and {have} do not go together; give one column of points, or none")
    if visibility_values is not None and "points_v" not in fields:
        raise ValueError("visibility_values need a column 'points_v'")
    visibility = {float(flag): int(value) for flag, value in (visibility_values or _VISIBILITY).items()}
    if not set(visibility.values()) <= {0, 1, 2}:
        raise ValueError(f"visibility_values={visibility_values} must mean 0 absent, 1 hidden or 2 visible")
    # Corners may be in any order in the file, but always form one box.
    corners = [fields[corner][0] for corner in _CORNERS if corner in fields]
    if corners and (len(corners) < 4 or "box" in fields):
        raise ValueError(f"columns={names} must hold all of {_CORNERS}, or 'box', or no box")
    return Columns(
        count=count,
        rule=f"columns {shorten(' '.join(names))!r} ask for {count}; see `separator` for paths with blanks",
        places={
            "path": fields["path"],
            "class": fields.get("class", ()),
            "points": points[0] if points else (),
            "box": fields.get("box", corners),
            "size": (),
        },
        attributes={name.removeprefix(_ATTRIBUTE): field[0] for name, field in fields.items() if ":" in name},
        visibility=visibility if "points_v" in fields else None,
    )


def column_names(columns: Sequence[str] | str) -> tuple[str, ...]:
    """Return the names of columns, which may be given as one string."""
    return tuple(columns.split() if isinstance(columns, str) else columns)


def _check_box_format(box_format: BoxFormat | None, *, has_box: bool) -> None:
    """Raise ValueError if a format other than corners has no box of four numbers to apply to."""
    if box_format not in (None, "xyxy") and not has_box:
        raise ValueError(f"box_format={box_format!r} needs a box of four numbers among the columns")


def _box_corners(box: Any, box_format: BoxFormat) -> Any:
    """Return xmin, ymin, xmax, ymax from a box of four numbers or four arrays."""
    a, b, c, d = box
    if box_format == "xywh":
        return [a, b, a + c, b + d]
    if box_format == "cxcywh":
        return [a - c / 2, b - d / 2, a + c / 2, b + d / 2]
    return [a, b, c, d]


# -- writer ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class KeypointsTxtWriter(Writer):
    """Writes a list that `KeypointsTxtReader` reads with the same options and the table's schema.

    Numbers are restored exactly. An attribute that an object does not have is written as ``-``. Images are not copied.
    Properties that the reader takes as options do not count as lost: the split, the order of the classes
    (``class_names``), names and flip pairs of points; nor do sizes, which are read from the images. When the list is
    read, an image's id is its path, and values of attributes are sorted.

    Args:
        columns: As in `KeypointsTxtReader`, without ``skip``.
        separator: As in `KeypointsTxtReader`; None writes one blank.
        image_dir: Folder that paths are relative to, itself relative to the table's root.
        box_format: As in `KeypointsTxtReader`.
    """

    format: ClassVar[str] = "keypoints_txt"
    description: ClassVar[str] = "text, a line an object; NAME: the file"
    name_of_split: ClassVar[str] = "{}.txt"

    columns: Sequence[str] | str
    separator: str | None = None
    image_dir: str = "."
    box_format: BoxFormat = "xyxy"

    def __post_init__(self) -> None:
        names = column_names(self.columns)
        if "skip" in names:
            raise ValueError("columns hold 'skip', for which there is nothing to write; leave it out")
        check_separator(self.separator)
        _check_box_format(self.box_format, has_box="box" in names)

    def losses(self, table: AnnotationTable) -> list[str]:
        """Return the parts of a table that a list with these columns cannot hold."""
        columns = self._columns(table)
        losses = lost(table, "masks", "oriented", "numbers", "files", "flags")
        if num_empty := int((np.diff(table.offsets) == 0).sum()):
            losses.append(f"{num_empty} images without objects")
        if not columns.places["class"] and len(np.unique(table.labels)) > 1:
            losses.append("classes")
        # Boxes need no column if the reader derives the same ones from points or images.
        if not columns.places["box"] and not np.array_equal(_default_boxes(table, columns), table.boxes):
            losses.append("boxes")
        elif columns.places["box"]:
            # Corner, width and float32 do not always restore the other corner.
            read_back = np.stack(_box_corners(self._written_boxes(table).T, self.box_format), axis=1)
            if num_inexact := int((read_back.astype(np.float32) != table.boxes).any(axis=1).sum()):
                losses.append(f"{num_inexact} exact boxes in box_format={self.box_format!r}")
        if table.keypoints is not None and table.visibility is not None:
            if not columns.places["points"]:
                losses.append("points")
            elif columns.visibility is None and not (table.visibility == 2).all():
                losses.append("visibility of points")
            else:
                losses += lost(table, "places")
        return losses + [f"attribute {name!r}" for name in table.attributes if name not in columns.attributes]

    def write(self, table: AnnotationTable, root: Path, name: str, *, progress: bool) -> None:
        """Write the list; after a failure no part of it remains.

        Raises:
            ValueError: If a text cannot be in a list with this separator; the message names it.
            UnsafePathError: If ``name`` leads out of ``root``.
        """
        lines = self._lines(table, self._columns(table))
        write_file(root / check_relative(name), (line.encode("utf-8", "surrogateescape") for line in lines))

    def _columns(self, table: AnnotationTable) -> Columns:
        has_points = bool({"points", "points_v"} & {*column_names(self.columns)})
        if has_points and table.keypoints is None:
            raise ValueError(f"columns={self.columns!r} ask for points; the table has none")
        schema = KeypointSchema(names=table.keypoint_names) if has_points else None
        columns = _parse_columns(self.columns, schema=schema)
        if missing := sorted(set(columns.attributes).difference(table.attributes)):
            raise ValueError(f"columns ask for attributes {missing}; the table has {sorted(table.attributes)}")
        return columns

    def _written_boxes(self, table: AnnotationTable) -> npt.NDArray[Any]:
        """Return the four numbers of each box: corners as float32, other formats as float64."""
        if self.box_format == "xyxy":
            return table.boxes
        # float64, because float32 would round the sums and halves.
        low, high = np.split(table.boxes.astype(np.float64), 2, axis=1)
        return np.hstack([low if self.box_format == "xywh" else (low + high) / 2, high - low])

    def _lines(self, table: AnnotationTable, columns: Columns) -> Iterator[str]:
        # Any blank would do; the reader does not tell them apart.
        separator = " " if self.separator is None else self.separator
        prefix = "" if self.image_dir == "." else f"{self.image_dir.rstrip('/')}/"
        boxes = self._written_boxes(table)
        for i, path in enumerate(table.image_paths):
            if not path.startswith(prefix):
                raise ValueError(f"image {path!r} is not in image_dir={self.image_dir!r}; pass a higher one")
            for row in range(int(table.offsets[i]), int(table.offsets[i + 1])):
                values = {"path": path.removeprefix(prefix), "class": table.class_names[int(table.labels[row])]}
                texts = {place: (role, values[role]) for role in values for place in columns.places[role]}
                for name, place in columns.attributes.items():
                    texts[place] = (f"attribute {name!r}", _attribute_text(table, name, row))
                for place, (kind, text) in texts.items():
                    self._check(kind, text, is_first=place == 0)
                fields = {place: text for place, (_, text) in texts.items()}
                # Not strict: without columns for the box, its numbers are not written.
                fields |= zip(columns.places["box"], map(_number_text, boxes[row]), strict=False)
                fields |= zip(columns.places["points"], _point_texts(table, columns, row), strict=True)
                yield separator.join(fields[place] for place in range(columns.count)) + "\n"

    def _check(self, kind: str, text: str, *, is_first: bool) -> None:
        """Raise ValueError for a text that the reader would split, change or skip."""
        separator = self.separator
        # The reader would split or strip the text, and restore another one.
        is_split = len(text.split()) != 1 if separator is None else separator in text or text != text.strip()
        subject = f"{kind} {shorten(repr(text))}"
        if is_split or not text or any(mark in text for mark in "\n\r\0"):
            separators = "blanks" if separator is None else f"{separator=}"
            raise ValueError(f"{subject} cannot be in a list with {separators} between columns; choose another")
        # A byte order mark at the start of the file would be removed.
        if is_first and text.startswith((_COMMENT, "\ufeff")):
            raise ValueError(f"{subject} at the start of a line would be a comment")
        if kind != "path" and len(text) > MAX_NAME_CHARS:
            raise ValueError(f"{subject} has more than {MAX_NAME_CHARS} characters")


def _default_boxes(table: AnnotationTable, columns: Columns) -> npt.NDArray[np.float32]:
    """Return the boxes that the reader gives to objects without one."""
    image = table.image_of_object()
    if columns.places["points"] and table.keypoints is not None and table.visibility is not None:
        sizes = np.stack([table.widths, table.heights], axis=1)[image]
        return point_boxes(table.keypoints, table.visibility, sizes)[0].astype(np.float32)
    zero = np.zeros(len(image), dtype=np.float32)
    return np.stack([zero, zero, table.widths[image], table.heights[image]], axis=1).astype(np.float32)


def _attribute_text(table: AnnotationTable, name: str, row: int) -> str:
    attribute = table.attributes[name]
    value_id = int(attribute.ids[row])
    # The reader would take it for an object without the attribute.
    if value_id >= 0 and attribute.names[value_id] == _NO_VALUE:
        raise ValueError(f"attribute {name!r} has the value '-', which means none in a list")
    return _NO_VALUE if value_id < 0 else attribute.names[value_id]


def _point_texts(table: AnnotationTable, columns: Columns, row: int) -> list[str]:
    texts: list[str] = []
    if columns.places["points"] and table.keypoints is not None and table.visibility is not None:
        for point, visibility in zip(table.keypoints[row], table.visibility[row].tolist(), strict=True):
            texts += map(_number_text, point)
            texts += [] if columns.visibility is None else [str(visibility)]
    return texts


def _number_text(value: np.float32 | float) -> str:
    """Return the shortest text that restores the number; whole numbers have no fraction, zero no sign."""
    # Not str(): for a float32 it has an exponent from 1e6 on, but only in newer versions of numpy.
    return np.format_float_positional(value + 0.0, trim="-")  # -0.0 + 0.0 is 0.0
