"""LabelMe: one JSON file per image, with rectangles, polygons and points, or with flags as classes of the image."""

from __future__ import annotations

import os
import posixpath
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
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
_FILE_KEYS: Final = {"version", "flags", "shapes", "imagePath", "imageData", "imageHeight", "imageWidth"}
_SHAPE_DEFAULTS: Final = dict[str, Any](
    label=None, points=None, group_id=None, shape_type="polygon", flags={}, difficult=False
)
"""Keys of a shape that are read, with the values of omitted ones."""

_RULE: Final = "a label, a whole number, text or null as group_id, flags true or false, points of its type"
_NUM_POINTS: Final = {"rectangle": (2, 4), "point": (1,), "polygon": range(3, 2**31)}
_FLAGS: Final = ("difficult", "truncated", "occluded", "crowd")
_Shapes: TypeAlias = list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class LabelmeReader(Reader):
    """Reads LabelMe's JSON files: one file, all files of a folder, or all that match a pattern, sorted by name.

    A rectangle is an object with a box, a polygon one with a mask. Shapes with the same label and ``group_id`` form one
    object: at most one rectangle and any number of polygons. Points of that group are its keypoints, named by their
    labels. A shape's flags are attributes with the values ``no`` and ``yes``, except that ``difficult``, ``truncated``,
    ``occluded`` and ``crowd`` set the flags of the object. Circles, lines, masks and shapes of other kinds are counted
    in the report.

    The image is the file that ``imagePath`` names, relative to the JSON file. If that file does not exist, it is the
    image embedded in ``imageData``, for which the table has the path of the JSON file.

    Args:
        image_dir: Folder of the images, relative to the folder of the JSON file and under the root; the file name is
            the last part of ``imagePath``. None uses the whole of ``imagePath``.
        class_file: File with one class per line (``labels.txt``), relative to the root, in the order of the class ids.
            ``__ignore__`` and ``_background_`` are skipped.
        class_name: Class of objects made of points alone: the points of each group without a rectangle or polygon, and
            the points without a group. None counts such points in the report.
        image_flags: Whether the flags of a file without shapes are classes of the image: each true flag except
            ``__ignore__``. True flags of other files are counted in the report.
        schema: Keypoint schema, as `keypoint_schema` takes it, or None for the labels that occur, sorted.

    Source:
        LabelMe by K. Wada, ``label_file.py`` and ``examples``.
    """

    format: ClassVar[str] = "labelme"
    description: ClassVar[str] = "LabelMe JSON, a file an image; NAME: their folder, or a pattern: **/*.json"
    entry_lists: ClassVar[tuple[str, str]] = ("images", "shapes")

    image_dir: str | None = None
    class_file: str | None = None
    class_name: str | None = None
    image_flags: bool = True
    schema: str | KeypointSchema | Mapping[str, Any] | int | None = None

    def inputs(self, folder: Folder, name: str) -> Inputs:
        """Return the class file and the files that a name means."""
        try:
            files = folder.find_files(name, ending=LABELME_ENDING)
        except AnnotationError as error:
            remedy = "convert the XML files of the old LabelMe to COCO or Pascal VOC"
            raise type(error)(error.problem, path=error.path, remedy=remedy) from None
        return Inputs(files=files if self.class_file is None else [self.class_file, *files])

    def read(self, rows: Rows, unit: str) -> None:
        """Add the image and the objects of a file."""
        if unit == self.class_file:
            names = [name for name in read_class_names(rows, unit) if name not in _NO_CLASS]
            rows.declare(class_names=names)
            return
        document = read_labelme(rows.root, unit)
        image_path = document.get("imagePath")
        shapes = document.get("shapes")
        flags = document.get("flags") or {}
        if not image_path or not isinstance(image_path, str) or not isinstance(shapes, list) or not _are_flags(flags):
            rule = "must be text, shapes a list, flags names with true or false, in a LabelMe file"
            raise AnnotationError(f"imagePath {shorten(repr(image_path))} {rule}", path=rows.root / unit)
        image = self._image(rows, unit, document)
        # Flags of a file with shapes describe the file, so they are only counted.
        has_image_classes = self.image_flags and not shapes
        classes = [name for name, is_set in flags.items() if is_set and has_image_classes and name not in _NO_CLASS]
        for name in classes:
            rows.object(image, class_name=name, box=None)
        _count_unread(rows, "{} of a file", document, _FILE_KEYS)
        _count_unread(rows, "flag {} of a file", flags, classes)
        self._add_groups(rows, image, _valid_shapes(rows, shapes))

    def _add_groups(self, rows: Rows, image: int, shapes: Iterable[dict[str, Any]]) -> None:
        """Add an object for each group of shapes."""
        # The key is (group_id, label), with the shape's index as the label without a group, and None for points.
        groups: dict[Any, _Shapes] = {}
        for shape in shapes:
            name = shape["label"] if shape["group_id"] is not None else shape["index"]
            key = shape["group_id"], None if shape["shape_type"] == "point" else name
            groups.setdefault(key, []).append(shape)
        # Points belong to the group's object if it has exactly one.
        num_objects = Counter(group for group, name in groups if None not in (group, name))
        for (group, name), members in groups.items():
            if name is not None:
                points = groups.get((group, None), []) if num_objects[group] == 1 else []
                self._add(rows, image, members[0]["label"], members, points)
            elif num_objects[group] > 1:
                message = f"group_id {group!r} has points, and objects of several labels; give each its own"
                rows.malformed(message, index=members[0]["index"])
            elif num_objects[group] == 0 and self.class_name is not None:
                self._add(rows, image, self.class_name, [], members)
            elif num_objects[group] == 0:
                rows.not_read("point without a rectangle or polygon in its group", len(members))

    def _image(self, rows: Rows, unit: str, document: Mapping[str, Any]) -> int:
        """Add the image that ``imagePath`` names, or the embedded image if that file does not exist."""
        # LabelMe on Windows writes backslashes.
        path = document["imagePath"].replace("\\", "/")
        if self.image_dir is not None:
            path = posixpath.join(self.image_dir, posixpath.basename(path))
        path = posixpath.normpath(posixpath.join(posixpath.dirname(unit), path))
        if path.startswith(("/", "../")):
            message = f"imagePath {shorten(repr(document['imagePath']))} leads out of the data set's root"
            remedy = "pass image_dir, the folder of the images, or a higher root"
            raise UnsafePathError(f"{message}; {remedy}", path=rows.root / unit)
        # A side that is not a whole number becomes -1, which is reported as a bad size.
        sides = (document.get("imageWidth"), document.get("imageHeight"))
        width, height = (side if type(side) is int else 0 if side is None else -1 for side in sides)
        # The id stays the image's own path, so that sets with and without embedded images have the same ids.
        image_id = path
        if document.get("imageData") and not os.path.isfile(rows.root / path):  # noqa: PTH113 # Path.is_file may raise
            path = unit
        return rows.image(path, image_id=image_id, width=width, height=height)

    def _add(self, rows: Rows, image: int, class_name: str, shapes: _Shapes, points: _Shapes) -> None:
        """Add the object that the shapes and points of one group form."""
        first = (shapes or points)[0]
        rectangles = [shape["points"] for shape in shapes if shape["shape_type"] == "rectangle"]
        polygons = [shape["points"] for shape in shapes if shape["shape_type"] == "polygon"]
        point_by_label = {point["label"]: point["points"][0] for point in points}
        if len(rectangles) > 1 or len(point_by_label) < len(points):
            message = f"group_id {first['group_id']!r} has two rectangles, or two points of one label"
            rows.malformed(f"{message}; give each object its own", index=first["index"])
            return
        # A flag of an object of several polygons is set if one of them sets it.
        flags: dict[str, bool] = {}
        for shape in shapes:
            for name, is_set in (*shape["flags"].items(), ("difficult", shape["difficult"])):
                flags[name] = is_set or flags.get(name, False)
        object_flags: dict[str, Any] = {name: flags.pop(name, False) for name in _FLAGS}
        # Two opposite corners of a rectangle may come in any order, so the extremes are taken.
        xs, ys = zip(*chain(*(rectangles or polygons)), strict=True) if shapes else ((), ())
        rows.object(
            image,
            class_name=class_name,
            box=(min(xs), min(ys), max(xs), max(ys)) if rectangles or (shapes and points) else None,
            polygons=[list(chain(*polygon)) for polygon in polygons],
            points=list(point_by_label.values()) or None,
            point_names=tuple(point_by_label),
            attributes={name: "yes" if is_set else "no" for name, is_set in flags.items()},
            index=first["index"],
            **object_flags,
        )


