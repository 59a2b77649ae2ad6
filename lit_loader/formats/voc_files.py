"""Which files a VOC data set consists of, found by listing folders: no annotation or image is opened."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from lit_loader.annotations.cache import FileStamp
from lit_loader.annotations.paths import check_relative, resolve_under
from lit_loader.errors import AnnotationError

__all__ = ["IMAGE_EXTENSIONS", "VocFiles", "VocItem", "find_voc_files"]

IMAGE_EXTENSIONS: Final = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm", ".pgm")
_MAX_SPLIT_BYTES: Final = 256 * 1024 * 1024
_CLASS_FILE_LINE: Final = re.compile(r"(.*\S)\s+(?:-1|0|1)")


@dataclass(frozen=True, kw_only=True, slots=True)
class VocItem:
    """One image that the data set speaks of.

    Attributes:
        image_id: Its id, relative to the annotation and image folders, without extension.
        xml: Its annotation, relative to the root, or None when there is none.
        size: Size of the annotation in bytes; 0 without one.
        mtime_ns: Its modification time; 0 without one.
        images: Image files of that id, relative to the root, the likeliest first.
        line: Line of the split file, counted from 1, or None without a split.
    """

    image_id: str
    xml: str | None
    size: int
    mtime_ns: int
    images: tuple[str, ...]
    line: int | None


@dataclass(frozen=True, kw_only=True)
class VocFiles:
    """The files of one split.

    Attributes:
        root: The data set's folder, real and absolute.
        split_file: The split file, or None for all annotations.
        image_dir: The image folder, relative to the root.
        items: One for each line of the split file, or each annotation, sorted by id.
    """

    root: Path
    split_file: Path | None
    image_dir: str
    items: tuple[VocItem, ...]

    def stamps(self) -> list[FileStamp]:
        """Return what the table depends on: ids, annotations with size and time, names of images."""
        return [
            FileStamp(
                name="\0".join((item.image_id, item.xml or "", *item.images)),
                size=item.size,
                mtime_ns=item.mtime_ns,
            )
            for item in self.items
        ]

    def are_unchanged(self) -> bool:
        """Return whether every annotation still has the size and time it had when it was listed."""
        try:
            states = [(self.root / item.xml).stat() for item in self.items if item.xml is not None]
        except OSError:
            return False
        listed = [(item.size, item.mtime_ns) for item in self.items if item.xml is not None]
        return listed == [(state.st_size, state.st_mtime_ns) for state in states]


def find_voc_files(
    root: Path | str, *, split: str | None, image_dir: str, annotation_dir: str, split_dir: str
) -> VocFiles:
    """List a VOC data set.

    A line of the split file is an id, or an id and -1, 0 or 1 as in VOC's files per class, where the second
    column is ignored: the line names an image of the split whatever it says. Blank lines are skipped.

    Args:
        root: The data set's folder.
        split: Name of the file ``<split_dir>/<split>.txt``; None takes every annotation in the folder.
        image_dir: Folder of the images, relative to the root.
        annotation_dir: Folder of the XML files, relative to the root.
        split_dir: Folder of the split files, relative to the root.

    Raises:
        AnnotationError: If the root, the annotation folder or the split file is missing.
        UnsafePathError: If a name or a symbolic link leads out of the root.
    """
    real_root = Path(root).resolve()
    listing = _Listing(real_root)
    image_dir, annotation_dir = str(PurePosixPath(image_dir)), str(PurePosixPath(annotation_dir))
    if not listing.exists(annotation_dir):
        message = (
            f"there is no folder {annotation_dir!r} in {real_root}; pass the data set's folder as `root`"
        )
        raise AnnotationError(f"{message}, or its annotation folder as `annotation_dir`")
    split_file = None
    lines: list[tuple[int | None, str]]
    if split is None:
        lines = [(None, image_id) for image_id in sorted(listing.ids(annotation_dir))]
    else:
        split_file = resolve_under(real_root, f"{split_dir}/{split}.txt")
        lines = list(_split_lines(split_file))
    items = []
    for line, text in lines:
        image_id = text
        stripped = _CLASS_FILE_LINE.fullmatch(text)
        if (
            stripped
            and split_file is not None
            and not listing.annotation(annotation_dir, text, split_file, line)
        ):
            image_id = stripped[1]
        annotation = listing.annotation(annotation_dir, image_id, split_file, line)
        items.append(
            VocItem(
                image_id=image_id,
                xml=annotation[0] if annotation else None,
                size=annotation[1].st_size if annotation else 0,
                mtime_ns=annotation[1].st_mtime_ns if annotation else 0,
                images=listing.images(image_dir, image_id),
                line=line,
            )
        )
    return VocFiles(root=real_root, split_file=split_file, image_dir=image_dir, items=tuple(items))


def _split_lines(path: Path) -> list[tuple[int | None, str]]:
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise AnnotationError("the split file is no regular file", path=path)
        with path.open("rb") as file:
            data = file.read(_MAX_SPLIT_BYTES + 1)
    except OSError as error:
        found = ", ".join(sorted(p.stem for p in path.parent.glob("*.txt"))[:20]) or "none"
        message = f"the split file cannot be read ({error.strerror}); splits found there: {found}"
        raise AnnotationError(message, path=path) from None
    if len(data) > _MAX_SPLIT_BYTES:
        raise AnnotationError(f"a split file of more than {_MAX_SPLIT_BYTES} bytes is refused", path=path)
    lines = data.decode("utf-8-sig", "surrogateescape").split("\n")
    return [(number, text.strip()) for number, text in enumerate(lines, 1) if text.strip()]


class _Listing:
    """Folders below the root, each listed once."""

    def __init__(self, root: Path) -> None:
        self._root = root  # real and absolute
        self._annotations: dict[str, dict[str, os.DirEntry[str]]] = {}
        self._images: dict[str, dict[str, list[os.DirEntry[str]]]] = {}

    def exists(self, folder: str) -> bool:
        return resolve_under(self._root, folder).is_dir()

    def ids(self, top: str) -> Iterator[str]:
        """Yield the id of every XML file below a folder; links to folders are not followed."""
        waiting = [""]  # no recursion: folders may be nested deeper than Python may call
        while waiting:
            prefix = waiting.pop()
            folder = str(PurePosixPath(top, prefix))
            yield from (prefix + stem for stem in self.annotations(folder))
            below = [entry for entry in self._entries(folder) if entry.is_dir(follow_symlinks=False)]
            waiting.extend(f"{prefix}{entry.name}/" for entry in below)

    def annotations(self, folder: str) -> dict[str, os.DirEntry[str]]:
        """Return the XML files of a folder by stem."""
        if folder not in self._annotations:
            found: dict[str, os.DirEntry[str]] = {}
            for entry in self._entries(folder):
                stem, extension = _parts(entry.name)
                if extension == ".xml" or (extension.lower() == ".xml" and stem not in found):
                    found[stem] = entry
            self._annotations[folder] = found
        return self._annotations[folder]

    def annotation(
        self, folder: str, image_id: str, source: Path | None, line: int | None
    ) -> tuple[str, os.stat_result] | None:
        """Return the path, relative to the root, and the state of an id's XML file."""
        check_relative(image_id, source=source, line=line)
        folder, stem = _place(folder, image_id)
        entry = self.annotations(folder).get(stem)
        if entry is None:
            return None
        relative = self._checked(folder, entry)
        return (relative, entry.stat()) if _is_file(entry) else None

    def images(self, folder: str, image_id: str) -> tuple[str, ...]:
        """Return the image files of an id, relative to the root, in the order of IMAGE_EXTENSIONS."""
        folder, stem = _place(folder, image_id)
        if folder not in self._images:
            found: dict[str, list[os.DirEntry[str]]] = {}
            for entry in self._entries(folder):
                name, extension = _parts(entry.name)
                if extension.lower() in IMAGE_EXTENSIONS and _is_file(entry):
                    found.setdefault(name, []).append(entry)
            self._images[folder] = found
        entries = self._images[folder].get(stem, [])
        if len(entries) > 1:
            entries.sort(key=lambda e: (IMAGE_EXTENSIONS.index(_parts(e.name)[1].lower()), e.name))
        return tuple(self._checked(folder, entry) for entry in entries)

    def _checked(self, folder: str, entry: os.DirEntry[str]) -> str:
        relative = entry.name if folder == "." else f"{folder}/{entry.name}"
        if entry.is_symlink():
            resolve_under(self._root, relative)
        return relative

    def _entries(self, folder: str) -> list[os.DirEntry[str]]:
        real = resolve_under(self._root, folder)
        try:
            with os.scandir(real) as entries:
                return [
                    entry for entry in entries if not entry.name.startswith(".") and "\\" not in entry.name
                ]
        except OSError:  # no such folder: its files are missing, which the policy decides on
            return []


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a circle of links
        return False


def _parts(name: str) -> tuple[str, str]:
    stem, dot, extension = name.rpartition(".")
    return (stem, dot + extension) if dot else (name, "")


def _place(folder: str, image_id: str) -> tuple[str, str]:
    parent, _, stem = image_id.rpartition("/")
    return (str(PurePosixPath(folder, parent)) if parent else folder, stem)
