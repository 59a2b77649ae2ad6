"""Text lists with one object a line: path, points, class, box, attributes; and what CSV tables share with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from lit_loader.annotations.formats.reader import Reader
from lit_loader.annotations.formats.rows import Rows
from lit_loader.annotations.formats.text_file import check_separator, numbers
from lit_loader.annotations.keypoints import KeypointSchema
from lit_loader.annotations.problems import shorten
from lit_loader.errors import AnnotationError

__all__ = [
    "BoxFormat",
    "Columns",
    "KeypointsTxtReader",
    "LineReader",
    "NO_VALUE",
    "box_corners",
    "check_box_format",
    "column_names",
    "parse_columns",
]

BoxFormat: TypeAlias = Literal["xyxy", "xywh", "cxcywh"]
NO_VALUE: Final = "-"
"""The value of an attribute that an object does not have."""

_CORNERS: Final = ("xmin", "ymin", "xmax", "ymax")
_ATTRIBUTE: Final = "attribute:"
_DEFAULT_CLASS: Final = "object"
_VISIBILITY: Final = {0.0: 0, 1.0: 1, 2.0: 2}


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The position of each value in a line.

    Attributes:
        count: Number of fields.
        rule: Says where that number comes from, for the message on a line that has another one.
        path: Position of the image's path.
        class_name: Position of the class, or None.
        points: Positions of the points' fields, or empty.
        visibility: What a point's third field means, or None if points have two fields.
        box: Positions of the box's four numbers, or empty.
        attributes: Name and position of each attribute.
        size: Positions of the image's width and height, or empty.
        box_format: Meaning of the box's four numbers, unless an option states it.
    """

    count: int
    rule: str
    path: int
    class_name: int | None = None
    points: Sequence[int] = ()
    visibility: Mapping[float, int] | None = None
    box: Sequence[int] = ()
    attributes: Sequence[tuple[str, int]] = ()
    size: Sequence[int] = ()
    box_format: BoxFormat = "xyxy"


