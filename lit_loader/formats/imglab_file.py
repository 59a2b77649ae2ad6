"""dlib's imglab XML, image by image: a file describes a whole set, so it is never held as a tree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NoReturn
from xml.parsers.expat import ExpatError, ParserCreate

from lit_loader.annotations.paths import resolve_under
from lit_loader.annotations.report import shorten
from lit_loader.errors import AnnotationError
from lit_loader.formats.text_file import file_stamp

__all__ = ["ImglabBox", "ImglabImage", "MAX_IMGLAB_BYTES", "read_imglab_images"]

MAX_IMGLAB_BYTES: Final = 1024**3
_MAX_TAGS: Final = 500_000  # of one image
_MAX_TAG_BYTES: Final = 1024 * 1024
_CHUNK_BYTES: Final = 64 * 1024
_PLACES: Final = {
    "image": ("dataset", "images"),
    "box": ("dataset", "images", "image"),
    "part": ("dataset", "images", "image", "box"),
    "label": ("dataset", "images", "image", "box"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ImglabBox:
    """A ``<box>``: its attributes, the text of its ``<label>``, and the attributes of its ``<part>``s."""

    attributes: Mapping[str, str]
    line: int
    labels: list[str] = field(default_factory=list)
    parts: list[Mapping[str, str]] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class ImglabImage:
    """An ``<image>``: its attributes and its boxes."""

    attributes: Mapping[str, str]
    line: int
    boxes: list[ImglabBox] = field(default_factory=list)


def read_imglab_images(root: Path, name: str) -> Iterator[ImglabImage]:
    """Yield the images of an imglab file; one is in memory at a time.

    Processing instructions, as for a style sheet, are skipped; document types and entities are refused.

    Args:
        root: The data set's folder.
        name: The file, relative to ``root``.

    Raises:
        AnnotationError: If the file is no regular file, larger than ``MAX_IMGLAB_BYTES``, not well-formed,
            or its root element is not ``<dataset>``; names file and line.
        UnsafePathError: If the name or a symbolic link leads out of ``root``.
    """
    path = resolve_under(root, name)
    if file_stamp(root, name).size > MAX_IMGLAB_BYTES:
        raise AnnotationError(f"the file is larger than MAX_IMGLAB_BYTES={MAX_IMGLAB_BYTES}", path=path)
    reader = _Reader(path)
    try:
        with path.open("rb") as file:
            while data := file.read(_CHUNK_BYTES):
                reader.feed(data)
                yield from reader.take()
    except OSError as error:
        raise AnnotationError(f"cannot be read ({error.strerror or error})", path=path) from None
    reader.feed(b"", last=True)
    yield from reader.take()


class _Reader:
    """Gathers images from the events of the parser."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._parser = ParserCreate()
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._characters
        self._parser.StartDoctypeDeclHandler = (
            self._refuse
        )  # all entities but the five of XML are declared in one
        self._open: list[str] = []  # elements that are read
        self._depth = 0  # of all elements
        self._tags = 0
        self._bytes = 0
        self._text: list[str] | None = None
        self._image: ImglabImage | None = None
        self._done: list[ImglabImage] = []

    def feed(self, data: bytes, *, last: bool = False) -> None:
        self._bytes += len(data)
        try:
            self._parser.Parse(data, last)
        except ExpatError as error:
            message = f"not well-formed XML ({str(error).partition(':')[0]}); correct or remove the file"
            raise AnnotationError(message, path=self._path, line=error.lineno) from None
        except (LookupError, ValueError) as error:  # an encoding that expat does not know
            if isinstance(error, AnnotationError):
                raise
            message = f"cannot be parsed as XML ({shorten(str(error))})"
            raise AnnotationError(message, path=self._path, line=self._line()) from None
        if self._bytes - max(self._parser.CurrentByteIndex, 0) > _MAX_TAG_BYTES + _CHUNK_BYTES:
            self._fail(f"a tag of more than {_MAX_TAG_BYTES} bytes; it describes no box")

    def take(self) -> list[ImglabImage]:
        done, self._done = self._done, []
        return done

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth == 1 and tag != "dataset":
            self._fail(f"the root element is <{shorten(tag)}>; an imglab file has <dataset>")
        if self._image is not None:
            self._tags += 1
            if self._tags > _MAX_TAGS:
                self._fail(f"an <image> of more than {_MAX_TAGS} tags; it describes no image")
        if self._depth != len(self._open) + 1:  # below an element that is not read
            return
        if tag not in ("dataset", "images") and _PLACES.get(tag) != tuple(self._open):
            return
        self._open.append(tag)
        if tag == "image":
            self._image, self._tags = ImglabImage(attributes=attributes, line=self._line()), 0
        elif self._image is not None and tag == "box":
            self._image.boxes.append(ImglabBox(attributes=attributes, line=self._line()))
        elif self._image is not None and tag == "part":
            self._image.boxes[-1].parts.append(attributes)
        elif tag == "label":
            self._text = []

    def _end(self, tag: str) -> None:
        if self._depth == len(self._open):
            self._open.pop()
            if tag == "label" and self._image is not None and self._text is not None:
                self._image.boxes[-1].labels.append("".join(self._text).strip())
                self._text = None
            elif tag == "image" and self._image is not None:
                self._done.append(self._image)
                self._image = None
        self._depth -= 1

    def _characters(self, text: str) -> None:
        if self._text is not None and self._depth == len(self._open):
            self._text.append(text)
            if len(self._text) > _MAX_TAGS:
                self._fail("a <label> that does not end")

    def _refuse(self, *_: object) -> NoReturn:
        self._fail("document types and entities are refused; remove the <!DOCTYPE")

    def _line(self) -> int:
        return self._parser.CurrentLineNumber

    def _fail(self, message: str) -> NoReturn:
        raise AnnotationError(message, path=self._path, line=self._line())
