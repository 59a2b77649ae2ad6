"""COCO JSON: boxes, crowds, keypoints with visibility, and attributes as CVAT writes them.

NOTE [Columns]
    A batch of annotations is checked and added column by column. If something in it is malformed, it is halved until
    the annotation that is malformed is alone: the common case is fast, and there is one set of rules.
"""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain
from typing import Any, ClassVar, Final, TypeGuard

import numpy as np
import numpy.typing as npt

from lit_loader.annotations.formats.declared import mirrored_by_name, unite_keypoints
from lit_loader.annotations.formats.json_file import RepeatedKey, entry_lines, read_entries
from lit_loader.annotations.formats.reader import Reader
from lit_loader.annotations.formats.rows import (
    MAX_COORDINATE,
    MAX_NAME_CHARS,
    OBJECT,
    BoxKind,
    Rows,
    append_column,
    wrong_attribute,
)
from lit_loader.annotations.keypoints import KEYPOINT_SCHEMAS, KeypointSchema
from lit_loader.annotations.masks import MAX_MASK_PIXELS, RunLengths, decode_counts
from lit_loader.annotations.problems import shorten
from lit_loader.errors import AnnotationError

__all__ = ["CocoReader", "MAX_POINTS", "SURROGATE", "checked_name"]

MAX_POINTS: Final = 2_048
"""The most points of an object that are read."""

SURROGATE: Final = re.compile("[\ud800-\udfff]")
"""Half of a pair, which is not Unicode and which JSON cannot hold."""

CocoId = int | str
_LISTS: Final = ("images", "annotations", "categories")
_MAX_PATH_CHARS: Final = 4_096
_MAX_AREA: Final = 1e38  # float32
_FLAGS: Final = {"difficult": 1, "ignore": 1, "truncated": 2, "occluded": 4, "iscrowd": 8}  # bits of `OBJECT`
_READ: Final[dict[str, set[str]]] = {
    "info": set(),
    "an image": {"id", "file_name", "width", "height", "source_id"},
    "a category": {"id", "name", "keypoints", "flip_pairs", "normalization_pair"},
    "an annotation": {"id", "image_id", "category_id", "bbox", "segmentation", "area", "keypoints"}
    | {"num_keypoints", "attributes", *_FLAGS},
}
"""Keys that are read, or that say nothing that others do not."""


