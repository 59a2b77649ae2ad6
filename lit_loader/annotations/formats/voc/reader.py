"""Read Pascal VOC, plain or unified.

NOTE [Objects by their text]
    Parsing a file with ElementTree and walking its objects takes twice the time of parsing alone. But the objects of a
    set mostly differ only in the four numbers of their boxes. So a file is split at ``<object>``, a regular expression
    takes the box out of each piece, and the remaining text, ``<object><name>dog</name>...<bndbox/>...</object>``, is
    parsed as a separate document whose result is cached by its text. The text around the objects is parsed, and
    cached, with a single ``<object/>`` instead of all objects. Every byte except the numbers and the name of the image
    goes through the XML parser, and a piece that is a well-formed document where an element is allowed gives the same
    tree as the whole file. A file that does not fit this pattern, or has a malformed object, is parsed as a whole.
"""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, islice, repeat
from typing import Any, ClassVar, Final, TypeAlias
from xml.etree.ElementTree import Element

import numpy as np

from lit_loader.annotations.formats.folder import Folder, join_path
from lit_loader.annotations.formats.reader import Inputs, Reader
from lit_loader.annotations.formats.rows import DeclaredNames, Rows
from lit_loader.annotations.formats.text_file import read_lines
from lit_loader.annotations.formats.voc.schema import (
    CORNERS,
    QUAD_CORNERS,
    ROTATED_BOX,
    checked_name,
    only_child,
    read_schema,
)
from lit_loader.annotations.formats.voc.xml_tree import MAX_XML_BYTES, child_lines, parse_xml
from lit_loader.annotations.keypoints import KeypointSchema
from lit_loader.annotations.problems import shorten
from lit_loader.errors import AnnotationError

__all__ = ["VocReader"]

_Unit: TypeAlias = tuple[str, str, tuple[str, str, int | None] | None]
"""An image's id, its XML file or "", and None or a problem: kind, file of the split, line in it."""

_Box: TypeAlias = Sequence[float] | None
_MESSAGES: Final = {
    "duplicate_id": "image {} is listed more than once",
    "missing_annotation": "the XML file of image {} does not exist",
}
_COLUMNS: Final = tuple(f"{space}{number}" for space in " \t" for number in (-1, 0, 1))
"""Endings of the lines in VOC's split files of a single class."""

_FLAGS: Final = ("difficult", "truncated", "occluded")
_BLOCKS: Final = {"keypoints": "point", "attributes": "attribute", "actions": ""}
"""Elements with children, and the tag of the children that are read."""

_SINGLE: Final = frozenset(("name", "type", "bndbox", "robndbox", "pose", "crowd", *_FLAGS))
_BOX_TYPES: Final = ("", "bndbox", "robndbox")
_IN_HEAD: Final = frozenset(("object", "schema", "filename", "size", "folder", "path", "source", "owner"))
"""Elements of a file that are read, or that only describe the origin of the image."""

_BOOLEANS: Final = {"0": False, "1": True, "false": False, "true": True, "no": False, "yes": True, "": False}
_VISIBILITY: Final = {"0": 0, "1": 1, "2": 2}
_SPACE: Final = r"[ \t\r\n]*"  # XML's white space; \s would also match a form feed, which XML forbids
# The pattern also matches texts such as "1e"; float() refuses them, and the file is then parsed as a whole.
_NUMBERS: Final = "".join(rf"{_SPACE}<{tag}>{_SPACE}([-+.\deE]+){_SPACE}</{tag}>" for tag in CORNERS)
_BOX: Final = re.compile(rf"<bndbox>{_NUMBERS}{_SPACE}</bndbox>".encode())
_PLAIN: Final = r"[ -%'-;=?-~]*"  # ASCII without the markup characters & < >
_FILENAME: Final = re.compile(f"<filename>({_PLAIN})</filename>".encode())
_MAX_TEXT_BYTES: Final = 2_048  # bounds the caches: at most 2 * 4,096 texts of this size


