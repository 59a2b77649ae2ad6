"""Pascal VOC: an XML file an image, plain or with the points, attributes and crowds that ``voc_writer.py`` documents.

NOTE [Objects by their text]
    To parse a file with ElementTree and to walk its objects takes twice the time of parsing alone. But objects of a set
    are alike in all but the four numbers of their boxes. So a file is cut at ``<object>``, a regular expression takes
    the box out of each piece, and the rest, ``<object><name>dog</name>...<bndbox/>...</object>``, is parsed as a
    document of its own and remembered by its text. What is around the objects is parsed with one ``<object/>`` in
    the place of all, and remembered, too. Every byte but the numbers and the name of the image goes through the XML
    parser, and pieces that are documents, in a place where an element may stand, make the same tree as the whole file.
    A file that is not of this kind, or has a malformed object, is parsed as a whole.
"""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Final, TypeAlias
from xml.etree.ElementTree import Element

import numpy as np

from lit_loader.annotations.formats.folder import Folder, join_path
from lit_loader.annotations.formats.reader import Inputs, Reader
from lit_loader.annotations.formats.rows import Declared, Rows
from lit_loader.annotations.formats.text_file import read_lines
from lit_loader.annotations.formats.voc_schema import checked_name, read_schema
from lit_loader.annotations.formats.xml_tree import MAX_XML_BYTES, child_line, child_text, parse_xml
from lit_loader.annotations.keypoints import KeypointSchema
from lit_loader.annotations.problems import shorten
from lit_loader.errors import AnnotationError

__all__ = ["VocReader"]

_Unit: TypeAlias = tuple[str, str, tuple[str, str, int | None] | None]
"""An image's id, its XML file or "", and what is wrong with it: kind, file (a split's), line there."""

_Box: TypeAlias = Sequence[float] | None
_WRONG: Final = {"duplicate_id": "image {} is named again", "missing_annotation": "there is no XML for {}"}
_COLUMNS: Final = tuple(f"{space}{number}" for space in " \t" for number in (-1, 0, 1))
"""How a line of VOC's files of one class ends."""

_FLAGS: Final = ("difficult", "truncated", "occluded")
_BLOCKS: Final = {"keypoints": "point", "attributes": "attribute", "actions": ""}  # with what is read of them
_SINGLE: Final = frozenset(("name", "bndbox", "pose", "crowd", *_FLAGS))
_IN_HEAD: Final = frozenset(("object", "schema", "filename", "size", "folder", "path", "source", "owner"))
"""Elements of a file that are read, or that hold nothing of an image but where it came from."""

_TRUTH: Final = {"0": False, "1": True, "false": False, "true": True, "no": False, "yes": True, "": False}
_VISIBILITY: Final = {"0": 0, "1": 1, "2": 2}
_CORNERS: Final = ("xmin", "ymin", "xmax", "ymax")
_SPACE: Final = r"[ \t\r\n]*"  # of XML, which has no form feed
_NUMBERS: Final = "".join(rf"{_SPACE}<{tag}>{_SPACE}([-+.\deE]+){_SPACE}</{tag}>" for tag in _CORNERS)
_BOX: Final = re.compile(rf"<bndbox>{_NUMBERS}{_SPACE}</bndbox>".encode())
_PLAIN: Final = r"[ -%'-;=?-~]*"  # ASCII characters that mean themselves
_FILENAME: Final = re.compile(f"<filename>({_PLAIN})</filename>".encode())
_MAX_TEXT_BYTES: Final = 2_048  # of what is remembered


