"""XML files that may be hostile: parsed under limits, errors with file and line."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final
from xml.etree.ElementTree import Element, ParseError, fromstring
from xml.sax import SAXException
from xml.sax.handler import ContentHandler
from xml.sax.xmlreader import AttributesImpl, Locator

import defusedxml.ElementTree
import defusedxml.sax
from defusedxml.common import DefusedXmlException

from lit_loader.annotations.formats.text_file import read_file
from lit_loader.annotations.problems import shorten
from lit_loader.errors import AnnotationError

__all__ = ["MAX_ATTRIBUTES", "MAX_TAGS", "MAX_XML_BYTES", "child_line", "child_text", "parse_xml"]

# NOTE [two parsers]
# defusedxml runs on ElementTree's pure Python parser, 2.5 times slower than the C one. What it adds, refusing
# document types, entities and external references, has nothing to act on in a file without a document
# type declaration, and one is spelled "<!DOCTYPE" in every encoding that expat reads: it demands that 8-bit
# ones keep ASCII, and UTF-16 shows by its zero bytes. So a file with neither goes to the C parser, and every
# other to defusedxml. Both build the same tree.
MAX_XML_BYTES: Final = 16 * 1024 * 1024
MAX_TAGS: Final = 500_000
MAX_ATTRIBUTES: Final = 200_000


def parse_xml(data: bytes, *, path: Path | str) -> Element:
    """Parse a whole document held in memory.

    Document types, entities and external references are refused (``defusedxml``), so nothing but ``data``
    is ever read and no text can grow; ``MAX_TAGS`` and ``MAX_ATTRIBUTES`` bound the memory of the tree.

    Args:
        data: The file's bytes.
        path: Named in errors; nothing is read from it.

    Raises:
        AnnotationError: If the document is not well-formed or breaks a rule above; names file and line.
    """
    if data.count(b"<") > MAX_TAGS:
        message = f"the file has more than MAX_TAGS={MAX_TAGS} tags; it cannot describe one image"
        raise AnnotationError(message, path=path)
    if data.count(b"=") > MAX_ATTRIBUTES:  # each has one
        message = f"the file has more than MAX_ATTRIBUTES={MAX_ATTRIBUTES} attributes or signs '='"
        raise AnnotationError(f"{message}; it cannot describe one image", path=path)
    try:
        if b"<!DOCTYPE" in data or b"\0" in data:  # NOTE [two parsers]
            return defusedxml.ElementTree.fromstring(data, forbid_dtd=True)
        return fromstring(data)
    except ParseError as error:
        message = f"not well-formed XML ({error.msg})"
        raise AnnotationError(message, path=path, line=error.position[0]) from None
    except DefusedXmlException as error:
        message = f"{type(error).__name__}: document types, entities, external references are refused"
        line = data.count(b"\n", 0, max(data.find(b"<!"), 0)) + 1
        raise AnnotationError(message, path=path, line=line) from None
    except (LookupError, ValueError) as error:  # an encoding that expat does not know
        raise AnnotationError(f"cannot be parsed as XML ({shorten(str(error))})", path=path) from None


def child_text(element: Element, tag: str) -> str | None:
    """Return the stripped text of the first child named ``tag``, or None without such a child."""
    text = element.findtext(tag)
    return None if text is None else text.strip()


def child_line(path: Path | str, tag: str, index: int) -> int | None:
    """Return the line of the root's child number ``index`` of those named ``tag``, or None.

    Trees carry no lines, since keeping them would double the time to parse: the few files with a problem
    are read again for them.

    Args:
        path: A file that ``parse_xml`` accepts; None is returned for any other.
        tag: The children's name.
        index: Counted from 0.
    """
    finder = _LineFinder(tag, index)
    refusals = (AnnotationError, SAXException, DefusedXmlException, LookupError, ValueError)
    with suppress(*refusals):  # what was found before stands
        defusedxml.sax.parseString(read_file(path, max_bytes=MAX_XML_BYTES), finder, forbid_dtd=True)
    return finder.line


class _LineFinder(ContentHandler):
    def __init__(self, tag: str, index: int) -> None:
        super().__init__()
        self.line: int | None = None
        self._tag, self._left, self._depth = tag, index, 0
        self._locator: Locator | None = None

    def setDocumentLocator(self, locator: Locator) -> None:
        self._locator = locator

    def startElement(self, name: str, attrs: AttributesImpl) -> None:
        self._depth += 1
        if self._depth == 2 and name == self._tag:
            if self._left == 0 and self._locator is not None:
                self.line = self._locator.getLineNumber()
                raise SAXException("found")  # the rest need not be read
            self._left -= 1

    def endElement(self, name: str) -> None:
        self._depth -= 1
