"""Read untrusted and huge JSON files in batches of list entries, never the whole document."""

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

# NOTE [Entry by entry]
# ijson builds the outermost object in C, several times as fast as Python code could handle its events. It adds a list
# to that object when the list begins, and asks for more bytes when it has processed the previous ones. Between two such
# requests, `_Feed` moves the complete entries out of the lists, so that only one batch is in memory, however large the
# file is.
MAX_ENTRY_BYTES: Final = 4 * 1024 * 1024
MAX_DEPTH: Final = 64
_MAX_KEY_CHARS: Final = 4_096
_BATCH_BYTES: Final = 256 * 1024
# ijson stores the path of each level, and nesting is checked between chunks, so the chunk size bounds the depth.
_CHUNK_BYTES: Final = 4_096

Take: TypeAlias = Callable[[str, int, list[Any]], None]
"""Function of a key of the outermost object, the position of the first entry (from 0), and the entries.

A value that is not a list is passed at the end of the file, as one entry with position -1. A `RepeatedKey` replaces an
entry in which an object repeats a key.
"""


class RepeatedKey(NamedTuple):
    """Key that an object in an entry repeats, so that its value is ambiguous."""

    key: str


def read_entries(root: Path, name: str, take: Take) -> None:
    """Pass the values of the outermost object of a JSON file to ``take``, lists in batches, in the order of the file.

    Args:
        root: Folder of the data set.
        name: The file, relative to ``root``.
        take: Called for each batch; an empty list is passed as one empty batch.

    Raises:
        AnnotationError: If the file is not a regular file or not a JSON object (NaN, infinities and integers beyond 63
            bits are not accepted), repeats a key, is nested deeper than ``MAX_DEPTH``, or has an entry larger than
            ``MAX_ENTRY_BYTES``; names file and line.
        UnsafePathError: If the name leads out of ``root``.
    """
    path = root / check_relative(name)
    try:
        _Feed(path, take).parse()
    except _JSONError as error:
        # Chunks do not follow lines, so the file is read again line by line up to the error.
        line_feed = _Feed(path, None)
        with suppress(_JSONError):
            line_feed.parse()
        raise AnnotationError(shorten(str(error)), path=path, line=line_feed.line) from None


def entry_lines(root: Path, name: str) -> dict[str, array[int]]:
    """Return the line, from 1, in which each entry of each list begins, by key."""
    feed = _Feed(root / check_relative(name), None)
    feed.parse()
    return feed.lines


class _JSONError(Exception):
    pass


