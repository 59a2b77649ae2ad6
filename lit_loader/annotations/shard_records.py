"""Annotations of one image as the JSON object that accompanies it in a shard: written, and read into a table.

NOTE [Fields]
    Coordinates are pixels of the whole image file. An image with several rows in a table, such as regions, has the
    objects of all of them.

    - ``path``: path of the image in the data set;
    - ``width``, ``height``: pixels, 0 if unknown;
    - ``boxes``: xmin, ymin, xmax, ymax of each object;
    - ``labels``: class number of each object, and ``names``: its class name;
    - ``keypoints``, if the set has any: x, y, visibility (0 absent, 1 hidden, 2 visible) of each point of each object;
    - ``attributes``, if the set has any: for each attribute the value of each object, or null;
    - ``difficult``, ``truncated``, ``occluded``, ``crowd``: flags of the objects, each field only if a flag is set.

    Masks, oriented boxes, areas and ids are in the table of the set alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from lit_loader.annotations.formats.folder import Folder
from lit_loader.annotations.formats.policy import ReadPolicy
from lit_loader.annotations.formats.rows import FLAG_BITS, MAX_POINTS, Rows
from lit_loader.annotations.formats.rules import build_table
from lit_loader.annotations.keypoints import KeypointSchema, keypoint_schema
from lit_loader.annotations.table import AnnotationTable
from lit_loader.annotations.tiling import file_sizes
from lit_loader.storage.tar_samples import TarSamples

__all__ = ["RecordWriter", "table_of_samples"]

_MAX_LABEL_BYTES: Final = 1024
_MAX_DIGITS: Final = 5
_UNKNOWN_SIDE: Final = 1 << 20


class RecordWriter:
    """Encodes the annotations of the images of a table.

    Runs in: any thread; it has no mutable state.

    Args:
        table: The table.
    """

    def __init__(self, table: AnnotationTable) -> None:
        self._table = table
        # With regions, widths and heights are sizes of regions, and records need sizes of files.
        has_regions = table.regions is not None
        self._sizes = file_sizes(table) if has_regions else np.stack([table.widths, table.heights], axis=1)

    def encode(self, rows: Sequence[int]) -> bytes:
        """Return the JSON object of an image.

        Args:
            rows: Rows of the image in the table, at least one.
        """
        table = self._table
        width, height = self._sizes[rows[0]].tolist()
        record: dict[str, Any] = {"path": table.image_paths[rows[0]], "width": width, "height": height}
        objects: Any = table.objects(rows[0])
        if len(rows) > 1:
            objects = np.concatenate([np.arange(table.offsets[row], table.offsets[row + 1]) for row in rows])
        labels = table.labels[objects].tolist()
        boxes = table.boxes[objects]
        points = None if table.keypoints is None else table.keypoints[objects]
        if table.regions is not None:
            counts = [table.offsets[row + 1] - table.offsets[row] for row in rows]
            corners = np.repeat(table.regions[list(rows), :2], counts, axis=0).astype(np.float32)
            boxes = boxes + np.tile(corners, 2)
            points = None if points is None else points + corners[:, None]
        record["boxes"] = boxes.tolist()
        record["labels"] = labels
        record["names"] = [table.class_names[label] for label in labels]
        if points is not None and table.visibility is not None:
            visibility = table.visibility[objects].tolist()
            record["keypoints"] = [
                [[x, y, state] for (x, y), state in zip(xy, states, strict=True)]
                for xy, states in zip(points.tolist(), visibility, strict=True)
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
        class_names: Classes in the order of their ids, or None for those that occur, sorted. Numbers in ``cls`` members
            are then the ids.

    Raises:
        AnnotationError: If an annotation cannot be used.
    """
    rows = Rows(folder.root, ReadPolicy(), class_names)
    rows.file = name
    rows.not_read("samples without an image", samples.num_without_image)
    num_points = next(filter(None, map(_num_points, samples.annotations)), 0)
    schema = keypoint_schema(num_points) if num_points else None
    rows.declare(class_names=class_names or _numbered_classes(samples), keypoints=schema)
    for path, extension, data in zip(paths, samples.extensions, samples.annotations, strict=True):
        if extension == "json":
            _add_record(rows, data, path=path, schema=schema)
        elif extension == "cls":
            _add_label(rows, data, path=path, class_names=class_names)
        else:
            rows.image(path)
    return build_table(rows, folder, class_names=class_names, keypoints=schema, are_files=False)


def _numbered_classes(samples: TarSamples) -> list[str]:
    """Return the classes "0" to the largest number if all ``cls`` members are numbers, else an empty list."""
    pairs = zip(samples.extensions, samples.annotations, strict=True)
    texts = {data.strip() for extension, data in pairs if extension == "cls"}
    # Names that are sorted as text would give class 10 the id 2.
    if not texts or not all(text.isdigit() and len(text) <= _MAX_DIGITS for text in texts):
        return []
    return [str(number) for number in range(max(map(int, texts)) + 1)]


def _add_record(rows: Rows, data: bytes, *, path: str, schema: KeypointSchema | None) -> None:
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
        # Without names, class numbers serve as names.
        arguments["class_name"] = cells["names"] if isinstance(cells["names"], str) else str(cells["labels"])
        try:
            arguments["box"] = [float(side) for side in cells["boxes"]]
            if schema is not None and cells["keypoints"] is not None:
                points = np.array(cells["keypoints"], dtype=np.float64).reshape(len(schema.names), 3)
                arguments |= {"points": points[:, :2], "visibility": points[:, 2].astype(np.uint8)}
            rows.object(image, index=number, **arguments)
        except (TypeError, ValueError, OverflowError) as error:
            if error is rows.raised:
                raise
            rows.malformed(f"object {number} of {path[:200]!r} has no valid box, points or attributes")


def _add_label(rows: Rows, data: bytes, *, path: str, class_names: Sequence[str] | None) -> None:
    """Add an image of one class, which is a name or a number as text; its object is the whole image."""
    image = rows.image(path)
    text = data[:_MAX_LABEL_BYTES].decode("utf-8", "replace").strip()
    if class_names is not None and text not in class_names and text.isascii() and text.isdigit():
        number = int(text)
        if number >= len(class_names):
            rows.malformed(f"class {text[:20]} of {path[:200]!r} is not below {len(class_names)}, the classes")
            return
        text = class_names[number]
    # Without an annotated size; data sets clip boxes to the decoded image.
    rows.object(image, class_name=text, box=(0, 0, _UNKNOWN_SIDE, _UNKNOWN_SIDE))


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
