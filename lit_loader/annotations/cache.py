"""Tables kept between runs: the folder, the key that says when one is stale, and loading or building."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from lit_loader.annotations.table import AnnotationTable
from lit_loader.errors import CacheError

__all__ = ["FileStamp", "cache_file", "cache_folder", "cache_key", "is_fresh", "load_or_build"]

# NOTE [when a cache is stale]
# A cache file is named by the hash of everything that its table was made from: reader, its version, its
# settings, the root, and for every annotation its relative name, size and modification time (ns), with the
# names of the image files that belong to it. If one of these differs, the name differs, and the file of that
# name does not exist. Not seen: a file rewritten with the same size within the clock tick of the file system,
# or with its time set back; content of images, which are never opened. Files are never changed in place, so a
# mapping stays valid; old ones stay until the folder is deleted, which is safe at any time between runs.


@dataclass(frozen=True, kw_only=True, slots=True)
class FileStamp:
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


def is_fresh(folder: Path, key: str) -> bool:
    """Return whether a table of this key is in the cache; opens nothing."""
    return cache_file(folder, key).is_file()


def load_or_build(
    *,
    folder: Path,
    key: str,
    root: Path,
    build: Callable[[], AnnotationTable],
    unchanged: Callable[[], bool],
) -> AnnotationTable:
    """Return the table of ``key`` from the cache, or build it and put it there.

    A damaged file is built again and replaced. Several builders at once do the work several times and
    leave one complete file. When the files change while the table is built, it is not stored.

    Args:
        folder: The cache folder.
        key: The table's key.
        root: The data set's folder; a cached table of another one is refused.
        build: Makes the table.
        unchanged: Says after building whether the files are still those that the key was made of.

    Warns:
        UserWarning: If the cache cannot be written; the table is then held in memory.
    """
    path = cache_file(folder, key)
    if is_fresh(folder, key):
        try:
            table = AnnotationTable.load(path, key=key)
            if table.root == root:
                return table
        except CacheError:
            pass  # built again below
    table = build()
    if not unchanged():
        return table
    try:
        table.save(path, key=key)
        return AnnotationTable.load(path, key=key)
    except OSError as error:  # CacheError is one
        remedy = "pass a writable `cache_dir` or `use_cache=False`"
        warnings.warn(f"the cache {path} cannot be used ({error}); {remedy}", UserWarning, stacklevel=3)
        return table
