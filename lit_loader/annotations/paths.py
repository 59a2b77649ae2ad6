"""Paths that a data set's own files name: accepted only below the data set's root."""

from __future__ import annotations

from pathlib import Path

from lit_loader.errors import UnsafePathError

__all__ = ["check_relative"]


def check_relative(relative: str, *, source: Path | str | None = None, line: int | None = None) -> str:
    """Return ``relative`` if its words alone keep it below a root; nothing is looked up on disk.

    Args:
        relative: A path with ``/`` between its parts.
        source: The file that names it, for the message.
        line: Line in that file, counted from 1.

    Raises:
        UnsafePathError: If it is empty, absolute, or contains ``..``, a backslash or a NUL.
    """
    rule = (
        "is empty"
        if not relative
        else "contains a NUL or a backslash"
        if "\0" in relative or "\\" in relative
        else "is absolute"
        if relative.startswith("/")
        else "contains '..'"
        if ".." in relative and ".." in relative.split("/")
        else None
    )
    if rule is None:
        return relative
    message = f"path {relative[:200]!r} {rule}; only paths below the data set's root are read"
    raise UnsafePathError(message, path=source, line=line)
