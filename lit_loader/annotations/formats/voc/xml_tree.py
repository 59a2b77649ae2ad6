"""Parse untrusted XML files under limits, with file and line in errors."""

from __future__ import annotations

from pathlib import Path
from typing import Final
from xml.etree.ElementTree import Element, ParseError, fromstring
from xml.sax.handler import ContentHandler
from xml.sax.xmlreader import AttributesImpl, Locator

import defusedxml.ElementTree
import defusedxml.sax
from defusedxml.common import DefusedXmlException

from lit_loader.annotations.problems import shorten
from lit_loader.errors import AnnotationError

__all__ = ["MAX_ATTRIBUTES", "MAX_TAGS", "MAX_XML_BYTES", "child_lines", "parse_xml"]

# NOTE [Two parsers]
# defusedxml runs on ElementTree's pure Python parser, 2.5 times slower than the C one. It additionally refuses document
# types, entities and external references, and a file without a document type declaration has none of them. Such a
# declaration is spelled "<!DOCTYPE" in every encoding that expat reads: 8-bit encodings must keep ASCII, and UTF-16 has
# zero bytes. So a file with neither goes to the C parser, and every other file to defusedxml. Both build the same tree.
MAX_XML_BYTES: Final = 16 * 1024 * 1024
MAX_TAGS: Final = 500_000
MAX_ATTRIBUTES: Final = 200_000


def parse_xml(data: bytes, *, path: Path | str) -> Element:
    """Parse a document.

    Document types, entities and external references are refused (by ``defusedxml``), so only ``data`` is read and no
    text can expand; ``MAX_TAGS`` and ``MAX_ATTRIBUTES`` bound the memory of the tree.

    Args:
        data: Content of the file.
        path: Path of the file, for messages only.

    Raises:
        AnnotationError: If the document is not well-formed or breaks a rule above; names file and line.
    """
    # Counting bytes is cheap, and happens before the parser allocates a tree.
    if data.count(b"<") > MAX_TAGS:
        message = f"the file has more than MAX_TAGS={MAX_TAGS} tags; it cannot describe one image"
        raise AnnotationError(message, path=path)
    if data.count(b"=") > MAX_ATTRIBUTES:  # an upper bound: every attribute has an '='
        message = f"the file has more than MAX_ATTRIBUTES={MAX_ATTRIBUTES} attributes or signs '='"
        raise AnnotationError(f"{message}; it cannot describe one image", path=path)
    try:
        if b"<!DOCTYPE" in data or b"\0" in data:  # see NOTE [Two parsers]
            return defusedxml.ElementTree.fromstring(data, forbid_dtd=True)
        return fromstring(data)
    except ParseError as error:
        message = f"not well-formed XML ({error.msg})"
        raise AnnotationError(message, path=path, line=error.position[0]) from None
    except DefusedXmlException as error:
        message = f"{type(error).__name__}: document types, entities and external references are refused"
        line = data.count(b"\n", 0, max(data.find(b"<!"), 0)) + 1
        raise AnnotationError(message, path=path, line=line) from None
    except (LookupError, ValueError) as error:  # an unknown encoding
        raise AnnotationError(f"cannot be parsed as XML ({shorten(str(error))})", path=path) from None


def child_lines(data: bytes, tag: str) -> list[int]:
    """Return the line of each of the root's children named ``tag``.

    Trees have no line numbers, because recording them would double the parsing time, so this parses once more.

    Args:
        data: Content of a file that ``parse_xml`` accepts.
        tag: Name of the children.
    """
    finder = _LineFinder(tag)
    defusedxml.sax.parseString(data, finder, forbid_dtd=True)
    return finder.lines


class _LineFinder(ContentHandler):
    _locator: Locator  # set by the base class before the first event

    def __init__(self, tag: str) -> None:
        super().__init__()
        self.lines: list[int] = []
        self._tag = tag
        self._depth = 0

    def startElement(self, name: str, attrs: AttributesImpl) -> None:
        self._depth += 1
        # In a tree, a child in a namespace has another name.
        if self._depth == 2 and name == self._tag and not attrs.get("xmlns"):
            self.lines.append(self._locator.getLineNumber() or 0)

    def endElement(self, name: str) -> None:
        self._depth -= 1
