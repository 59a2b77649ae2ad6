"""COCO JSON: boxes, crowds, keypoints with visibility, and attributes as CVAT writes them.

NOTE [Columns]
    A batch of annotations is checked and added column by column. A batch with a malformed annotation is split in half
    until that annotation is alone. This keeps the common case fast with a single set of rules.
"""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain
from typing import Any, ClassVar, Final, TypeGuard

import numpy as np
import numpy.typing as npt

from lit_loader.annotations.formats.declared import mirrored_by_name, skeleton_edges, unite_keypoints
from lit_loader.annotations.formats.json_file import RepeatedKey, entry_lines, read_entries
from lit_loader.annotations.formats.reader import Reader
from lit_loader.annotations.formats.rows import (
    FLAG_BITS,
    MAX_COORDINATE,
    MAX_NAME_CHARS,
    MAX_POINTS,
    OBJECT,
    BoxKind,
    Rows,
    append_column,
    wrong_attribute,
)
from lit_loader.annotations.keypoints import KeypointSchema, known_by_names
from lit_loader.annotations.masks import MAX_MASK_PIXELS, RunLengths, decode_counts
from lit_loader.annotations.problems import shorten
from lit_loader.errors import AnnotationError

__all__ = ["CocoReader", "SURROGATE", "checked_name"]

SURROGATE: Final = re.compile("[\ud800-\udfff]")
"""A lone UTF-16 surrogate, which is not valid Unicode text."""

CocoId = int | str
_LISTS: Final = ("images", "annotations", "categories")
# The longest path that Linux opens.
_MAX_PATH_CHARS: Final = 4_096
_MAX_AREA: Final = 1e38  # areas are stored as float32
_FLAGS: Final = {"ignore": "difficult", "iscrowd": "crowd"} | {n: n for n in ("difficult", "truncated", "occluded")}
"""Flags of an object by the key of an annotation."""

_READ_KEYS: Final[dict[str, set[str]]] = {
    "info": set(),
    "an image": {"id", "file_name", "width", "height", "source_id"},
    "a category": {"id", "name", "keypoints", "flip_pairs", "normalization_pair", "sigmas", "skeleton"},
    "an annotation": {"id", "image_id", "category_id", "bbox", "segmentation", "area", "keypoints"}
    | {"num_keypoints", "attributes", *_FLAGS},
}
"""Keys that are read, or that only repeat other keys; all others are counted in the report."""


@dataclass(frozen=True, kw_only=True)
class CocoReader(Reader):
    """Reads a COCO JSON file.

    Boxes are x, y, width, height in pixels. An annotation without a box gets the box around its points, or around its
    polygons if it has no points, or the whole image if it has neither; run lengths without a box are malformed.
    ``iscrowd`` sets the crowd flag, ``ignore`` (used by some data sets) the difficult flag. ``truncated`` and
    ``occluded`` set their flags if they are 0 or 1; other values (fractions, levels) are reported. A point's v is 0 for
    absent, 1 for hidden, 2 for visible. The points of several categories are merged by name. Classes are ordered by
    category id.

    An annotation that refers to an image that does not exist is malformed; one that refers to a missing category has
    an unknown class. An entry that repeats a key is malformed. Entries of ``images`` with the same file become one
    image.

    Args:
        image_dir: Folder that ``file_name`` is relative to, itself relative to the root.
        schema: Keypoint schema, as `keypoint_schema` takes it. Where a category names its points, they are matched by
            name, and names outside the schema are reported; otherwise they are matched by position. None takes the
            names from the categories, with flip pairs derived from the words left and right; unnamed points are
            numbered.
        keypoints: Whether to read the points of annotations that have a box.
        attributes: Whether to read ``attributes``.
        masks: Whether to read ``segmentation``: polygons, or run lengths as numbers or text.
    """

    format: ClassVar[str] = "coco"
    description: ClassVar[str] = "COCO JSON: boxes, crowds, keypoints; NAME: the JSON file"
    entry_lists: ClassVar[tuple[str, str]] = ("images", "annotations")
    version: ClassVar[int] = 7

    image_dir: str = "."
    schema: str | KeypointSchema | Mapping[str, Any] | int | None = None
    keypoints: bool = True
    attributes: bool = True
    masks: bool = True

    def read(self, rows: Rows, unit: str) -> None:
        """Add the images and annotations of a JSON file."""
        # Lines cost a second pass over the file, so they are looked up only once a problem is reported.
        lines = cache(partial(entry_lines, rows.root, unit))
        # Annotations are numbered from 0 upwards, images from -1 downwards.
        rows.find_line = lambda _, i: lines()["annotations"][i] if i >= 0 else lines()["images"][-1 - i]
        file = _File(rows, self, lines)
        read_entries(rows.root, unit, file.take)
        # Any JSON object parses; one without any of the lists is a file of another format.
        if file.seen.isdisjoint(_LISTS):
            message = f"expected a COCO file with the keys {', '.join(_LISTS)}, got {sorted(file.seen)[:10]}"
            raise AnnotationError(shorten(message), path=rows.root / rows.file)
        if file.needs_second_pass:
            file.is_second_pass = True
            read_entries(rows.root, unit, file.take)
        file.finish()