@dataclass(frozen=True, kw_only=True)
class VocReader(Reader):
    """Reads a Pascal VOC data set.

    ``<annotation_dir>/<id>.xml`` describes the image ``<image_dir>/<id>`` with any ending; of several files, the one
    with the ending of ``<filename>``. In a line of a split, an id may be followed by -1, 0 or 1, as in VOC's files of
    one class, which is not read. ``<pose>`` is an attribute, unless it is "Unspecified". ``<part>``, ``<actions>`` and
    whatever else an ``<object>`` holds is counted in the report.

    Args:
        schema: The points, as `keypoint_schema` takes them, or None for those of the files' ``<schema>``, else those
            that occur, sorted. Points of other names are not read and reported.
        keypoints: Whether to read the points of objects that have a box.
        attributes: Whether to read attributes.
        one_based: Whether to subtract one from all coordinates. By default they are kept, as torchvision does.
        image_dir: Folder of the images, relative to the root.
        annotation_dir: Folder of the XML files, relative to the root.
        split_dir: Folder of the split files, relative to the root.
    """

    format: ClassVar[str] = "voc"
    description: ClassVar[str] = (
        "VOC XML, with points and attributes too; NAME: a split in ImageSets/Main, or . for all"
    )
    version: ClassVar[int] = 4

    schema: str | KeypointSchema | Mapping[str, Any] | int | None = None
    keypoints: bool = True
    attributes: bool = True
    one_based: bool = False
    image_dir: str = "JPEGImages"
    annotation_dir: str = "Annotations"
    split_dir: str = "ImageSets/Main"

    def inputs(self, folder: Folder, name: str) -> Inputs:
        """Return the XML files of a split, or all below the folder of annotations, sorted by id.

        Raises:
            AnnotationError: If there is no such folder or split.
            UnsafePathError: If a line leads out of the root.
        """
        top = posixpath.normpath(self.annotation_dir)
        if not folder.is_folder(top):
            message = f"there is no folder {top!r} in {folder.root}; pass the data set's folder as `root`"
            raise AnnotationError(f"{message}, or its annotation folder as `annotation_dir`")
        units: list[_Unit]
        if name == ".":
            paths = sorted(path for path in folder.below(top) if path.endswith((".xml", ".XML")))
            found = {path[:-4].removeprefix(f"{top}/"): path for path in paths}  # a.xml comes after a.XML
            again = [path for path in paths if path != found[path[:-4].removeprefix(f"{top}/")]]
            units = [(each, found[each], None) for each in sorted(found)]
            units += ((path, path, ("duplicate_id", path, None)) for path in again)
            return Inputs(files=again, units=units, unit_files=[*found.values()])
        split_file = join_path(self.split_dir, f"{name}.txt")
        source = folder.root / split_file
        if not folder.is_file(split_file):
            names = [
                file[:-4]
                for file in folder.files(posixpath.dirname(split_file) or ".")
                if file.endswith(".txt")
            ]
            listed = ", ".join(names[:20]) or "none"
            raise AnnotationError(f"the split file cannot be read; splits found there: {listed}", path=source)
        units = []
        files: dict[str, str] = {}
        usual = folder.file_names(top) if top != "." else ()
        for line, text in read_lines(folder.root, split_file):
            text = text.strip()
            if not text:
                continue
            image_id = join_path(".", text, source=source, line=line)
            xml = f"{top}/{image_id}.xml"
            if f"{image_id}.xml" not in usual:
                xml = _find_xml(folder, top, image_id)
            if not xml and text.endswith(_COLUMNS):
                image_id = join_path(".", text.rsplit(None, 1)[0], source=source, line=line)
                xml = _find_xml(folder, top, image_id)
            kind = "duplicate_id" if image_id in files else "" if xml else "missing_annotation"
            units.append((image_id, xml, (kind, split_file, line) if kind else None))
            files[image_id] = xml
        return Inputs(files=[split_file], units=units, unit_files=[*filter(None, files.values())], split=name)

    def find_line(self, root: Path, file: str, index: int) -> int | None:
        """Return the line of an object."""
        return child_line(root / file, "object", index)

    def read(self, rows: Rows, unit: _Unit) -> None:
        """Add the image and the objects of an XML file."""
        image_id, xml, wrong = unit
        if wrong is not None:
            kind, rows.file, line = wrong
            action = getattr(rows.policy, kind)
            rows.problem(kind, action, _WRONG[kind].format(shorten(repr(image_id))), line=line)
            if action == "empty":
                rows.image(image_id, folder=self.image_dir, image_id=image_id, line=line)
            return
        rows.file = xml
        try:
            head, file_name, objects = self._parse(rows, f"{rows.root}/{xml}")
        except AnnotationError as error:
            rows.malformed(error.message, line=error.line)
            return
        declared, known = head.declared, None
        if declared is not None:
            points = declared.keypoints if self.keypoints else None
            attributes = dict(declared.attributes) if self.attributes else {}
            rows.declare(class_names=declared.class_names, keypoints=points, attributes=attributes)
            known = None if declared.keypoints is None else frozenset(declared.keypoints.names)
        for what in head.not_read:
            rows.not_read(what)
        number = rows.image(
            image_id,
            folder=self.image_dir,
            image_id=image_id,
            file_name=file_name,
            width=head.width,
            height=head.height,
        )
        for index, element, box in objects:
            if element.is_plain or _may_add(rows, index, element, known):
                rows.object(number, box=element.box if box is None else box, index=index, **element.fields)

    def _parse(self, rows: Rows, path: str) -> tuple[_Head, str, Iterable[tuple[int, _Object, _Box]]]:
        """Return what a file holds: what is around its objects, the name of the image, and the objects."""
        data = rows.read_bytes(max_bytes=MAX_XML_BYTES)
        found = self._by_text(data)
        if found is not None:
            return found
        root = parse_xml(data, path=path)
        return _read_head(root, path), child_text(root, "filename") or "", self._by_element(rows, root)

    def _by_text(self, data: bytes) -> tuple[_Head, str, list[tuple[int, _Object, _Box]]] | None:
        """Return the same, or None if the file must be parsed as a whole: see NOTE [Objects by their text]."""
        start, *pieces = data.split(b"<object>")
        if not pieces or not (data.isascii() or b"encoding" not in start):
            return None
        pieces[-1], end, tail = pieces[-1].rpartition(b"</object>")
        pieces[-1] += end
        keypoints, attributes, shift = self.keypoints, self.attributes, float(self.one_based)
        objects: list[tuple[int, _Object, _Box]] = []
        try:
            before, file_name, after = _FILENAME.split(start, 1)
            head = _parse_head(b"%b<filename/>%b<object/>%b" % (before, after, tail))
            for index, piece in enumerate(pieces):
                before, left, upper, right, lower, after = _BOX.split(piece, 1)
                element = _parse_object(
                    b"<object>%b<bndbox/>%b" % (before, after), keypoints, attributes, shift
                )
                box = float(left) - shift, float(upper) - shift, float(right) - shift, float(lower) - shift
                objects.append((index, element, box))
        except ValueError:  # an AnnotationError, too
            return None
        return head, file_name.decode().strip(), objects

    def _by_element(self, rows: Rows, root: Element) -> Iterator[tuple[int, _Object, _Box]]:
        """Yield the objects of a file that was parsed as a whole."""
        shift = float(self.one_based)
        for index, element in enumerate(root.findall("object")):
            try:
                found = _read_object(element, self.keypoints, self.attributes, shift)
                box = element.find("bndbox")
                corners = None if box is None else [number - shift for number in _corners(box)]
            except ValueError as error:
                rows.malformed(str(error), index=index)
                continue
            yield index, found, corners


