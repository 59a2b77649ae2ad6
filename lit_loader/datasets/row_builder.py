"""Add the rows of a data set to the builder of annotation tables, with problems that name the row."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

import numpy as np

from lit_loader.annotations.formats.policy import ReadPolicy
from lit_loader.annotations.formats.rows import Rows
from lit_loader.annotations.keypoints import KeypointSchema
from lit_loader.annotations.problems import shorten
from lit_loader.errors import AnnotationError

__all__ = ["BOX_FORMATS", "BoxFormat", "RowBuilder", "RowColumns"]

BoxFormat: TypeAlias = Literal["xyxy", "xywh", "cxcywh"]
BOX_FORMATS: Final = get_args(BoxFormat)


@dataclass(frozen=True, kw_only=True)
class RowColumns:
    """Columns of a data set, None for those that it does not have.

    Attributes:
        image: The image.
        boxes: Boxes of the objects. Without boxes and points, labels belong to the whole image.
        box_format: Meaning of the four numbers of a box.
        normalized: True if boxes and points are fractions of the image's sides.
        labels: Labels of the objects or of the image.
        keypoints: Points of the objects.
        crowd: Flags of the objects.
        image_id: Id of the image.
    """

    image: str
    boxes: str | None = None
    box_format: BoxFormat = "xyxy"
    normalized: bool = False
    labels: str | None = None
    keypoints: str | None = None
    crowd: str | None = None
    image_id: str | None = None

    def annotations(self) -> dict[str, str]:
        """Return the columns of annotations by the name of the attribute."""
        names = ("boxes", "labels", "keypoints", "crowd", "image_id")
        return {name: column for name in names if (column := getattr(self, name)) is not None}


class _WrongRow(ValueError):
    """A value of a row violates the form of its column.

    Args:
        column: The column.
        message: The value and the rule.
        index: Position of the object in the row, or None if the whole row is wrong.
    """

    def __init__(self, column: str, message: str, index: int | None = None) -> None:
        super().__init__(message)
        self.column = column
        self.index = index


class RowBuilder(Rows):
    """Builder of the table of one data set.

    Args:
        name: Name of the data set.
        columns: Its columns.
        policy: How to handle invalid values.
        class_names: Class names that the user gave, or None.
        label_names: Names of labels that are numbers; empty if the data set has none.
        schema: Schema of the points, or None.
    """

    def __init__(
        self,
        name: str,
        columns: RowColumns,
        *,
        policy: ReadPolicy,
        class_names: Sequence[str] | None,
        label_names: Sequence[str],
        schema: KeypointSchema | None,
    ) -> None:
        super().__init__(Path(), policy, class_names)
        self.file = name
        self.entry_lists = ("rows", "rows")
        self._columns = columns
        self._label_names = tuple(label_names or class_names or ())
        self._schema = schema
        self.normalized = columns.normalized
        # Classes without objects keep their ids.
        self.declare(class_names=label_names if class_names is None else (), keypoints=schema)

    def add(self, number: int, values: Mapping[str, Any], size: tuple[int, int]) -> None:
        """Add a row.

        Args:
            number: Number of the row, from 0.
            values: Annotations by column.
            size: Width and height of its image, 0 if unknown.

        Raises:
            AnnotationError: A value is invalid and the policy says ``"raise"``; or labels are numbers without names.
        """
        try:
            objects = self._objects(values)
        except _WrongRow as error:
            self._report_wrong(number, error)
            return
        image_id = values.get(self._columns.image_id or "")
        is_number = isinstance(image_id, int) and not isinstance(image_id, bool)
        # A negative line is the position of an entry: rows have no lines.
        line = -1 - number
        image = self.image(
            f"{self.file}/{number:06d}",
            line=line,
            image_id=None if image_id is None else str(image_id),
            source_id=image_id if is_number else None,
            width=size[0],
            height=size[1],
        )
        for index, arguments in enumerate(objects):
            try:
                self.object(image, line=line, index=index, **self._arguments(arguments, index))
            except _WrongRow as error:
                self._report_wrong(number, error)

    def problem(
        self,
        kind: str,
        action: str,
        message: str,
        *,
        line: int | None = None,
        index: int | None = None,
        image: str | None = None,
    ) -> None:
        """Add a problem, with the row in its message; see `Rows.problem`."""
        if line:
            message = f"row {-1 - line}{'' if index is None else f', object {index}'}: {message}"
        # The base class would name the object of a raised problem a second time.
        index = None if action == "raise" else index
        super().problem(kind, action, message, line=line, index=index, image=image)

    def _report_wrong(self, number: int, error: _WrongRow) -> None:
        message = f"column {error.column!r}: {error}"
        self.problem("malformed", self.policy.malformed, message, line=-1 - number, index=error.index)

    def _objects(self, values: Mapping[str, Any]) -> list[tuple[Any, Any, Any, Any]]:
        """Return box, label, points and crowd flag of each object, not yet converted."""
        columns = self._columns
        labels = values.get(columns.labels or "")
        if columns.boxes is None and columns.keypoints is None:
            image_labels = labels if isinstance(labels, list | tuple) else [labels]
            # Hugging Face writes -1 for the hidden labels of a test split.
            return [(None, label, None, False) for label in image_labels if label is not None and label != -1]
        boxes = _list_of(columns.boxes, values)
        points = _list_of(columns.keypoints, values)
        count = len(boxes if boxes is not None else points or ())
        if columns.labels in values and not isinstance(labels, list | tuple):
            labels = [labels] * count
        parts = []
        for column, part in (
            (columns.boxes, boxes),
            (columns.labels, labels),
            (columns.keypoints, points),
            (columns.crowd, _list_of(columns.crowd, values)),
        ):
            if column is not None and part is not None and len(part) != count:
                raise _WrongRow(column, f"expected {count} values, one for each object, got {len(part)}")
            parts.append([None] * count if part is None else part)
        return list(zip(*parts, strict=True))

    def _arguments(self, parts: tuple[Any, Any, Any, Any], index: int) -> dict[str, Any]:
        """Return the arguments of `Rows.object` for one object."""
        box, label, points, crowd = parts
        arguments: dict[str, Any] = {"box": None, "class_name": self._class_name(label, index), "crowd": bool(crowd)}
        if self._columns.boxes is not None and box is not None:
            arguments["box"] = self._box(box, index)
        if points is not None:
            arguments |= self._points(points, index)
        column = self._columns.boxes or self._columns.keypoints
        # Without these columns, the label belongs to the whole image.
        if column is not None and arguments["box"] is None and points is None:
            raise _WrongRow(column, "expected a box or points, got None", index)
        return arguments

    def _class_name(self, label: Any, index: int) -> str:
        column = self._columns.labels
        names = self._label_names
        if column is None:
            return names[0]
        if isinstance(label, str):
            return label
        try:
            number = operator.index(label)
        except TypeError:
            raise _WrongRow(column, f"expected a name or a number, got {_shown(label)}", index) from None
        if not names:
            problem = f"column {column!r} has numbers, such as {number}, and no names for them"
            remedy = "give their names in the order of the numbers"
            raise AnnotationError(problem, path=self.file, remedy=remedy, settings={"class_names": ...})
        if not 0 <= number < len(names):
            raise _WrongRow(column, f"label {number} is not in 0 to {len(names) - 1}, the {len(names)} classes", index)
        return names[number]

    def _box(self, box: Any, index: int) -> tuple[float, ...]:
        try:
            a, b, c, d = map(float, box)
        except (TypeError, ValueError, OverflowError):
            message = f"expected a box of 4 numbers, got {_shown(box)}"
            raise _WrongRow(self._columns.boxes or "", message, index) from None
        if self._columns.box_format == "xywh":
            return a, b, a + c, b + d
        if self._columns.box_format == "cxcywh":
            return a - c / 2, b - d / 2, a + c / 2, b + d / 2
        return a, b, c, d

    def _points(self, points: Any, index: int) -> dict[str, Any]:
        """Return points and visibility of one object."""
        num_points = len(self._schema.names) if self._schema is not None else 0
        try:
            flat = np.asarray(points, dtype=np.float64).reshape(-1)
            if flat.size not in (2 * num_points, 3 * num_points):
                raise ValueError
            rows = flat.reshape(num_points, -1)
            visibility = rows[:, 2] if rows.shape[1] == 3 else np.full(num_points, 2.0)
            if not np.isin(visibility, (0, 1, 2)).all():
                raise ValueError
        except (TypeError, ValueError, OverflowError):
            sizes = f"{2 * num_points} or {3 * num_points} numbers: x, y or x, y, visibility (0, 1, 2) of each point"
            raise _WrongRow(self._columns.keypoints or "", f"expected {sizes}, got {_shown(points)}", index) from None
        return {"points": rows[:, :2], "visibility": visibility.astype(np.uint8)}


def _list_of(column: str | None, values: Mapping[str, Any]) -> list[Any] | None:
    """Return the list of a column, or None if there is none; a row without objects may have None."""
    if column is None or column not in values:
        return None
    value = values[column]
    if value is not None and not isinstance(value, list | tuple):
        raise _WrongRow(column, f"expected a list with a value for each object, got {_shown(value)}")
    return list(value or ())


def _shown(value: Any) -> str:
    return shorten(repr(value), 80)
