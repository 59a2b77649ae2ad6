"""One object from the fields of a line: shared by the readers of lists and tables of points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from lit_loader.annotations.report import shorten
from lit_loader.errors import AnnotationError, UnsafePathError
from lit_loader.formats.builder import TableBuilder
from lit_loader.formats.image_files import join_path
from lit_loader.formats.list_columns import NO_VALUE, ListColumns
from lit_loader.formats.text_file import numbers

__all__ = ["BoxFormat", "LineReader", "check_box_format", "check_shift", "visibility_map"]

BoxFormat = Literal["xyxy", "xywh"]
_PLAIN_VISIBILITY: Final = {0.0: 0, 1.0: 1, 2.0: 2}


@dataclass(frozen=True, kw_only=True)
class LineReader:
    """Turns the fields of a line into an object.

    Attributes:
        columns: What stands where.
        image_dir: Folder of the images, relative to the root.
        class_name: Class of every object, where no column says it; None: a line names an image and no object.
        shift: Subtracted from every coordinate.
        is_xywh: Whether a box is x, y, width, height.
        visibility: What a point's flag means.
        attribute_values: What an attribute's text means; None: itself.
        empty_is_absent: Whether a point with an empty field is absent.
        hint: Ends the message on a line with another number of fields.
    """

    columns: ListColumns
    image_dir: str
    class_name: str | None
    shift: float = 0.0
    is_xywh: bool = False
    visibility: Mapping[float, int] = field(default_factory=lambda: _PLAIN_VISIBILITY)
    attribute_values: Mapping[str, str] | None = None
    empty_is_absent: bool = False
    hint: str = ""

    def attribute_names(self) -> dict[str, list[str]]:
        """Return the values that attributes can have, where that is said."""
        values = sorted(set((self.attribute_values or {}).values()))
        return {name: values for name, _ in self.columns.attributes}

    def add(self, builder: TableBuilder, fields: Sequence[str], *, file: str, line: int) -> None:
        """Add the object of a line; what is wrong with it is judged by the builder's policy.

        Raises:
            AnnotationError: For a malformed line under ``"raise"``.
            UnsafePathError: If its path leads out of the root.
        """
        columns, path = self.columns, f"{builder.root}/{file}"
        try:
            if len(fields) != columns.count:
                asked = f"the first row has {columns.count}"
                if columns.names:
                    asked = f"columns {shorten(' '.join(columns.names))!r} ask for {columns.count}"
                raise AnnotationError(f"{len(fields)} fields; {asked}{self.hint}")
            if not fields[columns.path]:
                raise AnnotationError("the path of the image is empty")
            box = None if columns.box is None else self._box([fields[place] for place in columns.box])
            points, seen = None, None
            if columns.points is not None:
                points, seen = self._points([fields[place] for place in columns.points])
            attributes = self._attributes(fields) if columns.attributes else {}
        except UnsafePathError:
            raise
        except AnnotationError as error:
            builder.malformed(error.message, file=file, line=line)
            return
        image_path = join_path(self.image_dir, fields[columns.path], source=path, line=line)
        image = builder.image(image_path, image_id=fields[columns.path], file=file, line=line)
        class_name = self.class_name if columns.class_name is None else fields[columns.class_name]
        if class_name is None:
            return
        builder.object(
            image,
            class_name=class_name,
            box=box,
            points=points,
            visibility=seen,
            attributes=attributes,
            file=file,
            line=line,
        )

    def _box(self, texts: list[str]) -> tuple[float, float, float, float]:
        a, b, c, d = numbers(texts)
        if self.is_xywh:
            c, d = a + c, b + d
        return a - self.shift, b - self.shift, c - self.shift, d - self.shift

    def _points(self, texts: list[str]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.uint8] | None]:
        seen = None
        if self.columns.has_visibility:
            flags = numbers(texts[2::3])
            try:
                seen = np.array([self.visibility[flag] for flag in flags], dtype=np.uint8)
            except KeyError as error:
                known = ", ".join(f"{flag:g}" for flag in self.visibility)
                message = f"flag {error.args[0]:g} of a point is none of {known}; see visibility_values"
                raise AnnotationError(message) from None
            del texts[2::3]
        if self.empty_is_absent and "" in texts:
            seen = np.full(len(texts) // 2, 2, dtype=np.uint8) if seen is None else seen
            for place, text in enumerate(texts):
                if not text:
                    seen[place // 2] = 0
            texts = [text or "0" for text in texts]
        return np.array(numbers(texts)).reshape(-1, 2) - self.shift, seen

    def _attributes(self, fields: Sequence[str]) -> dict[str, str]:
        values = {}
        for name, place in self.columns.attributes:
            value = fields[place]
            if value in ("", NO_VALUE):
                continue
            if self.attribute_values is not None:
                if value not in self.attribute_values:
                    known = ", ".join(map(repr, self.attribute_values))
                    raise AnnotationError(f"attribute {name!r} is {shorten(repr(value))}; known: {known}")
                value = self.attribute_values[value]
            values[name] = value
        return values


def visibility_map(values: Mapping[float, int] | None) -> dict[float, int]:
    """Return what a flag means; keys may be numbers or their text.

    Raises:
        ValueError: If a key is no number or a meaning is not 0, 1 or 2.
    """
    meanings = {float(flag): int(meaning) for flag, meaning in (values or _PLAIN_VISIBILITY).items()}
    if not set(meanings.values()) <= {0, 1, 2}:
        raise ValueError(f"visibility_values={values} must mean 0 absent, 1 hidden or 2 visible")
    return meanings


def check_box_format(box_format: str, *, has_box: bool) -> bool:
    """Return whether boxes are x, y, width, height.

    Raises:
        ValueError: If the format is unknown, or given for lines without such a box.
    """
    if box_format not in ("xyxy", "xywh"):
        raise ValueError(f"box_format={box_format!r} must be 'xyxy' or 'xywh'")
    if box_format == "xywh" and not has_box:
        raise ValueError("box_format='xywh' needs a 'box' of four numbers among the columns")
    return box_format == "xywh"


def check_shift(*, one_based: bool, normalized: bool) -> float:
    """Return what is subtracted from coordinates.

    Raises:
        ValueError: If they are both counted from one and fractions.
    """
    if one_based and normalized:
        raise ValueError("one_based=True and normalized=True exclude each other: fractions count from 0")
    return 1.0 if one_based else 0.0
