"""Rows of a CSV file that may be hostile, with the line on which each begins."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from lit_loader.errors import AnnotationError
from lit_loader.formats.text_file import read_lines

__all__ = ["MAX_ROW_LINES", "read_rows"]

MAX_ROW_LINES: Final = 16


def read_rows(root: Path, name: str, *, delimiter: str = ",") -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a CSV file (RFC 4180: fields may be quoted with ``"``); empty ones are skipped.

    Args:
        root: The data set's folder.
        name: The file, relative to ``root``.
        delimiter: What stands between fields; blanks around fields are dropped.

    Raises:
        AnnotationError: As ``read_lines``, or if a quote is wrong, a field has more characters than the
            ``csv`` module takes, or a row goes over more than ``MAX_ROW_LINES`` lines.
        UnsafePathError: If the name or a symbolic link leads out of ``root``.
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

    rows = csv.reader(lines(), delimiter=delimiter, strict=True)
    try:
        for fields in rows:
            if any(fields):
                yield first + 1, [field.strip() for field in fields]
            first = last
    except csv.Error as error:
        message = f"the row is no CSV ({error}); correct it, or choose another delimiter"
        raise AnnotationError(message, path=path, line=first + 1) from None
