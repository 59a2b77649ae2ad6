"""Files below the root by name, folder or pattern; no symbolic link out of the root is followed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from lit_loader.annotations.paths import check_relative, resolve_under
from lit_loader.errors import AnnotationError

__all__ = ["find_files"]


def find_files(root: Path, name: str, *, ending: str) -> list[str]:
    """Return the paths, relative to the root, of the files that a name means, sorted.

    Args:
        root: The data set's folder, real and absolute.
        name: A file, a folder, whose files with the ending are meant, or a pattern: ``*``, ``?`` and
            ``[...]`` within a part of the path, ``**`` for any number of folders.
        ending: Of the files in a folder, e.g. ``".pts"``; files of a pattern must have it too.

    Raises:
        AnnotationError: If there is none.
        UnsafePathError: If the name or a symbolic link that it fits leads out of the root.
    """
    name = str(PurePosixPath(check_relative(name)))
    real = resolve_under(root, name)
    if real.is_dir():
        pattern = [*([] if name == "." else name.split("/")), f"*{ending}"]
    elif name.endswith(ending) and real.exists():
        return [name]
    else:
        pattern = name.split("/")
    found = sorted({path for path in _matches(root, "", pattern) if path.endswith(ending)})
    if not found:
        message = (
            f"no file {name!r} with the ending {ending!r} is in {root}; name a file, a folder or a pattern"
        )
        raise AnnotationError(message)
    return found


def _matches(root: Path, top: str, pattern: list[str]) -> Iterator[str]:
    waiting = [(top, 0)]
    seen = set(waiting)
    while waiting:
        folder, place = waiting.pop()
        part, is_last = pattern[place], place == len(pattern) - 1
        next_steps = []
        if part == "**":
            if not is_last:
                next_steps.append((folder, place + 1))
            next_steps += [
                (entry, place) for entry, is_dir in _entries(root, folder, "*", links=False) if is_dir
            ]
        for path, is_dir in () if part == "**" else _entries(root, folder, part, links=True):
            if is_last and not is_dir:
                yield path
            elif is_dir and not is_last:
                next_steps.append((path, place + 1))
        waiting += [step for step in next_steps if step not in seen]
        seen.update(next_steps)


def _entries(root: Path, folder: str, part: str, *, links: bool) -> Iterator[tuple[str, bool]]:
    """Yield path and kind of the entries whose name fits; a link out of the root raises."""
    try:
        with os.scandir(resolve_under(root, folder or ".")) as entries:
            for entry in entries:
                if entry.name.startswith(".") or "\\" in entry.name or not fnmatchcase(entry.name, part):
                    continue
                path = f"{folder}/{entry.name}" if folder else entry.name
                if entry.is_symlink():
                    if not links:
                        continue
                    resolve_under(root, path)
                if entry.is_dir() or entry.is_file():
                    yield path, entry.is_dir()
    except OSError as error:
        raise AnnotationError(f"cannot be listed ({error.strerror})", path=root / folder) from None