@dataclass(frozen=True, kw_only=True)
class VocReader(Reader):
    """Reads a Pascal VOC data set.

    ``<annotation_dir>/<id>.xml`` describes the image ``<image_dir>/<id>`` with any ending; of several such images, the
    one with the ending of ``<filename>``. In a line of a split, an id may be followed by -1, 0 or 1, as in VOC's files
    of a single class; the number is ignored. ``<robndbox>`` is an oriented box, as roLabelImg writes it (centre, width,
    height, angle in radians, clockwise on the screen), or with four corners as in DIOR-R. ``<pose>`` is an attribute
    unless it is "Unspecified". Other elements of an ``<object>``, such as ``<part>`` and ``<actions>``, are counted in
    the report.

    Args:
        schema: Keypoint schema, as `keypoint_schema` takes it. None takes the points of the files' ``<schema>``, or
            without one the names that occur, sorted. Points with other names are reported.
        keypoints: Whether to read the points of objects that have a box.
        attributes: Whether to read attributes.
        one_based: Whether to subtract one from all coordinates. By default they are kept, as torchvision does.
        image_dir: Folder of the images, relative to the root.
        annotation_dir: Folder of the XML files, relative to the root.
        split_dir: Folder of the split files, relative to the root.
    """

    format: ClassVar[str] = "voc"
    description: ClassVar[str] = (
        "VOC XML, optionally with points and attributes; NAME: a split in ImageSets/Main, or . for all"
    )
    version: ClassVar[int] = 5

    schema: str | KeypointSchema | Mapping[str, Any] | int | None = None
    keypoints: bool = True
    attributes: bool = True
    one_based: bool = False
    image_dir: str = "JPEGImages"
    annotation_dir: str = "Annotations"
    split_dir: str = "ImageSets/Main"

    def inputs(self, folder: Folder, name: str) -> Inputs:
        """Return the XML files of a split, or for "." all under the annotation folder, sorted by id.

        Raises:
            AnnotationError: If the annotation folder or the split does not exist.
            UnsafePathError: If a line leads out of the root.
        """
        top = posixpath.normpath(self.annotation_dir)
        if not folder.is_folder(top):
            message = f"the folder {top!r} does not exist in {folder.root}; pass the data set's folder as `root`"
            raise AnnotationError(f"{message}, or its annotation folder as `annotation_dir`")
        if name == ".":
            return _inputs_of_folder(folder, top)
        split_file = join_path(self.split_dir, f"{name}.txt")
        source = folder.root / split_file
        if not folder.is_file(split_file):
            files = folder.files(posixpath.dirname(split_file) or ".")
            names = [file[:-4] for file in files if file.endswith(".txt")]
            listed = ", ".join(names[:20]) or "none"
            raise AnnotationError(f"the split file cannot be read; splits found there: {listed}", path=source)
        units: list[_Unit] = []
        # Every line is a unit, but a file that two lines name is stamped once.
        xml_by_id: dict[str, str] = {}
        # A look into this set is faster than `Folder.is_file` for each line.
        xml_names = folder.file_names(top) if top != "." else ()
        for line, text in read_lines(folder.root, split_file):
            text = text.strip()
            if not text:
                continue
            image_id = join_path(".", text, source=source, line=line)
            xml = f"{top}/{image_id}.xml"
            if f"{image_id}.xml" not in xml_names:
                xml = _find_xml(folder, top, image_id)
            # Tried second, since an id may itself end with " 1".
            if not xml and text.endswith(_COLUMNS):
                image_id = join_path(".", text.rsplit(None, 1)[0], source=source, line=line)
                xml = _find_xml(folder, top, image_id)
            kind = "duplicate_id" if image_id in xml_by_id else "" if xml else "missing_annotation"
            units.append((image_id, xml, (kind, split_file, line) if kind else None))
            xml_by_id[image_id] = xml
        unit_files = [xml for xml in xml_by_id.values() if xml]
        return Inputs(files=[split_file], units=units, unit_files=unit_files, split=name)

    def read(self, rows: Rows, unit: _Unit) -> None:
        """Add the image and the objects of an XML file."""
        image_id, xml, problem = unit
        if problem is not None:
            kind, rows.file, line = problem
            # The problem is known since `inputs`, but reported here, where the policy and the report are.
            action = getattr(rows.policy, kind)
            rows.problem(kind, action, _MESSAGES[kind].format(shorten(repr(image_id))), line=line)
            if action == "empty":
                rows.image(image_id, folder=self.image_dir, image_id=image_id, line=line)
            return
        rows.file = xml
        try:
            data = rows.read_bytes(max_bytes=MAX_XML_BYTES)
            head, file_name, objects = self._parse_pieces(data) or self._parse_whole(rows, data, f"{rows.root}/{xml}")
        except AnnotationError as error:
            rows.malformed(error.message, line=error.line)
            return
        declared = head.declared
        # Points that the schema does not list are a defect of this file, even if points are not read.
        schema_points = None
        if declared is not None:
            points = declared.keypoints if self.keypoints else None
            attributes = dict(declared.attributes) if self.attributes else {}
            rows.declare(class_names=declared.class_names, keypoints=points, attributes=attributes)
            schema_points = None if declared.keypoints is None else frozenset(declared.keypoints.names)
        for name in head.not_read:
            rows.not_read(name)
        number = rows.image(
            image_id,
            folder=self.image_dir,
            image_id=image_id,
            file_name=file_name,
            width=head.width,
            height=head.height,
        )
        for index, line, element, box in objects:
            # Most objects are plain, and a call for each would take longer than adding it.
            if element.is_plain or _may_add(rows, index, line, element, schema_points):
                rows.object(number, box=element.box if box is None else box, line=line, index=index, **element.fields)

    def _parse_pieces(self, data: bytes) -> tuple[_Head, str, Iterable[_PlacedObject]] | None:
        """Return the head of a file, the name of its image and its objects, or None if it must be parsed as a whole.

        See NOTE [Objects by their text].
        """
        start, *pieces = data.split(b"<object>")
        # The pieces have no XML declaration, so their bytes must mean the same without it.
        if not pieces or not (data.isascii() or b"encoding" not in start):
            return None
        # The last piece also has the end of the file, which belongs to the head.
        pieces[-1], end_tag, tail = pieces[-1].rpartition(b"</object>")
        pieces[-1] += end_tag
        # Locals, because each look-up of an attribute would be made for every object.
        keypoints = self.keypoints
        attributes = self.attributes
        shift = float(self.one_based)
        line = start.count(b"\n") + 1
        objects: list[_PlacedObject] = []
        try:
            # Without a match, split() returns one part, and unpacking it raises ValueError.
            prefix, file_name, suffix = _FILENAME.split(start, 1)
            head = _parse_head(b"%b<filename/>%b<object/>%b" % (prefix, suffix, tail))
            for index, piece in enumerate(pieces):
                prefix, xmin, ymin, xmax, ymax, suffix = _BOX.split(piece, 1)
                # The numbers differ from object to object, so the cached text has none.
                text = b"<object>%b<bndbox/>%b" % (prefix, suffix)
                element = _parse_object(text, keypoints, attributes, shift)
                box = float(xmin), float(ymin), float(xmax), float(ymax)
                # Rarely set, and subtracting 0 takes half as long as counting the lines.
                if shift:
                    box = box[0] - shift, box[1] - shift, box[2] - shift, box[3] - shift
                objects.append((index, line, element, box))
                line += piece.count(b"\n")
        except ValueError:  # includes AnnotationError
            return None
        return head, file_name.decode().strip(), objects

    def _parse_whole(self, rows: Rows, data: bytes, path: str) -> tuple[_Head, str, Iterable[_PlacedObject]]:
        root = parse_xml(data, path=path)
        file_name = root.findtext("filename") or ""
        return _read_head(root, data, path), file_name.strip(), self._iter_objects(rows, root, data)

    def _iter_objects(self, rows: Rows, root: Element, data: bytes) -> Iterator[_PlacedObject]:
        """Yield the well-formed objects of a file that was parsed as a whole, and report the others."""
        shift = float(self.one_based)
        elements = root.findall("object")
        lines = _object_lines(data, len(elements))
        for index, (element, line) in enumerate(zip(elements, lines, strict=True)):
            try:
                parsed = _read_object(element, self.keypoints, self.attributes, shift)
                box = element.find("bndbox")
                corners = None
                if box is not None:
                    corners = [_number(box.findtext(tag, ""), f"<{tag}>") - shift for tag in CORNERS]
            except ValueError as error:
                rows.malformed(str(error), line=line, index=index)
                continue
            yield index, line, parsed, corners