class _File:
    """Content of one file, added to `Rows` while the file is parsed.

    In most files the annotations precede the categories, so classes and names of points are filled in at the end.
    Annotations hardly ever precede the images; such a file is read twice.

    Attributes:
        seen: Keys of the file so far.
        needs_second_pass: True if annotations preceded the images and were not added.
        is_second_pass: True while only annotations are added, all other keys having been read.
    """

    def __init__(self, rows: Rows, options: CocoReader, lines: Callable[[], dict[str, array[int]]]) -> None:
        self._rows = rows
        self._options = options
        self._lines = lines
        self._first = len(rows.objects)
        self._images: dict[CocoId, int] = {}
        # Images of this file only: an image that two files share is not reported.
        self._image_rows: set[int] = set()
        self._categories: dict[CocoId, tuple[str, KeypointSchema | None]] = {}  # None: the points have no names
        self._attributes: dict[str, tuple[str, ...]] = {}
        # Index of each pair of a category and a number of points. Until `finish`, a row's label holds this index.
        self._kinds: dict[tuple[CocoId, int], int] = {}
        self.seen: set[str] = set()
        self.needs_second_pass = False
        self.is_second_pass = False

    def take(self, key: str, start: int, entries: list[Any]) -> None:
        """Add entries of a key.

        Raises:
            AnnotationError: If a problem occurs whose policy is ``"raise"``.
        """
        # The first pass has read all other keys.
        if self.is_second_pass and key != "annotations":
            return
        self.seen.add(key)
        if key in ("info", "attributes"):
            for entry in entries:
                if isinstance(entry, RepeatedKey):
                    self._rows.malformed(f"{key}: {_not_object_message(entry)}")
            entries = [entry for entry in entries if not isinstance(entry, RepeatedKey)]
        # A value that is not a list has a negative start.
        if key in _LISTS and start < 0:
            raise AnnotationError(f"{key} must be a list", path=self._rows.root / self._rows.file)
        if key == "annotations":
            self.needs_second_pass = "images" not in self.seen
            if entries and (self.is_second_pass or not self.needs_second_pass):
                self._add_annotations(start, entries)
        elif key in ("images", "categories"):
            is_image = key == "images"
            self._add_records(key, self._add_image if is_image else self._add_category, start, entries)
            self._note_unread("an image" if is_image else "a category", entries)
        elif key == "info" and entries and isinstance(entries[0], dict):
            # A split that is not a name belongs to another program, and is counted as unread.
            with suppress(ValueError):
                self._rows.split = checked_name(entries[0].get("split"), "split")
                del entries[0]["split"]  # read, so not counted as unread below
            self._note_unread("info", entries)
        elif key == "attributes" and start >= 0:
            for entry in entries:
                self._add_attribute(entry)
        # Empty values have nothing to lose.
        elif any(entries):
            self._rows.not_read(shorten(key), len(entries))

    def finish(self) -> None:
        """Fill in the classes and point layouts of the annotations.

        Raises:
            AnnotationError: If a problem occurs whose policy is ``"raise"``.
        """
        rows = self._rows
        ids = sorted(self._categories, key=lambda category_id: (isinstance(category_id, str), category_id))
        # The order of the classes must not depend on the order of the entries.
        self._categories = {category_id: self._categories[category_id] for category_id in ids}
        schema = (self._options.given_keypoints() or self._keypoints()) if self._options.keypoints else None
        names = tuple(dict.fromkeys(name for name, _ in self._categories.values()))
        # Ids are stored only if each class has exactly one number, so that they can be written back.
        class_ids = tuple(category_id for category_id in ids if isinstance(category_id, int))
        if not len(class_ids) == len(ids) == len(names):
            rows.not_read("ids of categories, since one is text or two have the same name", len(ids))
            class_ids = ()
        attributes = self._attributes if self._options.attributes else {}
        rows.declare(class_names=names, class_ids=class_ids, keypoints=schema, attributes=attributes)
        self._report_duplicate_ids()
        self._resolve_kinds(schema)

    def _report_duplicate_ids(self) -> None:
        object_ids = np.array(self._rows.objects.object_ids[self._first :], dtype=np.int64)
        order = np.argsort(object_ids, kind="stable")  # stable: the first of equal ids is not reported
        duplicates = order[1:][(np.diff(object_ids[order]) == 0) & (object_ids[order][1:] != -1)]
        positions = self._rows.objects.rows()["index"][self._first :]
        for row in np.sort(duplicates).tolist():
            message = f"id {object_ids[row]} is already used by an earlier annotation"
            self._rows.problem("duplicate_id", "keep", message, index=int(positions[row]))

    def _resolve_kinds(self, schema: KeypointSchema | None) -> None:
        """Replace the kind that each row's label holds by its class and point layout."""
        rows = self._rows
        objects = rows.objects.rows()[self._first :]
        # The last row is for label -1, an object that is left out.
        label_and_layout = np.full((len(self._kinds) + 1, 2), -1)
        errors: dict[int, tuple[str, str]] = {}
        for kind, (category_id, count) in enumerate(self._kinds):
            if category_id not in self._categories:
                message = f"category_id {category_id!r} does not match any entry in `categories`"
                errors[kind] = "unknown_class", message
                continue
            name, category_schema = self._categories[category_id]
            # Names of the category itself come first; `schema` names the points of the other categories by position.
            points = (category_schema or schema).names if schema is not None and count else ()
            if points and count != len(points):
                message = f"expected {len(points)} points for {name!r}, got {count}; pass `schema` for other points"
                errors[kind] = "malformed", message
                continue
            layout = rows.layouts.setdefault(points, len(rows.layouts)) if points else -1
            label_and_layout[kind] = rows.class_names.setdefault(name, len(rows.class_names)), layout
        kinds = objects["label"].copy()
        objects["label"], objects["layout"] = label_and_layout[kinds].T
        for row in np.flatnonzero(np.isin(kinds, list(errors))).tolist():
            problem, message = errors[int(kinds[row])]
            rows.problem(problem, getattr(rows.policy, problem), message, index=int(objects["index"][row]))

    # -- images, categories, attributes ---------------------------------------------------------------------

    def _add_records(
        self, key: str, add: Callable[[int, dict[str, Any]], None], start: int, entries: list[Any]
    ) -> None:
        for position, record in enumerate(entries, start):
            try:
                if type(record) is not dict:
                    raise ValueError(_not_object_message(record))
                add(position, record)
            except AnnotationError:  # also a ValueError, but the policy asked for it
                raise
            except (TypeError, ValueError) as error:
                self._rows.malformed(f"{key}[{position}]: {error}", line=self._lines()[key][position])

    def _note_unread(self, entry_kind: str, entries: list[Any]) -> None:
        """Count the values under keys that are not read."""
        records = [entry for entry in entries if type(entry) is dict]
        if unread := set().union(*records) - _READ_KEYS[entry_kind]:
            names = (name for record in records for name in record.keys() & unread if record[name])
            for name, count in Counter(names).items():
                self._rows.not_read(f"{shorten(name)} of {entry_kind}", count)

    def _keypoints(self) -> KeypointSchema | None:
        """Return the points of all categories, merged by name; numbered if no category names them."""
        schemas = [schema for _, schema in self._categories.values() if schema is not None]
        if schemas:
            return unite_keypoints(schemas)
        # The bound keeps one annotation from declaring millions of points.
        num_points = max((count for _, count in self._kinds if count <= MAX_POINTS), default=0)
        return KeypointSchema(names=tuple(f"{i:02d}" for i in range(num_points))) if num_points else None

    def _add_image(self, position: int, record: dict[str, Any]) -> None:
        image_id = _id(record.get("id"), "id")
        if image_id in self._images:
            raise ValueError(f"id {image_id!r} is already used by an earlier image")
        file_name = record.get("file_name")
        source_id = record.get("source_id")
        if file_name is None and isinstance(url := record.get("coco_url"), str):
            # LVIS has no file_name; its coco_url is http://.../train2017/000000000139.jpg.
            file_name = "/".join(url.split("/")[-2:])
            self._rows.report.add_count("no file_name", "end of coco_url", 1)
        if not _may_be_path(file_name):
            raise ValueError(f"expected the path of an image as file_name, got {shorten(repr(file_name))}")
        row = self._rows.image(
            file_name,
            folder=self._options.image_dir,
            line=-1 - position,
            image_id=source_id if _may_be_path(source_id) else str(image_id),
            width=_pixels(record.get("width")),
            height=_pixels(record.get("height")),
            source_id=image_id if isinstance(image_id, int) else None,
        )
        # Two entries may spell one path differently.
        if row in self._image_rows:
            message = f"{shorten(repr(file_name))} is also the file of an earlier image; they become one image"
            self._rows.problem("same_file", "unite", message, line=-1 - position)
        self._image_rows.add(row)
        self._images[image_id] = row

    def _add_category(self, position: int, record: dict[str, Any]) -> None:
        category_id = _id(record.get("id"), "id")
        if category_id in self._categories:
            raise ValueError(f"id {category_id!r} is already used by an earlier category")
        points = record.get("keypoints") or []
        if not isinstance(points, list) or len(points) > MAX_POINTS:
            raise ValueError(f"keypoints must be a list of at most {MAX_POINTS} names")
        names = tuple(checked_name(point, "a name of keypoints") for point in points)
        schema = _schema(names, record) if names else None
        try:
            # A schema of known names has a skeleton already, which the file's own replaces.
            if schema is not None and (skeleton := skeleton_edges(record.get("skeleton"), first=1)):
                schema = replace(schema, skeleton=skeleton)
        except (TypeError, ValueError) as error:
            # Only drawings need it, and other tools write positions from 0, so the points are read all the same.
            message = f"categories[{position}] is read without its skeleton: {error}"
            self._rows.problem("bad_skeleton", "ignore", message, line=self._lines()["categories"][position])
        self._categories[category_id] = checked_name(record.get("name"), "name"), schema

    def _add_attribute(self, record: Any) -> None:
        try:
            values = dict.fromkeys(checked_name(value, "a value") for value in record["values"])
            self._attributes[checked_name(record["name"], "a name")] = tuple(values)
        except (KeyError, TypeError, ValueError):  # the key is not part of COCO: other programs may store anything
            self._rows.not_read("attributes")

    # -- annotations ----------------------------------------------------------------------------------------

    def _add_annotations(self, start: int, records: list[Any]) -> None:
        """Add annotations; if one of them is malformed, find it by bisection."""
        try:
            self._add_columns(start, records)
        except AnnotationError:  # also a ValueError, but the policy asked for it
            raise
        except ValueError as error:
            if len(records) == 1:
                self._rows.malformed(str(error), index=start)
                return
            # Halving ends at a single record, so the message describes exactly that one.
            half = len(records) // 2
            self._add_annotations(start, records[:half])
            self._add_annotations(start + half, records[half:])

    def _add_columns(self, start: int, records: list[Any]) -> None:
        """Add annotations column by column.

        Raises:
            ValueError: If one is malformed, before anything is added; the message suits a single record.
        """
        # Everything is checked here. A ValueError after the first change to the rows would leave half a batch in
        # them, and the bisection would add its records again.
        batch = _Batch(records, self._images, self._options)
        rows = self._rows
        objects = rows.objects
        first = len(objects)
        block = np.zeros(len(records), dtype=OBJECT)
        block["box"] = batch.boxes
        block["kind"] = batch.box_kinds
        block["image"] = batch.images
        block["flags"] = batch.flags
        block["index"] = np.arange(start, start + len(records))
        block["file"] = rows.files[rows.file]
        # Categories may follow later in the file, so `finish` resolves these labels.
        kinds = self._kinds
        pairs = zip(batch.category_ids, batch.point_counts, strict=True)
        block["label"] = [kinds.setdefault(pair, len(kinds)) for pair in pairs]
        objects.packed += block.tobytes()
        with np.errstate(over="ignore"):  # a point beyond float32 becomes inf and is reported later
            objects.points.frombytes(batch.points[:, :2].astype(np.float32).tobytes())
        objects.visibility += batch.points[:, 2].astype(np.uint8).tobytes()
        objects.polygon_values.frombytes(batch.polygons.astype(np.float32).tobytes())
        for row, parts, runs, invalid_lengths in batch.masks:
            objects.polygon_rows.extend([first + row] * len(parts))
            objects.polygon_lengths.extend(map(len, parts))
            if runs is not None:
                objects.run_lengths[first + row] = runs
            for length in invalid_lengths:
                message = f"expected a polygon of an even count of at least 6 numbers, got {length}"
                rows.problem("odd_polygon", "left out", message, index=start + row)
        for row, value_by_name, unread in batch.attributes:
            rows.add_attributes(first + row, value_by_name)
            for name in unread:
                rows.not_read(f"attribute {shorten(name)!r} without a single value")
        for row, message in batch.odd_flags:
            rows.problem("odd_flag", "false", message, index=start + row)
        # Without ids or areas their columns stay short; `append_column` fills the gap once a later batch has some.
        if "id" in batch.keys:
            object_ids = [value if type(value) is int else -1 for value in batch.ids]
            append_column(objects.object_ids, first, object_ids, missing=-1)
            rows.not_read("id of an annotation that is text", sum(type(value) is str for value in batch.ids))
        if "area" in batch.keys:
            values = batch.column("area")
            areas = _areas(values)
            append_column(objects.areas, first, areas, missing=math.nan)
            num_invalid = int(np.isnan(areas).sum()) - values.count(None)
            rows.not_read("area of an annotation that is not an area", num_invalid)
        self._note_unread("an annotation", records)


