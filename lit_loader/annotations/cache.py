"""Tables kept between runs: the folder, the key by which a stale one is found, and loading or building."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lit_loader.annotations.table import AnnotationTable
from lit_loader.errors import CacheError

__all__ = [
    "FileStamp",
    "cache_file",
    "cache_folder",
    "cache_key",
    "image_stamp",
    "load_last",
    "load_or_build",
]

# NOTE [when a cache is stale]
# A cache file is named by the hash of everything that its table was made from: reader, its version, its
# settings, the root, and the relative name, size and modification time (ns) of every annotation file. If one of
# these differs, the name differs, and the file of that name does not exist. A table that depends on images (their
# headers were read, or they were missing) holds a stamp of each. Stamps are taken before the files are read: a file
# that changes meanwhile has another stamp at the next read. Not seen: a file rewritten with the same size within the
# clock tick of the file system, or with its time set back. Files are never changed in place, so a mapping stays
# valid; old ones stay until the folder is deleted, which is safe at any time between runs.


class FileStamp(NamedTuple):
    """What is compared of a file that a table was made from."""

    name: str
    size: int
    mtime_ns: int


def cache_folder(cache_dir: Path | str | None = None) -> Path:
    """Return ``cache_dir``, or the user's: ``$XDG_CACHE_HOME/lit_loader``, else ``~/.cache/lit_loader``.

    Raises:
        CacheError: If the user has no home folder.
    """
    if cache_dir is not None:
        return Path(cache_dir).absolute()
    configured = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if configured.is_absolute():
        return configured / "lit_loader"
    try:
        return Path.home() / ".cache" / "lit_loader"
    except RuntimeError:
        raise CacheError(
            "there is no home folder to cache in; pass `cache_dir` or `use_cache=False`"
        ) from None


def cache_key(
    *, reader: str, version: int, root: Path, settings: Mapping[str, object], stamps: Iterable[FileStamp]
) -> str:
    """Return the key of a table as 32 hexadecimal digits; see NOTE [when a cache is stale].

    Args:
        reader: The reader's name.
        version: Changes whenever the reader gives other results for the same files.
        root: The data set's folder.
        settings: Every argument that changes the result, as plain values.
        stamps: The files, in the reader's order.
    """
    digest = hashlib.blake2b(digest_size=16)
    head = [reader, version, str(root), settings]
    digest.update(json.dumps(head, sort_keys=True).encode())
    for stamp in stamps:
        name = stamp.name.encode("utf-8", "surrogateescape")
        digest.update(b"\0%d %d %d\0" % (len(name), stamp.size, stamp.mtime_ns) + name)
    return digest.hexdigest()


def cache_file(folder: Path, key: str) -> Path:
    """Return the cache file of a key."""
    return folder / "annotations" / f"{key}.arrow"


def load_or_build(
    *,
    folder: Path,
    key: str,
    request: str,
    root: Path,
    build: Callable[[], AnnotationTable],
    may_keep: Callable[[AnnotationTable], bool],
) -> AnnotationTable:
    """Return the table of ``key`` from the cache, or build it and put it there.

    A damaged file is built again and replaced. Several builders at once do the work several times and
    leave one complete file. A cached table is built again if an image that it depends on has changed.

    Args:
        folder: The cache folder.
        key: The table's key.
        request: The key without the files: that of what is read and how, under which `load_last` finds the table.
        root: The data set's folder; a cached table of another one is refused.
        build: Makes the table.
        may_keep: Returns whether a table that was built now may be put there.

    Warns:
        UserWarning: If the cache cannot be written; the table is then held in memory.
    """
    path = cache_file(folder, key)
    table = _load(path, key, root)
    if table is None or _images_changed(table):
        _set_last(folder, request, None)
        table = build()
        if not may_keep(table):
            return table
        try:
            table.save(path, key=key)
            table = AnnotationTable.load(path, key=key)
        except OSError as error:  # CacheError is one
            remedy = "pass a writable `cache_dir` or `use_cache=False`"
            warnings.warn(f"the cache {path} cannot be used ({error}); {remedy}", UserWarning, stacklevel=3)
            return table
    _set_last(folder, request, key)
    return table


def load_last(*, folder: Path, request: str, root: Path) -> AnnotationTable | None:
    """Return the table that `load_or_build` gave last for a request, with no look at the files that it is made of.

    Returns:
        None if there is none, or the cache cannot be written: then the last read could not be noted there.
    """
    path = _last_file(folder, request)
    if not os.access(path.parent, os.W_OK):
        return None
    try:
        key = path.read_text("ascii")
    except (OSError, ValueError):
        return None
    return _load(cache_file(folder, key), key, root) if key.isalnum() else None


def _load(path: Path, key: str, root: Path) -> AnnotationTable | None:
    try:
        table = AnnotationTable.load(path, key=key)
    except CacheError:  # none, or damaged
        return None
    return table if table.root == root else None


def _last_file(folder: Path, request: str) -> Path:
    return folder / "annotations" / f"{request}.last"


def _set_last(folder: Path, request: str, key: str | None) -> None:
    path = _last_file(folder, request)
    with suppress(
        OSError
    ):  # then `load_last` finds nothing, and other processes look at the files themselves
        if key is not None and path.is_file() and path.read_text("ascii") == key:
            return
        path.unlink(missing_ok=True)
        if key is not None:
            draft = path.with_suffix(f".{os.getpid()}.tmp")
            draft.write_text(key, "ascii")
            draft.replace(path)


def image_stamp(root: Path | str, path: str) -> int:
    """Return a number that changes with the size and the time of an image file: not 0, and -1 if there is none."""
    try:
        state = os.stat(f"{root}/{path}")  # noqa: PTH116 - a third of a Path's time, for each image
    except OSError:
        return -1
    digest = hashlib.blake2b(b"%d %d" % (state.st_size, state.st_mtime_ns), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1 or 1


def _images_changed(table: AnnotationTable) -> bool:
    stamps = table.image_stamps
    if stamps is None:
        return False
    rows = np.flatnonzero(stamps)
    return any(
        image_stamp(table.root, table.image_paths[row]) != stamp
        for row, stamp in zip(rows.tolist(), stamps[rows].tolist(), strict=True)
    )