@dataclass(frozen=True, kw_only=True, slots=True)
class _Head:
    """Content of a file outside its objects, without the name of the image; ``not_read`` as in `_Object`."""

    declared: DeclaredNames | None
    width: float
    height: float
    not_read: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Object:
    """Content of an object without the corners of its box.

    Attributes:
        fields: Arguments of `Rows.object`.
        box: Tight box of the points, for an object without a box whose points are not read; else None.
        point_names: Names of all points that are not absent.
        bad_flags: Messages about invalid flags.
        not_read: Names of elements that the table cannot hold.
        is_plain: True if ``point_names``, ``bad_flags`` and ``not_read`` are empty.
    """

    fields: Mapping[str, Any]
    box: _Box
    point_names: tuple[str, ...]
    bad_flags: tuple[str, ...]
    not_read: tuple[str, ...]
    is_plain: bool


_PlacedObject: TypeAlias = tuple[int, int, _Object, _Box]
"""Position of an object in its file, its line, its content, and the corners of its box or None."""


def _object_lines(data: bytes, num_objects: int) -> Iterable[int]:
    """Return the line of each of the ``num_objects`` objects under the root of a file."""
    start, *pieces = data.split(b"<object")
    # More pieces: some objects are nested or in comments. Fewer: the text is not in an 8-bit encoding.
    if len(pieces) != num_objects:
        return child_lines(data, "object")
    # The newlines of a piece follow the start of its object.
    num_newlines = map(bytes.count, pieces, repeat(b"\n"))
    return islice(accumulate(num_newlines, initial=start.count(b"\n") + 1), num_objects)


