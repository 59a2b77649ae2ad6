"""JSON files that may be hostile or huge: the entries of their lists in batches, never the whole document."""

from __future__ import annotations

import gc
import os
from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain, repeat, starmap
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import ijson

from lit_loader.annotations.formats.text_file import open_file
from lit_loader.annotations.paths import check_relative
from lit_loader.annotations.problems import shorten
from lit_loader.errors import AnnotationError

__all__ = ["MAX_DEPTH", "MAX_ENTRY_BYTES", "RepeatedKey", "Take", "entry_lines", "read_entries"]

# NOTE [entry by entry]
# ijson builds the outermost object in C, several times as fast as its events are handled in Python. It puts a list
# into that object when the list begins, and asks for the next bytes when it has handled those before. In between,
# `_Feed` takes the entries that are complete out of the lists, so that a batch of them is in memory, however large the
# file.
MAX_ENTRY_BYTES: Final = 4 * 1024 * 1024
MAX_DEPTH: Final = 64
_MAX_KEY_CHARS: Final = 4_096
_BATCH_BYTES: Final = 256 * 1024
# Bounds how deep a list may get before it is looked at: ijson keeps the path of each level.
_CHUNK_BYTES: Final = 4_096

Take: TypeAlias = Callable[[str, int, list[Any]], None]
"""Gets a key of the outermost object, the position of the first entry counted from 0, and the entries.

A value that is no list comes at the end of the file, as one entry with the position -1. A `RepeatedKey` replaces an
entry in which an object has a key twice.
"""


class RepeatedKey(NamedTuple):
    """A repeated key of an object in an entry; which of its values is meant is unknown."""

    key: str


def read_entries(root: Path, name: str, take: Take) -> None:
    """Hand on what the outermost object of a JSON file holds: lists in batches, keys in the file's order.

    Args:
        root: The data set's folder.
        name: The file, relative to ``root``.
        take: Is called for each batch; a list without entries comes as one empty batch.

    Raises:
        AnnotationError: If the file is no regular file, is no JSON object (NaN, infinities and whole numbers beyond
            63 bits are no JSON here), has a key twice, is nested deeper than ``MAX_DEPTH``, or has an entry larger
            than ``MAX_ENTRY_BYTES``; names file and line.
        UnsafePathError: If the name leads out of ``root``.
    """
    path = root / check_relative(name)
    try:
        _Feed(path, take).parse()
    except _NotRead as problem:
        lines = _Feed(path, None)
        with suppress(_NotRead):
            lines.parse()
        raise AnnotationError(shorten(str(problem)), path=path, line=lines.line) from None


def entry_lines(root: Path, name: str) -> dict[str, array[int]]:
    """Return the lines, counted from 1, in which the entries of the lists of a file begin, by key."""
    lines = _Feed(root / check_relative(name), None)
    lines.parse()
    return lines.lines


class _NotRead(Exception):
    pass


