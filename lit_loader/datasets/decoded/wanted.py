"""Which block a data set wants: the images of its table, their key, and what they will take."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import PIL
import torch
import torchvision

from lit_loader.annotations.cache import cache_key
from lit_loader.datasets.decoded.filling import Filling, kept_size
from lit_loader.datasets.decoded.layout import FORMAT, pixels_start
from lit_loader.datasets.decoded.settings import (
    CacheSettings,
    byte_count,
    byte_words,
    free_bytes,
)
from lit_loader.datasets.reading import ImageReading
from lit_loader.errors import CacheError
from lit_loader.types import IndexArray

if TYPE_CHECKING:
    from lit_loader.annotations import AnnotationTable

__all__ = ["CacheRequest"]

_READER = "decoded images"


@dataclass(kw_only=True)
class CacheRequest:
    """The images that a cache must hold, each file once, in the order in which a table names them first.

    Args:
        table: The annotations.
        reader: Decodes.
        settings: Of the cache.

    Attributes:
        subject: Hash of which files in which form, 32 characters: blocks of one subject replace each other.
        key: The same with the files' sizes and times, and versions.
        slots: The image of each row of the table, int64; None: row by row.

    """

    table: AnnotationTable
    reader: ImageReading
    settings: CacheSettings

    def __post_init__(self) -> None:
        places: dict[str, int] = {}
        slots = np.array(
            [places.setdefault(path, len(places)) for path in self.table.image_paths], dtype=np.int64
        )
        self.slots: IndexArray | None = slots if len(places) < len(slots) else None
        self._rows = np.arange(len(slots)) if self.slots is None else np.unique(slots, return_index=True)[1]
        self.num_images = len(places)
        self.subject = self._hash([*places], [], versions=())
        self.key = self._key_of([*places])

    def _key_of(self, names: list[str]) -> str:
        versions = [PIL.__version__]
        if self.settings.size is not None:
            versions += [torch.__version__, torchvision.__version__]  # they shrink
        root = str(self.table.root)
        stamps = [number for name in names for number in _stamp(root, name)]
        return self._hash(names, stamps, versions=versions)

    def _hash(self, names: list[str], stamps: list[int], *, versions: Sequence[str]) -> str:
        settings = {
            "max_pixels": self.reader.max_pixels,
            "exif_orientation": self.reader.exif_orientation,
            "size": self.settings.size,
            "versions": list(versions),
        }
        return cache_key(
            reader=_READER,
            version=FORMAT,
            root=self.table.root,
            settings=settings,
            files=names,
            stamps=stamps,
        )

    def _path(self, slot: int) -> Path:
        return self.table.image_path(int(self._rows[slot]))

    @property
    def name(self) -> str:
        """The block's name on disk, without a suffix."""
        return f"{self.subject}-{self.key}"

    def needed_bytes(self) -> int:
        """Return what the block takes by the sizes that the annotations give; an image of unknown size counts 0."""
        total = pixels_start(self.num_images)
        for width, height in zip(
            self.table.widths[self._rows].tolist(), self.table.heights[self._rows].tolist(), strict=True
        ):
            if width and height:
                kept = kept_size(width, height, self.settings.size)
                total += 3 * kept[0] * kept[1]
        return total

    def filling(self, descriptor: int) -> Filling:
        """Return what fills an empty file with the block, checked against the budget.

        Args:
            descriptor: The file, see `Filling`.

        Raises:
            CacheError: The block will not fit; nothing was written.
        """
        budget, words = self._budget()
        needed = self.needed_bytes()
        if budget is not None and needed > budget:
            raise self._too_large(f"need {byte_words(needed)} by the sizes in their annotations", words)

        def too_large(bytes_so_far: int) -> CacheError:
            return self._too_large(f"need at least {byte_words(bytes_so_far)}", words)

        return Filling(
            descriptor=descriptor,
            reader=self.reader,
            path_of=self._path,
            num_images=self.num_images,
            longest_side=self.settings.size,
            most_bytes=budget,
            too_large=too_large,
            progress=self.settings.progress,
        )

    def _budget(self) -> tuple[int | None, str]:
        free = free_bytes(self.settings.kind, self.settings.folder)
        given, what = (
            byte_count(self.settings.budget),
            "memory" if self.settings.kind == "ram" else "disk space",
        )
        if given is None:
            half = None if free is None else free // 2
            return half, f"cache_budget=None allows half of the free {what}, {byte_words(half or 0)}"
        if free is not None and free < given:
            return (
                free,
                f"{byte_words(free)} of {what} are free, less than cache_budget={self.settings.budget!r}",
            )
        return given, f"cache_budget={self.settings.budget!r} allows {byte_words(given)}"

    def _too_large(self, need: str, allowed: str) -> CacheError:
        size = "as decoded" if self.settings.size is None else self.settings.size
        return CacheError(
            f"{self.num_images} decoded images {need}, and {allowed}; lower cache_size (now {size}), raise "
            "cache_budget if there is room, or give cache=None"
        )

    def check_unchanged(self) -> None:
        """Refuse what was decoded while images changed.

        Raises:
            CacheError: A file differs from what the key was made of.
        """
        names = [self.table.image_paths[row] for row in self._rows.tolist()]
        if self._key_of(names) != self.key:
            raise CacheError(
                f"images under {self.table.root} changed while they were decoded for the cache; nothing was kept: "
                "run again when nobody writes there"
            )


def _stamp(root: str, name: str) -> tuple[int, int]:
    """Return size and time of an image; one that is not there has a stamp too, until it appears."""
    try:
        found = os.stat(f"{root}/{name}")  # noqa: PTH116 # a path object costs five times the call
    except OSError:
        return -1, -1
    return found.st_size, found.st_mtime_ns
