"""Files of a mirror: comparison with a listing, removal, and placeholders of images."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

from lit_loader.errors import StorageError
from lit_loader.foundation.byte_sizes import byte_words
from lit_loader.storage.listing import Listing
from lit_loader.types import IndexArray

__all__ = ["compare_files", "create_placeholders", "remove_files"]


def compare_files(folder: Path, listing: Listing) -> tuple[IndexArray, list[str]]:
    """Return the rows of a listing whose files have the listed size and time, and the files that are not listed."""
    folder.mkdir(exist_ok=True, mode=0o700)
    row_by_key = {key: row for row, key in enumerate(listing.keys)}
    rows = []
    obsolete_files = []
    for key, size, mtime in _files(str(folder)):
        row = row_by_key.get(key)
        if row is None:
            obsolete_files.append(key)
        elif (size, mtime) == (listing.sizes[row], listing.times[row]):
            rows.append(row)
    return np.array(rows, dtype=np.int64), obsolete_files


def remove_files(folder: Path, paths: Iterable[str]) -> None:
    """Remove files, and the folders that are empty then."""
    for path in map(Path, paths):
        (folder / path).unlink()
        with suppress(OSError):
            for parent in path.parents[:-1]:
                (folder / parent).rmdir()


def _files(root: str, folder: str = "") -> Iterator[tuple[str, int, int]]:
    """Yield path, size and time (ns) of all files below a folder."""
    with os.scandir(f"{root}/{folder}") as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _files(root, f"{folder}{entry.name}/")
            else:
                state = entry.stat(follow_symlinks=False)
                yield f"{folder}{entry.name}", state.st_size, state.st_mtime_ns


def create_placeholders(files: Path, images: Listing) -> None:
    """Create sparse files with the sizes and times of images.

    Raises:
        StorageError: If the file system refuses a size or a time.
    """
    folders: set[str] = set()
    sizes = images.sizes.tolist()
    times = images.times.tolist()
    for key, size, mtime in zip(images.keys, sizes, times, strict=True):
        path = f"{files}/{key}"
        folder = path.rpartition("/")[0]
        if folder not in folders:
            folders.add(folder)
            Path(folder).mkdir(parents=True, exist_ok=True, mode=0o700)
        # Not written in place, because another run may be reading the header of the old object.
        with suppress(FileNotFoundError):
            os.unlink(path)  # noqa: PTH108 # a Path for each would take longer
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.ftruncate(descriptor, size)
            os.utime(descriptor, ns=(mtime, mtime))
        except OSError as error:
            words = f"{path} cannot be created with {byte_words(size)} ({error.strerror})"
            raise StorageError(words, remedy="use a `cache_dir` on another file system") from None
        finally:
            os.close(descriptor)
