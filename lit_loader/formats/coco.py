"""COCO JSON: boxes, crowds, keypoints with visibility, and attributes as CVAT writes them.

The file is read twice, because its annotations may come before the images and categories that they refer to. Only one
entry is in memory at a time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, TypeGuard

import numpy as np

from lit_loader.annotations.keypoints import KEYPOINT_SCHEMAS, KeypointSchema
from lit_loader.annotations.masks import MAX_MASK_PIXELS, RunLengths, decode_counts
from lit_loader.annotations.report import shorten
from lit_loader.errors import AnnotationError
from lit_loader.formats.declared import mirrored_by_name, unite_keypoints
from lit_loader.formats.json_file import Entry, read_entries
from lit_loader.formats.reader import Reader
from lit_loader.formats.rows import MAX_NAME_CHARS, Rows

__all__ = ["CocoReader", "MAX_POINTS", "checked_name"]

MAX_POINTS: Final = 2_048
"""The most points of an object that are read."""

CocoId = int | str
_LISTS: Final = ("images", "annotations", "categories")
_MAX_ODD_ENTRIES: Final = 10_000  # each of them is reported, and a file may be full of them
_MAX_PATH_CHARS: Final = 4_096
_MAX_AREA: Final = 1e38  # float32
_FLAGS: Final = {"difficult": ("ignore", "difficult"), "truncated": ("truncated",), "occluded": ("occluded",)}
_READ: Final = frozenset(
    (
        *("id", "image_id", "category_id", "bbox", "segmentation", "area"),
        *("keypoints", "num_keypoints", "iscrowd", "attributes"),
        *(key for keys in _FLAGS.values() for key in keys),
    )
)
"""Keys of an annotation that are read, or that say nothing that others do not."""


@dataclass(frozen=True, kw_only=True)
class CocoReader(Reader):
    """Reads a COCO JSON file.

    Boxes are x, y, width, height in pixels. An annotation without one gets the box around its points; one without
    points too, the whole image. ``iscrowd`` is the crowd flag and ``ignore``, as some data sets have it, the difficult
    flag; ``truncated`` and ``occluded`` are flags where they are 0 or 1, and reported otherwise (shares, levels).
    Points whose v is 0 are absent, 1 hidden, 2 visible. Where several categories have points, they are united by name.
    Classes have the order of the categories' ids.

    An annotation of an image or with a number that does not exist is malformed; one of a category that does not exist
    has an unknown class. Rows of ``images`` with the same file are one image.

    Args:
        image_dir: The folder that ``file_name`` is relative to, relative to the root.
        schema: The points, as in ``keypoint_schema``. Points of a category that names its points are found by name,
            others of it are not read and reported; those of a category that does not, by position. None for the names
            of the categories, with flip pairs by the words left and right in them; points without names are numbered.
        keypoints: Whether to read points of annotations that have a box.
        attributes: Whether to read ``attributes``.
        masks: Whether to read ``segmentation``: polygons, or run lengths as numbers or as text.
    """

    format: ClassVar[str] = "coco"
    description: ClassVar[str] = "COCO JSON: boxes, crowds, keypoints; NAME: the JSON file"
    version: ClassVar[int] = 4

    image_dir: str = "."
    schema: str | KeypointSchema | Mapping[str, Any] | int | None = None
    keypoints: bool = True
    attributes: bool = True
    masks: bool = True

    def __post_init__(self) -> None:
        if self.schema is not None and not self.keypoints:
            raise ValueError(f"schema={self.schema!r} names points, and keypoints=False reads none; drop one")
        self.given_keypoints()

    def read(self, rows: Rows, unit: str) -> None:
        """Add what a JSON file says."""
        head = _Head(rows, self.image_dir)
        for entry in read_entries(rows.root, unit):
            head.add(entry)
        head.finish()
        given = self.given_keypoints()
        schema = (given or head.keypoints()) if self.keypoints else None
        rows.declare(
            class_names=head.class_names(),
            class_ids=head.class_ids(),
            keypoints=schema,
            attributes=head.attributes if self.attributes else {},
        )
        annotations = _Annotations(rows, head, schema, self)
        for entry in read_entries(rows.root, unit):
            if entry.key == "annotations":
                annotations.add(entry)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Category:
    """A category; its points are None where it names none."""

    name: str
    schema: KeypointSchema | None


@dataclass
class _Head:
    """What a file says besides its annotations: images, which are added to the rows, categories and attributes."""

    rows: Rows
    image_dir: str
    images: dict[CocoId, int] = field(default_factory=dict)
    categories: dict[CocoId, _Category] = field(default_factory=dict)
    attributes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    most_points: int = 0
    seen: set[str] = field(default_factory=set)
    _num_odd: int = 0
    _numbers: set[int] = field(default_factory=set)

    def add(self, entry: Entry) -> None:
        """Add an entry of any list.

        Raises:
            AnnotationError: If the policy says so, or too many entries are not even objects.
        """
        self.seen.add(entry.key)
        try:
            if entry.key == "images":
                self._add_image(entry)
            elif entry.key == "categories":
                self._add_category(entry)
            elif entry.key == "annotations":
                self._count_points(entry.value)
            elif entry.key == "attributes" and entry.position >= 0:
                with suppress(ValueError):  # of other programs it may say anything
                    self._add_attribute(entry.value)
            elif entry.key == "info" and isinstance(entry.value, dict):
                with suppress(ValueError):
                    self.rows.split = checked_name(entry.value.get("split"), "split")
        except AnnotationError:
            raise
        except (TypeError, ValueError) as error:
            self.rows.malformed(f"{entry.key}[{entry.position}]: {error}", line=entry.line)
        self._num_odd += entry.key in _LISTS and not isinstance(entry.value, dict)
        if self._num_odd > _MAX_ODD_ENTRIES:
            message = (
                f"more than {_MAX_ODD_ENTRIES} entries are not objects; the lists of a COCO file hold objects"
            )
            raise AnnotationError(message, path=self.rows.root / self.rows.file, line=entry.line)

    def finish(self) -> None:
        """Put the categories in the order of their ids.

        Raises:
            AnnotationError: If the file has none of the lists of a COCO file.
        """
        if not self.seen & set(_LISTS):  # a list without entries is not seen
            message = (
                f"a COCO file has images, annotations, categories; this one has {sorted(self.seen)[:10]}"
            )
            raise AnnotationError(shorten(message), path=self.rows.root / self.rows.file)
        by_id = sorted(self.categories.items(), key=lambda item: (isinstance(item[0], str), item[0]))
        self.categories = dict(by_id)

    def class_names(self) -> tuple[str, ...]:
        """Return the categories' names in the order of their ids, each once."""
        return tuple(dict.fromkeys(category.name for category in self.categories.values()))

    def class_ids(self) -> tuple[int, ...]:
        """Return the number of each class, or nothing if ids are text or two categories have one name."""
        ids = tuple(number for number in self.categories if isinstance(number, int))
        return ids if len(ids) == len(self.categories) == len(self.class_names()) else ()

    def keypoints(self) -> KeypointSchema | None:
        """Return the points of all categories, united by name; numbered where no category names them."""
        schemas = [category.schema for category in self.categories.values() if category.schema is not None]
        if schemas:
            return unite_keypoints(schemas)
        numbered = tuple(f"{place:02d}" for place in range(self.most_points))
        return KeypointSchema(names=numbered) if numbered else None

    def _add_image(self, entry: Entry) -> None:
        record = _record(entry)
        image_id = _id(record.get("id"), "id")
        if image_id in self.images:
            raise ValueError(f"id {image_id!r} is that of an image before, too")
        file_name, source_id = record.get("file_name"), record.get("source_id")
        if not _may_be_path(file_name):
            raise ValueError(f"file_name is {shorten(repr(file_name))}; a path of an image expected")
        number = self.rows.image(
            file_name,
            folder=self.image_dir,
            line=entry.line,
            image_id=source_id if _may_be_path(source_id) else str(image_id),
            width=_pixels(record.get("width")),
            height=_pixels(record.get("height")),
            source_id=image_id if isinstance(image_id, int) else None,
        )
        if number in self._numbers:
            message = f"{shorten(repr(file_name))} is the file of an image before, too; they are one image"
            self.rows.problem("same_file", "unite", message, line=entry.line)
        self._numbers.add(number)
        self.images[image_id] = number

    def _add_category(self, entry: Entry) -> None:
        record = _record(entry)
        category_id = _id(record.get("id"), "id")
        if category_id in self.categories:
            raise ValueError(f"id {category_id!r} is that of a category before, too")
        points = record.get("keypoints") or None
        schema = None
        if points is not None:
            if not isinstance(points, list) or len(points) > MAX_POINTS:
                raise ValueError(f"keypoints must be a list of at most {MAX_POINTS} names")
            schema = _schema(tuple(checked_name(point, "a name of keypoints") for point in points), record)
        self.categories[category_id] = _Category(name=checked_name(record.get("name"), "name"), schema=schema)

    def _count_points(self, record: Any) -> None:
        points = record.get("keypoints") if isinstance(record, dict) else None
        if isinstance(points, list) and len(points) % 3 == 0 and len(points) <= 3 * MAX_POINTS:
            self.most_points = max(self.most_points, len(points) // 3)

    def _add_attribute(self, record: Any) -> None:
        if isinstance(record, dict) and isinstance(record.get("values"), list):
            values = tuple(
                dict.fromkeys(checked_name(value, "a value of attributes") for value in record["values"])
            )
            self.attributes[checked_name(record.get("name"), "name of attributes")] = values


class _Annotations:
    """The second pass: entries of ``annotations``, added to the rows."""

    def __init__(self, rows: Rows, head: _Head, schema: KeypointSchema | None, options: CocoReader) -> None:
        self._rows, self._head, self._schema = rows, head, schema
        self._keypoints, self._attributes, self._masks = options.keypoints, options.attributes, options.masks
        self._seen: set[CocoId] = set()

    def add(self, entry: Entry) -> None:
        """Add an annotation.

        Raises:
            AnnotationError: If the policy says so.
        """
        try:
            self._add(entry)
        except _AnnotationProblem as problem:
            message = f"annotations[{entry.position}]: {problem}"
            self._rows.problem(
                problem.kind, getattr(self._rows.policy, problem.kind), message, line=entry.line
            )

    def _add(self, entry: Entry) -> None:
        record = entry.value
        if not isinstance(record, dict) or entry.position < 0:
            raise _AnnotationProblem(f"is {shorten(repr(record))}, not an object in a list")
        image_id, category_id = (
            _checked_id(record.get("image_id"), "image_id"),
            _checked_id(record.get("category_id"), "category_id"),
        )
        if image_id not in self._head.images:
            raise _AnnotationProblem(f"image_id {image_id!r} does not match any entry in `images`")
        category = self._head.categories.get(category_id)
        if category is None:
            message = f"category_id {category_id!r} does not match any entry in `categories`"
            raise _AnnotationProblem(message, kind="unknown_class")
        number = self._number(record.get("id"), entry)
        box = _box(record.get("bbox"))
        points: Any = None
        names: tuple[str, ...] = ()
        if box is None and not self._keypoints:
            box = _box_around(record.get("keypoints"))
        elif self._schema is not None and (rows := _points(record.get("keypoints"))) is not None:
            points, names = rows, self._point_names(len(rows), category)
        if box is None and points is not None and not points[:, 2].any():
            points = None
        self._note_unread(record)
        polygons, run_lengths = self._mask(record.get("segmentation"), entry) if self._masks else ([], None)
        flags: dict[str, Any] = {flag: self._has_flag(record, keys, entry) for flag, keys in _FLAGS.items()}
        self._rows.object(
            self._head.images[image_id],
            class_name=category.name,
            box=box,
            points=None if points is None else points[:, :2],
            visibility=None if points is None else points[:, 2],
            point_names=names,
            attributes=self._values(record.get("attributes")) if self._attributes else {},
            crowd=_flag(record.get("iscrowd"), "iscrowd"),
            polygons=polygons,
            run_lengths=run_lengths,
            object_id=number,
            area=_area(record.get("area")),
            line=entry.line,
            index=entry.position,
            **flags,
        )

    def _note_unread(self, record: Mapping[str, Any]) -> None:
        for key in record.keys() - _READ:
            if record[key]:
                self._rows.not_read(f"{shorten(str(key))} of an annotation")

    def _point_names(self, count: int, category: _Category) -> tuple[str, ...]:
        assert self._schema is not None
        names = self._schema.names if category.schema is None else category.schema.names
        if count != len(names):
            raise _AnnotationProblem(
                f"{count} points; those of {category.name!r} are {len(names)}, or pass another `schema`"
            )
        return names

    def _has_flag(self, record: Mapping[str, Any], keys: tuple[str, ...], entry: Entry) -> bool:
        for key in keys:
            try:
                if _flag(record.get(key), key):
                    return True
            except _AnnotationProblem as problem:
                message = f"annotations[{entry.position}]: {problem}"
                self._rows.problem("odd_flag", "false", message, line=entry.line)
        return False

    def _mask(self, value: Any, entry: Entry) -> tuple[list[list[float]], RunLengths | None]:
        """Return a mask as polygons or as run lengths."""
        if not value:
            return [], None
        if isinstance(value, dict):
            return [], _run_lengths(value)
        if not isinstance(value, list) or not all(isinstance(part, list) for part in value):
            raise _AnnotationProblem(
                f"segmentation is {shorten(repr(value))}; polygons or run lengths expected"
            )
        polygons = []
        for part in value:
            if not all(map(_is_number, part)):
                raise _AnnotationProblem(
                    f"a polygon is {shorten(repr(part))}; numbers expected: x, y, x, y, ..."
                )
            if len(part) < 6 or len(part) % 2:
                message = (
                    f"annotations[{entry.position}]: a polygon of {len(part)} numbers; three points have 6"
                )
                self._rows.problem("odd_polygon", "left out", message, line=entry.line)
            else:
                polygons.append([_float(number) for number in part])
        return polygons, None

    def _number(self, value: Any, entry: Entry) -> int | None:
        """Return an annotation's id if it is a number, and note one that was there before."""
        if value is None:
            return None
        annotation_id = _checked_id(value, "id")
        if annotation_id in self._seen:
            message = (
                f"annotations[{entry.position}]: id {annotation_id!r} is that of an annotation before, too"
            )
            self._rows.problem("duplicate_id", "keep", message, line=entry.line)
        self._seen.add(annotation_id)
        return annotation_id if isinstance(annotation_id, int) else None

    def _values(self, values: Any) -> dict[str, str]:
        if not values:
            return {}
        if not isinstance(values, dict):
            rule = "not names with values; attributes=False reads none"
            raise _AnnotationProblem(f"attributes are {shorten(repr(values))}, {rule}")
        found = {}
        for name, value in values.items():
            if isinstance(value, list | dict):
                self._rows.not_read(f"attribute {shorten(name)!r} without a single value")
            elif value is not None and value != "":
                text = str(value).lower() if isinstance(value, bool) else str(value)
                for word in (name, text):
                    if any("\ud800" <= character <= "\udfff" for character in word):
                        raise _AnnotationProblem(f"{shorten(repr(word))} in attributes is not Unicode text")
                found[name] = text
        return found


class _AnnotationProblem(Exception):
    """An annotation that the policy decides on.

    Attributes:
        kind: The attribute of the policy.
    """

    def __init__(self, message: str, *, kind: str = "malformed") -> None:
        super().__init__(message)
        self.kind = kind


# -- values -----------------------------------------------------------------------------------------------


def checked_name(value: Any, what: str) -> str:
    """Return a name of a class, a point, an attribute or a value; ValueError if it cannot be one."""
    if not isinstance(value, str):
        raise ValueError(f"{what} is {shorten(repr(value))}, not text")
    if not 0 < len(value) <= MAX_NAME_CHARS:
        raise ValueError(f"{what} has {len(value)} characters; 1 to {MAX_NAME_CHARS} are read")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError(f"{what} is {shorten(repr(value))}, which is not Unicode text")
    return value


def _id(value: Any, what: str) -> CocoId:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{what} is {shorten(repr(value))}, neither a whole number nor text")
    if isinstance(value, str):
        return checked_name(value, what)
    if abs(value) >= 2**63:
        raise ValueError(f"{what} has {value.bit_length()} bits; 63 are read")
    return value


def _checked_id(value: Any, what: str) -> CocoId:
    try:
        return _id(value, what)
    except ValueError as error:
        raise _AnnotationProblem(str(error)) from None


def _record(entry: Entry) -> Mapping[str, Any]:
    if not isinstance(entry.value, dict) or entry.position < 0:
        raise ValueError(f"is {shorten(repr(entry.value))}, not an object in a list")
    return entry.value


def _may_be_path(value: Any) -> TypeGuard[str]:
    if not isinstance(value, str) or not 0 < len(value) <= _MAX_PATH_CHARS:
        return False
    try:
        value.encode("utf-8", "surrogateescape")  # names of files need not be Unicode
    except UnicodeEncodeError:
        return False
    return True


def _pixels(value: Any) -> float:
    return value if _is_number(value) else 0


def _schema(names: tuple[str, ...], record: Mapping[str, Any]) -> KeypointSchema:
    pairs, normalization_pair = record.get("flip_pairs"), record.get("normalization_pair")
    if pairs is None and normalization_pair is None:
        known = [schema for schema in KEYPOINT_SCHEMAS.values() if schema.names == names]
        return known[0] if known and names[0] != "00" else mirrored_by_name(names)
    if not isinstance(pairs, list | None) or not isinstance(normalization_pair, list | None):
        raise ValueError("flip_pairs must be a list of pairs, and normalization_pair a pair")
    return KeypointSchema(
        names=names,
        flip_pairs=tuple(pairs or ()),
        normalization_pair=None if normalization_pair is None else tuple(normalization_pair),
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer of hundreds of digits
        return math.inf if value > 0 else -math.inf


def _box(values: Any) -> Sequence[float] | None:
    if values is None or values == []:
        return None
    if not isinstance(values, list) or len(values) != 4 or not all(map(_is_number, values)):
        raise _AnnotationProblem(
            f"bbox is {shorten(repr(values))}; four numbers expected: x, y, width, height"
        )
    x, y, width, height = map(_float, values)
    return x, y, x + width, y + height


def _points(values: Any) -> Any:
    """Return points as float64 ``(K, 3)`` of x, y, v, or None if there are none."""
    if not values:
        return None
    if not isinstance(values, list) or len(values) % 3 or not all(map(_is_number, values)):
        raise _AnnotationProblem("keypoints must be numbers, three for each point: x, y, v")
    points = np.array([_float(value) for value in values], dtype=np.float64).reshape(-1, 3)
    wrong = ~np.isin(points[:, 2], (0, 1, 2))
    if wrong.any():
        raise _AnnotationProblem(
            f"v of a point is {points[wrong, 2][0]}; 0 absent, 1 hidden, 2 visible expected"
        )
    return points


def _area(value: Any) -> float | None:
    return _float(value) if _is_number(value) and 0 <= value < _MAX_AREA else None


def _run_lengths(value: Mapping[str, Any]) -> RunLengths:
    size, counts = value.get("size"), value.get("counts")
    if (
        not isinstance(size, list)
        or len(size) != 2
        or not all(type(side) is int and side > 0 for side in size)
    ):
        raise _AnnotationProblem(f"size of a mask is {shorten(repr(size))}; height and width expected")
    try:
        runs = decode_counts(counts) if isinstance(counts, str) else np.array(counts, dtype=np.int64)
        pixels = size[0] * size[1]
        if runs.ndim != 1 or pixels > MAX_MASK_PIXELS or (runs < 0).any() or int(runs.sum()) != pixels:
            raise ValueError(f"they do not add up to the {pixels} pixels of {size}")
    except (OverflowError, TypeError, ValueError) as error:
        raise _AnnotationProblem(f"counts of a mask: {shorten(str(error))}") from None
    return RunLengths(runs.astype(np.uint32), size[0], size[1])


def _box_around(values: Any) -> Sequence[float] | None:
    try:
        points = _points(values)
    except _AnnotationProblem:
        return None
    if points is None:
        return None
    there = points[(points[:, 2] > 0) & np.isfinite(points).all(axis=1), :2]
    if not len(there):
        return None
    box: list[float] = [*there.min(axis=0).tolist(), *there.max(axis=0).tolist()]
    return box


def _flag(value: Any, what: str) -> bool:
    if value is None or value in (0, 1):
        return bool(value)
    raise _AnnotationProblem(f"{what} is {shorten(repr(value))}; 0 or 1 expected")
