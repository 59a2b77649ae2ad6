"""Image files that annotations name: looked up below the root, without opening any."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lit_loader.annotations.cache import FileStamp
from lit_loader.annotations.paths import check_relative, resolve_under
from lit_loader.formats.voc_files import IMAGE_EXTENSIONS

__all__ = ["ImageFiles", "image_stamps", "join_path"]

_ENDINGS: Final = tuple(ending for known in IMAGE_EXTENSIONS for ending in (known, known.upper()))


def join_path(folder: str, path: str, *, source: Path | str | None = None, line: int | None = None) -> str:
    """Return ``folder/path`` in its shortest spelling, both checked to stay below a root by their words.

    Args:
        folder: A trusted folder relative to the root; ``"."`` is the root.
        path: A path relative to it, not trusted; ``/`` or, as written on Windows, a backslash between parts.
        source: The file that names it, for the message.
        line: Line in that file.

    Raises:
        UnsafePathError: As ``check_relative``.
    """
    if "\\" in path:
        path = path.replace("\\", "/")
    check_relative(path, source=source, line=line)
    if folder != ".":
        check_relative(folder)
        path = f"{folder}/{path}"
    if "//" in path or "./" in path or path.endswith(("/", ".")):
        path = posixpath.normpath(path)
    return path


class ImageFiles:
    """Looks image files up; each folder is listed once, when it is first asked for.

    A path through a folder that does not exist costs no look at the disk, so a list of a million wrong paths
    is read as fast as one of right ones.

    Args:
        root: The data set's folder, real and absolute.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._folders: dict[str, _Folder] = {}

    def find(self, path: str, *, source: Path | str | None = None, line: int | None = None) -> str | None:
        """Return the path of the regular file that ``path`` means, relative to the root, or None.

        A path without an ending that ``IMAGE_EXTENSIONS`` know means the first file that has one of them.

        Args:
            path: Relative to the root, in its shortest spelling.
            source: The file that names it, for the message.
            line: Line in that file.

        Raises:
            UnsafePathError: If the path or a symbolic link on it leads out of the root.
        """
        check_relative(path, source=source, line=line)
        parent, _, name = path.rpartition("/")
        folder = self._folders.get(parent) or self._open(parent, source, line)
        if folder is None:
            return None
        if self._is_file(folder, name, path, source, line):
            return path
        if name.lower().endswith(IMAGE_EXTENSIONS):
            return None
        for ending in _ENDINGS:
            if self._is_file(folder, name + ending, path + ending, source, line):
                return path + ending
        return None

    def _is_file(
        self, folder: _Folder, name: str, path: str, source: Path | str | None, line: int | None
    ) -> bool:
        if name in folder.links:
            return resolve_under(self._root, path, source=source, line=line).is_file()
        return name in folder.files

    def _open(self, path: str, source: Path | str | None, line: int | None) -> _Folder | None:
        """Return a folder, having listed the ones above it; None without such a folder."""
        folder = self._folders.get("") or self._list("", source, line)
        parts = path.split("/") if path else []
        for end, part in enumerate(parts, 1):
            if part not in folder.folders and part not in folder.links:
                return None
            inner = "/".join(parts[:end])
            folder = self._folders.get(inner) or self._list(inner, source, line)
        return folder

    def _list(self, path: str, source: Path | str | None, line: int | None) -> _Folder:
        folder = self._folders[path] = _Folder()
        try:
            with os.scandir(resolve_under(self._root, path or ".", source=source, line=line)) as entries:
                for entry in entries:
                    if entry.is_symlink():
                        folder.links.add(entry.name)
                    elif entry.is_dir():
                        folder.folders.add(entry.name)
                    elif entry.is_file():
                        folder.files.add(entry.name)
        except OSError:  # a link to a file or to nothing, or a folder that may not be listed
            pass
        return folder


@dataclass(slots=True)
class _Folder:
    files: set[str] = field(default_factory=set)
    folders: set[str] = field(default_factory=set)
    links: set[str] = field(default_factory=set)


def image_stamps(root: Path, folder: str) -> list[FileStamp]:
    """Return what the cache compares of the images below a folder: name, size and time of each.

    Files count as images by their ending. Symbolic links count by their names, and are not followed.

    Args:
        root: The data set's folder, real and absolute.
        folder: Relative to ``root``.
    """
    real = resolve_under(root, folder)
    return sorted(_stamps(str(real)), key=lambda stamp: stamp.name)


def _stamps(top: str) -> Iterator[FileStamp]:
    waiting = [""]  # no recursion: folders may be nested deeper than Python may call
    while waiting:
        prefix = waiting.pop()
        try:
            with os.scandir(f"{top}/{prefix}") as entries:
                for entry in entries:
                    name = prefix + entry.name
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(f"{name}/")
                    elif entry.is_symlink() or name.lower().endswith(IMAGE_EXTENSIONS):
                        state = entry.stat(follow_symlinks=False)
                        yield FileStamp(name=name, size=state.st_size, mtime_ns=state.st_mtime_ns)
        except OSError:  # no such folder, or a file that is gone by now: the policy judges what is missing
            continue
