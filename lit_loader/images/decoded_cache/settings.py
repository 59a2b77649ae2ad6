"""Settings of the decoded-image cache: location, image size, disk budget."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lit_loader.foundation.byte_sizes import byte_count
from lit_loader.foundation.files import cache_folder

__all__ = ["CacheSettings"]


@dataclass(frozen=True, kw_only=True)
class CacheSettings:
    """Settings of a decoded-image cache, which saves later epochs and runs from decoding the same images again.

    A cache is a file with every image of a dataset, stored once as 8-bit RGB. Workers and ranks map it, so a host has
    one copy in memory, and the operating system can evict its pages. The first process that needs the cache builds it
    while others wait; later runs reuse it.

    NOTE [When a decoded cache is stale]
        The file's name contains a hash of the dataset's folder, of every image's name, size and modification time
        (ns), of the reader's settings, of ``cache_size``, and of the library versions that determine the pixels. They
        are checked when a dataset is created; a file that changes later is detected the next time. A stale cache is
        never used, and is deleted once its successor is complete.

    Args:
        cache_dir: Folder whose subfolder ``decoded`` holds the cache, or None for ``~/.cache/lit_loader``. A folder in
            ``/dev/shm`` keeps the cache in memory. It outlives the run; delete it when you no longer need it.
        cache_size: Longest side of a cached image in pixels; larger images are shrunk once, with antialiasing, and
            their targets with them. None keeps the decoded size: samples then have the same bits as without a cache.
        cache_budget: Largest size of the cache, as a number of bytes or a string such as ``"8 GiB"``, or None for half
            of the disk space that is free before it is built. An existing cache is used even if it is larger.
        progress: Show a progress bar on a terminal, and a message when waiting for another process.

    Raises:
        ValueError: A setting is invalid.
    """

    cache_dir: Path | str | None = None
    cache_size: int | None = None
    cache_budget: int | str | None = None
    progress: bool = True

    def __post_init__(self) -> None:
        size = self.cache_size
        if size is not None and (type(size) is not int or size < 1):
            raise ValueError(f"cache_size={size!r} is not a positive int; give a longest side in pixels, or None.")
        byte_count(self.cache_budget)

    @classmethod
    def of(cls, cache: CacheSettings | bool) -> CacheSettings | None:
        """Convert the argument ``cache`` of a dataset to settings, or to None if it is False.

        Raises:
            TypeError: ``cache`` is neither settings nor a bool.
        """
        if isinstance(cache, cls):
            return cache
        if not isinstance(cache, bool):
            raise TypeError(f"cache={cache!r} is not a bool; give True, False or CacheSettings(cache_size=...).")
        return cls() if cache else None

    @property
    def folder(self) -> Path:
        """Folder of the cache file."""
        return cache_folder(self.cache_dir) / "decoded"
