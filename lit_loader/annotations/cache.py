"""Cache of tables between runs: its folder, the keys that reveal stale tables, loading and storing."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from lit_loader.annotations.table import AnnotationTable
from lit_loader.errors import CacheError
from lit_loader.foundation.files import new_file

__all__ = ["cache_file", "cache_key", "image_stamp", "keep", "load_last", "load_unchanged", "was_read"]

# NOTE [When a cache is stale]
# The name of a cache file is the hash of everything that the table was made from: the reader, its version, its
# settings, the root, and the relative name, size and modification time (ns) of every annotation file. If one of these
# changes, so does the name, and no file of that name exists. A table that depends on images (their headers were read,
# or they were missing) contains a stamp of each. A stamp is taken before its file is read, so a file that changes in
# between has another stamp at the next read. Two changes are not noticed: a file rewritten with the same size within
# one clock tick of the file system, or with its time set back. Cache files are never changed in place, so mappings stay
# valid. Old ones stay until the folder is deleted, which is safe at any time between runs.


def cache_key(
    *,
    reader: str,
    version: int,
    root: Path,
    settings: Mapping[str, object],
    files: Sequence[str] = (),
    stamps: Sequence[int] = (),
) -> str:
    """Return the key of a table as 32 hexadecimal digits; see NOTE [When a cache is stale].

    Args:
        reader: Name of the reader.
        version: Version of the reader; changes whenever it reads another table from the same files.
        root: Folder of the data set.
        settings: All arguments that change the table, as plain values.
        files: File names in the reader's order.
        stamps: Size and modification time (ns) of each file, concatenated.
    """
    digest = hashlib.blake2b(digest_size=16)
    # `sort_keys`, so that the order in which settings are built does not matter.
    head = [reader, version, str(root), settings]
    digest.update(json.dumps(head, sort_keys=True).encode())
    digest.update(b"\0" + "\0".join(files).encode("utf-8", "surrogateescape"))  # no name contains a NUL
    digest.update(np.asarray(stamps, dtype=np.int64).tobytes())
    return digest.hexdigest()


def cache_file(folder: Path, key: str) -> Path:
    """Return the cache file of a key."""
    return folder / "annotations" / f"{key}.arrow"


def was_read(*, folder: Path, request: str) -> bool:
    """Return True if `keep` or `load_unchanged` has recorded a table for a request."""
    return _last_file(folder, request).is_file()


def load_unchanged(*, folder: Path, key: str, request: str, root: Path) -> AnnotationTable | None:
    """Return the table of ``key`` from the cache, or None if it is missing or stale.

    It is stale if it is damaged, has another root, or depends on an image that has changed.

    Args:
        folder: The cache folder.
        key: Key of the table.
        request: Key of the reader's settings without the files, by which `load_last` looks up the table.
        root: Folder of the data set.
    """
    table = _load(cache_file(folder, key), key, root)
    if table is not None and _images_changed(table):
        table = None
    _set_last(folder, request, None if table is None else key)
    return table


def keep(table: AnnotationTable, *, folder: Path, key: str, request: str) -> AnnotationTable:
    """Store a table in the cache and return it opened from there, so that processes share its arrays.

    Several processes may store the same table at once; the result is one complete file.

    Args:
        table: The table.
        folder: The cache folder.
        key: Key of the table.
        request: As for `load_unchanged`.

    Warns:
        UserWarning: If the cache cannot be written; the table then stays in memory.
    """
    path = cache_file(folder, key)
    try:
        table.save(path, key=key)
        table = AnnotationTable.load(path, key=key)
    except OSError as error:  # includes CacheError
        remedy = "pass a writable `cache_dir` or `use_cache=False`"
        warnings.warn(f"the cache {path} cannot be used ({error}); {remedy}", UserWarning, stacklevel=3)
        return table
    _set_last(folder, request, key)
    return table


def load_last(*, folder: Path, request: str, root: Path) -> AnnotationTable | None:
    """Return the table that was stored or opened last for a request, without checking its source files.

    Returns:
        The table, or None if there is none or the cache is not writable.
    """
    path = _last_file(folder, request)
    # If the cache cannot be written, the table in it may be older than the last read.
    if not os.access(path.parent, os.W_OK):
        return None
    key = _last_key(path)
    return _load(cache_file(folder, key), key, root) if key is not None else None


def _load(path: Path, key: str, root: Path) -> AnnotationTable | None:
    try:
        table = AnnotationTable.load(path, key=key)
    except CacheError:  # missing or damaged
        return None
    return table if table.root == root else None


def _last_file(folder: Path, request: str) -> Path:
    return folder / "annotations" / f"{request}.last"


def _last_key(path: Path) -> str | None:
    """Return the key in a file of `_last_file`, or None if there is none."""
    try:
        key = path.read_text("ascii")
    except (OSError, UnicodeDecodeError):  # treat a damaged file as missing
        return None
    return key if key.isalnum() else None


def _set_last(folder: Path, request: str, key: str | None) -> None:
    path = _last_file(folder, request)
    # Errors are ignored: without this file `load_last` returns None, and other processes check the files themselves.
    with suppress(OSError):
        if key is not None and _last_key(path) == key:
            return
        path.unlink(missing_ok=True)
        if key is not None:
            with new_file(path) as file:
                file.write(key.encode())


def image_stamp(root: Path | str, path: str) -> int:
    """Return a number that changes with size and time of an image file; never 0, and -1 if the file is missing."""
    try:
        state = os.stat(f"{root}/{path}")  # noqa: PTH116 - takes a third of the time of Path.stat
    except OSError:
        return -1
    digest = hashlib.blake2b(b"%d %d" % (state.st_size, state.st_mtime_ns), digest_size=8).digest()
    # 63 bits fit the int64 column; 0 means no stamp.
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
