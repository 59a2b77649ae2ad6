"""LabelMe: a JSON file an image, with rectangles, polygons and points, or with flags that class the image."""

from __future__ import annotations

import os
import posixpath
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar, Final, TypeAlias

from lit_loader.annotations.formats.class_list import read_class_names
from lit_loader.annotations.formats.folder import Folder
from lit_loader.annotations.formats.labelme_file import LABELME_ENDING, read_labelme
from lit_loader.annotations.formats.reader import Inputs, Reader
from lit_loader.annotations.formats.rows import MAX_NAME_CHARS, Rows
from lit_loader.annotations.keypoints import KeypointSchema
from lit_loader.annotations.problems import shorten
from lit_loader.errors import AnnotationError, UnsafePathError

__all__ = ["LabelmeReader"]

_NO_CLASS: Final = ("__ignore__", "_background_")
_READ: Final = {"version", "flags", "shapes", "imagePath", "imageData", "imageHeight", "imageWidth"}
_SHAPE: Final[dict[str, Any]] = {
    **dict.fromkeys(("label", "points", "group_id")),
    **{"shape_type": "polygon", "flags": {}, "difficult": False},
}
"""What is read of a shape, and what it is where the file does not say."""

_RULE: Final = "a label, a whole number, text or null as group_id, flags true or false, points of its type"
_NUM_POINTS: Final = {"rectangle": (2, 4), "point": (1,), "polygon": range(3, 2**31)}
_FLAGS: Final = ("difficult", "truncated", "occluded", "crowd")
_Shapes: TypeAlias = list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class LabelmeReader(Reader):
    """Reads one JSON file, those of a folder, or those that fit a pattern, sorted by name.

    A rectangle is an object with a box; a polygon, one with a mask. Those of one label and one ``group_id`` are one
    object: a rectangle at most, and any number of polygons. Points of that group are its keypoints, by their labels.
    A shape's flags are attributes of the values ``no`` and ``yes``; ``difficult``, ``truncated``, ``occluded`` and
    ``crowd`` are the object's own. Circles, lines, masks and shapes of other kinds are counted in the report.

    The image is the file that ``imagePath`` names, relative to the JSON file; if it is not there, the one embedded in
    ``imageData``, whose path in the table is that of the JSON file.

    Args:
        image_dir: Folder of the images, relative to the JSON file's own, in which the last part of ``imagePath`` is
            looked for. None for the place that ``imagePath`` names. It must be below the root.
        class_file: A file with a class on each line (``labels.txt``), relative to the root: the classes in the order of
            their ids. ``__ignore__`` and ``_background_`` are none.
        class_name: Class of points that are in no rectangle's or polygon's group: those of a group are one object, and
            so are those without a group. None to count them in the report, since nothing says what they belong to.
        image_flags: Whether the flags of a file without shapes class the image: each that is true, but for
            ``__ignore__``. Other files' true flags are counted in the report.
        schema: The points, as in ``keypoint_schema``, or None for the labels that occur, sorted.

    Source:
        LabelMe by K. Wada, ``label_file.py`` and ``examples``.
    """

    format: ClassVar[str] = "labelme"
    description: ClassVar[str] = "LabelMe JSON, a file an image; NAME: their folder, or a pattern: **/*.json"

    image_dir: str | None = None
    class_file: str | None = None
    class_name: str | None = None
    image_flags: bool = True
    schema: str | KeypointSchema | Mapping[str, Any] | int | None = None

    def inputs(self, folder: Folder, name: str) -> Inputs:
        """Return the file of classes and the files that a name means."""
        try:
            files = folder.find_files(name, ending=LABELME_ENDING)
        except AnnotationError as error:
            remedy = "convert the XML files of the old LabelMe to COCO or Pascal VOC"
            raise type(error)(f"{error.message}; {remedy}", path=error.path) from None
        return Inputs(files=files if self.class_file is None else [self.class_file, *files])

    def read(self, rows: Rows, unit: str) -> None:
        """Add what a file says of its image."""
        if unit == self.class_file:
            rows.declare(class_names=[n for n in read_class_names(rows, unit) if n not in _NO_CLASS])
            return
        document = read_labelme(rows.root, unit)
        stated, listed, flags = document.get("imagePath"), document.get("shapes"), document.get("flags") or {}
        if not stated or not isinstance(stated, str) or not isinstance(listed, list) or not _are_flags(flags):
            message = f"imagePath {shorten(repr(stated))} must be text, shapes a list, flags names with true or false"
            raise AnnotationError(f"{message}, in a LabelMe file", path=rows.root / unit)
        image = self._image(rows, unit, document)
        classes = [name for name in flags if flags[name] and name not in _NO_CLASS]
        classes = classes if self.image_flags and not listed else []
        for name in classes:
            rows.object(image, class_name=name, box=None)
        _count_unread(rows, "{} of a file", document, _READ)
        _count_unread(rows, "flag {} of a file", flags, classes)
        groups: dict[Any, _Shapes] = {}
        for shape in _shapes(rows, listed):
            name = shape["label"] if shape["group_id"] is not None else shape["index"]
            key = shape["group_id"], None if shape["shape_type"] == "point" else name
            groups.setdefault(key, []).append(shape)
        owners = Counter(group for group, name in groups if None not in (group, name))
        for (group, name), shapes in groups.items():
            if name is not None:
                points = groups.get((group, None), []) if owners[group] == 1 else []
                self._add(rows, image, shapes[0]["label"], shapes, points)
            elif owners[group] > 1:
                message = f"group_id {group!r} has points, and objects of several labels; give each its own"
                rows.malformed(message, index=shapes[0]["index"])
            elif owners[group] == 0 and self.class_name is not None:
                self._add(rows, image, self.class_name, [], shapes)
            elif owners[group] == 0:
                rows.not_read("point without a rectangle or polygon in its group", len(shapes))

    def _image(self, rows: Rows, unit: str, document: Mapping[str, Any]) -> int:
        """Add the image: the file beside, or the one embedded."""
        path = document["imagePath"].replace("\\", "/")
        if self.image_dir is not None:
            path = posixpath.join(self.image_dir, posixpath.basename(path))
        path = posixpath.normpath(posixpath.join(posixpath.dirname(unit), path))
        if path.startswith(("/", "../")):
            message = f"imagePath {shorten(repr(document['imagePath']))} leads out of the data set's root"
            message += "; pass image_dir, the folder of the images, or a higher root"
            raise UnsafePathError(message, path=rows.root / unit)
        # What is no whole number becomes -1, which is reported.
        sides = (document.get("imageWidth"), document.get("imageHeight"))
        width, height = (side if type(side) is int else -(side is not None) for side in sides)
        found = path
        if document.get("imageData") and not os.path.isfile(rows.root / path):  # noqa: PTH113 # Path.is_file may raise
            found = unit
        return rows.image(found, image_id=path, width=width, height=height)

    def _add(self, rows: Rows, image: int, class_name: str, shapes: _Shapes, points: _Shapes) -> None:
        """Add the object that shapes of one group make."""
        first, *_ = *shapes, *points
        rectangles = [shape["points"] for shape in shapes if shape["shape_type"] == "rectangle"]
        polygons = [shape["points"] for shape in shapes if shape["shape_type"] == "polygon"]
        by_label = {point["label"]: point["points"][0] for point in points}
        if len(rectangles) > 1 or len(by_label) < len(points):
            message = f"group_id {first['group_id']!r} has two rectangles, or two points of one label"
            rows.malformed(f"{message}; give each object its own", index=first["index"])
            return
        flags: dict[str, bool] = {}
        for shape in shapes:
            for name, is_set in (*shape["flags"].items(), ("difficult", shape["difficult"])):
                flags[name] = is_set or flags.get(name, False)
        own: dict[str, Any] = {name: flags.pop(name, False) for name in _FLAGS}
        xs, ys = zip(*chain(*(rectangles or polygons)), strict=True) if shapes else ((), ())
        rows.object(
            image,
            class_name=class_name,
            box=(min(xs), min(ys), max(xs), max(ys)) if rectangles or (shapes and points) else None,
            polygons=[list(chain(*polygon)) for polygon in polygons],
            points=list(by_label.values()) or None,
            point_names=tuple(by_label),
            attributes={name: "yes" if is_set else "no" for name, is_set in flags.items()},
            index=first["index"],
            **own,
        )


