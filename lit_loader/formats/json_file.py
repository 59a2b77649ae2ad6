"""JSON files that may be hostile or huge: the entries of their lists one by one, with their lines."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from lit_loader.annotations.paths import check_relative
from lit_loader.annotations.report import shorten
from lit_loader.errors import AnnotationError
from lit_loader.formats.text_file import file_stamp

__all__ = ["Entry", "MAX_ENTRY_CHARS", "MAX_JSON_BYTES", "read_entries"]

# NOTE [entry by entry]
# The json module builds the whole document, twenty times its size for a list of empty lists, and keeps no line
# numbers. Here the outermost object is walked by hand and each of its values, or each element of a list that
# is one, is decoded from a window of the text: memory is bounded by one entry, however large the file.
MAX_JSON_BYTES: Final = 4 * 1024**3
MAX_ENTRY_CHARS: Final = 4 * 1024 * 1024
_CHUNK_BYTES: Final = 1024 * 1024
_SPACE: Final = re.compile(r"[ \t\n\r]*")
_CUT_NUMBER: Final = re.compile(r"[-+.eE0-9]*")  # what may follow a number whose end is not in the window yet


class Entry(NamedTuple):
    """One value of the outermost object, or one element of a list that is its value.

    Attributes:
        key: The object's key.
        position: Position in the list, counted from 0; -1 for a value that is no list.
        line: Line where it begins, counted from 1.
        value: What it says.
    """

    key: str
    position: int
    line: int
    value: Any


def read_entries(root: Path, name: str) -> Iterator[Entry]:
    """Yield what the outermost object of a JSON file holds, list elements one by one, in the file's order.

    Args:
        root: The data set's folder.
        name: The file, relative to ``root``.

    Raises:
        AnnotationError: If the file is no regular file, is larger than ``MAX_JSON_BYTES``, is no JSON object,
            or one entry is larger than ``MAX_ENTRY_CHARS``, nested too deeply, or holds a number of thousands
            of digits; names file and line.
        UnsafePathError: If the name or a symbolic link leads out of ``root``.
    """
    path = root / check_relative(name)
    if file_stamp(root, name).size > MAX_JSON_BYTES:
        raise AnnotationError(f"the file is larger than MAX_JSON_BYTES={MAX_JSON_BYTES}", path=path)
    try:
        with path.open("rb") as file:
            yield from _Reader(file, path).entries()
    except OSError as error:
        raise AnnotationError(f"cannot be read ({error.strerror or error})", path=path) from None


class _Reader:
    """A window of the text and a position in it."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file, self._path = file, path
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._scan = json.JSONDecoder(strict=False).raw_decode
        self._window, self._at = "", 0
        self._line = 1  # of the position
        self._left = MAX_JSON_BYTES
        self._ended = False

    def entries(self) -> Iterator[Entry]:
        if self._next() != "{":
            raise self._error("the file must hold one JSON object: {...}")
        for _ in self._items("}"):
            key = self._value("")
            if not isinstance(key, str):
                raise self._error(f"a key must be text, not {shorten(repr(key))}")
            found = self._next()
            if found != ":":
                raise self._error(f"':' expected, not {found!r}")
            self._at += 1
            if self._next() != "[":  # at the value, which may be missing
                line = self._line
                yield Entry(key, -1, line, self._value(key))
                continue
            for index in self._items("]"):
                line = self._line
                yield Entry(key, index, line, self._value(f"{key}[{index}]"))
        if self._next():
            raise self._error("there is something after the JSON object")

    def _items(self, end: str) -> Iterator[int]:
        """Step into a list or object, yield before each item, which the caller steps over, and step out."""
        self._at += 1
        found = self._next()
        for index in count():
            if found == end and index == 0:
                break
            if not found:
                raise self._error("the file ends in the middle; it was cut off or not fully written")
            yield index
            found = self._next()
            if found == end:
                break
            if found != ",":
                message = (
                    f"',' expected, not {found!r}" if found else "the file ends in the middle; it was cut off"
                )
                raise self._error(message)
            self._at += 1
            found = self._next()
            if found == end:
                raise self._error(f"a comma stands before {end!r}")
        self._at += 1

    def _next(self) -> str:
        """Return the next character that is no space, '' at the end of the file, without stepping over it."""
        if self._at < len(self._window) and self._window[self._at] > " ":
            return self._window[self._at]
        while True:
            match = _SPACE.match(self._window, self._at)
            end = self._at if match is None else match.end()
            self._move(end)
            if end < len(self._window):
                return self._window[end]
            if not self._fill():
                return ""

    def _value(self, what: str) -> Any:
        """Decode the value that comes next and step over it."""
        while True:
            problem: AnnotationError
            try:
                value, end = self._scan(self._window, self._at)
                if self._ended or not _CUT_NUMBER.fullmatch(self._window, end):
                    self._move(end)
                    return value
                problem = self._error(f"{what} does not end")
            except json.JSONDecodeError as error:
                problem = self._error(f"no JSON ({error.msg})", at=error.pos)
            except RecursionError:
                raise self._error(f"{what} is nested too deeply") from None
            except ValueError as error:  # a number of thousands of digits
                raise self._error(f"{what}: {error}") from None
            if len(self._window) - self._at > MAX_ENTRY_CHARS:
                raise self._error(f"{what or 'an entry'} is larger than MAX_ENTRY_CHARS={MAX_ENTRY_CHARS}")
            if not self._fill():
                raise problem

    def _move(self, to: int) -> None:
        self._line += self._window.count("\n", self._at, to)
        self._at = to

    def _fill(self) -> bool:
        """Append to the window, as much again as is unread; return False at the end of the file."""
        if self._ended:
            return False
        rest = self._window[self._at :]
        data = self._file.read(min(max(_CHUNK_BYTES, len(rest)), self._left + 1))
        self._left -= len(data)
        if self._left < 0:
            raise self._error(f"the file is larger than MAX_JSON_BYTES={MAX_JSON_BYTES}")
        self._ended = not data
        try:
            text = self._decoder.decode(data, final=self._ended)
        except UnicodeDecodeError as error:
            message = f"the file must be text in UTF-8 ({error.reason})"
            line = self._line + rest.count("\n") + error.object.count(b"\n", 0, error.start)
            raise AnnotationError(message, path=self._path, line=line) from None
        self._window, self._at = rest + text, 0
        return True

    def _error(self, message: str, *, at: int | None = None) -> AnnotationError:
        line = self._line
        if at is not None:
            line += self._window.count("\n", self._at, min(at, len(self._window)))
        return AnnotationError(shorten(message), path=self._path, line=line)