@dataclass(frozen=True, kw_only=True, slots=True)
class _Head:
    """What is around the objects, without the name of the image; ``not_read`` as in `_Object`."""

    declared: Declared | None
    width: float
    height: float
    not_read: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Object:
    """What an object holds besides the corners of its box.

    Attributes:
        fields: Arguments of `Rows.object`.
        box: The box around the points of an object without a box, if points are not read.
        point_names: Of all points that are not absent.
        bad_flags: Messages.
        not_read: Names of what the table has no place for.
        is_plain: Whether the three before are empty.
    """

    fields: Mapping[str, Any]
    box: _Box
    point_names: tuple[str, ...]
    bad_flags: tuple[str, ...]
    not_read: tuple[str, ...]
    is_plain: bool


@lru_cache(maxsize=4_096)
def _parse_head(text: bytes) -> _Head:
    """Return what is around an empty ``<object>`` in a file with an empty ``<filename>``.

    Raises:
        ValueError: If the text is not of this kind, or too long to be remembered.
    """
    if len(text) > _MAX_TEXT_BYTES:
        raise ValueError("too long")
    root = parse_xml(text, path="")
    for tag in ("filename", "object"):
        if root.find(tag) is None or sum(1 for _ in root.iter(tag)) != 1:
            raise ValueError(f"another <{tag}>")
    return _read_head(root, "")


