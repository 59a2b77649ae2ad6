"""Check of the paths in a data set's own files: only paths under its root are accepted."""

from __future__ import annotations

from pathlib import Path

from lit_loader.errors import UnsafePathError

__all__ = ["check_relative"]


def check_relative(relative: str, *, source: Path | str | None = None, line: int | None = None) -> str:
    """Return ``relative`` if its parts cannot lead out of a root; the disk is not accessed.

    Args:
        relative: A path with ``/`` between its parts.
        source: File that contains the path, for the message.
        line: Line in that file, from 1.

    Raises:
        UnsafePathError: If it is empty, absolute, or contains ``..``, a backslash or a NUL.
    """
    if not relative:
        fault = "is empty"
    elif "\0" in relative or "\\" in relative:
        fault = "contains a NUL or a backslash"
    elif relative.startswith("/"):
        fault = "is absolute"
    # The substring test comes first because it is faster than a split, and this runs for every path.
    elif ".." in relative and ".." in relative.split("/"):
        fault = "contains '..'"
    else:
        return relative
    # Shortened, because a file that is not a list of paths may consist of one long line.
    message = f"path {relative[:200]!r} {fault}; only paths below the data set's root are read"
    raise UnsafePathError(message, path=source, line=line)
