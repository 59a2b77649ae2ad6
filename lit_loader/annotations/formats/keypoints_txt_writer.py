"""Writes a table as a text list with one object a line; the inverse of `KeypointsTxtReader`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from lit_loader.annotations.formats.keypoints_txt import (
    NO_VALUE,
    BoxFormat,
    Columns,
    box_corners,
    check_box_format,
    column_names,
    parse_columns,
)
from lit_loader.annotations.formats.rows import MAX_NAME_CHARS
from lit_loader.annotations.formats.rules import point_boxes
from lit_loader.annotations.formats.text_file import check_separator
from lit_loader.annotations.formats.writer import Writer, lost, write_file
from lit_loader.annotations.keypoints import KeypointSchema
from lit_loader.annotations.paths import check_relative
from lit_loader.annotations.problems import shorten
from lit_loader.annotations.table import AnnotationTable

__all__ = ["KeypointsTxtWriter"]

_COMMENT: Final = "#"


@dataclass(frozen=True, kw_only=True)
class KeypointsTxtWriter(Writer):
    """Writes a list that `KeypointsTxtReader` reads with the same options and the table's schema.

    Numbers are written so that they are read back as they were. An attribute that an object does not have is written
    as ``-``. Images are not copied. What the reader takes as an option does not count as lost: the split, the order
    of class names (``class_names``), names of points and their mirror images; nor do sizes, which are read from the
    images. An image's id is its path, and values of attributes come sorted.

    Args:
        columns: As in `KeypointsTxtReader`; ``skip`` has nothing to write.
        separator: As in `KeypointsTxtReader`, or None to write one blank.
        image_dir: The folder that paths are relative to, relative to the table's root.
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
        check_box_format(self.box_format, has_box="box" in names)

    def losses(self, table: AnnotationTable) -> list[str]:
        """Return what a list with these columns does not hold."""
        columns, found = self._columns(table), lost(table, "masks", "numbers", "files", "flags")
        if empty := int((np.diff(table.offsets) == 0).sum()):
            found.append(f"{empty} images without objects")
        if columns.class_name is None and len(np.unique(table.labels)) > 1:
            found.append("classes")
        if not columns.box and not np.array_equal(_read_boxes(table, columns), table.boxes):
            found.append("boxes")
        elif columns.box:
            again = np.stack(box_corners(self._written_boxes(table).T, self.box_format), axis=1)
            if inexact := int((again.astype(np.float32) != table.boxes).any(axis=1).sum()):
                found.append(f"{inexact} exact boxes in box_format={self.box_format!r}")
        if table.keypoints is not None and table.visibility is not None:
            if not columns.points:
                found.append("points")
            elif columns.visibility is None and not (table.visibility == 2).all():
                found.append("visibility of points")
            else:
                found += lost(table, "places")
        kept = {name for name, _ in columns.attributes}
        return found + [f"attribute {name!r}" for name in table.attributes if name not in kept]

    def write(self, table: AnnotationTable, root: Path, name: str, *, progress: bool) -> None:
        """Write the list, which is complete or not there.

        Raises:
            ValueError: If a text cannot be in a list with this separator; names it.
            UnsafePathError: If ``name`` leads out of ``root``.
        """
        lines = self._lines(table, self._columns(table))
        write_file(root / check_relative(name), (line.encode("utf-8", "surrogateescape") for line in lines))

    def _columns(self, table: AnnotationTable) -> Columns:
        has_points = bool({"points", "points_v"} & {*column_names(self.columns)})
        if has_points and table.keypoints is None:
            raise ValueError(f"columns={self.columns!r} ask for points; the table has none")
        schema = KeypointSchema(names=table.keypoint_names) if has_points else None
        columns = parse_columns(self.columns, schema=schema)
        known = sorted(table.attributes)
        if missing := sorted({name for name, _ in columns.attributes}.difference(known)):
            raise ValueError(f"columns ask for attributes {missing}; the table has {known}")
        return columns

    def _written_boxes(self, table: AnnotationTable) -> npt.NDArray[Any]:
        """Return the four numbers of each box: corners in float32, others in float64, in which they are exact."""
        if self.box_format == "xyxy":
            return table.boxes
        low, high = np.split(table.boxes.astype(np.float64), 2, axis=1)
        return np.hstack([low if self.box_format == "xywh" else (low + high) / 2, high - low])

    def _lines(self, table: AnnotationTable, columns: Columns) -> Iterator[str]:
        between = " " if self.separator is None else self.separator
        prefix = "" if self.image_dir == "." else f"{self.image_dir.rstrip('/')}/"
        boxes = self._written_boxes(table)
        for i, path in enumerate(table.image_paths):
            if not path.startswith(prefix):
                raise ValueError(f"image {path!r} is not in image_dir={self.image_dir!r}; pass a higher one")
            for row in range(int(table.offsets[i]), int(table.offsets[i + 1])):
                texts = {columns.path: ("path", path.removeprefix(prefix))}
                if columns.class_name is not None:
                    texts[columns.class_name] = ("class", table.class_names[int(table.labels[row])])
                for name, place in columns.attributes:
                    texts[place] = (f"attribute {name!r}", _value(table, name, row))
                for place, (what, text) in texts.items():
                    self._check(what, text, is_first=place == 0)
                fields = {place: text for place, (_, text) in texts.items()}
                fields |= zip(columns.box, map(_number, boxes[row]), strict=False)  # there may be no columns
                fields |= zip(columns.points, _points(table, columns, row), strict=True)
                yield between.join(fields[place] for place in range(columns.count)) + "\n"

    def _check(self, what: str, text: str, *, is_first: bool) -> None:
        separator = self.separator
        broken = len(text.split()) != 1 if separator is None else separator in text or text != text.strip()
        named = f"{what} {shorten(repr(text))}"
        if broken or not text or any(mark in text for mark in "\n\r\0"):
            kind = "blanks" if separator is None else f"{separator=}"
            raise ValueError(f"{named} cannot be in a list with {kind} between columns; choose another")
        if is_first and text.startswith((_COMMENT, "\ufeff")):
            raise ValueError(f"{named} at the start of a line would be a comment")
        if what != "path" and len(text) > MAX_NAME_CHARS:
            raise ValueError(f"{named} has more than {MAX_NAME_CHARS} characters")