def _read_head(root: Element, path: str) -> _Head:
    """Return what is around the objects of a file.

    Raises:
        AnnotationError: If it is not a VOC file, or its ``<schema>`` is malformed.
    """
    if root.tag != "annotation":
        message = f"the root element is <{shorten(root.tag)}>; a VOC file has <annotation>"
        raise AnnotationError(message, path=path, line=1)
    schemas, size = root.findall("schema"), root.find("size")
    try:
        if len(schemas) > 1:
            raise ValueError("the file holds <schema> more than once")
        declared = read_schema(schemas[0]) if schemas else None
    except (TypeError, ValueError) as error:
        line = child_line(path, "schema", len(schemas) - 1)
        raise AnnotationError(shorten(str(error)), path=path, line=line) from None
    rest = [child for child in root if child.tag not in _IN_HEAD and _says_something(child)]
    return _Head(
        declared=declared,
        width=0 if size is None else _pixels(size.findtext("width")),
        height=0 if size is None else _pixels(size.findtext("height")),
        not_read=tuple(
            f"<{shorten(child.tag)}> of an <annotation>"
            for child in rest
            if child.tag != "segmented" or _truth(child.text) is not False
        ),
    )


@lru_cache(maxsize=4_096)
def _parse_object(text: bytes, keypoints: bool, attributes: bool, shift: float) -> _Object:
    """Return what an object with an empty ``<bndbox>`` holds.

    Raises:
        ValueError: If it has another box, or is malformed, or the text is too long to be remembered.
    """
    if len(text) > _MAX_TEXT_BYTES:
        raise ValueError("too long")
    element = parse_xml(text, path="")
    if [len(box) for box in element.findall("bndbox")] != [0]:
        raise ValueError("another box")
    return _read_object(element, keypoints, attributes, shift)


def _read_object(element: Element, keypoints: bool, attributes: bool, shift: float) -> _Object:
    """Return what an object holds besides the corners of its box.

    Args:
        element: The ``<object>``.
        keypoints: Whether to read points.
        attributes: Whether to read attributes.
        shift: What is subtracted from coordinates.

    Raises:
        ValueError: If the object is malformed.
    """
    texts: dict[str, str] = {}
    not_read = []
    for child in element:
        if child.tag in _SINGLE and child.tag not in texts:
            texts[child.tag] = (child.text or "").strip()
        elif child.tag in _BLOCKS:
            not_read += [
                f"<{shorten(part.tag)}> of <{child.tag}>"
                for part in child
                if part.tag != _BLOCKS[child.tag]
                and (child.tag != "actions" or _truth(part.text) is not False)
            ]
        elif _says_something(child):
            not_read.append(f"<{shorten(child.tag)}> of an <object>")
    if "name" not in texts:
        raise ValueError("has no <name>")
    fields: dict[str, Any] = {"class_name": checked_name(texts["name"], "<name>")}
    flags = {flag: _truth(texts.get(flag)) for flag in (*_FLAGS, "crowd")}
    bad = [
        f"<{flag}> is {shorten(repr(texts[flag]))}; 0 or 1 expected" for flag in flags if flags[flag] is None
    ]
    if flags["crowd"] is None:  # a crowd that is taken for an object would be trained as one
        raise ValueError(bad[-1])
    fields |= {flag: True for flag, value in flags.items() if value}
    if attributes:
        values, pose = _read_attributes(element), texts.get("pose", "")
        if pose.lower() not in ("", "unspecified") and values.setdefault("pose", pose) != pose:
            not_read.append("<pose> of an <object>")
        if values:
            fields["attributes"] = values
    around = None
    points: dict[str, tuple[float, float, int]] = {}
    if keypoints or "bndbox" not in texts:
        points = _read_points(element)
    if not points and "bndbox" not in texts:
        raise ValueError("has neither <bndbox> nor a point")
    if points:
        places = np.array([point[:2] for point in points.values()], dtype=np.float64) - shift
        if keypoints:
            visibility = [point[2] for point in points.values()]
            fields |= {"points": places, "visibility": visibility, "point_names": tuple(points)}
        else:
            places = places[np.isfinite(places).all(axis=1)]
            around = (*places.min(axis=0, initial=np.inf), *places.max(axis=0, initial=-np.inf))
    return _Object(
        fields=fields,
        box=around,
        point_names=tuple(points),
        bad_flags=tuple(bad),
        not_read=tuple(not_read),
        is_plain=not (points or bad or not_read),
    )