@dataclass(frozen=True, kw_only=True)
class LineReader(Reader):
    """What the readers of lists and of tables have in common: one object from the fields of a line.

    Lines with the same path are one image's. A path without an image's ending means the first file that has one. A
    point with an empty field is absent. An object without a box gets the one around its points, with sides of at
    least a tenth of the longer side (of a single point: a tenth of the image's shorter side). An object without points
    and box gets the whole image.

    Args:
        schema: The points, as in ``keypoint_schema``.
        image_dir: The folder that paths are relative to, relative to the root.
        class_name: Class of every object where no column has it. By default "object"; but where lines have nothing
            besides the path, images without objects.
        attribute_values: What the text of an attribute means, such as ``{"0": "no", "1": "yes"}``, or None for the
            text itself. An empty field or ``-`` means that the object does not have it.
        box_format: ``"xyxy"``: xmin, ymin, xmax, ymax. ``"xywh"``: xmin, ymin, width, height. ``"cxcywh"``: centre,
            width, height. None for the one that the names of a table's columns say, else ``"xyxy"``.
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
        if self.one_based and (self.normalized or self.y_up):
            other = "normalized" if self.normalized else "y_up"
            raise ValueError(f"one_based=True and {other}=True exclude each other: pixels count from one")

    def check_options(self, *, has_class: bool, has_attributes: bool, has_box: bool) -> None:
        """Raise ValueError for an option of this class without effect, given what the columns hold."""
        if has_class and self.class_name is not None:
            raise ValueError(f"class_name={self.class_name!r} and a column of classes exclude each other")
        if not has_attributes and self.attribute_values is not None:
            raise ValueError("attribute_values need a column of an attribute")
        check_box_format(self.box_format, has_box=has_box)

    def begin(self, rows: Rows, columns: Columns) -> None:
        """Note what holds for all lines of a file."""
        rows.normalized, rows.y_up = self.normalized, self.y_up
        values = sorted(set((self.attribute_values or {}).values()))
        rows.declare(
            keypoints=self.given_keypoints() if columns.points else None,
            attributes={name: values for name, _ in columns.attributes},
        )

    def add(self, rows: Rows, columns: Columns, fields: Sequence[str], *, line: int) -> None:
        """Add the object of a line.

        Raises:
            AnnotationError: If the line is malformed and the policy says ``"raise"``.
            UnsafePathError: If its path leads out of the root.
        """
        found: dict[str, Any] = {"box": None}
        try:
            if len(fields) != columns.count:
                raise AnnotationError(f"{len(fields)} fields; {columns.rule}")
            if not fields[columns.path]:
                raise AnnotationError("the path of the image is empty")
            if columns.box:
                box_format = self.box_format or columns.box_format
                corners = box_corners(numbers([fields[place] for place in columns.box]), box_format)
                found["box"] = [corner - 1 for corner in corners] if self.one_based else corners
            if columns.points:
                found["points"], found["visibility"] = self._points(columns, fields)
            found["attributes"] = self._attributes(columns, fields)
            width, height = numbers([fields[place] for place in columns.size]) if columns.size else (0, 0)
        except AnnotationError as error:
            rows.malformed(error.message, line=line)
            return
        path = fields[columns.path]
        image = rows.image(path, folder=self.image_dir, line=line, width=width, height=height)
        class_name = self.class_name if columns.class_name is None else fields[columns.class_name]
        if class_name is not None or columns.points or columns.box or columns.attributes:
            name = _DEFAULT_CLASS if class_name is None else class_name
            rows.object(image, class_name=name, line=line, **found)

    def _points(
        self, columns: Columns, fields: Sequence[str]
    ) -> tuple[npt.NDArray[np.float64], Sequence[int] | None]:
        texts = [fields[place] for place in columns.points]
        seen: list[int] | None = None
        if columns.visibility is not None:
            flags, known = numbers(texts[2::3]), columns.visibility
            for flag in flags:
                if flag not in known:
                    rule = f"must be one of {', '.join(f'{each:g}' for each in known)}; see visibility_values"
                    raise AnnotationError(f"flag {flag:g} of a point {rule}")
            seen = [known[flag] for flag in flags]
            del texts[2::3]
        if "" in texts:
            pairs = zip(texts[::2], texts[1::2], seen or [2] * (len(texts) // 2), strict=True)
            seen = [flag if x and y else 0 for x, y, flag in pairs]
            texts = [text or "0" for text in texts]
        return np.array(numbers(texts)).reshape(-1, 2) - float(self.one_based), seen

    def _attributes(self, columns: Columns, fields: Sequence[str]) -> dict[str, str]:
        values, meanings = {}, self.attribute_values
        for name, place in columns.attributes:
            value = fields[place]
            if value in ("", NO_VALUE):
                continue
            if meanings is not None and value not in meanings:
                known = ", ".join(map(repr, meanings))
                raise AnnotationError(f"attribute {name!r} is {shorten(repr(value))}; known: {known}")
            values[name] = value if meanings is None else meanings[value]
        return values


@dataclass(frozen=True, kw_only=True)
class KeypointsTxtReader(LineReader):
    """Reads a text list in which every line is an object.

    ``columns="path points class"`` reads ``faces/a.jpg 31.5 40 58 41 ... happy``, and ``columns="path box
    attribute:pose"`` with ``separator=","`` reads ``a.jpg,10,12,90,80,left``. Empty lines are skipped.

    Args:
        columns: What each column holds, as names or one string with blanks between them: ``path``; ``class``;
            ``points`` (x and y of each point) or ``points_v`` (x, y and a flag of each); ``box`` (four numbers) or
            ``xmin``, ``ymin``, ``xmax``, ``ymax``; ``attribute:NAME``; ``skip``.
        separator: The character between columns, or None for blanks. A path with blanks needs a character.
        visibility_values: What a flag of ``points_v`` means, as 0 absent, 1 hidden, 2 visible; or None if flags are
            these numbers.
        comment: Lines that start with it are skipped, or None for no comments.
        header: Number of lines to skip at the start; True is one.
    """

    format: ClassVar[str] = "keypoints_txt"
    description: ClassVar[str] = "text, a line an object: path, points, class, box as named; NAME: the file"

    columns: Sequence[str] | str
    separator: str | None = None
    visibility_values: Mapping[float, int] | None = None
    comment: str | None = "#"
    header: bool | int = False

    def __post_init__(self) -> None:
        super().__post_init__()
        columns = self._columns()
        check_separator(self.separator)
        if self.comment == "":
            raise ValueError("comment='' would skip every line; pass None for lists without comments")
        if self.header < 0:
            raise ValueError(f"header={self.header} must be a number of lines >= 0")
        has_class, has_box = columns.class_name is not None, "box" in column_names(self.columns)
        self.check_options(has_class=has_class, has_attributes=bool(columns.attributes), has_box=has_box)

    def read(self, rows: Rows, unit: str) -> None:
        """Add the lines of a list."""
        columns, header = self._columns(), int(self.header)
        self.begin(rows, columns)
        for line, text in self.lines(rows, unit):
            start = text.lstrip()
            if line <= header or not start or (self.comment is not None and start.startswith(self.comment)):
                continue
            fields = text.split(self.separator)
            fields = fields if self.separator is None else [part.strip() for part in fields]
            self.add(rows, columns, fields, line=line)

    def _columns(self) -> Columns:
        schema, meanings = self.given_keypoints(), self.visibility_values
        return parse_columns(self.columns, schema=schema, visibility_values=meanings)


def parse_columns(
    columns: Sequence[str] | str,
    *,
    schema: KeypointSchema | None,
    visibility_values: Mapping[float, int] | None = None,
) -> Columns:
    """Return where the named columns stand.

    Args:
        columns: As in `KeypointsTxtReader`.
        schema: Says how many points there are.
        visibility_values: As in `KeypointsTxtReader`.

    Raises:
        ValueError: If a name is not known or occurs twice, ``path`` or a corner is missing, or points, their flags and
            the schema do not go together.
    """
    names = column_names(columns)
    num_points = 0 if schema is None else len(schema.names)
    widths = {"path": 1, "class": 1, "skip": 1, "box": 4, **dict.fromkeys(_CORNERS, 1)}
    widths |= {"points": 2 * num_points, "points_v": 3 * num_points}
    places: dict[str, range] = {}
    position = 0
    for name in names:
        is_attribute = name.startswith(_ATTRIBUTE) and len(name) > len(_ATTRIBUTE)
        if not is_attribute and name not in widths:
            known = ", ".join([*widths, f"{_ATTRIBUTE}NAME"])
            raise ValueError(f"columns={names} hold {name!r}; each must be one of {known}")
        if name in places and name != "skip":
            raise ValueError(f"columns={names} hold {name!r} twice")
        places[name] = range(position, position + (1 if is_attribute else widths[name]))
        position = places[name].stop
    if "path" not in places:
        raise ValueError(f"columns={names} have no 'path'; every line names its image")
    points = [name for name in ("points", "points_v") if name in places]
    if len(points) > 1 or bool(points) != (schema is not None):
        have = "no schema" if schema is None else f"a schema of {num_points} points"
        raise ValueError(f"columns={names} and {have} do not go together; give one column of points, or none")
    if visibility_values is not None and "points_v" not in places:
        raise ValueError("visibility_values need a column 'points_v'")
    meanings = {float(flag): int(seen) for flag, seen in (visibility_values or _VISIBILITY).items()}
    if not set(meanings.values()) <= {0, 1, 2}:
        raise ValueError(f"visibility_values={visibility_values} must mean 0 absent, 1 hidden or 2 visible")
    corners = [places[corner][0] for corner in _CORNERS if corner in places]
    if corners and (len(corners) < 4 or "box" in places):
        raise ValueError(f"columns={names} must hold all of {_CORNERS}, or 'box', or no box")
    attributes = [(name.removeprefix(_ATTRIBUTE), place[0]) for name, place in places.items() if ":" in name]
    return Columns(
        count=position,
        rule=f"columns {shorten(' '.join(names))!r} ask for {position}; see `separator` for paths with blanks",
        path=places["path"][0],
        class_name=places["class"][0] if "class" in places else None,
        points=places[points[0]] if points else (),
        visibility=meanings if "points_v" in places else None,
        box=places.get("box", corners),
        attributes=attributes,
    )


def column_names(columns: Sequence[str] | str) -> tuple[str, ...]:
    """Return the names of columns, which may be given as one string."""
    return tuple(columns.split() if isinstance(columns, str) else columns)


def check_box_format(box_format: BoxFormat | None, *, has_box: bool) -> None:
    """Raise ValueError for a format other than corners without a box of four numbers."""
    if box_format not in (None, "xyxy") and not has_box:
        raise ValueError(f"box_format={box_format!r} needs a box of four numbers among the columns")


def box_corners(box: Any, box_format: BoxFormat) -> Any:
    """Return xmin, ymin, xmax, ymax of four numbers, or of four arrays."""
    a, b, c, d = box
    if box_format == "xywh":
        return [a, b, a + c, b + d]
    if box_format == "cxcywh":
        return [a - c / 2, b - d / 2, a + c / 2, b + d / 2]
    return [a, b, c, d]
