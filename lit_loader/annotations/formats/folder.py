"""The folder of a data set: its files by name, folder or pattern, and the images that annotations name.

NOTE [Trust]
    What the user names is trusted: the root, and the folders of images and annotations. So are links in the file
    system, wherever they lead: data sets on clusters are folders of links. A path that a file names (a split list, an
    XML file, a JSON file) is not trusted: it must stay below the root by its own words, not absolute, without ``..``.
"""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Final

from lit_loader.annotations.paths import check_relative
from lit_loader.errors import AnnotationError

__all__ = ["Folder", "IMAGE_EXTENSIONS", "IMAGE_FORMATS", "file_stamp", "is_image_name", "join_path"]

IMAGE_EXTENSIONS: Final = (
    *(".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm", ".pgm"),
    *(".jfif", ".jpe", ".jp2", ".avif", ".mpo", ".pbm"),
)
"""Endings of the names of images, in the order in which a name without an ending is looked for."""

_SINCE_PILLOW_11_3: Final = ("AVIF",) if find_spec("PIL.AvifImagePlugin") else ()
IMAGE_FORMATS: Final = (
    *("JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF", "PPM", "JPEG2000"),
    *_SINCE_PILLOW_11_3,
)
"""Pillow's formats that are read; JPEG stands for MPO too.

Files of others may run programs (EPS), or hide what their headers do not say.
"""

_ORDER: Final = {ending: place for place, ending in enumerate(IMAGE_EXTENSIONS)}


_check_folder = lru_cache(maxsize=256)(check_relative)


def is_image_name(name: str) -> bool:
    """Whether a file is an image by its ending."""
    return name.lower().endswith(IMAGE_EXTENSIONS)


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
        _check_folder(folder)
        path = f"{folder}/{path}"
    if "//" in path or "./" in path or path.endswith(("/", ".")):
        path = posixpath.normpath(path)
    return path


def file_stamp(path: str) -> tuple[int, int]:
    """Return size and time (ns) of a file; the size of a folder is 0, and -1 of what is neither.

    Raises:
        OSError: If there is none.
    """
    state = os.stat(path)  # noqa: PTH116 # a Path takes longer to make
    kind = stat.S_IFMT(state.st_mode)
    return state.st_size if kind == stat.S_IFREG else 0 if kind == stat.S_IFDIR else -1, state.st_mtime_ns


@dataclass(slots=True)
class _Listing:
    files: set[str] = field(default_factory=set)
    folders: set[str] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)  # links that lead nowhere
    inode: tuple[int, int] = (0, 0)  # with its device
    error: str = ""  # why the folder cannot be listed
    endings: list[str] | None = None

    def image_endings(self) -> list[str]:
        """Return the endings of the images here as they are spelled, in the order of `IMAGE_EXTENSIONS`."""
        if self.endings is None:
            found = {name[name.rfind(".") :] for name in self.files}
            known = [ending for ending in found if ending.lower() in _ORDER]
            self.endings = sorted(known, key=lambda ending: (_ORDER[ending.lower()], ending))
        return self.endings