def _read_boxes(table: AnnotationTable, columns: Columns) -> npt.NDArray[np.float32]:
    """Return the boxes that the reader gives to objects without one."""
    image = table.image_of_object()
    if columns.points and table.keypoints is not None and table.visibility is not None:
        sizes = np.stack([table.widths, table.heights], axis=1)[image]
        return point_boxes(table.keypoints, table.visibility, sizes)[0].astype(np.float32)
    zero = np.zeros(len(image), dtype=np.float32)
    return np.stack([zero, zero, table.widths[image], table.heights[image]], axis=1).astype(np.float32)


def _value(table: AnnotationTable, name: str, row: int) -> str:
    attribute = table.attributes[name]
    value = int(attribute.ids[row])
    if value >= 0 and attribute.names[value] == NO_VALUE:
        raise ValueError(f"attribute {name!r} has the value '-', which means none in a list")
    return NO_VALUE if value < 0 else attribute.names[value]


def _points(table: AnnotationTable, columns: Columns, row: int) -> list[str]:
    texts: list[str] = []
    if columns.points and table.keypoints is not None and table.visibility is not None:
        for point, seen in zip(table.keypoints[row], table.visibility[row].tolist(), strict=True):
            texts += map(_number, point)
            texts += [] if columns.visibility is None else [str(seen)]
    return texts


def _number(value: np.float32 | float) -> str:
    """Return the shortest text that is read back as the same number, whole ones without a fraction or a signed zero."""
    # -0.0 + 0.0 is 0.0; str() of a float32 has an exponent from 1e6 on with newer versions of numpy alone
    return np.format_float_positional(value + 0.0, trim="-")
