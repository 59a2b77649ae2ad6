"""What a decoded cache is asked for: where it lies, how large images are kept, what it may take."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lit_loader.annotations.cache import cache_folder

__all__ = ["CacheSettings", "byte_count", "byte_words"]

_AMOUNT: Final = re.compile(r"\s*(\d{1,15}(?:\.\d{1,6})?)\s*(?:(?:([kmgt])(i)?)?b)?\s*", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class CacheSettings:
    """Where and how decoded images are kept, so that no epoch decodes them again.

    A cache is a file that holds each image of a data set once, as 8-bit RGB. Workers and ranks map it, so that the
    host has one copy in memory, and the system drops pages that it needs for something else. It is made at the first
    use, by one process while others wait, and later runs find it.

    NOTE [when a decoded cache is stale]
        Its name is a hash of the data set's folder, of every image's name, size and modification time (ns), of the
        reader's settings, of ``cache_size``, and of the versions that decide pixels. All of them are looked at when a
        data set is made; a file that changes later is seen the next time. What is stale is never served, and deleted
        when its successor is complete.

    Args:
        cache_dir: Folder whose subfolder ``decoded`` holds the cache, or None for ``~/.cache/lit_loader``. A folder
            under ``/dev/shm`` keeps it in memory; who made it deletes it, as it outlives the run.
        cache_size: Longest side in pixels that is kept; larger images are shrunk once, with antialiasing, and their
            targets with them. None keeps them as decoded, which gives the same samples bit for bit as no cache.
        cache_budget: Most bytes that the cache may take, as a number or in words such as ``"8 GiB"``, or None for half
            of the disk space that is free when it is made. A cache that is there already is used whatever it takes.
        progress: Draw a progress bar on a terminal, and tell of waiting for another process.

    Raises:
        ValueError: A setting is outside its choices.
    """

    cache_dir: Path | str | None = None
    cache_size: int | None = None
    cache_budget: int | str | None = None
    progress: bool = True

    def __post_init__(self) -> None:
        size = self.cache_size
        if size is not None and (type(size) is not int or size < 1):
            raise ValueError(f"cache_size={size!r} is not a longest side in pixels, at least 1, nor None.")
        byte_count(self.cache_budget)

    @classmethod
    def of(cls, cache: CacheSettings | bool) -> CacheSettings | None:
        """Return a data set's argument ``cache`` as settings, or None if it is False.

        Raises:
            TypeError: It is neither settings nor a bool.
        """
        if isinstance(cache, cls):
            return cache
        if not isinstance(cache, bool):
            raise TypeError(
                f"cache={cache!r} is not a bool; give True, False or CacheSettings(cache_size=...)."
            )
        return cls() if cache else None

    @property
    def folder(self) -> Path:
        """Where the file of the cache lies."""
        return cache_folder(self.cache_dir) / "decoded"


def byte_count(budget: int | str | None) -> int | None:
    """Return a budget in bytes.

    Args:
        budget: A number of bytes, words such as ``"8 GiB"`` or ``"500 MB"``, or None.

    Raises:
        ValueError: It is neither, or not positive.
    """
    if budget is None:
        return None
    count = budget if type(budget) is int else 0
    if isinstance(budget, str) and (found := _AMOUNT.fullmatch(budget)):
        thousand = 1024 if found[3] else 1000
        count = int(float(found[1]) * thousand ** " kmgt".index((found[2] or " ").lower()))
    if count < 1:
        raise ValueError(
            f'cache_budget={budget!r} is not a positive number of bytes; give an int, or words such as "8 GiB".'
        )
    return count


def byte_words(count: int) -> str:
    """Return a number of bytes in words."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"
