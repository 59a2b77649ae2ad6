"""dlib's imglab XML: boxes with labels and named parts; a file holds a whole set, and is read image by image."""

from __future__ import annotations

import os
import posixpath
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, NoReturn
from xml.parsers.expat import ExpatError, ParserCreate

from lit_loader.annotations.formats.reader import Reader
from lit_loader.annotations.formats.rows import Rows
from lit_loader.annotations.formats.text_file import open_file
from lit_loader.annotations.keypoints import KeypointSchema
from lit_loader.annotations.paths import check_relative
from lit_loader.annotations.problems import shorten
from lit_loader.errors import AnnotationError

__all__ = ["ImglabReader"]

_MAX_TAGS: Final = 500_000  # of one image
_MAX_TAG_BYTES: Final = 1024 * 1024
_CHUNK_BYTES: Final = 64 * 1024
_EDGES: Final = ("left", "top", "width", "height")
_FLAGS: Final = ("ignore", "difficult", "truncated", "occluded")
_TRUTH: Final = {"0": False, "1": True, "false": False, "true": True, "no": False, "yes": True}
_READ: Final[Mapping[str, tuple[str, Collection[str]]]] = {
    "dataset": ("", ()),
    "images": ("dataset", ()),
    "image": ("images", ("file", "width", "height")),
    "box": ("image", (*_EDGES, *_FLAGS)),
    "part": ("box", ("name", "x", "y")),
    "label": ("box", ()),
}
"""Elements that are read: the one around each, and its attributes that are read."""


@dataclass(frozen=True, kw_only=True)
class ImglabReader(Reader):
    """Reads an XML file of dlib's imglab; it may hold any number of images.

    A box reaches from ``left``, ``top`` to ``left + width``, ``top + height``. Its ``<label>`` is the class. A box with
    ``ignore`` counts neither as found nor as missed in dlib, which VOC calls difficult: so does the table. Parts are
    visible points; a part that a box does not have is absent. What else images, boxes and parts have (``angle``,
    ``pose``, ``age``, ``gender`` ...) is counted in the report.

    Args:
        image_dir: The folder that paths are relative to, relative to the root. None for the XML file's own, as dlib
            does.
        class_name: Class of boxes without a label.
        schema: What the parts are, as in ``keypoint_schema``: ``"face_68"`` for dlib's own faces. Parts of other names
            are not read and reported. None for the names that occur, sorted, with flip pairs by the words left and
            right in them.
        keypoints: Whether to read parts.

    Source:
        dlib, tools/imglab and dlib/data_io/image_dataset_metadata.h.
    """

    format: ClassVar[str] = "imglab"
    description: ClassVar[str] = "dlib imglab XML: boxes and named parts; NAME: the XML file"

    image_dir: str | None = None
    class_name: str = "face"
    schema: str | KeypointSchema | Mapping[str, Any] | int | None = None
    keypoints: bool = True

    def read(self, rows: Rows, unit: str) -> None:
        """Add the images of a file."""
        folder = (posixpath.dirname(unit) or ".") if self.image_dir is None else self.image_dir
        parser = _Parser(rows.root / check_relative(unit))
        for image in parser.images():
            file_name = image.attributes.get("file", "")
            if not file_name:
                rows.malformed("<image> has no file", line=image.line)
                continue
            width, height = (_pixels(image.attributes.get(side)) for side in ("width", "height"))
            number = rows.image(file_name, folder=folder, line=image.line, width=width, height=height)
            for box in image.children:
                labels = [child.text.strip() for child in box.children if child.tag == "label"]
                parser.unread["second <label> of <box>"] += max(0, len(labels) - 1)
                class_name = next(filter(None, labels), self.class_name)
                try:
                    found = self._object(box)
                except ValueError as error:
                    rows.malformed(f"<box>: {error}", line=box.line)
                    continue
                rows.object(number, class_name=class_name, line=box.line, **found)
        for what, count in parser.unread.items():
            rows.not_read(what, count)

    def _object(self, box: _Element) -> dict[str, Any]:
        left, top, width, height = (_number(box.attributes, edge, "it") for edge in _EDGES)
        flags = {}
        for name in _FLAGS:
            text = box.attributes.get(name, "0").strip().lower()
            if (flag := _TRUTH.get(text)) is None:
                raise ValueError(f"it has {shorten(repr(text))} as {name}; 0 or 1 expected")
            flags[name] = flag
        flags["difficult"] |= flags.pop("ignore")
        points: dict[str, tuple[float, float]] = {}
        for part in (child.attributes for child in box.children if child.tag == "part" and self.keypoints):
            name = part.get("name", "")
            if not name or name in points:
                raise ValueError(f"has the part {name!r} twice" if name else "has a <part> without name")
            points[name] = (_number(part, "x", f"part {name!r}"), _number(part, "y", f"part {name!r}"))
        return {
            "box": (left, top, left + width, top + height),
            "points": list(points.values()) if points else None,
            "point_names": tuple(points),
            **flags,
        }


