"""Paths that a data set's own files name: accepted only below the data set's root."""

from __future__ import annotations

from pathlib import Path

from lit_loader.errors import UnsafePathError

__all__ = ["check_relative", "resolve_under"]


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


def resolve_under(
    root: Path | str, relative: str, *, source: Path | str | None = None, line: int | None = None
) -> Path:
    """Return the real, absolute path of ``root / relative``, which must lie below the real root.

    The root itself may be a symbolic link; one further down may only lead to a place below the root.
    The path need not exist.

    Args:
        root: The data set's folder, trusted.
        relative: A path from a file of the data set, not trusted.
        source: The file that names it, for the message.
        line: Line in that file, counted from 1.

    Raises:
        UnsafePathError: As ``check_relative``, or if a symbolic link leads outside the root.
    """
    check_relative(relative, source=source, line=line)
    real_root = Path(root).resolve()
    try:
        real = (real_root / relative).resolve()
    except (OSError, RuntimeError) as error:  # a name that is too long, a circle of links
        message = f"path {relative[:200]!r} cannot be resolved ({error})"[:500]
        raise UnsafePathError(message, path=source, line=line) from None
    if not real.is_relative_to(real_root):
        message = (
            f"path {relative[:200]!r} is a symbolic link that leads out of the data set's root {real_root}; "
            "pass as `root` the folder that really holds the files, or copy them into it"
        )
        raise UnsafePathError(message, path=source, line=line)
    return real