class _Batch:
    """Checked annotations, column by column.

    Attributes:
        keys: Keys that at least one of them has.
        images: Image number of each.
        category_ids: Category of each.
        ids: The file's own number of each, or text, or -1 without one.
        boxes: Corners ``(N, 4)``.
        box_kinds: `BoxKind` of each.
        point_counts: Number of points of each.
        points: x, y, v of all points, ``(K, 3)``.
        masks: Row, polygons, run lengths, and the lengths of invalid polygons.
        polygons: Coordinates of all polygons, concatenated.
        attributes: Row, values by name, and the names of attributes without a single value.
        flags: Bits of each, as in `OBJECT`.
        odd_flags: Row and message of each flag that is neither 0 nor 1.

    Raises:
        ValueError: If one is malformed; the message suits a single record.
    """

    def __init__(self, records: list[Any], images: Mapping[CocoId, int], options: CocoReader) -> None:
        if set(map(type, records)) != {dict}:
            raise ValueError(_not_object_message(records[0]))
        self._records = records
        self.keys: set[str] = set().union(*records)
        image_ids = _ids(self.column("image_id"), "image_id")
        self.category_ids = _ids(self.column("category_id"), "category_id")
        self.images: list[Any] = list(map(images.get, image_ids))
        if None in self.images:
            raise ValueError(f"image_id {image_ids[0]!r} does not match any entry in `images`")
        self.ids = _ids([-1 if value is None else value for value in self.column("id")], "id")
        self.boxes, has_box = _boxes(self.column("bbox"))
        self.point_counts, self.points = _points(self.column("keypoints", options.keypoints))
        self.masks = [(row, *_mask(value)) for row, value in self._non_empty("segmentation", options.masks)]
        self.polygons = _polygons([part for _, parts, _, _ in self.masks for part in parts])
        if any(runs is not None and not has_box[row] for row, _, runs, _ in self.masks):
            raise ValueError("expected a bbox for each object with run lengths; add it, or read no masks")
        values = self._non_empty("attributes", options.attributes)
        self.attributes = [(row, *_attribute_values(value)) for row, value in values]
        self.flags = np.zeros(len(records), np.int32)
        self.odd_flags: list[tuple[int, str]] = []
        for key in _FLAGS.keys() & self.keys:
            self._add_flags(key)
        self.box_kinds = np.full(len(records), BoxKind.GIVEN)
        self._choose_boxes(np.flatnonzero(~has_box).tolist(), options)

    def column(self, key: str, is_read: bool = True) -> list[Any]:
        """Return the value of each annotation under a key, None where it has none."""
        if not is_read or key not in self.keys:
            return [None] * len(self._records)
        return [record.get(key) for record in self._records]

    def _non_empty(self, key: str, is_read: bool = True) -> list[tuple[int, Any]]:
        return [(row, value) for row, value in enumerate(self.column(key, is_read)) if value]

    def _add_flags(self, key: str) -> None:
        values = self._non_empty(key)
        self.flags[[row for row, value in values if value == 1]] |= FLAG_BITS[_FLAGS[key]]
        odd_flags = [(row, f"expected {key} 0 or 1, got {shorten(repr(v))}") for row, v in values if v != 1]
        if odd_flags and key == "iscrowd":  # a crowd that is read as an object would be trained as one
            raise ValueError(odd_flags[0][1])
        self.odd_flags += odd_flags

    def _choose_boxes(self, boxless: list[int], options: CocoReader) -> None:
        """Set the source of each missing box."""
        ends = np.cumsum(self.point_counts)
        rows_with_polygons = {row for row, parts, _, _ in self.masks if parts}
        for row in boxless:
            # Points that are not read still give the box.
            if tight_box := None if options.keypoints else _box_around(self._records[row].get("keypoints")):
                self.boxes[row] = tight_box
            elif self.points[ends[row] - self.point_counts[row] : ends[row], 2].any():
                self.box_kinds[row] = BoxKind.AROUND_POINTS
            elif row in rows_with_polygons:
                self.box_kinds[row] = BoxKind.AROUND_POLYGONS
            else:
                self.box_kinds[row] = BoxKind.WHOLE_IMAGE