@lru_cache(maxsize=4_096)
def _parse_head(text: bytes) -> _Head:
    """Parse a file with one empty ``<object>`` and an empty ``<filename>``.

    Raises:
        ValueError: If the text is not such a file, or is too long to be cached.
    """
    if len(text) > _MAX_TEXT_BYTES:
        raise ValueError("too long")  # lru_cache does not keep a call that raises
    root = parse_xml(text, path="")
    # A comment or CDATA section could hide the placeholder, and a nested element could repeat it.
    for tag in ("filename", "object"):
        if root.find(tag) is None or sum(1 for _ in root.iter(tag)) != 1:
            raise ValueError(f"another <{tag}>")
    return _read_head(root, text, "")


def _read_head(root: Element, data: bytes, path: str) -> _Head:
    """Return the content of a file outside its objects.

    Raises:
        AnnotationError: If it is not a VOC file, or its ``<schema>`` is malformed.
    """
    if root.tag != "annotation":
        message = f"the root element is <{shorten(root.tag)}>; a VOC file has <annotation>"
        raise AnnotationError(message, path=path, line=1)
    try:
        schema = only_child(root, "schema")
        declared = None if schema is None else read_schema(schema)
    except (TypeError, ValueError) as error:
        # Of several schemas the last one is the error.
        line = child_lines(data, "schema")[-1]
        raise AnnotationError(shorten(str(error)), path=path, line=line) from None
    return _Head(
        declared=declared,
        width=_pixels(root.findtext("size/width")),
        height=_pixels(root.findtext("size/height")),
        not_read=tuple(
            f"<{shorten(child.tag)}> of an <annotation>"
            for child in root
            if child.tag not in _IN_HEAD and not _is_empty(child)
            # VOC writes <segmented>0</segmented> into every file without a mask.
            if child.tag != "segmented" or _parse_flag(child.text) is not False
        ),
    )


@lru_cache(maxsize=4_096)
def _parse_object(text: bytes, keypoints: bool, attributes: bool, shift: float) -> _Object:
    """Parse an object with an empty ``<bndbox>``.

    Raises:
        ValueError: If it has another box, or is malformed, or the text is too long to be cached.
    """
    if len(text) > _MAX_TEXT_BYTES:
        raise ValueError("too long")  # not cached either, see `_parse_head`
    element = parse_xml(text, path="")
    if [len(box) for box in element.findall("bndbox")] != [0]:
        raise ValueError("another box")
    return _read_object(element, keypoints, attributes, shift)