@dataclass(frozen=True, kw_only=True)
class CocoReader(Reader):
    """Reads a COCO JSON file.

    Boxes are x, y, width, height in pixels. An annotation without one gets the box around its points, else around its
    polygons; with run lengths it is malformed; with nothing of these it gets the whole image. ``iscrowd`` is the
    crowd flag and ``ignore``, as some data sets have it, the difficult flag; ``truncated`` and ``occluded`` are flags
    where they are 0 or 1, and reported otherwise (shares, levels). Points whose v is 0 are absent, 1 hidden, 2
    visible. Where several categories have points, they are united by name. Classes have the order of the categories'
    ids.

    An annotation of an image or with a number that does not exist is malformed; one of a category that does not exist
    has an unknown class. An entry with a repeated key is malformed. Rows of ``images`` with the same file are
    one image.

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
    version: ClassVar[int] = 7

    image_dir: str = "."
    schema: str | KeypointSchema | Mapping[str, Any] | int | None = None
    keypoints: bool = True
    attributes: bool = True
    masks: bool = True

    def read(self, rows: Rows, unit: str) -> None:
        """Add what a JSON file says."""
        lines = cache(partial(entry_lines, rows.root, unit))  # all of them, once a problem is reported
        rows.find_line = lambda _, i: lines()["annotations"][i] if i >= 0 else lines()["images"][-1 - i]
        file = _File(rows, self, lines)
        read_entries(rows.root, unit, file.take)
        if file.seen.isdisjoint(_LISTS):
            message = f"a COCO file has {', '.join(_LISTS)}; this one has {sorted(file.seen)[:10]}"
            raise AnnotationError(shorten(message), path=rows.root / rows.file)
        if file.read_again:
            file.is_second_time = True
            read_entries(rows.root, unit, file.take)
        file.finish()


class _File:
    """What one file says.

    Annotations come before the categories in most files. So their class and the names of their points are filled in at
    the end. They hardly ever come before the images; such a file is read twice.

    Attributes:
        seen: Keys of the file so far.
        read_again: Whether annotations came before the images, and were not added.
        is_second_time: Whether annotations alone are added, whatever came before.
    """

    def __init__(self, rows: Rows, options: CocoReader, lines: Callable[[], dict[str, array[int]]]) -> None:
        self._rows, self._options, self._lines = rows, options, lines
        self._first = len(rows.objects)
        self._images: dict[CocoId, int] = {}
        self._numbers: set[int] = set()
        self._categories: dict[CocoId, tuple[str, KeypointSchema | None]] = {}  # points where it names them
        self._attributes: dict[str, tuple[str, ...]] = {}
        # A category and a number of points; the number stands in the rows for the label until `finish`.
        self._kinds: dict[tuple[CocoId, int], int] = {}
        self.seen: set[str] = set()
        self.read_again = self.is_second_time = False

    def take(self, key: str, start: int, entries: list[Any]) -> None:
        """Add entries of any key.

        Raises:
            AnnotationError: If the policy says so.
        """
        if self.is_second_time and key != "annotations":
            return
        self.seen.add(key)
        if key in ("info", "attributes"):
            entries = self._without_repeated(key, entries)
        if key in _LISTS and start < 0:
            raise AnnotationError(f"{key} must be a list", path=self._rows.root / self._rows.file)
        if key == "annotations":
            self.read_again = "images" not in self.seen
            if entries and (self.is_second_time or not self.read_again):
                self._add_annotations(start, entries)
        elif key in _LISTS:
            is_images = key == "images"
            add, what = (self._add_image, "an image") if is_images else (self._add_category, "a category")
            self._add_records(key, add, start, entries)
            self._note_unread(what, entries)
        elif key == "info" and entries and isinstance(entries[0], dict):
            with suppress(ValueError):
                self._rows.split = checked_name(entries[0].get("split"), "split")
                del entries[0]["split"]
            self._note_unread("info", entries)
        elif key == "attributes" and start >= 0:
            for entry in entries:
                self._add_attribute(entry)
        elif any(entries):
            self._rows.not_read(shorten(key), len(entries))

    def finish(self) -> None:
        """Give the annotations their classes and points.

        Raises:
            AnnotationError: If the policy says so.
        """
        rows = self._rows
        by_id = sorted(self._categories, key=lambda number: (isinstance(number, str), number))
        self._categories = {number: self._categories[number] for number in by_id}
        schema = (self._options.given_keypoints() or self._keypoints()) if self._options.keypoints else None
        names = tuple(dict.fromkeys(name for name, _ in self._categories.values()))
        ids = tuple(number for number in self._categories if isinstance(number, int))
        if not len(ids) == len(by_id) == len(names):
            rows.not_read("ids of categories, since one is text or two have the same name", len(by_id))
            ids = ()
        attributes = self._attributes if self._options.attributes else {}
        rows.declare(class_names=names, class_ids=ids, keypoints=schema, attributes=attributes)
        objects = rows.objects.rows()[self._first :]
        ids_of = np.array(rows.objects.object_ids[self._first :], dtype=np.int64)
        order = np.argsort(ids_of, kind="stable")
        again = order[1:][(np.diff(ids_of[order]) == 0) & (ids_of[order][1:] != -1)]
        for row in np.sort(again).tolist():
            message = f"id {ids_of[row]} is that of an annotation before, too"
            rows.problem("duplicate_id", "keep", message, index=int(objects["index"][row]))
        found = np.full((len(self._kinds) + 1, 2), -1)  # label and layout of each kind
        wrong: dict[int, tuple[str, str]] = {}
        for kind, (category_id, count) in enumerate(self._kinds):
            if category_id not in self._categories:
                message = f"category_id {category_id!r} does not match any entry in `categories`"
                wrong[kind] = "unknown_class", message
                continue
            name, own = self._categories[category_id]
            points = (own or schema).names if schema is not None and count else ()
            if points and count != len(points):
                message = f"{count} points; those of {name!r} are {len(points)}, or pass another `schema`"
                wrong[kind] = "malformed", message
                continue
            layout = rows.layouts.setdefault(points, len(rows.layouts)) if points else -1
            found[kind] = rows.class_names.setdefault(name, len(rows.class_names)), layout
        kinds = objects["label"].copy()
        objects["label"], objects["layout"] = found[kinds].T
        for row in np.flatnonzero(np.isin(kinds, list(wrong))).tolist():
            problem, message = wrong[int(kinds[row])]
            rows.problem(problem, getattr(rows.policy, problem), message, index=int(objects["index"][row]))

    # -- images, categories, attributes ---------------------------------------------------------------------

    def _add_records(
        self, key: str, add: Callable[[int, dict[str, Any]], None], start: int, entries: list[Any]
    ) -> None:
        for position, record in enumerate(entries, start):
            try:
                if type(record) is not dict:
                    raise ValueError(_no_object(record))
                add(position, record)
            except AnnotationError:
                raise
            except (TypeError, ValueError) as error:
                self._rows.malformed(f"{key}[{position}]: {error}", line=self._lines()[key][position])

    def _without_repeated(self, key: str, entries: list[Any]) -> list[Any]:
        """Return the entries without those with a repeated key, which are malformed."""
        valid = []
        for entry in entries:
            if isinstance(entry, RepeatedKey):
                self._rows.malformed(f"{key}: {_no_object(entry)}")
            else:
                valid.append(entry)
        return valid

    def _note_unread(self, what: str, entries: list[Any]) -> None:
        """Count what is said under keys that are not read."""
        records = [entry for entry in entries if type(entry) is dict]
        if unread := set().union(*records) - _READ[what]:
            names = (name for record in records for name in record.keys() & unread if record[name])
            for name, count in Counter(names).items():
                self._rows.not_read(f"{shorten(name)} of {what}", count)

    def _keypoints(self) -> KeypointSchema | None:
        """Return the points of all categories, united by name; numbered where no category names them."""
        schemas = [schema for _, schema in self._categories.values() if schema is not None]
        if schemas:
            return unite_keypoints(schemas)
        most = max((count for _, count in self._kinds if count <= MAX_POINTS), default=0)
        return KeypointSchema(names=tuple(f"{place:02d}" for place in range(most))) if most else None

    def _add_image(self, position: int, record: dict[str, Any]) -> None:
        image_id, get = _id(record.get("id"), "id"), record.get
        if image_id in self._images:
            raise ValueError(f"id {image_id!r} is that of an image before, too")
        file_name, source_id = get("file_name"), get("source_id")
        if file_name is None and isinstance(url := get("coco_url"), str):
            file_name = "/".join(url.split("/")[-2:])  # LVIS: http://.../train2017/000000000139.jpg
            self._rows.report.add_count("no file_name", "end of coco_url", 1)
        if not _may_be_path(file_name):
            raise ValueError(f"file_name is {shorten(repr(file_name))}; a path of an image expected")
        number = self._rows.image(
            file_name,
            folder=self._options.image_dir,
            line=-1 - position,
            image_id=source_id if _may_be_path(source_id) else str(image_id),
            width=_pixels(get("width")),
            height=_pixels(get("height")),
            source_id=image_id if isinstance(image_id, int) else None,
        )
        if number in self._numbers:
            message = f"{shorten(repr(file_name))} is the file of an image before, too; they are one image"
            self._rows.problem("same_file", "unite", message, line=-1 - position)
        self._numbers.add(number)
        self._images[image_id] = number

    def _add_category(self, position: int, record: dict[str, Any]) -> None:
        category_id = _id(record.get("id"), "id")
        if category_id in self._categories:
            raise ValueError(f"id {category_id!r} is that of a category before, too")
        points = record.get("keypoints") or []
        if not isinstance(points, list) or len(points) > MAX_POINTS:
            raise ValueError(f"keypoints must be a list of at most {MAX_POINTS} names")
        names = tuple(checked_name(point, "a name of keypoints") for point in points)
        schema = _schema(names, record) if names else None
        self._categories[category_id] = checked_name(record.get("name"), "name"), schema

    def _add_attribute(self, record: Any) -> None:
        try:
            values = dict.fromkeys(checked_name(value, "a value") for value in record["values"])
            self._attributes[checked_name(record["name"], "a name")] = tuple(values)
        except (KeyError, TypeError, ValueError):  # of other programs it may say anything
            self._rows.not_read("attributes")

    # -- annotations ----------------------------------------------------------------------------------------

    def _add_annotations(self, start: int, records: list[Any]) -> None:
        """Add annotations; if one of them is malformed, find it by halves."""
        try:
            self._add_columns(start, records)
        except AnnotationError:
            raise
        except ValueError as error:
            if len(records) == 1:
                self._rows.malformed(str(error), index=start)
                return
            half = len(records) // 2
            self._add_annotations(start, records[:half])
            self._add_annotations(start + half, records[half:])

    def _add_columns(self, start: int, records: list[Any]) -> None:
        """Add annotations column by column.

        Raises:
            ValueError: If one is malformed, before anything is added; its message suits a single record.
        """
        rows, objects, options = self._rows, self._rows.objects, self._options
        if set(map(type, records)) != {dict}:
            raise ValueError(_no_object(records[0]))
        keys: set[str] = set().union(*records)

        def column(key: str, is_wanted: bool = True) -> list[Any]:
            is_there = is_wanted and key in keys
            return [record.get(key) for record in records] if is_there else [None] * len(records)

        def given(key: str, is_wanted: bool = True) -> list[tuple[int, Any]]:
            values = column(key, is_wanted)
            return [(row, value) for row, value in enumerate(values) if value] if any(values) else []

        image_ids = _ids(column("image_id"), "image_id")
        categories = _ids(column("category_id"), "category_id")
        images: list[Any] = list(map(self._images.get, image_ids))
        if None in images:
            raise ValueError(f"image_id {image_ids[0]!r} does not match any entry in `images`")
        ids = _ids([-1 if value is None else value for value in column("id")], "id")
        boxes, has_box = _boxes(column("bbox"))
        counts, points = _points(column("keypoints", options.keypoints))
        masks = [(row, *_mask(value)) for row, value in given("segmentation", options.masks)]
        polygons = _polygons([part for _, parts, _, _ in masks for part in parts])
        if any(runs is not None and not has_box[row] for row, _, runs, _ in masks):
            raise ValueError("expected a bbox for each object with run lengths; add it, or read no masks")
        values = [(row, *_values(value)) for row, value in given("attributes", options.attributes)]
        flags, odd_flags = np.zeros(len(records), np.int32), []
        for name in _FLAGS.keys() & keys:
            said = given(name)
            flags[[row for row, value in said if value == 1]] |= _FLAGS[name]
            odd = [(row, f"{name} is {shorten(repr(v))}; 0 or 1 expected") for row, v in said if v != 1]
            if odd and name == "iscrowd":
                raise ValueError(odd[0][1])
            odd_flags += odd
        # From here on the records are added.
        kinds, ends = np.full(len(records), BoxKind.GIVEN), np.cumsum(counts)
        with_polygons = {row for row, parts, _, _ in masks if parts}
        for row in np.flatnonzero(~has_box).tolist():
            if around := None if options.keypoints else _box_around(records[row].get("keypoints")):
                boxes[row] = around
            elif points[ends[row] - counts[row] : ends[row], 2].any():
                kinds[row] = BoxKind.AROUND_POINTS
            else:
                kinds[row] = BoxKind.AROUND_POLYGONS if row in with_polygons else BoxKind.WHOLE_IMAGE
        block = np.zeros(len(records), dtype=OBJECT)
        block["box"], block["kind"], block["image"], block["flags"] = boxes, kinds, images, flags
        block["index"], block["file"] = np.arange(start, start + len(records)), rows.files[rows.file]
        first, of_kind, pairs = len(objects), self._kinds, zip(categories, counts, strict=True)
        block["label"] = [of_kind.setdefault(pair, len(of_kind)) for pair in pairs]
        with np.errstate(over="ignore"):
            objects.points.frombytes(points[:, :2].astype(np.float32).tobytes())
        objects.visibility += points[:, 2].astype(np.uint8).tobytes()
        objects.polygon_values.frombytes(polygons.astype(np.float32).tobytes())
        for row, parts, runs, odd_lengths in masks:
            objects.polygon_rows.extend([first + row] * len(parts))
            objects.polygon_lengths.extend(map(len, parts))
            if runs is not None:
                objects.run_lengths[first + row] = runs
            for length in odd_lengths:
                message = f"a polygon of {length} numbers; three points have 6"
                rows.problem("odd_polygon", "left out", message, index=start + row)
        for row, found, unread in values:
            rows.add_attributes(first + row, found)
            for name in unread:
                rows.not_read(f"attribute {shorten(name)!r} without a single value")
        if "id" in keys:
            numbers = [each if type(each) is int else -1 for each in ids]
            append_column(objects.object_ids, first, numbers, missing=-1)
            rows.not_read("id of an annotation that is text", sum(type(each) is str for each in ids))
        if "area" in keys:
            areas, num_without = _areas(column("area")), column("area").count(None)
            append_column(objects.areas, first, areas, missing=math.nan)
            rows.not_read("area of an annotation that is none", int(np.isnan(areas).sum()) - num_without)
        objects.packed += block.tobytes()
        for row, message in odd_flags:
            rows.problem("odd_flag", "false", message, index=start + row)
        self._note_unread("an annotation", records)


# -- values -----------------------------------------------------------------------------------------------


def checked_name(value: Any, what: str) -> str:
    """Return a name of a class, a point, an attribute or a value; ValueError if it cannot be one."""
    if not isinstance(value, str):
        raise ValueError(f"{what} is {shorten(repr(value))}, not text")
    if not 0 < len(value) <= MAX_NAME_CHARS:
        raise ValueError(f"{what} has {len(value)} characters; 1 to {MAX_NAME_CHARS} are read")
    if SURROGATE.search(value):
        raise ValueError(f"{what} is {shorten(repr(value))}, which is not Unicode text")
    return value


def _no_object(entry: Any) -> str:
    if isinstance(entry, RepeatedKey):
        return f"the key {shorten(repr(entry.key))} is repeated in one object; keep one of its values"
    return f"is {shorten(repr(entry))}, not an object"


def _id(value: Any, what: str) -> CocoId:
    if isinstance(value, str):
        return checked_name(value, what)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1:
        raise ValueError(f"{what} is {shorten(repr(value))}, neither a whole number nor text")
    number = int(value)
    if abs(number) >= 2**63:
        raise ValueError(f"{what} has {number.bit_length()} bits; 63 are read")
    return number


def _ids(values: list[Any], what: str) -> list[CocoId]:
    return values if set(map(type, values)) == {int} else [_id(value, what) for value in values]


def _may_be_path(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and 0 < len(value) <= _MAX_PATH_CHARS


def _pixels(value: Any) -> float:
    return value if _are_numbers([value]) else 0 if value is None else math.nan


def _schema(names: tuple[str, ...], record: Mapping[str, Any]) -> KeypointSchema:
    pairs, normalization_pair = record.get("flip_pairs"), record.get("normalization_pair")
    if pairs is None and normalization_pair is None:
        known = [schema for schema in KEYPOINT_SCHEMAS.values() if schema.names == names]
        return known[0] if known and names[0] != "00" else mirrored_by_name(names)
    if not isinstance(pairs, list | None) or not isinstance(normalization_pair, list | None):
        raise ValueError("flip_pairs must be a list of pairs, and normalization_pair a pair")
    pair = None if normalization_pair is None else tuple(normalization_pair)
    return KeypointSchema(names=names, flip_pairs=tuple(pairs or ()), normalization_pair=pair)


def _are_numbers(values: Iterable[Any]) -> bool:
    return set(map(type, values)) <= {int, float}


def _boxes(values: list[Any]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Return corners ``(N, 4)``, zeros where there is no box, and where there is one ``(N,)``."""
    has_box = np.full(len(values), True)
    if not all(values):
        has_box = np.array([value is not None and value != [] for value in values])
        values = [value if has else [0] * 4 for value, has in zip(values, has_box.tolist(), strict=True)]
    is_right = set(map(type, values)) == {list} and set(map(len, values)) == {4}
    numbers = list(chain.from_iterable(values)) if is_right else [None]
    if not _are_numbers(numbers):
        raise ValueError(f"bbox is {shorten(repr(values[0]))}; four numbers expected: x, y, width, height")
    boxes = np.array(numbers, dtype=np.float64).reshape(-1, 4)
    with np.errstate(over="ignore"):  # a box that is not finite is reported as one
        boxes[:, 2:] += boxes[:, :2]
    return boxes, has_box


