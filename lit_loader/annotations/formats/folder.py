"""Folder of a data set: its files by name, folder or pattern, and the images that annotations name.

NOTE [Trust]
    Names from the user are trusted: the root, and the folders of images and annotations. So are links in the file
    system, wherever they lead, because data sets on clusters are often folders of links. A path inside a file (a split
    list, an XML or JSON file) is not trusted: as written, it must stay under the root, that is, be relative and without
    ``..``.
"""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache
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
"""Extensions of image files, in the order in which they are tried for a name without extension."""

_SINCE_PILLOW_11_3: Final = ("AVIF",) if find_spec("PIL.AvifImagePlugin") else ()
IMAGE_FORMATS: Final = (*("JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF", "PPM", "JPEG2000"), *_SINCE_PILLOW_11_3)
"""Pillow's names of the accepted formats; JPEG includes MPO.

Files of other formats may run programs (EPS), or contain more than their headers say.
"""

# Few folders are joined with many paths.
_check_folder = lru_cache(maxsize=256)(check_relative)


def is_image_name(name: str) -> bool:
    """Return True if a file is an image by its extension."""
    return name.lower().endswith(IMAGE_EXTENSIONS)


def join_path(folder: str, path: str, *, source: Path | str | None = None, line: int | None = None) -> str:
    """Return the normalized path ``folder/path`` after checking that it stays under a root.

    Args:
        folder: Trusted folder relative to the root; ``"."`` is the root.
        path: Untrusted path relative to ``folder``, with ``/`` or (from Windows) backslashes between its parts.
        source: File that contains the path, for the message.
        line: Line in that file.

    Raises:
        UnsafePathError: As for ``check_relative``.
    """
    # Substring tests are made before the slower calls, because this runs for every image.
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
    """Return size and modification time (ns) of a file; the size is 0 for a folder, and -1 for anything else.

    Raises:
        OSError: If the path does not exist.
    """
    state = os.stat(path)  # noqa: PTH116 # creating a Path takes longer
    if stat.S_ISREG(state.st_mode):
        return state.st_size, state.st_mtime_ns
    return 0 if stat.S_ISDIR(state.st_mode) else -1, state.st_mtime_ns


@dataclass
class _Listing:
    files: set[str] = field(default_factory=set)
    folders: set[str] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)  # links without a target
    inode: tuple[int, int] = (0, 0)  # device and inode
    error: str = ""  # reason why the folder cannot be listed

    @cached_property
    def image_extensions(self) -> list[str]:
        """Extensions of the images in the folder, in upper and lower case, in the order of `IMAGE_EXTENSIONS`."""
        extensions = {name[name.rfind(".") :] for name in self.files}
        image_extensions = [extension for extension in extensions if extension.lower() in IMAGE_EXTENSIONS]
        return sorted(image_extensions, key=lambda extension: (IMAGE_EXTENSIONS.index(extension.lower()), extension))