def _read_object(element: Element, keypoints: bool, attributes: bool, shift: float) -> _Object:
    """Return the content of an object without the corners of its box.

    Args:
        element: The ``<object>``.
        keypoints: Whether to read points.
        attributes: Whether to read attributes.
        shift: Number of pixels to subtract from coordinates.

    Raises:
        ValueError: If the object is malformed.
    """
    texts, not_read = _child_texts(element)
    if "name" not in texts:
        raise ValueError("has no <name>")
    fields: dict[str, Any] = {"class_name": checked_name(texts["name"], "<name>")}
    bad_flags = []
    for name in (*_FLAGS, "crowd"):
        flag = _parse_flag(texts.get(name))
        if flag is None:
            # Labelling tools write words such as "Unspecified" here, so the policy decides.
            bad_flags.append(f"<{name}> is {shorten(repr(texts[name]))}; 0 or 1 expected")
        elif flag:
            fields[name] = True
    if _parse_flag(texts.get("crowd")) is None:  # a crowd that is read as an object would be trained as one
        raise ValueError(bad_flags[-1])
    if attributes:
        values = _read_attributes(element)
        pose = texts.get("pose", "")
        # VOC writes "Unspecified" for most objects. An attribute of the same name has priority over the pose.
        if pose.lower() not in ("", "unspecified") and values.setdefault("pose", pose) != pose:
            not_read.append("<pose> of an <object>")
        if values:
            fields["attributes"] = values
    has_box = "bndbox" in texts or "robndbox" in texts
    if texts.get("type", "") not in _BOX_TYPES:
        not_read.append("<type> of an <object>")
    if "robndbox" in texts:
        fields["oriented"] = _read_oriented(element, shift)
    # Points that are not read still give the tight box of an object without a box.
    points = {} if has_box and not keypoints else _read_points(element)
    if not has_box and not points:
        raise ValueError("has neither <bndbox> nor <robndbox> nor a point")
    tight_box = None
    if points:
        coordinates = np.array([point[:2] for point in points.values()], dtype=np.float64) - shift
        if keypoints:
            visibility = [point[2] for point in points.values()]
            fields |= {"points": coordinates, "visibility": visibility, "point_names": tuple(points)}
        else:
            coordinates = coordinates[np.isfinite(coordinates).all(axis=1)]
            # With no finite point the box is (inf, inf, -inf, -inf), which is reported as non-finite.
            tight_box = (*coordinates.min(axis=0, initial=np.inf), *coordinates.max(axis=0, initial=-np.inf))
    return _Object(
        fields=fields,
        box=tight_box,
        point_names=tuple(points),
        bad_flags=tuple(bad_flags),
        not_read=tuple(not_read),
        is_plain=not (points or bad_flags or not_read),
    )


def _read_oriented(element: Element, shift: float) -> tuple[float, ...]:
    """Return the oriented box of an object as `Rows.object` takes it.

    Raises:
        ValueError: If the object has several oriented boxes, or a number is missing or repeated.
    """
    box = only_child(element, "robndbox")
    assert box is not None  # the caller has seen it
    is_quad = box.find(QUAD_CORNERS[0]) is not None
    values = []
    for tag in QUAD_CORNERS if is_quad else ROTATED_BOX:
        child = only_child(box, tag)
        values.append(_number("" if child is None else child.text or "", f"<{tag}> of <robndbox>"))
    if is_quad:
        return tuple(value - shift for value in values)
    x, y, width, height, angle = values
    # 0.0 minus the angle, since -0.0 would have other bits than the 0.0 that was written.
    return x - shift, y - shift, width, height, 0.0 - math.degrees(angle)


def _child_texts(element: Element) -> tuple[dict[str, str], list[str]]:
    """Return the texts of an object's single children by tag, and the names of the children that are not read."""
    texts: dict[str, str] = {}
    not_read = []
    for child in element:
        if child.tag in _SINGLE and child.tag not in texts:
            texts[child.tag] = (child.text or "").strip()
        elif child.tag in _BLOCKS:
            for part in child:
                # VOC lists every action with 0 or 1, and only a 1 says something about the object.
                is_unset_action = child.tag == "actions" and _parse_flag(part.text) is False
                if part.tag != _BLOCKS[child.tag] and not is_unset_action:
                    not_read.append(f"<{shorten(part.tag)}> of <{child.tag}>")
        elif not _is_empty(child):
            not_read.append(f"<{shorten(child.tag)}> of an <object>")
    return texts, not_read


