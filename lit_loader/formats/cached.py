"""Reading through the cache: what a table of annotation files and images depends on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from lit_loader.annotations.cache import cache_folder, cache_key, load_or_build
from lit_loader.annotations.report import shorten
from lit_loader.annotations.table import AnnotationTable
from lit_loader.errors import AnnotationError
from lit_loader.formats.image_files import image_stamps
from lit_loader.formats.parallel import told_while
from lit_loader.formats.policy import ReadPolicy
from lit_loader.formats.text_file import file_stamp

__all__ = ["check_class_names", "check_workers", "read_cached"]


def read_cached(
    reader: str,
    *,
    version: int,
    root: Path,
    files: Sequence[str],
    image_dirs: Sequence[str],
    settings: Mapping[str, object],
    policy: ReadPolicy,
    build: Callable[[], AnnotationTable],
    cache_dir: Path | str | None,
    use_cache: bool,
    progress: bool,
) -> AnnotationTable:
    """Return the cached table, or build it and cache it.

    A cached table is stale when an annotation file, a setting, or any image below the image folders
    differs in name, size or time: sizes are read from the images, and missing ones are judged.

    Args:
        reader: The reader's name.
        version: Changes whenever the reader gives other results for the same files.
        root: The data set's folder, real and absolute.
        files: The annotation files, relative to ``root``, in the order of reading.
        image_dirs: Folders of the images, relative to ``root``.
        settings: Every argument that changes the result, as plain values.
        policy: The reader's policy; part of the settings.
        build: Makes the table.
        cache_dir: As in ``cache_folder``.
        use_cache: Whether to use the cache at all.
        progress: Whether to tell on a terminal what is being read.

    Raises:
        AnnotationError: If an annotation file is missing, or as ``build`` does.
    """
    stamps = [file_stamp(root, name) for name in files]
    words = f"Reading {shorten(', '.join(files[:3]))}" if files else "Reading folders"

    def told() -> AnnotationTable:
        with told_while(words, progress=progress):
            return build()

    if not use_cache:
        return told()
    images = [stamp for folder in dict.fromkeys(image_dirs) for stamp in image_stamps(root, folder)]
    key = cache_key(
        reader=reader,
        version=version,
        root=root,
        settings={**settings, "policy": asdict(policy), "image_dirs": list(image_dirs)},
        stamps=[*stamps, *images],
    )

    def unchanged() -> bool:
        try:
            return stamps == [file_stamp(root, name) for name in files]
        except AnnotationError:  # a file is gone
            return False

    return load_or_build(folder=cache_folder(cache_dir), key=key, root=root, build=told, unchanged=unchanged)


def check_class_names(class_names: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return class names as a tuple.

    Raises:
        TypeError: If they are one string.
        ValueError: If there are none, one is empty, or one occurs twice.
    """
    if class_names is None:
        return None
    if isinstance(class_names, str):
        raise TypeError(f"class_names={class_names!r} must be a sequence of names, not one string")
    names = tuple(class_names)
    if (
        not names
        or len(set(names)) != len(names)
        or not all(isinstance(name, str) and name for name in names)
    ):
        raise ValueError(f"class_names={names} must be different names, at least one, none empty")
    return names


def check_workers(num_workers: int | None) -> None:
    """Raise ValueError if ``num_workers`` is negative."""
    if num_workers is not None and num_workers < 0:
        raise ValueError(f"num_workers={num_workers} must be None or >= 0")