class Folder:
    """Folder of a data set; each folder under it is listed at most once.

    Args:
        root: The folder; links in its path are resolved.

    Attributes:
        root: The folder as a real absolute path.
    """

    def __init__(self, root: Path | str) -> None:
        # Resolved once, so that two ways to the same folder share a cached table.
        self.root = Path(root).resolve()
        self._listings: dict[str, _Listing] = {}

    def stamp(self, name: str) -> tuple[int, int]:
        """Return size and modification time (ns) of an annotation file, or of a folder that takes its place.

        Raises:
            AnnotationError: If the path does not exist, or is neither a regular file nor a folder.
        """
        check_relative(name)
        try:
            stamp = file_stamp(f"{self.root}/{name}")
        except OSError as error:
            reason = error.strerror or error
            raise AnnotationError(f"cannot be read ({reason})", path=self.root / name) from None
        if stamp[0] < 0:  # opening a named pipe would wait for a writer
            raise AnnotationError("is not a regular file; name the annotation file", path=self.root / name)
        return stamp

    # -- listings -------------------------------------------------------------------------------------------

    def is_folder(self, path: str) -> bool:
        """Return True if the folder exists."""
        return path == "." or self._listing(posixpath.normpath(path)) is not None

    def files(self, folder: str) -> list[str]:
        """Return the sorted names of the files in a folder; none if the folder does not exist.

        Hidden files are left out. Broken links are included, so that opening one reports it.

        Raises:
            AnnotationError: If the folder cannot be listed.
        """
        # Sorted, because the order of a directory differs between file systems.
        return sorted(self.visible_files(folder))

    def visible_files(self, folder: str) -> list[str]:
        """Return the names of `files` in any order.

        Raises:
            AnnotationError: If the folder cannot be listed.
        """
        listing = self._readable(folder)
        return [name for names in (listing.files, listing.broken) for name in names if name[0] != "."]

    def folders(self, folder: str) -> list[str]:
        """Return the sorted names of the folders in a folder; none if the folder does not exist.

        Raises:
            AnnotationError: If the folder cannot be listed.
        """
        return sorted(self._readable(folder).folders)

    def below(self, folder: str) -> Iterator[str]:
        """Yield the paths of all files under a folder, relative to the root, sorted within each folder."""
        for parent in self.tree(folder):
            yield from (_join(parent, name) for name in self.files(parent))

    def tree(self, folder: str) -> Iterator[str]:
        """Yield a folder and all folders under it, relative to the root.

        A folder with several links to it is entered once, and a parent of ``folder`` is not entered through a link.

        Raises:
            AnnotationError: If a folder cannot be listed.
        """
        if not self.is_folder(folder):
            return
        # A link to a parent would make an endless tree.
        parents = (self.root / path for path in PurePosixPath(folder).parents)
        visited = {(state.st_dev, state.st_ino) for state in map(os.stat, parents)}
        # A stack, because folders may be nested deeper than Python's recursion limit.
        pending = [folder]
        while pending:
            current = pending.pop()
            inode = self._readable(current).inode
            if inode in visited:
                continue
            visited.add(inode)
            yield current
            pending += [_join(current, name) for name in reversed(self.folders(current))]

    def find_files(self, name: str, *, ending: str) -> list[str]:
        """Return the sorted paths, relative to the root, of the files that a name refers to.

        Args:
            name: A file; a folder, for its files with the extension; or a pattern with ``*``, ``?`` and ``[...]``
                within a part of the path, and ``**`` for any number of folders.
            ending: Extension of the files in a folder or of a pattern, such as ".pts".

        Raises:
            AnnotationError: If no file matches.
            UnsafePathError: If the name leads out of the root.
        """
        name = posixpath.normpath(check_relative(name))
        # A pattern may contain "[", so existing files and folders are tried first.
        if self.is_folder(name):
            paths = [_join(name, file) for file in self.files(name)]
        # Asked from the disk: listing the folder of one file would take long in a folder of a million.
        elif name.endswith(ending) and (self.root / name).is_file():
            return [name]
        else:
            paths = list(self._matches(name.split("/")))
        paths = sorted(path for path in paths if path.endswith(ending))
        if not paths:
            raise AnnotationError(
                f"found no file {name!r} with the extension {ending!r} in {self.root}; name a file, a folder or a "
                "pattern"
            )
        return paths

    def file_names(self, folder: str) -> Set[str]:
        """Return the names of the files in a folder, including hidden ones; none if the folder does not exist."""
        return (self._listing(folder) or _Listing()).files

    def is_file(self, path: str) -> bool:
        """Return True if the listing of its folder contains the file."""
        parent, _, name = path.rpartition("/")
        # The dict lookup saves a call for every image.
        listing = self._listings.get(parent) or self._listing(parent or ".")
        return listing is not None and name in listing.files

    def find_images(self, paths: Iterable[str], are_stems: Iterable[bool]) -> Iterator[list[str]]:
        """Yield the image files that each path refers to, relative to the root, the most likely one first.

        Args:
            paths: Normalized paths relative to the root. A path without an extension of ``IMAGE_EXTENSIONS`` refers
                to all existing files that add one of them.
            are_stems: For each path, True if it has no extension even though it looks as if it had.
        """
        last_parent: str | None = None
        files: set[str] = set()
        extensions: list[str] = []
        for path, is_stem in zip(paths, are_stems, strict=True):
            parent, _, name = path.rpartition("/")
            # Consecutive images are mostly in one folder, so its listing is looked up once.
            if parent != last_parent:
                last_parent = parent
                listing = self._listing(parent or ".") or _Listing()
                files = listing.files
                extensions = listing.image_extensions
            if not is_stem and (name in files or is_image_name(name)):
                yield [path] if name in files else []
                continue
            images = []
            for extension in extensions:
                if name + extension in files:
                    images.append(path + extension)  # noqa: PERF401 # faster than a comprehension up to Python 3.11
            yield images or ([path] if name in files else [])

    def _readable(self, folder: str) -> _Listing:
        listing = self._listing(folder) or _Listing()
        if listing.error:
            raise AnnotationError(f"the folder cannot be listed ({listing.error})", path=self.root / folder)
        return listing

    def _matches(self, pattern: list[str]) -> Iterator[str]:
        """Yield the files that match a pattern, given as its parts; only folders that match are listed."""
        pending = [(".", 0)]
        visited = set(pending)  # several `**` lead to the same folder in several ways
        while pending:
            current, position = pending.pop()
            part = pattern[position]
            is_last = position + 1 == len(pattern)
            folders: list[str] = []
            if part == "**":
                folders = [] if is_last else list(self.tree(current))
            elif is_last:
                yield from (_join(current, name) for name in self.files(current) if fnmatchcase(name, part))
            else:
                folders = [_join(current, name) for name in self.folders(current) if fnmatchcase(name, part)]
            # Without this check `**/**/**` would visit deep folders exponentially often.
            steps = {(folder, position + 1) for folder in folders} - visited
            visited |= steps
            pending += steps

    def _listing(self, folder: str) -> _Listing | None:
        """Return the listing of a folder, or None if the folder does not exist."""
        listing = self._listings.get(folder)
        if listing is not None:
            return listing
        # Every parent is checked in its own parent's listing, so a missing folder costs no access to the disk, and a
        # list of a million wrong paths is processed as fast as one of right paths.
        listing = self._listings.get(".") or self._list(".")
        parts = [] if folder == "." else folder.split("/")
        for end, part in enumerate(parts, 1):
            if part not in listing.folders:
                return None
            path = "/".join(parts[:end])
            listing = self._listings.get(path) or self._list(path)
        return listing

    def _list(self, folder: str) -> _Listing:
        listing = _Listing()
        self._listings[folder] = listing
        try:
            state = (self.root / folder).stat()
            listing.inode = (state.st_dev, state.st_ino)
            with os.scandir(self.root / folder) as entries:
                for entry in entries:
                    # `join_path` takes a backslash for a separator, so no annotation can name such a file.
                    if "\\" in entry.name:
                        continue
                    try:
                        if entry.is_file():
                            listing.files.add(entry.name)
                        elif entry.is_dir():
                            # Hidden folders belong to tools, such as .git and .ipynb_checkpoints.
                            if not entry.name.startswith("."):
                                listing.folders.add(entry.name)
                        elif entry.is_symlink():
                            listing.broken.add(entry.name)
                    except OSError:  # a cycle of links
                        listing.broken.add(entry.name)
        except OSError as error:
            # Not raised here: for a folder of images, the policy decides on its missing images.
            listing.error = error.strerror or str(error)
        return listing


def _join(folder: str, name: str) -> str:
    return name if folder == "." else f"{folder}/{name}"
