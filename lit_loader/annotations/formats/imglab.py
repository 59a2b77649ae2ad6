"""dlib's imglab XML: boxes with labels and named parts; one file contains a whole set and is read image by image."""

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
_BOOLEANS: Final = {"0": False, "1": True, "false": False, "true": True, "no": False, "yes": True}
_ELEMENTS: Final[Mapping[str, tuple[str, Collection[str]]]] = {
    "dataset": ("", ()),
    "images": ("dataset", ()),
    "image": ("images", ("file", "width", "height")),
    "box": ("image", (*_EDGES, *_FLAGS)),
    "part": ("box", ("name", "x", "y")),
    "label": ("box", ()),
}
"""Elements that are read, with the parent of each and the attributes that are read."""


@dataclass(frozen=True, kw_only=True)
class ImglabReader(Reader):
    """Reads an XML file of dlib's imglab with any number of images.

    A box spans ``left``, ``top`` to ``left + width``, ``top + height``. Its ``<label>`` is the class. A box with
    ``ignore`` is difficult, as VOC calls it: dlib counts it neither as a hit nor as a miss. Parts are visible points; a
    part that a box does not have is absent. Other attributes of images, boxes and parts (``angle``, ``pose``, ``age``,
    ``gender`` ...) are counted in the report.

    Args:
        image_dir: Folder that paths are relative to, itself relative to the root. None means the folder of the XML
            file, as in dlib.
        class_name: Class of boxes without a label.
        schema: Keypoint schema of the parts, as `keypoint_schema` takes it: ``"face_68"`` for dlib's own faces. Parts
            with other names are reported. None takes the names that occur, sorted, with flip pairs derived from the
            words left and right.
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
                # dlib itself reads one label; others are counted, and the first that is not empty is the class.
                parser.unread["second <label> of <box>"] += max(0, len(labels) - 1)
                class_name = next(filter(None, labels), self.class_name)
                try:
                    arguments = self._object_arguments(box)
                except ValueError as error:
                    rows.malformed(f"<box>: {error}", line=box.line)
                    continue
                rows.object(number, class_name=class_name, line=box.line, **arguments)
        for name, count in parser.unread.items():
            rows.not_read(name, count)

    def _object_arguments(self, box: _Element) -> dict[str, Any]:
        x, y, width, height = (_number(box.attributes, edge, "it") for edge in _EDGES)
        flags = {}
        for name in _FLAGS:
            text = box.attributes.get(name, "0").strip().lower()
            if text not in _BOOLEANS:
                raise ValueError(f"it has {shorten(repr(text))} as {name}; 0 or 1 expected")
            flags[name] = _BOOLEANS[text]
        # dlib neither rewards nor punishes detections of ignored boxes, as evaluation does for VOC's difficult ones.
        flags["difficult"] |= flags.pop("ignore")
        points: dict[str, tuple[float, float]] = {}
        for part in (child.attributes for child in box.children if child.tag == "part" and self.keypoints):
            name = part.get("name", "")
            if not name or name in points:
                raise ValueError(f"has the part {name!r} twice" if name else "has a <part> without name")
            points[name] = (_number(part, "x", f"part {name!r}"), _number(part, "y", f"part {name!r}"))
        return {
            # A pixel at left + width is the first one beyond the box, as in this package.
            "box": (x, y, x + width, y + height),
            "points": list(points.values()) if points else None,
            "point_names": tuple(points),
            **flags,
        }


@dataclass(kw_only=True, slots=True)
class _Element:
    """An element that is read; images and boxes have their children."""

    tag: str
    attributes: Mapping[str, str]
    line: int
    text: str = ""
    children: list[_Element] = field(default_factory=list)


class _Parser:
    """Collects images from the events of expat.

    Processing instructions, such as those for a style sheet, are skipped; document types and entities are refused.

    Attributes:
        unread: Number of occurrences of each element and attribute that is not read.
    """

    def __init__(self, path: Path) -> None:
        self.unread: Counter[str] = Counter()
        self._path = path
        self._expat = ParserCreate()
        # One call for each text instead of one for each line and entity in it.
        self._expat.buffer_text = True
        self._expat.StartElementHandler = self._start
        self._expat.EndElementHandler = self._end
        self._expat.CharacterDataHandler = self._characters
        # A file can declare entities only in its document type.
        refusal = "document types and entities are refused; remove the <!DOCTYPE"
        self._expat.StartDoctypeDeclHandler = lambda *_: self._fail(refusal)
        self._open: list[_Element] = []  # without elements that are not read
        self._depth = 0  # with them
        self._num_tags = 0  # of the current image
        self._complete_images: list[_Element] = []

    def images(self) -> Iterator[_Element]:
        """Yield the images of the file.

        Raises:
            AnnotationError: If the file is not a regular file, is not well-formed, or its root element is not
                ``<dataset>``; names file and line.
        """
        num_bytes = 0
        # The empty read at the end of the file also goes to the parser, which then reports an incomplete document.
        data = b"-"
        with open_file(self._path) as (file, _):
            while data:
                data = os.read(file, _CHUNK_BYTES)
                num_bytes += len(data)
                try:
                    self._expat.Parse(data, not data)
                except ExpatError as error:
                    self._fail(f"not well-formed XML ({str(error).partition(':')[0]}); correct or remove it")
                except AnnotationError:  # from a handler; it is also a ValueError
                    raise
                except (LookupError, ValueError) as error:  # an encoding that expat does not know
                    self._fail(f"cannot be parsed as XML ({shorten(str(error))})")
                # expat buffers an incomplete tag, so one that never ends would fill the memory.
                if num_bytes - max(self._expat.CurrentByteIndex, 0) > _MAX_TAG_BYTES + _CHUNK_BYTES:
                    self._fail(f"a tag of more than {_MAX_TAG_BYTES} bytes; it describes no box")
                yield from self._complete_images
                self._complete_images.clear()

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth == 1 and tag != "dataset":
            self._fail(f"the root element is <{shorten(tag)}>; an imglab file has <dataset>")
        # The limit bounds the memory of one image, whose boxes are kept until its end tag.
        self._num_tags = 0 if tag == "image" and len(self._open) == 2 else self._num_tags + 1
        if self._num_tags > _MAX_TAGS and len(self._open) > 2:
            self._fail(f"an <image> of more than {_MAX_TAGS} tags; it describes no image")
        if self._depth != len(self._open) + 1:  # inside an element that is not read
            return
        parent = self._open[-1].tag if self._open else ""
        expected_parent, attributes_read = _ELEMENTS.get(tag, (None, ()))
        if parent == expected_parent:
            element = _Element(tag=tag, attributes=attributes, line=self._expat.CurrentLineNumber)
            self.unread.update(f"{shorten(name)} of <{tag}>" for name in attributes if name not in attributes_read)
            # The images of a set are not collected: memory is bounded by one image.
            if parent in ("image", "box"):
                self._open[-1].children.append(element)
            self._open.append(element)
        elif tag not in ("name", "comment"):  # these describe the file
            self.unread[f"<{shorten(tag)}> of <{parent}>"] += 1

    def _end(self, tag: str) -> None:
        if self._depth == len(self._open):
            element = self._open.pop()
            if tag == "image":
                self._complete_images.append(element)
        self._depth -= 1

    def _characters(self, text: str) -> None:
        if self._depth == len(self._open) and self._open[-1].tag == "label":
            self._open[-1].text += text
            if len(self._open[-1].text) > _MAX_TAG_BYTES:
                self._fail("a <label> that does not end")

    def _fail(self, message: str) -> NoReturn:
        raise AnnotationError(message, path=self._path, line=self._expat.CurrentLineNumber) from None


def _number(attributes: Mapping[str, str], name: str, subject: str) -> float:
    text = attributes.get(name)
    try:
        return float(text or "")
    except ValueError:
        value = "no" if text is None else f"{shorten(repr(text))}, which is not a number, as"
        raise ValueError(f"{subject} has {value} {name}") from None


def _pixels(text: str | None) -> int:
    """Return 0 without a text, and -1, which is reported, for a text that is not a whole number."""
    if text is None:
        return 0
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1
