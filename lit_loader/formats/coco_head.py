"""The first pass over a COCO file: its images, categories with their points, and attributes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeGuard

from lit_loader.annotations.keypoints import KEYPOINT_SCHEMAS, KeypointSchema
from lit_loader.annotations.report import shorten
from lit_loader.errors import AnnotationError
from lit_loader.formats.collected import MAX_ATTRIBUTES, MAX_ROWS
from lit_loader.formats.json_file import Entry, read_entries
from lit_loader.formats.keypoint_union import mirrored_by_name, unite_keypoints
from lit_loader.formats.table_room import MAX_POINT_NAMES
from lit_loader.formats.text_file import MAX_NAME_CHARS

__all__ = ["CocoCategory", "CocoHead", "CocoId", "CocoImage", "coco_id", "pixels", "read_coco_head", "word"]

CocoId = int | str
_MAX_PIXELS: Final = 2**31 - 1
_LISTS: Final = ("images", "annotations", "categories")
_MOST_STRANGERS: Final = 10_000  # each of them is reported, and a file may be full of them
_MAX_PATH_CHARS: Final = 4_096


@dataclass(frozen=True, kw_only=True, slots=True)
class CocoImage:
    """One entry of ``images``."""

    name: str
    file_name: str
    width: int
    height: int
    line: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CocoCategory:
    """One entry of ``categories``; ``points`` is None where it names none."""

    name: str
    points: tuple[str, ...] | None
    schema: KeypointSchema | None


@dataclass
class CocoHead:
    """What a file says before its annotations are read.

    Attributes:
        images: By id, in the file's order.
        categories: By id, in the order of the ids.
        attributes: Values in the order of their ids, by name; a key that this package's writer adds.
        split: The split's name, likewise.
        num_points: How often an annotation has how many points, of categories that name none.
    """

    images: dict[CocoId, CocoImage] = field(default_factory=dict)
    categories: dict[CocoId, CocoCategory] = field(default_factory=dict)
    attributes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    split: str | None = None
    num_points: Counter[int] = field(default_factory=Counter)

    def class_names(self) -> tuple[str, ...]:
        """Return the categories' names in the order of their ids, each once."""
        return tuple(dict.fromkeys(category.name for category in self.categories.values()))

    def keypoints(self) -> KeypointSchema | None:
        """Return the points of all categories, united by name; numbered where no category names them."""
        schemas = [category.schema for category in self.categories.values() if category.schema is not None]
        if schemas:
            return unite_keypoints(schemas)
        if not self.num_points:
            return None
        count = max(self.num_points)
        return KeypointSchema(names=tuple(f"{place:02d}" for place in range(count)))


def read_coco_head(root: Path, name: str, *, malformed: Callable[[str, Entry], None]) -> CocoHead:
    """Read images and categories, and count the points of annotations.

    Args:
        root: The data set's folder.
        name: The file, relative to ``root``.
        malformed: Called with a message and the entry for each that is not as the format asks.

    Raises:
        AnnotationError: If the file is no such JSON, has more images than a table may have, or too many entries that
            are not even objects.
    """
    head = CocoHead()
    seen: set[str] = set()
    num_strangers = 0
    for entry in read_entries(root, name):
        seen.add(entry.key)
        try:
            if entry.key == "images":
                _add_image(head, entry)
            elif entry.key == "categories":
                _add_category(head, entry)
            elif entry.key == "annotations":
                _count_points(head, entry.value)
            elif entry.key == "attributes" and entry.position >= 0:
                with suppress(ValueError):  # of other programs it may say anything
                    _add_attribute(head, entry.value)
            elif entry.key == "info" and isinstance(entry.value, dict):
                with suppress(ValueError):
                    head.split = word(entry.value.get("split"), "split")
        except (TypeError, ValueError) as error:
            if isinstance(error, AnnotationError):
                raise
            malformed(str(error), entry)
        num_strangers += entry.key in _LISTS and not isinstance(entry.value, dict)
        if num_strangers > _MOST_STRANGERS:
            message = (
                f"more than {_MOST_STRANGERS} entries are no objects; the lists of a COCO file hold objects"
            )
            raise AnnotationError(message, path=root / name, line=entry.line)
        if len(head.images) > MAX_ROWS:
            message = f"there are more than {MAX_ROWS} images; split the data set"
            raise AnnotationError(message, path=root / name, line=entry.line)
    if not seen & {"images", "annotations", "categories"}:  # a list without entries is not seen
        message = f"a COCO file has images, annotations, categories; this one has {sorted(seen)[:10]}"
        raise AnnotationError(shorten(message), path=root / name)
    head.categories = dict(
        sorted(head.categories.items(), key=lambda item: (isinstance(item[0], str), item[0]))
    )
    return head


