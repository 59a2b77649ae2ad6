"""Text files that may be hostile: read line by line under limits, lines with their numbers."""

from __future__ import annotations

import csv
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NoReturn

from lit_loader.annotations.paths import check_relative
from lit_loader.annotations.problems import shorten
from lit_loader.errors import AnnotationError

__all__ = [
    "MAX_LINE_BYTES",
    "MAX_ROW_LINES",
    "check_separator",
    "numbers",
    "open_file",
    "read_bytes",
    "read_file",
    "read_lines",
    "read_rows",
    "read_with_state",
]

MAX_LINE_BYTES: Final = 256 * 1024
MAX_ROW_LINES: Final = 16
_BOM: Final = b"\xef\xbb\xbf"
# A pipe would be waited for.
_FLAGS: Final = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)


def read_lines(root: Path, name: str, *, keep_ends: bool = False) -> Iterator[tuple[int, str]]:
    r"""Yield the lines of a text file with their numbers, counted from 1; at most one is in memory.

    Lines end with ``\n`` or ``\r\n``. The text is UTF-8, with or without a byte order mark; bytes that are
    not come as surrogates, which give the same file name again.

    Args:
        root: The data set's folder.
        name: The file, relative to ``root``.
        keep_ends: Whether lines keep their ends, as the ``csv`` module asks for.

    Raises:
        AnnotationError: If the file is not a regular file, cannot be read, holds a NUL (as UTF-16 does),
            or has a line of more than ``MAX_LINE_BYTES``; names file and line.
        UnsafePathError: If the name leads out of ``root``.
    """
    path = root / check_relative(name)
    with open_file(path) as (opened, _), os.fdopen(opened, "rb", closefd=False) as file:
        number = 0
        while data := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(data) > MAX_LINE_BYTES:
                message = f"a line of more than MAX_LINE_BYTES={MAX_LINE_BYTES} bytes; expected lines of annotations"
                raise AnnotationError(message, path=path, line=number)
            if b"\0" in data:
                message = "the line holds a NUL; the file must be text in UTF-8"
                raise AnnotationError(message, path=path, line=number)
            if number == 1:
                data = data.removeprefix(_BOM)
            text = data.decode("utf-8", "surrogateescape")
            yield number, text if keep_ends else text.rstrip("\r\n")


def read_rows(root: Path, name: str, *, separator: str = ",") -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a CSV file (RFC 4180: fields may be quoted with ``"``), each with its line; not the empty ones.

    Args:
        root: The data set's folder.
        name: The file, relative to ``root``.
        separator: The character between fields; blanks around fields are dropped.

    Raises:
        AnnotationError: As ``read_lines``, or if a quote is wrong, a field has more characters than the ``csv``
            module takes, or a row goes over more than ``MAX_ROW_LINES`` lines.
        UnsafePathError: If the name leads out of ``root``.
    """
    path = root / name
    last = first = 0

    def lines() -> Iterator[str]:
        nonlocal last
        for last, text in read_lines(root, name, keep_ends=True):
            if last - first > MAX_ROW_LINES:
                message = f"a row of more than {MAX_ROW_LINES} lines; is a quote not closed?"
                raise AnnotationError(message, path=path, line=first + 1)
            yield text

    rows = csv.reader(lines(), delimiter=separator, strict=True, skipinitialspace=separator != " ")
    try:
        for fields in rows:
            if any(fields):
                yield first + 1, [field.strip() for field in fields]
            first = last
    except csv.Error as error:
        message = f"the row is not valid CSV ({error}); correct it, or choose another separator"
        raise AnnotationError(message, path=path, line=first + 1) from None


def check_separator(separator: str | None) -> None:
    """Raise ValueError unless it is None, or one character that no number has."""
    if separator is not None and (len(separator) != 1 or separator.isalnum() or separator in '."\n\r-+'):
        raise ValueError(f"separator={separator!r} must be one character such as ',', ';' or a tab, or None")


def read_bytes(root: Path, name: str, *, max_bytes: int) -> bytes:
    """Return a whole file.

    Args:
        root: The data set's folder.
        name: The file, relative to ``root``.
        max_bytes: A larger file is refused.

    Raises:
        AnnotationError: If the file is not a regular file, cannot be read, or is larger than ``max_bytes``.
        UnsafePathError: If the name leads out of ``root``.
    """
    return read_file(root / check_relative(name), max_bytes=max_bytes)


def read_file(path: Path | str, *, max_bytes: int) -> bytes:
    """Return a whole file that the caller trusts; otherwise as `read_bytes`."""
    return read_with_state(path, max_bytes=max_bytes)[0]


def read_with_state(path: Path | str, *, max_bytes: int) -> tuple[bytes, os.stat_result]:
    """Return the same, and what the file was when it was opened."""
    with open_file(path) as (file, state):  # read(max_bytes) would allocate as much for every small file
        wanted = min(state.st_size, max_bytes) + 1
        data = os.read(file, wanted)
        while len(data) < wanted - 1 and (rest := os.read(file, wanted - len(data))):
            data += rest  # a file of a networked file system comes in pieces
    if len(data) > max_bytes:
        message = f"the file is larger than {max_bytes} bytes, the most that is read of such a file"
        raise AnnotationError(message, path=path)
    return data, state


class open_file:  # used as a function; a generator would take 1 us longer
    """Open a regular file and give its descriptor and state: a file object takes longer to make than to read.

    Raises:
        AnnotationError: If it is not a regular file, cannot be opened, or not be read to its end.
    """

    def __init__(self, path: Path | str) -> None:
        self._path = path

    def __enter__(self) -> tuple[int, os.stat_result]:
        try:
            self._file = os.open(self._path, _FLAGS)
        except OSError as error:
            self._refuse(error)
        state = os.fstat(self._file)
        if not stat.S_ISREG(state.st_mode):
            os.close(self._file)
            raise AnnotationError("is not a regular file; name the annotation file", path=self._path)
        return self._file, state

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        os.close(self._file)
        if isinstance(error, OSError):
            self._refuse(error)

    def _refuse(self, error: OSError) -> NoReturn:
        raise AnnotationError(f"cannot be read ({error.strerror or error})", path=self._path) from None


def numbers(texts: Sequence[str], *, path: Path | str | None = None, line: int | None = None) -> list[float]:
    """Return ``texts`` as numbers; NaN and infinities are numbers here.

    Raises:
        AnnotationError: If one is not a number; names file and line.
    """
    found = []
    for position, text in enumerate(texts, 1):
        try:
            found.append(float(text))
        except ValueError:
            message = f"expected number {position} of {len(texts)}, got {shorten(repr(text))}"
            raise AnnotationError(message, path=path, line=line) from None
    return found