class Folder:
    """The folder of a data set; each folder below it is listed at most once.

    Args:
        root: The folder; links on the way to it are followed.

    Attributes:
        root: The same, real and absolute.
        num_listed: How many folders were listed.
    """

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root).resolve()
        self.num_listed = 0
        self._listings: dict[str, _Listing] = {}

    def stamp(self, name: str) -> tuple[int, int]:
        """Return size and time (ns) of a file, or of a folder that is itself what is read.

        Raises:
            AnnotationError: If there is none, or it is neither a regular file nor a folder.
        """
        check_relative(name)
        try:
            stamp = file_stamp(f"{self.root}/{name}")
        except OSError as error:
            reason = error.strerror or error
            raise AnnotationError(f"cannot be read ({reason})", path=self.root / name) from None
        if stamp[0] < 0:  # a pipe would be waited for
            raise AnnotationError("is not a regular file; name the annotation file", path=self.root / name)
        return stamp

    # -- listings -------------------------------------------------------------------------------------------

    def is_folder(self, path: str) -> bool:
        """Whether there is such a folder."""
        return path == "." or self._listing(posixpath.normpath(path)) is not None

    def files(self, folder: str) -> list[str]:
        """Return the names of the files in a folder, sorted; none if there is no such folder.

        A link that leads nowhere is one of them, so that opening it reports it; hidden files are not.

        Raises:
            AnnotationError: If the folder cannot be listed.
        """
        listing = self._readable(folder)
        return sorted(name for name in listing.files | listing.broken if not name.startswith("."))

    def folders(self, folder: str) -> list[str]:
        """Return the names of the folders in a folder, sorted; none if there is no such folder.

        Raises:
            AnnotationError: If the folder cannot be listed.
        """
        return sorted(self._readable(folder).folders)

    def below(self, folder: str) -> Iterator[str]:
        """Yield the paths of all files below a folder, relative to the root, sorted within each folder."""
        for here in self.tree(folder):
            yield from (_below(here, name) for name in self.files(here))

    def tree(self, folder: str) -> Iterator[str]:
        """Yield a folder and all folders below it, relative to the root.

        A folder that several links lead to is entered once, and one above ``folder`` is not entered through a link.

        Raises:
            AnnotationError: If a folder cannot be listed.
        """
        if not self.is_folder(folder):
            return
        above = (self.root / path for path in PurePosixPath(folder).parents)
        seen = {(state.st_dev, state.st_ino) for state in map(os.stat, above)}
        waiting = [folder]  # no recursion: folders may be nested deeper than Python may call
        while waiting:
            here = waiting.pop()
            inode = self._readable(here).inode
            if inode in seen:
                continue
            seen.add(inode)
            yield here
            waiting += [_below(here, name) for name in reversed(self.folders(here))]

    def find_files(self, name: str, *, ending: str) -> list[str]:
        """Return the paths, relative to the root, of the files that a name means, sorted.

        Args:
            name: A file; a folder, whose files with the ending are meant; or a pattern: ``*``, ``?`` and ``[...]``
                within a part of the path, ``**`` for any number of folders.
            ending: Of the files in a folder, such as ".pts"; files of a pattern must have it too.

        Raises:
            AnnotationError: If there is none.
            UnsafePathError: If the name leads out of the root.
        """
        name = posixpath.normpath(check_relative(name))
        if self.is_folder(name):
            found = [_below(name, file) for file in self.files(name)]
        elif name.endswith(ending) and (self.root / name).is_file():
            return [name]
        else:
            found = list(self._matches(name.split("/")))
        found = [path for path in found if path.endswith(ending)]
        if not found:
            raise AnnotationError(
                f"no file {name!r} with the ending {ending!r} is in {self.root}; name a file, a folder or a pattern"
            )
        return sorted(found)

    def file_names(self, folder: str) -> Set[str]:
        """Return the names of the files in a folder, hidden ones included; none if there is no such folder."""
        return (self._listing(folder) or _Listing()).files

    def is_file(self, path: str) -> bool:
        """Whether there is such a file, by the listing of its folder."""
        parent, _, name = path.rpartition("/")
        listing = self._listings.get(parent) or self._listing(parent or ".")
        return listing is not None and name in listing.files

    def find_images(self, paths: Iterable[str], are_stems: Iterable[bool]) -> Iterator[list[str]]:
        """Yield for each path the image files that it means, relative to the root, the likeliest one first.

        Args:
            paths: Relative to the root, in their shortest spelling. A path without an ending of ``IMAGE_EXTENSIONS``
                means every file that has one in addition.
            are_stems: For each path, whether it means these even if it looks as if it had an ending.
        """
        known: str | None = None
        files: set[str] = set()
        endings: list[str] = []
        for path, is_stem in zip(paths, are_stems, strict=True):
            parent, _, name = path.rpartition("/")
            if parent != known:
                known, listing = parent, self._listing(parent or ".") or _Listing()
                files, endings = listing.files, listing.image_endings()
            if not is_stem and (name in files or is_image_name(name)):
                yield [path] if name in files else []
                continue
            found = []
            for ending in endings:
                if name + ending in files:
                    found.append(path + ending)  # noqa: PERF401 # faster than a comprehension up to Python 3.11
            yield found or ([path] if name in files else [])

    def _readable(self, folder: str) -> _Listing:
        listing = self._listing(folder) or _Listing()
        if listing.error:
            raise AnnotationError(f"the folder cannot be listed ({listing.error})", path=self.root / folder)
        return listing

    def _matches(self, pattern: list[str]) -> Iterator[str]:
        """Yield the files that fit a pattern; only folders that fit its parts are listed."""
        waiting = [(".", 0)]
        seen = set(waiting)  # several `**` lead to the same folder in several ways
        while waiting:
            here, place = waiting.pop()
            part, is_last = pattern[place], place + 1 == len(pattern)
            folders: list[str] = []
            if part == "**":
                folders = [] if is_last else list(self.tree(here))
            elif is_last:
                yield from (_below(here, name) for name in self.files(here) if fnmatchcase(name, part))
            else:
                folders = [_below(here, name) for name in self.folders(here) if fnmatchcase(name, part)]
            steps = {(folder, place + 1) for folder in folders} - seen
            seen |= steps
            waiting += steps

    def _listing(self, folder: str) -> _Listing | None:
        """Return what is in a folder, or None if there is no such folder.

        A path through a folder that does not exist costs no look at the disk, so a list of a million wrong paths is
        read as fast as one of right ones.
        """
        known = self._listings.get(folder)
        if known is not None:
            return known
        listing = self._listings.get(".") or self._list(".")
        parts = [] if folder == "." else folder.split("/")
        for end, part in enumerate(parts, 1):
            if part not in listing.folders:
                return None
            inner = "/".join(parts[:end])
            listing = self._listings.get(inner) or self._list(inner)
        return listing

    def _list(self, folder: str) -> _Listing:
        listing = self._listings[folder] = _Listing()
        self.num_listed += 1
        try:
            state = (self.root / folder).stat()
            listing.inode = (state.st_dev, state.st_ino)
            with os.scandir(self.root / folder) as entries:
                for entry in entries:
                    if "\\" in entry.name:
                        continue  # no annotation can name it
                    try:
                        if entry.is_file():
                            listing.files.add(entry.name)
                        elif entry.is_dir():
                            if not entry.name.startswith("."):
                                listing.folders.add(entry.name)
                        elif entry.is_symlink():
                            listing.broken.add(entry.name)
                    except OSError:  # a circle of links
                        listing.broken.add(entry.name)
        except OSError as error:  # what is in it is missing, which the policy decides on
            listing.error = error.strerror or str(error)
        return listing


def _below(folder: str, name: str) -> str:
    return name if folder == "." else f"{folder}/{name}"