# -- values -----------------------------------------------------------------------------------------------


def checked_name(value: Any, subject: str) -> str:
    """Return a valid name of a class, point, attribute or attribute value.

    Raises:
        ValueError: If it is not Unicode text of 1 to 256 characters; the message begins with ``subject``.
    """
    if not isinstance(value, str):
        raise ValueError(f"{subject} is {shorten(repr(value))}, not text")
    if not 0 < len(value) <= MAX_NAME_CHARS:
        raise ValueError(f"{subject} has {len(value)} characters; expected 1 to {MAX_NAME_CHARS}")
    # JSON may escape half of a surrogate pair, which no file can store as UTF-8.
    if SURROGATE.search(value):
        raise ValueError(f"{subject} is {shorten(repr(value))}, which is not Unicode text")
    return value


def _not_object_message(entry: Any) -> str:
    if isinstance(entry, RepeatedKey):
        return f"the key {shorten(repr(entry.key))} is repeated in one object; keep one of its values"
    return f"expected an object, got {shorten(repr(entry))}"


def _id(value: Any, subject: str) -> CocoId:
    if isinstance(value, str):
        return checked_name(value, subject)
    # `bool` is a subclass of `int`. pandas writes integer columns with missing values as floats, so 7.0 is id 7.
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1:
        raise ValueError(f"{subject} is {shorten(repr(value))}; expected a whole number or text")
    number = int(value)
    if abs(number) >= 2**63:
        raise ValueError(f"{subject} has {number.bit_length()} bits; expected at most 63")
    return number