@dataclass(kw_only=True, slots=True)
class _Element:
    """An element that is read; of images, boxes and what is in boxes the children are kept."""

    tag: str
    attributes: Mapping[str, str]
    line: int
    text: str = ""
    children: list[_Element] = field(default_factory=list)


class _Parser:
    """Gathers images from the events of expat.

    Processing instructions, as for a style sheet, are skipped; document types and entities are refused.

    Attributes:
        unread: How often the file has elements and attributes that are not read.
    """

    def __init__(self, path: Path) -> None:
        self.unread: Counter[str] = Counter()
        self._path, self._expat = path, ParserCreate()
        self._expat.buffer_text = True
        self._expat.StartElementHandler = self._start
        self._expat.EndElementHandler = self._end
        self._expat.CharacterDataHandler = self._characters
        self._expat.StartDoctypeDeclHandler = self._refuse  # all entities but XML's five are declared there
        self._open: list[_Element] = []  # those that are read
        self._depth = self._tags = 0  # of all elements; in this image
        self._done: list[_Element] = []

    def images(self) -> Iterator[_Element]:
        """Yield the images of the file.

        Raises:
            AnnotationError: If the file is not a regular file, is not well-formed, or its root element is not
                ``<dataset>``; names file and line.
        """
        num_bytes, data = 0, b"-"
        with open_file(self._path) as (file, _):
            while data:
                data = os.read(file, _CHUNK_BYTES)
                num_bytes += len(data)
                try:
                    self._expat.Parse(data, not data)
                except ExpatError as error:
                    self._fail(f"not well-formed XML ({str(error).partition(':')[0]}); correct or remove it")
                except AnnotationError:
                    raise
                except (LookupError, ValueError) as error:  # an encoding that expat does not know
                    self._fail(f"cannot be parsed as XML ({shorten(str(error))})")
                if num_bytes - max(self._expat.CurrentByteIndex, 0) > _MAX_TAG_BYTES + _CHUNK_BYTES:
                    self._fail(f"a tag of more than {_MAX_TAG_BYTES} bytes; it describes no box")
                yield from self._done
                self._done.clear()

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth == 1 and tag != "dataset":
            self._fail(f"the root element is <{shorten(tag)}>; an imglab file has <dataset>")
        self._tags = 0 if tag == "image" and len(self._open) == 2 else self._tags + 1
        if self._tags > _MAX_TAGS and len(self._open) > 2:
            self._fail(f"an <image> of more than {_MAX_TAGS} tags; it describes no image")
        if self._depth != len(self._open) + 1:  # below an element that is not read
            return
        around = self._open[-1].tag if self._open else ""
        expected, read = _READ.get(tag, (None, ()))
        if expected == around:
            element = _Element(tag=tag, attributes=attributes, line=self._expat.CurrentLineNumber)
            self.unread.update(f"{shorten(name)} of <{tag}>" for name in attributes if name not in read)
            if around in ("image", "box"):
                self._open[-1].children.append(element)
            self._open.append(element)
        elif tag not in ("name", "comment"):  # of the file itself
            self.unread[f"<{shorten(tag)}> of <{around}>"] += 1

    def _end(self, tag: str) -> None:
        if self._depth == len(self._open):
            element = self._open.pop()
            if tag == "image":
                self._done.append(element)
        self._depth -= 1

    def _characters(self, text: str) -> None:
        if self._depth == len(self._open) and self._open[-1].tag == "label":
            self._open[-1].text += text
            if len(self._open[-1].text) > _MAX_TAG_BYTES:
                self._fail("a <label> that does not end")

    def _refuse(self, *_: object) -> NoReturn:
        self._fail("document types and entities are refused; remove the <!DOCTYPE")

    def _fail(self, message: str) -> NoReturn:
        raise AnnotationError(message, path=self._path, line=self._expat.CurrentLineNumber) from None


def _number(attributes: Mapping[str, str], name: str, what: str) -> float:
    text = attributes.get(name)
    try:
        return float(text or "")
    except ValueError:
        found = "no" if text is None else f"{shorten(repr(text))}, which is not a number, as"
        raise ValueError(f"{what} has {found} {name}") from None


def _pixels(text: str | None) -> int:
    """Return 0 without a text, and -1, which is reported, for a text that is not a whole number."""
    if text is None:
        return 0
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1
