"""Blocks on disk: opened by name, built beside their place and renamed."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import mkstemp
from typing import Final

from lit_loader.datasets.decoded.building import building, remove_leftovers, temporary_prefix
from lit_loader.datasets.decoded.layout import PixelBlock
from lit_loader.datasets.decoded.wanted import CacheRequest
from lit_loader.errors import CacheError

__all__ = ["block_on_disk"]

_SUFFIX: Final = ".pixels"


def block_on_disk(wanted: CacheRequest) -> PixelBlock:
    """Return the block from the cache folder, building it first if it is not there or damaged.

    Raises:
        CacheError: It does not fit, cannot be written, or its images change.
    """
    folder = wanted.settings.folder
    path = folder / f"{wanted.name}{_SUFFIX}"
    found = _open(path, wanted)
    if found is not None:
        return found
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with building(folder, wanted.name, progress=wanted.settings.progress):
            found = _open(path, wanted)  # another process built it while this one waited
            if found is None:
                remove_leftovers(folder, own=wanted.name)
                _build(path, wanted)
                found = PixelBlock.from_path(path, key=wanted.key, num_images=wanted.num_images)
    except CacheError:
        raise
    except OSError as error:
        raise CacheError(
            f"decoded images cannot be written to {folder} ({error.strerror or error}); nothing was left there: "
            'make room or lower cache_size, name another cache_dir, or give cache="ram" or None'
        ) from error
    return found


def _open(path: Path, wanted: CacheRequest) -> PixelBlock | None:
    try:
        return PixelBlock.from_path(path, key=wanted.key, num_images=wanted.num_images)
    except CacheError:
        return None


def _build(path: Path, wanted: CacheRequest) -> None:
    descriptor, name = mkstemp(prefix=temporary_prefix(wanted.name), suffix=".tmp", dir=path.parent)
    temporary = Path(name)
    try:
        try:
            wanted.filling(descriptor).run(key=wanted.key)
            wanted.check_unchanged()
            os.fsync(descriptor)  # the name must not outlive a power cut that the pixels do not
        finally:
            os.close(descriptor)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    for older in path.parent.glob(f"{wanted.subject}-*{_SUFFIX}"):
        if older != path:
            older.unlink(missing_ok=True)  # whoever maps it keeps it
