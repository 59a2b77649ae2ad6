"""Blocks on disk: opened by name, built beside their place and renamed."""

from __future__ import annotations

import os
from functools import partial

from lit_loader.datasets.decoded.building import found_or_built
from lit_loader.datasets.decoded.layout import PixelBlock
from lit_loader.datasets.decoded.wanted import CacheRequest
from lit_loader.files import new_file

__all__ = ["block_on_disk"]


def block_on_disk(wanted: CacheRequest) -> PixelBlock:
    """Return the block from the cache folder, building it first if it is not there or damaged.

    Raises:
        CacheError: It does not fit, cannot be written, or its images change.
    """
    path = wanted.settings.folder / f"{wanted.name}.pixels"
    find = partial(PixelBlock.from_path, path, key=wanted.key, num_images=wanted.num_images)

    def build() -> PixelBlock:
        with new_file(path) as file:
            wanted.fill(file.fileno())
            os.fsync(file.fileno())  # the name must not outlive a power cut that the pixels do not
        for older in path.parent.glob(f"{wanted.subject}-*.pixels"):
            if older != path:
                older.unlink(missing_ok=True)  # whoever maps it keeps it
        return find()

    return found_or_built(
        path,
        find=find,
        build=build,
        progress=wanted.settings.progress,
        failure="decoded images cannot be written to",
        remedy="nothing was left there: make room or lower cache_size, name another cache_dir, or give "
        'cache="ram" or None',
    )
