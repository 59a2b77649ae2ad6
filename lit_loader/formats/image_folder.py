"""The reader of classification sets in which each class is a folder of images."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from lit_loader.annotations.paths import check_relative, resolve_under
from lit_loader.annotations.report import shorten
from lit_loader.annotations.table import AnnotationTable
from lit_loader.errors import AnnotationError
from lit_loader.formats.builder import TableBuilder
from lit_loader.formats.cached import check_class_names, check_workers, read_cached
from lit_loader.formats.policy import ReadPolicy
from lit_loader.formats.voc_files import IMAGE_EXTENSIONS

__all__ = ["read_image_folder"]

_READER_VERSION = 1


def read_image_folder(
    root: Path | str,
    name: str = ".",
    *,
    split: str | None = None,
    class_names: Sequence[str] | None = None,
    policy: ReadPolicy | None = None,
    cache_dir: Path | str | None = None,
    use_cache: bool = True,
    num_workers: int | None = None,
    progress: bool = True,
) -> AnnotationTable:
    """Read a folder of class folders, as torchvision's ``ImageFolder`` does.

    An image belongs to the folder of the first level that it lies in, however deep. It is an image by its
    ending, in upper or lower case; other files, and all whose names begin with a dot, are passed over. Every
    image gets one object of its class whose box is the whole image. Images are sorted by class and path.

    An image that lies in no class folder is malformed. A class folder without images is a class, and is
    reported. Links to images may lead to places below ``root``; links to folders are not followed, and
    reported.

    Args:
        root: The data set's folder; nothing outside of it is opened.
        name: The folder of the class folders, relative to ``root``, e.g. ``"train"``.
        split: The table's split.
        class_names: Classes in the order of their ids; None: the folders, sorted. Pass the first split's to
            the others: one that lacks a class would otherwise number them differently.
        policy: What to do about each kind of problem; default ``ReadPolicy()``.
        cache_dir: Where the table is cached; None: the user's cache folder.
        use_cache: Whether to load from the cache and store there.
        num_workers: Processes that read image headers.
        progress: Whether to draw a progress bar on a terminal.

    Raises:
        AnnotationError: If there is no such folder, or for a problem whose action is ``"raise"``.
        UnsafePathError: If ``name`` or a link leads out of ``root``.
        ValueError: If ``class_names`` are empty or repeat, or ``num_workers`` is negative.
    """
    check_workers(num_workers)
    names = check_class_names(class_names)
    policy = ReadPolicy() if policy is None else policy
    real_root = Path(root).resolve()
    top = str(PurePosixPath(check_relative(name)))
    real_top = resolve_under(real_root, top)
    if not real_top.is_dir():
        raise AnnotationError("there is no such folder of class folders; pass it as `name`", path=real_top)
    found = tuple(sorted(entry.name for entry in _entries(real_top) if entry.is_dir(follow_symlinks=False)))

    def build() -> AnnotationTable:
        builder = TableBuilder(
            root=real_root, policy=policy, class_names=found if names is None else names, split=split
        )
        for entry in sorted(_entries(real_top), key=lambda entry: entry.name):
            if _is_image(entry):
                message = f"image {shorten(entry.name)!r} lies in no class folder"
                builder.malformed(message, file=top)
            elif _is_linked_folder(entry):
                _report_link(builder, _below(top, entry.name), top)
        for class_name in found:
            folder = _below(top, class_name)
            images = sorted(_images(builder, real_root, folder))
            for path in images:
                image = builder.image(path, file=folder)
                builder.object(image, class_name=class_name, box=None, file=folder)
            if not images:
                builder.problem("empty_class", "keep", f"no image of {shorten(class_name)!r}", file=folder)
        return builder.build(num_workers=num_workers, progress=progress)

    return read_cached(
        "image_folder",
        version=_READER_VERSION,
        root=real_root,
        files=[],
        image_dirs=[top],
        settings={"class": [names, split], "folders": found},
        policy=policy,
        build=build,
        cache_dir=cache_dir,
        use_cache=use_cache,
        progress=progress,
    )


def _images(builder: TableBuilder, root: Path, folder: str) -> Iterator[str]:
    """Yield the paths, relative to the root, of the images below a folder."""
    waiting = [folder]  # no recursion: folders may be nested deeper than Python may call
    while waiting:
        parent = waiting.pop()
        for entry in _entries(root / parent):
            path = _below(parent, entry.name)
            if entry.is_dir(follow_symlinks=False):
                waiting.append(path)
            elif _is_image(entry):
                yield path
            elif _is_linked_folder(entry):
                _report_link(builder, path, folder)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".") and "\\" not in entry.name]
    except OSError as error:
        raise AnnotationError(
            f"the folder cannot be listed ({error.strerror or error})", path=folder
        ) from None


def _is_image(entry: os.DirEntry[str]) -> bool:
    if not entry.name.lower().endswith(IMAGE_EXTENSIONS):
        return False
    return (
        entry.is_symlink() or entry.is_file()
    )  # where a link leads is looked up, and judged, by the builder


def _is_linked_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_symlink() and entry.is_dir()
    except OSError:  # a circle of links
        return False


def _report_link(builder: TableBuilder, path: str, folder: str) -> None:
    message = f"{shorten(path)!r} is a link to a folder; copy what it leads to"
    builder.problem("linked_folder", "not followed", message, file=folder)


def _below(folder: str, name: str) -> str:
    return name if folder == "." else f"{folder}/{name}"
