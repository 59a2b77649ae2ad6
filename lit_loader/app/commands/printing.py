"""Print text to a terminal or a pipe, without escape sequences from files, and without colour in a pipe."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lit_loader.foundation.escaping import printable

__all__ = ["print_lines", "print_table", "shows_progress"]

_PIPE_WIDTH = 110


def print_lines(*lines: str) -> None:
    """Print lines without wrapping them."""
    for line in lines:
        sys.stdout.write(f"{_encodable(line)}\n")


def shows_progress(arguments: argparse.Namespace) -> bool:
    """Return True if a command draws its progress: without ``--no-progress``, and standard error is a terminal."""
    # A line that is drawn again and again by carriage returns is unreadable in a file.
    return bool(arguments.progress) and sys.stderr.isatty()


def print_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, text_columns: Collection[str] = ()
) -> None:
    """Print a title, a table and an empty line.

    Args:
        title: Title of the table.
        columns: Headings; the first column is aligned to the left, the others to the right.
        rows: Cells of each row.
        text_columns: Headings of further columns that are aligned to the left.
    """
    # In a pipe a table has no lines and no colours, and a width that does not depend on the terminal, so scripts can
    # cut its columns.
    terminal = Console().is_terminal
    console = Console(width=None if terminal else _PIPE_WIDTH, no_color=None if terminal else True)
    table = Table(box=SIMPLE_HEAD if terminal else None, pad_edge=False)
    for i, column in enumerate(columns):
        is_text = i == 0 or column in text_columns
        table.add_column(_cell(column), justify="left" if is_text else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(_cell, row))
    print_lines(title)
    # Rich pads each line to the width of the table.
    with console.capture() as capture:
        console.print(table)
    for line in capture.get().splitlines():
        sys.stdout.write(f"{line.rstrip()}\n")
    sys.stdout.write("\n")


def _cell(text: str) -> Text:
    # Text, unlike a string, is not parsed as Rich's markup, which names from files may contain.
    return Text(_encodable(text).replace("\n", "\\n"))


def _encodable(text: str) -> str:
    """Return printable text in characters that the encoding of the output has."""
    encoding = sys.stdout.encoding or "utf-8"
    return printable(text).encode(encoding, "backslashreplace").decode(encoding)
