"""Annotations of one image as the JSON object that accompanies it in a shard: written, and read into a table.

NOTE [Fields]
    Coordinates are pixels of the whole image file. An image with several rows in a table, such as regions, has the
    objects of all of them.

    - ``path``: path of the image in the data set;
    - ``width``, ``height``: pixels, 0 if unknown;
    - ``boxes``: xmin, ymin, xmax, ymax of each object;
    - ``labels``: class number of each object, and ``names``: its class name, which has priority;
    - ``keypoints``, if the set has any: x, y, visibility (0 absent, 1 hidden, 2 visible) of each point of each object;
    - ``attributes``, if the set has any: for each attribute the value of each object, or null;
    - ``difficult``, ``truncated``, ``occluded``, ``crowd``: flags of the objects, each field only if a flag is set.

    Masks, oriented boxes, areas and ids are in the table of the set alone.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any, Final

import numpy as np

from lit_loader.annotations.formats.folder import Folder
from lit_loader.annotations.formats.policy import ReadPolicy
from lit_loader.annotations.formats.rows import FLAG_BITS, MAX_POINTS, Rows
from lit_loader.annotations.formats.rules import build_table
from lit_loader.annotations.keypoints import KeypointSchema, keypoint_schema
from lit_loader.annotations.problems import shorten
from lit_loader.annotations.table import AnnotationTable
from lit_loader.errors import AnnotationError
from lit_loader.storage.tar_samples import TarSamples

__all__ = ["RecordWriter", "table_of_samples"]

_MAX_LABEL_BYTES: Final = 1024
_MAX_DIGITS: Final = 5
_UNKNOWN_SIDE: Final = 1 << 20
_VISIBILITY: Final = (0, 1, 2)


class RecordWriter:
    """Encodes the annotations of the images of a table.

    Runs in: any thread; it has no mutable state.

    Args:
        table: The table, of whole images.

    Raises:
        AnnotationError: If the table has regions, because an object would be in a record once for each of its tiles.
    """

    def __init__(self, table: AnnotationTable) -> None:
        if table.regions is not None:
            remedy = "pack the table of whole images, and cut the tiles when it is read"
            raise AnnotationError("the table has regions of images", path=table.root, remedy=remedy)
        self._table = table

    def encode(self, rows: Sequence[int]) -> bytes:
        """Return the JSON object of an image.

        Args:
            rows: Rows of the image in the table, at least one.
        """
        table = self._table
        first = rows[0]
        record: dict[str, Any] = {
            "path": table.image_paths[first],
            "width": int(table.widths[first]),
            "height": int(table.heights[first]),
        }
        objects: Any = table.objects(first)
        if len(rows) > 1:
            objects = np.concatenate([np.arange(table.offsets[row], table.offsets[row + 1]) for row in rows])
        labels = table.labels[objects].tolist()
        record["boxes"] = table.boxes[objects].tolist()
        record["labels"] = labels
        record["names"] = [table.class_names[label] for label in labels]
        if table.keypoints is not None and table.visibility is not None:
            points = table.keypoints[objects].tolist()
            visibility = table.visibility[objects].tolist()
            record["keypoints"] = [
                [[x, y, state] for (x, y), state in zip(xy, states, strict=True)]
                for xy, states in zip(points, visibility, strict=True)
            ]
        if table.attributes:
            record["attributes"] = {
                name: [None if value < 0 else attribute.names[value] for value in attribute.ids[objects].tolist()]
                for name, attribute in table.attributes.items()
            }
        for flag in FLAG_BITS:
            values = getattr(table, flag)[objects]
            if values.any():
                record[flag] = values.tolist()
        # Paths that are not valid UTF-8 survive as escapes.
        return json.dumps(record, separators=(",", ":")).encode()


def table_of_samples(
    folder: Folder, name: str, samples: TarSamples, paths: Sequence[str], *, class_names: Sequence[str] | None
) -> AnnotationTable:
    """Return the table of samples of tar files.

    Args:
        folder: Folder of the tar files.
        name: Name of the set, for messages.
        samples: The samples; not trusted.
        paths: Path of the image of each sample.
        class_names: Classes in the order of their ids, or None for those that occur: sorted names; or, if all of them
            are numbers, "0" to the largest one.

    Raises:
        AnnotationError: If an annotation cannot be used.
    """
    rows = Rows(folder.root, ReadPolicy(), class_names)
    rows.file = name
    rows.not_read("samples without an image", samples.num_without_image)
    num_points = next(filter(None, map(_num_points, samples.annotations)), 0)
    schema = keypoint_schema(num_points) if num_points else None
    rows.declare(class_names=class_names or (), keypoints=schema)
    classes = _Classes(class_names, samples)
    for path, extension, data in zip(paths, samples.extensions, samples.annotations, strict=True):
        if extension == "json":
            _add_record(rows, data, path=path, schema=schema, classes=classes)
        elif extension == "cls":
            _add_label(rows, data, path=path, classes=classes)
        else:
            rows.image(path)
    if class_names is None:
        rows.declare(class_names=_numbered_classes(rows.class_names), keypoints=schema)
    return build_table(rows, folder, class_names=class_names, keypoints=schema, are_files=False)


class _Classes:
    """Names of the classes that annotations give by a name or a number.

    Args:
        class_names: Classes in the order of their ids, or None for those that occur.
        samples: All samples.
    """

    def __init__(self, class_names: Sequence[str] | None, samples: TarSamples) -> None:
        self._class_names = class_names
        self._known = frozenset(class_names or ())
        pairs = zip(samples.extensions, samples.annotations, strict=True)
        texts = [data.strip() for extension, data in pairs if extension == "cls"]
        # One other name makes all of them names, such as "007" next to "bond".
        self._are_numbers = bool(texts) and all(text.isdigit() for text in texts)

    def name(self, value: Any) -> str:
        """Return the name of a class.

        Raises:
            ValueError: If ``value`` is neither a name nor the number of a class.
        """
        if isinstance(value, str):
            is_name = value in self._known if self._known else not self._are_numbers
            if is_name or not (value.isascii() and value.isdigit()):
                return value
            value = int(value)
        # True is an int.
        if type(value) is not int or value < 0:
            raise ValueError(f"class {shorten(repr(value), 40)} is neither a name nor a number from 0")
        if self._class_names is None:
            return str(value)
        if value >= len(self._class_names):
            raise ValueError(f"class {value} is not below {len(self._class_names)}, the number of classes")
        return self._class_names[value]


def _numbered_classes(names: Collection[str]) -> list[str]:
    """Return the classes "0" to the largest number if all names are numbers, else an empty list."""
    # Names that are sorted as text would give class 10 the id 2.
    if not names or not all(len(name) <= _MAX_DIGITS and _is_number(name) for name in names):
        return []
    return [str(number) for number in range(max(map(int, names)) + 1)]


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit() and (name == "0" or name[0] != "0")


def _add_record(rows: Rows, data: bytes, *, path: str, schema: KeypointSchema | None, classes: _Classes) -> None:
    """Add the image and the objects of a JSON object; its own ``path`` names a file that is not here."""
    record = _parsed(rows, data)
    sizes = [value if type(value := record.get(name, 0)) is int else 0 for name in ("width", "height")]
    image = rows.image(path, width=sizes[0], height=sizes[1])
    boxes = record.get("boxes")
    count = len(boxes) if isinstance(boxes, list) else 0
    columns = {name: _list(rows, record, name, count) for name in ("boxes", "labels", "names", "keypoints", *FLAG_BITS)}
    attributes = record.get("attributes")
    attributes = attributes if isinstance(attributes, dict) else {}
    values = {name: _list(rows, attributes, name, count) for name in attributes}
    for number in range(count):
        cells = {name: column[number] for name, column in columns.items()}
        arguments: dict[str, Any] = {flag: cells[flag] is True for flag in FLAG_BITS}
        arguments["attributes"] = {key: value[number] for key, value in values.items() if value[number] is not None}
        try:
            arguments["class_name"] = classes.name(cells["labels"] if cells["names"] is None else cells["names"])
            arguments["box"] = [float(side) for side in cells["boxes"]]
            if schema is not None and cells["keypoints"] is not None:
                points = np.array(cells["keypoints"], dtype=np.float64).reshape(len(schema.names), 3)
                # A cast to uint8 would make a state of any number.
                if not np.isin(points[:, 2], _VISIBILITY).all():
                    raise ValueError("visibility must be 0, 1 or 2")
                arguments |= {"points": points[:, :2], "visibility": points[:, 2].astype(np.uint8)}
            rows.object(image, index=number, **arguments)
        except (TypeError, ValueError, OverflowError) as error:
            if error is rows.raised:
                raise
            problem = "has no valid class, box, points or attributes"
            rows.malformed(f"object {number} of {path[:200]!r} {problem} ({shorten(str(error), 200)})")


def _add_label(rows: Rows, data: bytes, *, path: str, classes: _Classes) -> None:
    """Add an image of one class, which is a name or a number as text; its object is the whole image."""
    image = rows.image(path)
    try:
        class_name = classes.name(data[:_MAX_LABEL_BYTES].decode("utf-8", "replace").strip())
    except ValueError as error:
        rows.malformed(f"{path[:200]!r}: {error}")
        return
    # Without an annotated size; data sets clip boxes to the decoded image.
    rows.object(image, class_name=class_name, box=(0, 0, _UNKNOWN_SIDE, _UNKNOWN_SIDE))


def _num_points(data: bytes) -> int:
    """Return the number of points of the objects in a JSON object, 0 if it has none."""
    # Most sets have no points, and every object is parsed once more when it is added.
    if b'"keypoints"' not in data:
        return 0
    try:
        points = json.loads(data)["keypoints"]
        return min(len(points[0]), MAX_POINTS)
    except (KeyError, IndexError, TypeError, ValueError, RecursionError):
        return 0


def _parsed(rows: Rows, data: bytes) -> dict[str, Any]:
    try:
        record = json.loads(data)
    except (ValueError, RecursionError) as error:
        rows.malformed(f"expected the annotation of an image as JSON: {str(error)[:200]}")
        return {}
    if not isinstance(record, dict):
        rows.malformed(f"expected the annotation of an image as a JSON object, got {type(record).__name__}")
        return {}
    return record


def _list(rows: Rows, record: dict[str, Any], name: str, count: int) -> list[Any]:
    """Return the values of a field, one for each object; None for each if the field is missing or invalid."""
    values = record.get(name)
    if isinstance(values, list) and len(values) == count:
        return values
    if values is not None:
        rows.malformed(f"field {name!r} must be a list with a value for each of {count} objects")
    return [None] * count