class _Feed:
    """What ijson reads a file from; hands on the entries that are complete before it gives the next bytes.

    Without ``take`` the file is given line by line, and the line in which each entry begins is noted.
    """

    def __init__(self, path: Path, take: Take | None) -> None:
        self._path, self._take = path, take
        self._document = _Document()
        self._taken: dict[str, int] = {}
        self._since = 0  # bytes since entries were handed on
        self._has_begun = self._has_ended_line = False
        self.line = 1
        self.lines: dict[str, array[int]] = {}

    def parse(self) -> None:
        """Read the whole file."""
        objects: Iterator[Any] = starmap(dict, repeat(()))  # faster, and lines need no repeated keys
        if self._take:
            objects = starmap(_Object, repeat((self._document,)))
        containers = chain([self._document], objects)
        is_collecting = gc.isenabled()
        gc.disable()  # entries hold no cycles, and the collector would look at each of them several times
        try:
            with open_file(self._path) as (opened, _), os.fdopen(opened, "rb", closefd=False) as self._file:
                if self._file.read(3) != b"\xef\xbb\xbf":
                    self._file.seek(0)
                settings = {"map_type": containers.__next__, "use_float": True, "buf_size": _CHUNK_BYTES}
                list(ijson.items(self, "", **settings))
        except ijson.JSONError as error:
            reason = str(error).removeprefix("b'").replace("\\n", "\n").partition("\n")[0]
            remedy = "correct it; write null for NaN and infinities, and no whole numbers beyond 63 bits"
            raise _NotRead(f"no JSON ({reason}); {remedy}") from None
        except UnicodeDecodeError:
            raise _NotRead("a text with half of a surrogate pair, which is not Unicode; correct it") from None
        finally:
            gc.enable() if is_collecting else None
        self._hand_on(is_whole=True)

    def read(self, size: int) -> bytes:
        """Return the next bytes."""
        if not size:
            return b""
        self._check_nesting()
        if self._since >= _BATCH_BYTES or self._take is None:
            self._hand_on()
        if self._since > MAX_ENTRY_BYTES:
            raise _NotRead(f"an entry is larger than MAX_ENTRY_BYTES={MAX_ENTRY_BYTES}")
        data = self._file.read(size) if self._take else self._file.readline(size)
        self.line += self._has_ended_line and len(data) > 0
        self._has_ended_line = data.endswith(b"\n")
        self._since += len(data)
        if not self._has_begun and not data.isspace():
            self._has_begun = True
            if data.lstrip()[:1] not in (b"{", b""):
                raise _NotRead("the file must hold one JSON object: {...}")
        return data

    def _hand_on(self, *, is_whole: bool = False) -> None:
        if self._document.repeated_key is not None:
            raise _NotRead(f"the key {self._document.repeated_key!r} stands twice; unite what it has")
        for key, value in self._document.items():
            first = self._taken.get(key, -1)
            if not isinstance(value, list):
                if is_whole and self._take:
                    self._take(key, -1, self._plain([value]))
                continue
            begun = max(first, 0) + len(value)
            is_growing = not is_whole and key == next(reversed(self._document))
            ready = value[:-1] if is_growing else value[:]
            del value[: len(ready)]
            if ready or first < 0:
                self._taken[key], self._since = max(first, 0) + len(ready), 0
                if self._take:
                    self._take(key, max(first, 0), self._plain(ready))
            if not self._take:
                lines = self.lines.setdefault(key, array("q"))
                lines.extend([self.line] * (begun - len(lines)))

    def _plain(self, entries: list[Any]) -> list[Any]:
        """Return entries with the objects as dict, which is faster to look up in than `_Object`."""
        plain = [dict(entry) if type(entry) is _Object else entry for entry in entries]
        if self._document.any_repeated:
            for position, entry in enumerate(entries):
                key = _first_repeated_key(entry)
                if key is not None:
                    plain[position] = RepeatedKey(key)
        return plain

    def _check_nesting(self) -> None:
        node: Any = self._document
        for _ in range(MAX_DEPTH):
            if not node or not isinstance(node, (dict, list)):
                return
            if isinstance(node, dict):
                key = next(reversed(node))
                if len(key) > _MAX_KEY_CHARS:
                    raise _NotRead(f"a key of more than {_MAX_KEY_CHARS} characters")
                node = node[key]
            else:
                node = node[-1]
        raise _NotRead(f"lists and objects are nested deeper than MAX_DEPTH={MAX_DEPTH}")


class _Object(dict[str, Any]):
    """A JSON object that notes a repeated key; the last value replaces the earlier one."""

    __slots__ = ("_document", "repeated_key")

    def __init__(self, document: _Document) -> None:
        self._document = document
        self.repeated_key: str | None = None

    def __setitem__(self, key: str, value: Any) -> None:
        if key in self:  # noted, not raised, since ijson ignores an error here
            self.repeated_key = key
            self._document.any_repeated = True
        dict.__setitem__(self, key, value)  # super() takes 3 % of the time of a read


class _Document(_Object):
    """The outermost object of a file; ``any_repeated`` is True once an object of the file has a key twice."""

    def __init__(self) -> None:
        super().__init__(self)
        self.any_repeated = False


def _first_repeated_key(entry: Any) -> str | None:
    """Return a key that an object in an entry, or the entry itself, has twice; None without one."""
    pending: list[Any] = [entry]
    while pending:
        part = pending.pop()
        if isinstance(part, _Object):
            if part.repeated_key is not None:
                return part.repeated_key
            pending.extend(part.values())
        elif isinstance(part, list):
            pending.extend(part)
    return None
