"""Read untrusted text files line by line, under limits, with line numbers."""

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
# Without O_NONBLOCK, opening a named pipe waits for a writer.
_FLAGS: Final = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)


def read_lines(root: Path, name: str, *, keep_ends: bool = False) -> Iterator[tuple[int, str]]:
    r"""Yield the lines of a text file with their numbers, from 1; at most one line is in memory.

    Lines end with ``\n`` or ``\r\n``. The text is UTF-8, with or without a byte order mark; invalid bytes are decoded
    to surrogates, which encode to the same file name again.

    Args:
        root: Folder of the data set.
        name: The file, relative to ``root``.
        keep_ends: Whether to keep line ends, which the ``csv`` module requires.

    Raises:
        AnnotationError: If the file is not a regular file, cannot be read, contains a NUL (as UTF-16 does), or has a
            line of more than ``MAX_LINE_BYTES``; names file and line.
        UnsafePathError: If the name leads out of ``root``.
    """
    path = root / check_relative(name)
    with open_file(path) as (descriptor, _), os.fdopen(descriptor, "rb", closefd=False) as file:
        number = 0
        # The limit keeps a file without line ends from being read into memory at once.
        while data := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(data) > MAX_LINE_BYTES:
                message = f"the line has more than MAX_LINE_BYTES={MAX_LINE_BYTES} bytes; expected lines of annotations"
                raise AnnotationError(message, path=path, line=number)
            if b"\0" in data:
                message = "the line contains a NUL; the file must be UTF-8 text"
                raise AnnotationError(message, path=path, line=number)
            if number == 1:
                # A byte order mark would become part of the first path.
                data = data.removeprefix(_BOM)
            # A name in another encoding must still open its file.
            text = data.decode("utf-8", "surrogateescape")
            yield number, text if keep_ends else text.rstrip("\r\n")


def read_rows(root: Path, name: str, *, separator: str = ",") -> Iterator[tuple[int, list[str]]]:
    """Yield the non-empty rows of a CSV file (RFC 4180: fields may be quoted with ``"``), each with its line number.

    Args:
        root: Folder of the data set.
        name: The file, relative to ``root``.
        separator: Character between fields; blanks around fields are stripped.

    Raises:
        AnnotationError: As for ``read_lines``, or if a quote is wrong, a field exceeds the limit of the ``csv``
            module, or a row spans more than ``MAX_ROW_LINES`` lines.
        UnsafePathError: If the name leads out of ``root``.
    """
    path = root / name
    line = 0  # latest line that the csv module has read
    previous_line = 0  # last line of the previous row

    def lines() -> Iterator[str]:
        nonlocal line
        for line, text in read_lines(root, name, keep_ends=True):
            # A quote that is never closed would make one row of the rest of the file.
            if line - previous_line > MAX_ROW_LINES:
                message = f"the row has more than {MAX_ROW_LINES} lines; is a quote not closed?"
                raise AnnotationError(message, path=path, line=previous_line + 1)
            yield text

    # `strict` turns wrong quotes into errors. With a blank as separator, `skipinitialspace` would swallow empty fields.
    rows = csv.reader(lines(), delimiter=separator, strict=True, skipinitialspace=separator != " ")
    try:
        for fields in rows:
            # csv yields an empty row for an empty line.
            if any(fields):
                yield previous_line + 1, [field.strip() for field in fields]
            previous_line = line
    except csv.Error as error:
        message = f"the row is not valid CSV ({error}); correct it, or choose another separator"
        raise AnnotationError(message, path=path, line=previous_line + 1) from None


def check_separator(separator: str | None) -> None:
    """Raise ValueError unless ``separator`` is None or one character that cannot be part of a number."""
    if separator is not None and (len(separator) != 1 or separator.isalnum() or separator in '."\n\r-+'):
        raise ValueError(f"separator={separator!r} must be one character such as ',', ';' or a tab, or None")


def read_bytes(root: Path, name: str, *, max_bytes: int) -> bytes:
    """Return the content of a file.

    Args:
        root: Folder of the data set.
        name: The file, relative to ``root``.
        max_bytes: Largest accepted size.

    Raises:
        AnnotationError: If the file is not a regular file, cannot be read, or is larger than ``max_bytes``.
        UnsafePathError: If the name leads out of ``root``.
    """
    return read_file(root / check_relative(name), max_bytes=max_bytes)


def read_file(path: Path | str, *, max_bytes: int) -> bytes:
    """Return the content of a file at a trusted path; see `read_bytes`."""
    return read_with_state(path, max_bytes=max_bytes)[0]


def read_with_state(path: Path | str, *, max_bytes: int) -> tuple[bytes, os.stat_result]:
    """Return the content of a file at a trusted path, and its state when it was opened; see `read_bytes`."""
    with open_file(path) as (file, state):
        # os.read allocates the size it is asked for, so it is not asked for max_bytes. One byte more than expected
        # shows a file that is too large or has grown.
        num_bytes = min(state.st_size, max_bytes) + 1
        data = os.read(file, num_bytes)
        # A networked file system may return less than it is asked for.
        while len(data) < num_bytes - 1 and (piece := os.read(file, num_bytes - len(data))):
            data += piece
    if len(data) > max_bytes:
        raise AnnotationError(f"the file is larger than {max_bytes} bytes, the limit for such a file", path=path)
    return data, state


class open_file:  # called like a function; a generator-based context manager would take 1 us longer
    """Context manager that opens a regular file and returns its descriptor and state.

    It returns no file object, because creating one takes longer than reading a small file.

    Raises:
        AnnotationError: If it is not a regular file, cannot be opened, or cannot be read to its end.
    """

    def __init__(self, path: Path | str) -> None:
        self._path = path

    def __enter__(self) -> tuple[int, os.stat_result]:
        try:
            self._file = os.open(self._path, _FLAGS)
        except OSError as error:
            self._refuse(error)
        # Checked on the open descriptor: the path could be replaced after a check by name.
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
    """Convert texts to numbers; NaN and infinities count as numbers.

    Raises:
        AnnotationError: If a text is not a number; names file and line.
    """
    values = []
    for position, text in enumerate(texts, 1):
        try:
            # float() also takes "1_000" and blanks around a number, which do no harm.
            values.append(float(text))
        except ValueError:
            message = f"expected number {position} of {len(texts)}, got {shorten(repr(text))}"
            raise AnnotationError(message, path=path, line=line) from None
    return values
