"""What a decoded cache is asked for: where it lies, how large images are kept, what it may take."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias, get_args

from lit_loader.annotations.cache import cache_folder
from lit_loader.resources import read_resources

__all__ = ["CacheKind", "CacheSettings", "as_cache_settings", "byte_count", "byte_words", "free_bytes"]

CacheKind: TypeAlias = Literal["ram", "disk"]
"""Where decoded images are kept: in the memory of this host, or in the cache folder."""

_AMOUNT: Final = re.compile(r"\s*(\d{1,15}(?:\.\d{1,6})?)\s*(?:(?:([kmgt])(i)?)?b)?\s*", re.IGNORECASE)


@dataclass(frozen=True)
class CacheSettings:
    """Keep decoded images, so that no epoch decodes them again.

    A cache holds each image file of a data set once, as 8-bit RGB, in one block that every worker and rank of a
    host maps; several samples of one image share it. It is made at the first use, by one process while others
    wait, and found by whoever asks for the same files with the same settings.

    NOTE [when a decoded cache is stale]
        Its name is a hash of the data set's folder, of every image's name, size and modification time (ns), of the
        reader's settings, of ``size``, and of the versions that decide pixels. All of them are looked at when the
        cache is opened, that is when a data set is made; a file that changes later is seen the next time. What is
        stale is never served; on disk it is deleted when its successor is complete.

    Args:
        kind: ``"ram"``: anonymous memory, gone with the last process that maps it, independent of ``/dev/shm``;
            ``"disk"``: a file in the cache folder, mapped into memory, which stays for the next run.
        size: Longest side in pixels that is kept; larger images are shrunk once, with antialiasing, and their
            targets with them. None keeps them as decoded, which gives the same samples bit for bit as no cache.
        budget: Most bytes that the cache may take, as a number or in words such as ``"8 GiB"``. None: half of the
            memory, or half of the disk space, that is free when it is made. A cache that is there already is
            used whatever it takes.
        cache_dir: The cache folder, or None for the user's, as annotations have it. With ``"ram"`` it holds a small
            record by which the other ranks of the host find the memory.
        progress: Draw a progress bar on a terminal, and tell of waiting for another process.

    Raises:
        ValueError: A setting is outside its choices, or this system has no anonymous memory files.
    """

    kind: CacheKind
    size: int | None = None
    budget: int | str | None = None
    cache_dir: Path | str | None = None
    progress: bool = True

    def __post_init__(self) -> None:
        if self.kind not in get_args(CacheKind):
            raise ValueError(f"cache={self.kind!r} is not one of {list(get_args(CacheKind))}, nor None.")
        if self.kind == "ram" and not hasattr(os, "memfd_create"):
            raise ValueError('cache="ram" needs memfd_create, which Linux has; give cache="disk".')
        if self.size is not None and (type(self.size) is not int or self.size < 1):
            raise ValueError(
                f"cache_size={self.size!r} is not a longest side in pixels, at least 1, nor None."
            )
        byte_count(self.budget)

    @property
    def folder(self) -> Path:
        """Where caches and records of them lie."""
        return cache_folder(self.cache_dir) / "decoded"


def as_cache_settings(cache: CacheSettings | CacheKind | None) -> CacheSettings | None:
    """Return a data set's argument ``cache`` as settings.

    Raises:
        ValueError: It is outside its choices.
    """
    return cache if cache is None or isinstance(cache, CacheSettings) else CacheSettings(cache)


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


def free_bytes(kind: CacheKind, folder: Path) -> int | None:
    """Return the memory, or the disk space of a folder that exists, that may still be taken, or None if unknown."""
    return shutil.disk_usage(folder).free if kind == "disk" else read_resources().available_bytes