def _ids(values: list[Any], subject: str) -> list[CocoId]:
    # One pass in C for the usual case, instead of a call per record.
    return values if set(map(type, values)) == {int} else [_id(value, subject) for value in values]


def _may_be_path(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and 0 < len(value) <= _MAX_PATH_CHARS


def _pixels(value: Any) -> float:
    return value if _are_numbers([value]) else 0 if value is None else math.nan


def _schema(names: tuple[str, ...], record: Mapping[str, Any]) -> KeypointSchema:
    """Return the points of a category, without the file's skeleton."""
    # The same names as in a known schema have its flip pairs, which words alone may not show.
    standard = known_by_names(names)
    flip_pairs = record.get("flip_pairs")
    normalization_pair = record.get("normalization_pair")
    sigmas = record.get("sigmas") or []
    if not isinstance(sigmas, list):
        raise ValueError("sigmas must be a list of numbers")
    if flip_pairs is None and normalization_pair is None:
        schema = standard or mirrored_by_name(names)
    else:
        if not isinstance(flip_pairs, list | None) or not isinstance(normalization_pair, list | None):
            raise ValueError("flip_pairs must be a list of pairs, and normalization_pair a pair")
        schema = KeypointSchema(
            names=names,
            flip_pairs=tuple(flip_pairs or ()),
            normalization_pair=None if normalization_pair is None else tuple(normalization_pair),
            sigmas=() if standard is None else standard.sigmas,
            skeleton=() if standard is None else standard.skeleton,
        )
    return replace(schema, sigmas=tuple(sigmas)) if sigmas else schema


def _are_numbers(values: Iterable[Any]) -> bool:
    return set(map(type, values)) <= {int, float}


def _boxes(values: list[Any]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Return corners ``(N, 4)``, zeros for a missing box, and a mask ``(N,)`` of the boxes that are present."""
    has_box = np.full(len(values), True)
    if not all(values):
        has_box = np.array([value is not None and value != [] for value in values])
        values = [value if has else [0] * 4 for value, has in zip(values, has_box.tolist(), strict=True)]
    # Sets of types and lengths are built in C; a loop over the boxes would take longer than parsing them.
    are_boxes = set(map(type, values)) == {list} and set(map(len, values)) == {4}
    numbers = list(chain.from_iterable(values)) if are_boxes else [None]
    if not _are_numbers(numbers):
        raise ValueError(f"expected bbox as x, y, width, height, got {shorten(repr(values[0]))}")
    boxes = np.array(numbers, dtype=np.float64).reshape(-1, 4)
    with np.errstate(over="ignore"):  # non-finite boxes are reported later, by their policy
        boxes[:, 2:] += boxes[:, :2]
    return boxes, has_box


def _points(values: list[Any]) -> tuple[list[int], npt.NDArray[np.float64]]:
    """Return the number of points of each object, ``(N,)``, and x, y, v of all points, ``(K, 3)``."""
    lists = [value or [] for value in values]
    flat = list(chain.from_iterable(lists)) if set(map(type, lists)) == {list} else [None]
    if not _are_numbers(flat) or any(len(numbers) % 3 for numbers in lists):
        raise ValueError("keypoints must be numbers, three for each point: x, y, v")
    points = np.array(flat, dtype=np.float64).reshape(-1, 3)
    # A fraction or 3 is most likely a score of another program; taken as a flag it would mark points visible.
    invalid = ~np.isin(points[:, 2], (0, 1, 2))
    if invalid.any():
        v = points[invalid, 2][0]
        raise ValueError(f"expected v of a point as 0 (absent), 1 (hidden) or 2 (visible), got {v}")
    return [len(numbers) // 3 for numbers in lists], points


def _box_around(values: Any) -> list[float] | None:
    """Return the tight box of the points that are not absent, or None without such a point."""
    try:
        _, points = _points([values])
    except (TypeError, ValueError):
        return None
    present = points[points[:, 2] > 0, :2]
    return [*present.min(axis=0).tolist(), *present.max(axis=0).tolist()] if len(present) else None


def _areas(values: list[Any]) -> npt.NDArray[np.float64]:
    if not _are_numbers(values):
        values = [value if _are_numbers([value]) else math.nan for value in values]
    # NaN fails both comparisons and stays NaN.
    areas = np.array(values, dtype=np.float64)
    return np.where((areas >= 0) & (areas < _MAX_AREA), areas, math.nan)


def _mask(value: Any) -> tuple[list[list[Any]], RunLengths | None, list[int]]:
    """Return a mask as polygons or as run lengths, and the lengths of invalid polygons."""
    if isinstance(value, dict):
        return [], _run_lengths(value), []
    if not isinstance(value, list) or set(map(type, value)) != {list}:
        raise ValueError(f"expected segmentation as polygons or run lengths, got {shorten(repr(value))}")
    # Fewer than three points have no area; the other polygons of the object are used.
    invalid_lengths = [len(part) for part in value if len(part) < 6 or len(part) % 2]
    if invalid_lengths:
        value = [part for part in value if len(part) >= 6 and len(part) % 2 == 0]
    return value, None, invalid_lengths


def _polygons(parts: list[list[Any]]) -> npt.NDArray[np.float64]:
    """Return the coordinates of all polygons, concatenated."""
    numbers = list(chain.from_iterable(parts))
    if not _are_numbers(numbers):
        raise ValueError(f"expected a polygon as x, y, x, y, ..., got {shorten(repr(parts[0]))}")
    # NaN would pass the check below, but the JSON parser has refused it.
    values = np.array(numbers, dtype=np.float64)
    if np.abs(values).max(initial=0) >= MAX_COORDINATE:
        raise ValueError(f"a coordinate of a polygon is beyond {MAX_COORDINATE:g}")
    return values


def _attribute_values(record: Any) -> tuple[dict[str, str], list[str]]:
    """Return the attributes' values as text, and the names of attributes without a single value."""
    if not isinstance(record, dict):
        rule = "expected names with values; correct them, or read no attributes"
        raise ValueError(f"attributes are {shorten(repr(record))}; {rule}")
    text_by_name = {}
    unread = []
    for name, value in record.items():
        if isinstance(value, list | dict):
            unread.append(name)
        elif value is not None and value != "":
            text_by_name[name] = str(value).lower() if isinstance(value, bool) else str(value)
            if problem := wrong_attribute(name, text_by_name[name]):
                raise ValueError(problem)
    return text_by_name, unread


def _run_lengths(value: Mapping[str, Any]) -> RunLengths:
    size = value.get("size")
    counts = value.get("counts")
    if not isinstance(size, list) or [type(side) for side in size] != [int, int] or min(size) < 1:
        raise ValueError(f"expected the size of a mask as [height, width], got {shorten(repr(size))}")
    try:
        runs = decode_counts(counts) if isinstance(counts, str) else np.array(counts)
        pixels = size[0] * size[1]
        are_integers = runs.dtype.kind == "i" and runs.ndim == 1 and pixels <= MAX_MASK_PIXELS
        # The bounds come first: huge counts could overflow to the correct sum.
        if not are_integers or ((runs < 0) | (runs > pixels)).any() or int(runs.sum()) != pixels:
            raise ValueError(f"expected whole numbers that add up to the {pixels} pixels of {size}")
    except (OverflowError, TypeError, ValueError) as error:
        raise ValueError(f"counts of a mask: {shorten(str(error))}") from None
    return RunLengths(runs.astype(np.uint32), size[0], size[1])