def _valid_shapes(rows: Rows, entries: list[Any]) -> Iterator[dict[str, Any]]:
    """Yield the shapes that can be read, with their position and default values, and report the others."""
    for index, entry in enumerate(entries):
        stated = {key: value for key, value in entry.items() if value is not None} if isinstance(entry, dict) else {}
        # LabelMe writes null for an unknown value, which means the same as an omitted key.
        shape = {**_SHAPE_DEFAULTS, **stated, "index": index}
        kind = shape["shape_type"]
        if isinstance(kind, str) and kind not in _NUM_POINTS:
            rows.not_read(f"shape {shorten(kind)!r}")
        elif not _is_shape(shape):
            rows.malformed(f"{shorten(repr(entry))} is not a shape; expected {_RULE}", index=index)
        else:
            _count_unread(rows, "{} of a shape", stated, _SHAPE_DEFAULTS)
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
        # A rectangle of four points must have its sides along the axes.
        and (kind != "rectangle" or all(len(set(side)) <= 2 for side in zip(*points, strict=True)))
    )  # fmt: skip


def _are_flags(flags: Any) -> bool:
    return isinstance(flags, dict) and all(isinstance(is_set, bool) for is_set in flags.values())


def _count_unread(rows: Rows, template: str, record: Mapping[str, Any], read: Collection[str]) -> None:
    for key, value in record.items():
        if key not in read and value is not None and value is not False and value not in ("", [], {}):
            rows.not_read(template.format(repr(shorten(key))))
