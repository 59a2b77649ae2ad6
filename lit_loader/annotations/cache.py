"""Tables kept between runs: the folder, the key by which a stale one is found, and loading or building."""

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

__all__ = [
    "cache_file",
    "cache_folder",
    "cache_key",
    "image_stamp",
    "keep",
    "load_last",
    "load_unchanged",
    "was_read",
]

# NOTE [when a cache is stale]
# A cache file is named by the hash of everything that its table was made from: reader, its version, its
# settings, the root, and the relative name, size and modification time (ns) of every annotation file. If one of
# these differs, the name differs, and the file of that name does not exist. A table that depends on images (their
# headers were read, or they were missing) holds a stamp of each. A stamp is taken before its file is read: a file
# that changes meanwhile has another stamp at the next read. Not seen: a file rewritten with the same size within the
# clock tick of the file system, or with its time set back. Files are never changed in place, so a mapping stays
# valid; old ones stay until the folder is deleted, which is safe at any time between runs.


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
    *,
    reader: str,
    version: int,
    root: Path,
    settings: Mapping[str, object],
    files: Sequence[str] = (),
    stamps: Sequence[int] = (),
) -> str:
    """Return the key of a table as 32 hexadecimal digits; see NOTE [when a cache is stale].

    Args:
        reader: The reader's name.
        version: Changes whenever the reader gives other results for the same files.
        root: The data set's folder.
        settings: Every argument that changes the result, as plain values.
        files: Names in the reader's order.
        stamps: Size and modification time (ns) of each, one after the other.
    """
    digest = hashlib.blake2b(digest_size=16)
    head = [reader, version, str(root), settings]
    digest.update(json.dumps(head, sort_keys=True).encode())
    digest.update(b"\0" + "\0".join(files).encode("utf-8", "surrogateescape"))  # no name holds a NUL
    digest.update(np.asarray(stamps, dtype=np.int64).tobytes())
    return digest.hexdigest()


def cache_file(folder: Path, key: str) -> Path:
    """Return the cache file of a key."""
    return folder / "annotations" / f"{key}.arrow"


def was_read(*, folder: Path, request: str) -> bool:
    """Return whether `keep` or `load_unchanged` has noted a table for a request."""
    return _last_file(folder, request).is_file()


def load_unchanged(*, folder: Path, key: str, request: str, root: Path) -> AnnotationTable | None:
    """Return the table of ``key`` from the cache, or None if it must be made.

    A table is made again if none is there, if it is damaged or of another root, or if an image that it depends on has
    changed.

    Args:
        folder: The cache folder.
        key: The table's key.
        request: The key without the files: that of what is read and how, under which `load_last` finds the table.
        root: The data set's folder.
    """
    table = _load(cache_file(folder, key), key, root)
    found = None if table is None or _images_changed(table) else table
    _set_last(folder, request, None if found is None else key)
    return found


def keep(table: AnnotationTable, *, folder: Path, key: str, request: str) -> AnnotationTable:
    """Put a table into the cache, and return it as it is opened from there, so that its arrays are shared.

    Several processes at once do the work several times and leave one complete file.

    Args:
        table: The table.
        folder: The cache folder.
        key: The table's key.
        request: As for `load_unchanged`.

    Warns:
        UserWarning: If the cache cannot be written; the table is then held in memory.
    """
    path = cache_file(folder, key)
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
    """Return the table that was kept or opened last for a request, with no look at the files that it is made of.

    Returns:
        None without such a table, or if the cache cannot be written: the last read may be missing in it.
    """
    path = _last_file(folder, request)
    if not os.access(path.parent, os.W_OK):
        return None
    key = _last_key(path)
    return _load(cache_file(folder, key), key, root) if key is not None else None


def _load(path: Path, key: str, root: Path) -> AnnotationTable | None:
    try:
        table = AnnotationTable.load(path, key=key)
    except CacheError:  # none, or damaged
        return None
    return table if table.root == root else None


def _last_file(folder: Path, request: str) -> Path:
    return folder / "annotations" / f"{request}.last"


def _last_key(path: Path) -> str | None:
    """Return the key that a file of `_last_file` holds, or None without one."""
    try:
        key = path.read_text("ascii")
    except (OSError, UnicodeDecodeError):  # damaged: as if the file were missing
        return None
    return key if key.isalnum() else None


def _set_last(folder: Path, request: str, key: str | None) -> None:
    path = _last_file(folder, request)
    # without it `load_last` finds nothing, and other processes look at the files themselves
    with suppress(OSError):
        if key is not None and _last_key(path) == key:
            return
        path.unlink(missing_ok=True)
        if key is not None:
            with new_file(path) as file:
                file.write(key.encode())


def image_stamp(root: Path | str, path: str) -> int:
    """Return a number that changes with the size and the time of an image file. Never 0; -1 without a file."""
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