def _read_points(element: Element) -> dict[str, tuple[float, float, int]]:
    """Return x, y and visibility of the points that are not absent, sorted by name.

    Raises:
        ValueError: If a point is malformed.
    """
    points: dict[str, tuple[float, float, int]] = {}
    for point in element.iterfind("keypoints/point"):
        name = checked_name(point.get("name"), "the name of a <point>")
        visibility = _VISIBILITY.get(point.get("visibility", "2").strip())
        if name in points:
            raise ValueError(f"has the point {name!r} twice")
        if visibility is None:
            text = shorten(repr(point.get("visibility")))
            raise ValueError(f"the point {name!r} has visibility {text}; 0, 1 or 2 expected")
        points[name] = (0.0, 0.0, 0)
        if visibility:  # the coordinates of an absent point have no meaning, and are often empty
            x, y = (_number(point.get(axis, ""), f"{axis} of the point {name!r}") for axis in "xy")
            points[name] = (x, y, visibility)
    # Sorted, so that objects with the same points in another order share one tuple of names.
    return {name: point for name, point in sorted(points.items()) if point[2]}


def _read_attributes(element: Element) -> dict[str, str]:
    """Return the values that are not empty.

    Raises:
        ValueError: If an attribute is malformed.
    """
    values: dict[str, str] = {}
    for attribute in element.iterfind("attributes/attribute"):
        name = checked_name(attribute.findtext("name"), "the name of an <attribute>")
        if name in values:
            raise ValueError(f"has the attribute {name!r} twice")
        value = (attribute.findtext("value") or "").strip()
        values[name] = checked_name(value, f"the value of the attribute {name!r}") if value else ""
    return {name: value for name, value in values.items() if value}


def _may_add(rows: Rows, index: int, line: int, element: _Object, schema_points: frozenset[str] | None) -> bool:
    """Report an object's problems; return False if it has points that its file's ``<schema>`` does not list."""
    for name in element.point_names:
        if schema_points is not None and name not in schema_points:
            message = f"has the point {name!r}, which the file's <schema> does not list"
            rows.malformed(message, line=line, index=index)
            return False
    for message in element.bad_flags:
        rows.problem("odd_flag", "false", message, line=line, index=index)
    for name in element.not_read:
        rows.not_read(name)
    return True


def _inputs_of_folder(folder: Folder, top: str) -> Inputs:
    """Return all XML files under a folder, sorted by id."""
    paths = sorted(path for path in folder.below(top) if path.endswith((".xml", ".XML")))
    ids = [path[:-4].removeprefix(f"{top}/") for path in paths]
    path_by_id = dict(zip(ids, paths, strict=True))  # a.xml is sorted after a.XML and wins
    duplicates = [path for image_id, path in zip(ids, paths, strict=True) if path != path_by_id[image_id]]
    units: list[_Unit] = [(image_id, path_by_id[image_id], None) for image_id in sorted(path_by_id)]
    units += ((path, path, ("duplicate_id", path, None)) for path in duplicates)
    return Inputs(files=duplicates, units=units, unit_files=[*path_by_id.values()])


def _find_xml(folder: Folder, annotation_dir: str, image_id: str) -> str:
    """Return the XML file of an image, or "" without one."""
    path = image_id if annotation_dir == "." else f"{annotation_dir}/{image_id}"
    for xml in (f"{path}.xml", f"{path}.XML"):
        if folder.is_file(xml):
            return xml
    return ""


def _pixels(text: str | None) -> float:
    """Return the number of pixels, 0 without a text, and NaN, which is reported, for a text that is not a number."""
    try:
        return float(text or "0")
    except ValueError:
        return math.nan


def _number(text: str, subject: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{subject} is {shorten(repr(text))}, not a number") from None


def _parse_flag(text: str | None) -> bool | None:
    """Return the flag, or None if the text is not a boolean."""
    return _BOOLEANS.get((text or "").strip().lower())


def _is_empty(element: Element) -> bool:
    return not (len(element) or element.attrib or (element.text or "").strip())
