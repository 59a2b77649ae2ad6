"""The second pass over a COCO file: its annotations, each checked and handed to the table's builder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lit_loader.annotations.report import shorten
from lit_loader.errors import AnnotationError
from lit_loader.formats.builder import TableBuilder
from lit_loader.formats.coco_head import CocoCategory, CocoHead, CocoId, coco_id
from lit_loader.formats.json_file import Entry
from lit_loader.formats.table_room import lacks_room

__all__ = ["AnnotationReader"]

_FLAGS: Final = {"difficult": ("ignore", "difficult"), "truncated": ("truncated",), "occluded": ("occluded",)}


class AnnotationReader:
    """Reads entries of ``annotations``.

    Args:
        builder: Takes the objects.
        head: What the file says before.
        images: The builder's number of each image, by its id.
        file: The file, relative to the root.
        keypoints: Whether to read points of annotations that have a box.
        attributes: Whether to read attributes.
    """

    def __init__(
        self,
        builder: TableBuilder,
        head: CocoHead,
        images: Mapping[CocoId, int],
        *,
        file: str,
        keypoints: bool,
        attributes: bool,
    ) -> None:
        self._builder, self._head, self._images, self._file = builder, head, images, file
        self._keypoints, self._attributes = keypoints, attributes
        self._seen: set[CocoId] = set()
        self._objects = self._written = 0
        schema = builder.schema
        self._places = {} if schema is None else {name: place for place, name in enumerate(schema.names)}
        self._columns = {
            category: np.array([self._places.get(point, -1) for point in found.points or ()], dtype=np.int64)
            for category, found in head.categories.items()
        }

    def add(self, entry: Entry) -> None:
        """Add an annotation.

        Raises:
            AnnotationError: If something is wrong and the policy says ``"raise"``; names file and line.
        """
        try:
            self._add(entry)
        except _AnnotationProblem as problem:
            message = f"annotations[{entry.position}]: {problem}"
            action = getattr(self._builder.policy, problem.kind)
            self._builder.problem(problem.kind, action, message, file=self._file, line=entry.line)

    def _add(self, entry: Entry) -> None:
        record = entry.value
        if not isinstance(record, dict) or entry.position < 0:
            raise _AnnotationProblem(f"is {shorten(repr(record))}, not an object in a list")
        image_id, category_id = (
            _id(record.get("image_id"), "image_id"),
            _id(record.get("category_id"), "category_id"),
        )
        if image_id not in self._images:
            raise _AnnotationProblem(f"image_id {image_id!r} is that of no image")
        category = self._head.categories.get(category_id)
        if category is None:
            raise _AnnotationProblem(
                f"category_id {category_id!r} is that of no category", kind="unknown_class"
            )
        self._note_id(record.get("id"), entry)
        box = _box(record.get("bbox"))
        points = visibility = None
        if box is None and not self._keypoints:
            box = _box_around(record.get("keypoints"))
        if self._places and (self._keypoints or box is None):
            points, visibility = self._points(record.get("keypoints"), category_id, category, entry)
        if box is None and visibility is not None and not visibility.any():
            points = visibility = None
        self._objects += 1
        self._written += 0 if points is None else len(points)
        problem = lacks_room(names=len(self._places), objects=self._objects, written=self._written)
        if problem is not None:
            message = f"keypoints: {problem}; pass `schema`, or keypoints=False"
            raise AnnotationError(message, path=self._builder.root / self._file, line=entry.line)
        if record.get("segmentation"):
            self._builder.report.add_count("segmentation", "not read", 1)
        if any(key.endswith("_kpts") for key in record):
            self._builder.report.add_count("whole-body points", "not read", 1)
        self._builder.object(
            self._images[image_id],
            class_name=category.name,
            box=box,
            points=points,
            visibility=visibility,
            attributes=self._values(record.get("attributes")) if self._attributes else {},
            crowd=_flag(record.get("iscrowd"), "iscrowd"),
            file=self._file,
            line=entry.line,
            index=entry.position,
            **{flag: self._has_flag(record, keys, entry) for flag, keys in _FLAGS.items()},
        )

    def _has_flag(self, record: Mapping[str, Any], keys: tuple[str, ...], entry: Entry) -> bool:
        """Return a flag that COCO does not have; a share or a level, as others write, is reported and none."""
        for key in keys:
            try:
                if _flag(record.get(key), key):
                    return True
            except _AnnotationProblem as problem:
                message = f"annotations[{entry.position}]: {problem}"
                self._builder.problem("odd_flag", "false", message, file=self._file, line=entry.line)
        return False

    def _note_id(self, value: Any, entry: Entry) -> None:
        """Report an id that an annotation before has; nothing is found by it, so both are kept."""
        if value is None:
            return
        annotation_id = _id(value, "id")
        if annotation_id in self._seen:
            message = (
                f"annotations[{entry.position}]: id {annotation_id!r} is that of annotations before, too"
            )
            self._builder.problem("duplicate_id", "keep", message, file=self._file, line=entry.line)
        self._seen.add(annotation_id)

    def _points(
        self, values: Any, category_id: CocoId, category: CocoCategory, entry: Entry
    ) -> tuple[npt.NDArray[np.float64] | None, npt.NDArray[np.uint8] | None]:
        """Return points ``(K, 2)`` and visibility ``(K,)`` in the order of the table, or None."""
        if not values:
            return None, None
        if not isinstance(values, list) or len(values) % 3 or not all(map(_is_number, values)):
            raise _AnnotationProblem("keypoints must be numbers, three for each point: x, y, v")
        rows = np.array([_float(value) for value in values], dtype=np.float64).reshape(-1, 3)
        if not np.isin(rows[:, 2], (0, 1, 2)).all():
            wrong = float(rows[~np.isin(rows[:, 2], (0, 1, 2)), 2][0])
            raise _AnnotationProblem(f"v of a point is {wrong}; 0 absent, 1 hidden, 2 visible expected")
        columns = self._columns[category_id]
        expected = len(self._places) if category.points is None else len(columns)
        if len(rows) != expected:
            raise _AnnotationProblem(
                f"{len(rows)} points; those of {category.name!r} are {expected}, or pass another `schema`"
            )
        points = np.zeros((len(self._places), 2), dtype=np.float64)
        visibility = np.zeros(len(points), dtype=np.uint8)
        if category.points is None:
            columns = np.arange(len(rows))
        known = columns >= 0
        if not known.all() and rows[~known, 2].any():
            names = [
                name for name, there in zip(category.points or (), known.tolist(), strict=True) if not there
            ]
            message = f"annotations[{entry.position}]: points {shorten(str(names))} are none of the schema's"
            self._builder.problem("unknown_point", "ignore", message, file=self._file, line=entry.line)
        points[columns[known]] = rows[known, :2]
        visibility[columns[known]] = rows[known, 2].astype(np.uint8)
        return points, visibility

    def _values(self, values: Any) -> dict[str, str]:
        """Return attributes by name; numbers and truth values as JSON writes them, what has no value left out."""
        if not values:
            return {}
        if not isinstance(values, dict):
            rule = "not names with values; attributes=False reads none"
            raise _AnnotationProblem(f"attributes are {shorten(repr(values))}, {rule}")
        found = {}
        for name, value in values.items():
            if isinstance(value, list | dict):
                self._builder.report.add_count("attribute without a single value", "not read", 1)
            elif value is not None and value != "":
                text = _text(value)
                for word in (name, text):
                    if any("\ud800" <= character <= "\udfff" for character in word):
                        raise _AnnotationProblem(f"{shorten(repr(word))} in attributes is no Unicode text")
                found[name] = text
        return found


class _AnnotationProblem(Exception):
    """An annotation that cannot be used; ``kind`` is the attribute of the policy that decides."""

    def __init__(self, message: str, *, kind: str = "malformed") -> None:
        super().__init__(message)
        self.kind = kind


def _text(value: str | float) -> str:
    """Return an attribute's value as text: true and false as JSON writes them."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _id(value: Any, what: str) -> CocoId:
    try:
        return coco_id(value, what)
    except ValueError as error:
        raise _AnnotationProblem(str(error)) from None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer of hundreds of digits
        return math.inf if value > 0 else -math.inf


def _box(values: Any) -> tuple[float, float, float, float] | None:
    if values is None or values == []:
        return None
    if not isinstance(values, list) or len(values) != 4 or not all(map(_is_number, values)):
        raise _AnnotationProblem(
            f"bbox is {shorten(repr(values))}; four numbers expected: x, y, width, height"
        )
    x, y, width, height = map(_float, values)
    return x, y, x + width, y + height


def _box_around(values: Any) -> tuple[float, float, float, float] | None:
    """Return the box around the points that are not absent, of an annotation whose points are not read."""
    if not isinstance(values, list) or len(values) % 3 or not all(map(_is_number, values)):
        return None
    rows = np.array([_float(value) for value in values], dtype=np.float64).reshape(-1, 3)
    rows = rows[(rows[:, 2] > 0) & np.isfinite(rows).all(axis=1)]
    if not len(rows):
        return None
    (left, top), (right, bottom) = rows[:, :2].min(axis=0).tolist(), rows[:, :2].max(axis=0).tolist()
    return left, top, right, bottom


def _flag(value: Any, what: str) -> bool:
    if value is None or value in (0, 1):
        return bool(value)
    raise _AnnotationProblem(f"{what} is {shorten(repr(value))}; 0 or 1 expected")