class _Feed:
    """File object for ijson that passes complete entries to ``take`` before it returns the next bytes.

    Without ``take`` it returns one line at a time, and records the line in which each entry begins.
    """

    def __init__(self, path: Path, take: Take | None) -> None:
        self._path = path
        self._take = take
        self._document = _Document()
        self._num_taken: dict[str, int] = {}  # entries of each list that were passed on
        self._pending_bytes = 0  # bytes read since entries were passed on
        self._has_started = False
        self._ended_line = False
        self.line = 1
        self.lines: dict[str, array[int]] = {}

    def parse(self) -> None:
        """Read the whole file."""
        # Plain dicts are faster, and a pass for line numbers does not need repeated keys.
        objects: Iterator[Any] = starmap(dict, repeat(()))
        if self._take:
            objects = starmap(_Object, repeat((self._document,)))
        containers = chain([self._document], objects)
        # Entries have no reference cycles, and the garbage collector would visit each of them several times.
        gc_was_enabled = gc.isenabled()
        gc.disable()
        try:
            with open_file(self._path) as (descriptor, _), os.fdopen(descriptor, "rb", closefd=False) as self._file:
                if self._file.read(3) != b"\xef\xbb\xbf":
                    self._file.seek(0)
                settings = {"map_type": containers.__next__, "use_float": True, "buf_size": _CHUNK_BYTES}
                # The empty prefix selects the whole document; its one item is `_document`, which is read meanwhile.
                list(ijson.items(self, "", **settings))
        except ijson.JSONError as error:
            # yajl's message is the text of a bytes object, followed by an excerpt of the file.
            reason = str(error).removeprefix("b'").replace("\\n", "\n").partition("\n")[0]
            remedy = "correct it; write null for NaN and infinities, and no whole numbers beyond 63 bits"
            raise _JSONError(f"not valid JSON ({reason}); {remedy}") from None
        except UnicodeDecodeError:
            raise _JSONError("a text has half of a surrogate pair, which is not Unicode; correct it") from None
        finally:
            if gc_was_enabled:
                gc.enable()
        self._pass_on(is_whole=True)

    def read(self, size: int) -> bytes:
        """Return the next bytes, after passing on the entries that are complete."""
        if not size:
            return b""
        self._check_nesting()
        if self._pending_bytes >= _BATCH_BYTES or self._take is None:
            self._pass_on()
        if self._pending_bytes > MAX_ENTRY_BYTES:
            raise _JSONError(f"an entry is larger than MAX_ENTRY_BYTES={MAX_ENTRY_BYTES}")
        data = self._file.read(size) if self._take else self._file.readline(size)
        # A line begins with its first byte: an error at the end of the file belongs to the last line.
        self.line += self._ended_line and len(data) > 0
        self._ended_line = data.endswith(b"\n")
        self._pending_bytes += len(data)
        if not self._has_started and not data.isspace():
            self._has_started = True
            if data.lstrip()[:1] not in (b"{", b""):
                raise _JSONError("the file must hold one JSON object: {...}")
        return data

    def _pass_on(self, *, is_whole: bool = False) -> None:
        if self._document.repeated_key is not None:
            raise _JSONError(f"the key {self._document.repeated_key!r} is repeated; merge its values")
        for key, value in self._document.items():
            num_taken = self._num_taken.get(key, -1)  # -1 if `take` has not been called for the key
            if not isinstance(value, list):
                if is_whole and self._take:
                    self._take(key, -1, self._plain([value]))
                continue
            first = max(num_taken, 0)
            num_begun = first + len(value)
            # The last entry of the last list may be incomplete.
            is_growing = not is_whole and key == next(reversed(self._document))
            complete = value[:-1] if is_growing else value[:]
            del value[: len(complete)]
            if complete or num_taken < 0:
                self._num_taken[key] = first + len(complete)
                self._pending_bytes = 0
                if self._take:
                    self._take(key, first, self._plain(complete))
            if not self._take:
                lines = self.lines.setdefault(key, array("q"))
                lines.extend([self.line] * (num_begun - len(lines)))

    def _plain(self, entries: list[Any]) -> list[Any]:
        """Return entries as plain dicts, which are faster to look up in than `_Object`."""
        plain = [dict(entry) if type(entry) is _Object else entry for entry in entries]
        if self._document.any_repeated:
            for position, entry in enumerate(entries):
                key = _first_repeated_key(entry)
                if key is not None:
                    plain[position] = RepeatedKey(key)
        return plain

    def _check_nesting(self) -> None:
        # Only the latest value of each container can still grow.
        node: Any = self._document
        for _ in range(MAX_DEPTH):
            if not node or not isinstance(node, (dict, list)):
                return
            if isinstance(node, dict):
                key = next(reversed(node))
                if len(key) > _MAX_KEY_CHARS:
                    raise _JSONError(f"a key has more than {_MAX_KEY_CHARS} characters")
                node = node[key]
            else:
                node = node[-1]
        raise _JSONError(f"lists and objects are nested deeper than MAX_DEPTH={MAX_DEPTH}")


class _Object(dict[str, Any]):
    """JSON object that records a repeated key; the last value replaces the earlier one."""

    __slots__ = ("_document", "repeated_key")

    def __init__(self, document: _Document) -> None:
        self._document = document
        self.repeated_key: str | None = None

    def __setitem__(self, key: str, value: Any) -> None:
        if key in self:  # recorded and not raised, because ijson ignores errors raised here
            self.repeated_key = key
            self._document.any_repeated = True
        dict.__setitem__(self, key, value)  # super() would take 3 % of the time of a read


class _Document(_Object):
    """Outermost object of a file; ``any_repeated`` is True once any object in the file repeats a key."""

    def __init__(self) -> None:
        super().__init__(self)
        self.any_repeated = False


def _first_repeated_key(entry: Any) -> str | None:
    """Return a key that the entry, or an object in it, repeats, or None."""
    pending: list[Any] = [entry]
    while pending:
        value = pending.pop()
        if isinstance(value, _Object):
            if value.repeated_key is not None:
                return value.repeated_key
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)
    return None