def _points(values: list[Any]) -> tuple[list[int], npt.NDArray[np.float64]]:
    """Return how many points each object has, ``(N,)``, and x, y, v of all, ``(K, 3)``."""
    given = [value or [] for value in values]
    flat = list(chain.from_iterable(given)) if set(map(type, given)) == {list} else [None]
    if not _are_numbers(flat) or any(len(each) % 3 for each in given):
        raise ValueError("keypoints must be numbers, three for each point: x, y, v")
    points = np.array(flat, dtype=np.float64).reshape(-1, 3)
    wrong = ~np.isin(points[:, 2], (0, 1, 2))
    if wrong.any():
        raise ValueError(f"v of a point is {points[wrong, 2][0]}; 0 absent, 1 hidden, 2 visible expected")
    return [len(each) // 3 for each in given], points


def _box_around(values: Any) -> list[float] | None:
    """Return the box around points that are there, or None."""
    try:
        _, points = _points([values])
    except (TypeError, ValueError):
        return None
    there = points[points[:, 2] > 0, :2]
    return [*there.min(axis=0).tolist(), *there.max(axis=0).tolist()] if len(there) else None


def _areas(values: list[Any]) -> npt.NDArray[np.float64]:
    if not _are_numbers(values):
        values = [value if _are_numbers([value]) else math.nan for value in values]
    areas = np.array(values, dtype=np.float64)
    return np.where((areas >= 0) & (areas < _MAX_AREA), areas, math.nan)


def _mask(value: Any) -> tuple[list[list[Any]], RunLengths | None, list[int]]:
    """Return a mask as polygons or as run lengths, and the lengths of polygons that are none."""
    if isinstance(value, dict):
        return [], _run_lengths(value), []
    if not isinstance(value, list) or set(map(type, value)) != {list}:
        raise ValueError(f"segmentation is {shorten(repr(value))}; polygons or run lengths expected")
    odd = [len(part) for part in value if len(part) < 6 or len(part) % 2]
    return [part for part in value if len(part) >= 6 and len(part) % 2 == 0] if odd else value, None, odd


def _polygons(parts: list[list[Any]]) -> npt.NDArray[np.float64]:
    """Return the numbers of polygons end to end."""
    numbers = list(chain.from_iterable(parts))
    if not _are_numbers(numbers):
        raise ValueError(f"a polygon is {shorten(repr(parts[0]))}; numbers expected: x, y, x, y, ...")
    values = np.array(numbers, dtype=np.float64)
    if np.abs(values).max(initial=0) >= MAX_COORDINATE:
        raise ValueError(f"a polygon with a coordinate beyond {MAX_COORDINATE:g}")
    return values


def _values(values: Any) -> tuple[dict[str, str], list[str]]:
    """Return the values of attributes as text, and the names of those that have no single value."""
    if not isinstance(values, dict):
        rule = "expected names with values; correct them, or read no attributes"
        raise ValueError(f"attributes are {shorten(repr(values))}; {rule}")
    found, unread = {}, []
    for name, value in values.items():
        if isinstance(value, list | dict):
            unread.append(name)
        elif value is not None and value != "":
            found[name] = str(value).lower() if isinstance(value, bool) else str(value)
            if wrong := wrong_attribute(name, found[name]):
                raise ValueError(wrong)
    return found, unread


def _run_lengths(value: Mapping[str, Any]) -> RunLengths:
    size, counts = value.get("size"), value.get("counts")
    if not isinstance(size, list) or [type(side) for side in size] != [int, int] or min(size) < 1:
        raise ValueError(f"size of a mask is {shorten(repr(size))}; height and width expected")
    try:
        runs = decode_counts(counts) if isinstance(counts, str) else np.array(counts)
        pixels = size[0] * size[1]
        is_whole = runs.dtype.kind == "i" and runs.ndim == 1 and pixels <= MAX_MASK_PIXELS
        if not is_whole or ((runs < 0) | (runs > pixels)).any() or int(runs.sum()) != pixels:
            raise ValueError(f"they are not whole numbers that add up to the {pixels} pixels of {size}")
    except (OverflowError, TypeError, ValueError) as error:
        raise ValueError(f"counts of a mask: {shorten(str(error))}") from None
    return RunLengths(runs.astype(np.uint32), size[0], size[1])