def _read_points(element: Element) -> dict[str, tuple[float, float, int]]:
    """Return x, y and visibility of the points that are not absent, sorted by name; ValueError if one is malformed."""
    points: dict[str, tuple[float, float, int]] = {}
    for point in element.iterfind("keypoints/point"):
        name = checked_name(point.get("name"), "the name of a <point>")
        visibility = _VISIBILITY.get(point.get("visibility", "2").strip())
        if name in points:
            raise ValueError(f"has the point {name!r} twice")
        if visibility is None:
            text = shorten(repr(point.get("visibility")))
            raise ValueError(f"the point {name!r} has visibility {text}; 0, 1 or 2 expected")
        x, y = (_number(point.get(axis, "")) for axis in "xy")
        if visibility and (x is None or y is None):
            axis = "x" if x is None else "y"
            raise ValueError(
                f"the point {name!r} has {axis}={shorten(repr(point.get(axis, '')))}, not a number"
            )
        points[name] = (x or 0.0, y or 0.0, visibility)
    return {name: point for name, point in sorted(points.items()) if point[2]}


def _read_attributes(element: Element) -> dict[str, str]:
    """Return the values that are not empty; ValueError if one is malformed."""
    values: dict[str, str] = {}
    for attribute in element.iterfind("attributes/attribute"):
        name = checked_name(attribute.findtext("name"), "the name of an <attribute>")
        if name in values:
            raise ValueError(f"has the attribute {name!r} twice")
        value = (attribute.findtext("value") or "").strip()
        values[name] = checked_name(value, f"the value of the attribute {name!r}") if value else ""
    return {name: value for name, value in values.items() if value}


def _may_add(rows: Rows, index: int, element: _Object, known: frozenset[str] | None) -> bool:
    """Report bad flags and what is not read of an object; return False if it has points that its file does not list."""
    strange = [] if known is None else [name for name in element.point_names if name not in known]
    if strange:
        message = f"has the point {strange[0]!r}, which the file's <schema> does not list"
        rows.malformed(message, index=index)
        return False
    for message in element.bad_flags:
        rows.problem("odd_flag", "false", message, index=index)
    for what in element.not_read:
        rows.not_read(what)
    return True


def _find_xml(folder: Folder, annotation_dir: str, image_id: str) -> str:
    """Return the XML file of an image, or "" if there is none."""
    path = image_id if annotation_dir == "." else f"{annotation_dir}/{image_id}"
    for xml in (f"{path}.xml", f"{path}.XML"):
        if folder.is_file(xml):
            return xml
    return ""


def _corners(box: Element) -> list[float]:
    texts = [box.findtext(corner, "") for corner in _CORNERS]
    try:
        return [float(text) for text in texts]
    except ValueError:
        corner, text = next(pair for pair in zip(_CORNERS, texts, strict=True) if _number(pair[1]) is None)
        raise ValueError(f"<{corner}> is {shorten(repr(text))}, not a number") from None


def _pixels(text: str | None) -> float:
    """Return a number of pixels, NaN where there should be one, and 0 where there is nothing."""
    value = _number(text or "0")
    return math.nan if value is None else value


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _truth(text: str | None) -> bool | None:
    """Return the flag that a text means, or None if it means none."""
    return _TRUTH.get((text or "").strip().lower())


def _says_something(element: Element) -> bool:
    return len(element) > 0 or bool(element.attrib or (element.text or "").strip())