def _shapes(rows: Rows, listed: list[Any]) -> Iterator[dict[str, Any]]:
    """Yield the shapes that are read, each with its position, and with what it leaves out."""
    for index, given in enumerate(listed):
        stated = {k: v for k, v in given.items() if v is not None} if isinstance(given, dict) else {}
        shape = {**_SHAPE, **stated, "index": index}
        kind = shape["shape_type"]
        if isinstance(kind, str) and kind not in _NUM_POINTS:
            rows.not_read(f"shape {shorten(kind)!r}")
        elif not _is_shape(shape):
            rows.malformed(f"{shorten(repr(given))} is no shape: it has {_RULE}", index=index)
        else:
            _count_unread(rows, "{} of a shape", stated, _SHAPE)
            _count_unread(rows, "flag {} of a point", shape["flags"] if kind == "point" else {}, ())
            yield shape


def _is_shape(shape: dict[str, Any]) -> bool:
    kind, label, points, group = (shape[key] for key in ("shape_type", "label", "points", "group_id"))
    return (
        isinstance(kind, str) and isinstance(label, str) and 0 < len(label) <= MAX_NAME_CHARS
        and (group is None or type(group) in (int, str)) and _are_flags(shape["flags"])
        and isinstance(shape["difficult"], bool)
        and isinstance(points, list) and len(points) in _NUM_POINTS[kind]
        and all(isinstance(point, list) and len(point) == 2 for point in points)
        and all(type(x) in (int, float) and abs(x) < 1e30 for point in points for x in point)
        and (kind != "rectangle" or all(len(set(side)) <= 2 for side in zip(*points, strict=True)))
    )  # fmt: skip


def _are_flags(flags: Any) -> bool:
    return isinstance(flags, dict) and all(isinstance(is_set, bool) for is_set in flags.values())


def _count_unread(rows: Rows, what: str, record: Mapping[str, Any], read: Collection[str]) -> None:
    for key, value in record.items():
        if key not in read and value is not None and value is not False and value not in ("", [], {}):
            rows.not_read(what.format(repr(shorten(key))))