def coco_id(value: Any, what: str) -> CocoId:
    """Return an id; 3.0 is 3.

    Raises:
        ValueError: If it is neither a whole number nor text.
    """
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{what} is {shorten(repr(value))}, neither a whole number nor text")
    if isinstance(value, str):
        return word(value, what)
    if abs(value) >= 2**63:
        raise ValueError(f"{what} has {value.bit_length()} bits; 63 are read")
    return value


def word(value: Any, what: str) -> str:
    """Return a text that can be a name.

    Raises:
        ValueError: If it is no text, empty, too long, or no Unicode.
    """
    if not isinstance(value, str):
        raise ValueError(f"{what} is {shorten(repr(value))}, not text")
    if not 0 < len(value) <= MAX_NAME_CHARS:
        raise ValueError(f"{what} has {len(value)} characters; 1 to {MAX_NAME_CHARS} are read")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError(f"{what} is {shorten(repr(value))}, which is no Unicode text")
    return value


def pixels(value: Any) -> int:
    """Return a number of pixels, 0 for what is none."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return int(value) if number and 1 <= value <= _MAX_PIXELS else 0


def _record(entry: Entry) -> Mapping[str, Any]:
    if not isinstance(entry.value, dict) or entry.position < 0:
        raise ValueError(f"is {shorten(repr(entry.value))}, not an object in a list")
    return entry.value


def _add_image(head: CocoHead, entry: Entry) -> None:
    record = _record(entry)
    image_id = coco_id(record.get("id"), "id")
    if image_id in head.images:
        raise ValueError(f"id {image_id!r} is that of images before, too")
    file_name = record.get("file_name")
    if not _may_be_path(file_name):
        raise ValueError(f"file_name is {shorten(repr(file_name))}; a path of an image expected")
    source_id = record.get("source_id")  # of other programs it may be anything
    head.images[image_id] = CocoImage(
        name=source_id if _may_be_path(source_id) else str(image_id),
        file_name=file_name,
        width=pixels(record.get("width")),
        height=pixels(record.get("height")),
        line=entry.line,
    )


def _may_be_path(value: Any) -> TypeGuard[str]:
    if not isinstance(value, str) or not 0 < len(value) <= _MAX_PATH_CHARS:
        return False
    try:
        value.encode("utf-8", "surrogateescape")  # names of files need not be Unicode
    except UnicodeEncodeError:
        return False
    return True


def _add_category(head: CocoHead, entry: Entry) -> None:
    record = _record(entry)
    category_id = coco_id(record.get("id"), "id")
    if category_id in head.categories:
        raise ValueError(f"id {category_id!r} is that of a category before, too")
    points = record.get("keypoints") or None
    schema = None
    if points is not None:
        if not isinstance(points, list) or len(points) > MAX_POINT_NAMES:
            raise ValueError(f"keypoints must be a list of at most {MAX_POINT_NAMES} names")
        points = tuple(word(point, "a name of keypoints") for point in points)
        schema = _schema(points, record)
    head.categories[category_id] = CocoCategory(
        name=word(record.get("name"), "name"), points=points, schema=schema
    )


def _schema(names: tuple[str, ...], record: Mapping[str, Any]) -> KeypointSchema:
    """Return the points of a category: flip pairs as written by this package, or found by their names."""
    pairs, interocular = record.get("flip_pairs"), record.get("interocular")
    if pairs is None and interocular is None:
        known = [schema for schema in KEYPOINT_SCHEMAS.values() if schema.names == names]
        return known[0] if known and names[0] != "00" else mirrored_by_name(names)
    if not isinstance(pairs, list | None) or not isinstance(interocular, list | None):
        raise ValueError("flip_pairs must be a list of pairs, and interocular a pair")
    return KeypointSchema(
        names=names,
        flip_pairs=tuple(pairs or ()),
        interocular=None if interocular is None else tuple(interocular),
    )


def _count_points(head: CocoHead, record: Any) -> None:
    points = record.get("keypoints") if isinstance(record, dict) else None
    if isinstance(points, list) and points and len(points) % 3 == 0 and len(points) <= 3 * MAX_POINT_NAMES:
        head.num_points[len(points) // 3] += 1


def _add_attribute(head: CocoHead, record: Any) -> None:
    if isinstance(record, dict) and isinstance(record.get("values"), list):
        values = tuple(dict.fromkeys(word(value, "a value of attributes") for value in record["values"]))
        if len(head.attributes) >= MAX_ATTRIBUTES:
            raise ValueError(f"more than {MAX_ATTRIBUTES} attributes are listed")
        head.attributes[word(record.get("name"), "name of attributes")] = values
