"""Which block a data set wants: the images of its table, their key, what they take, and how they get there."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import PIL
import torch
import torchvision
from rich.console import Console
from rich.progress import Progress
from torch import Tensor
from torchvision.transforms.v2 import functional

from lit_loader.annotations.cache import cache_key, image_stamp
from lit_loader.datasets.decoded.layout import FORMAT, INDEX, pixels_start, write_all, write_head
from lit_loader.datasets.decoded.settings import CacheSettings, byte_count, byte_words, free_bytes
from lit_loader.datasets.reading import ImageReading
from lit_loader.errors import CacheError, ImageError
from lit_loader.resources import count_cores
from lit_loader.types import IndexArray

if TYPE_CHECKING:
    from lit_loader.annotations import AnnotationTable

__all__ = ["CacheRequest", "shrunk"]

_MAX_THREADS: Final = 16
_AT_ONCE: Final = 4096


def _kept_size(width: int, height: int, *, longest_side: int | None) -> tuple[int, int]:
    """Return (width, height) in which an image is kept: its own, or shrunk to a longest side."""
    longest = max(width, height)
    if longest_side is None or longest <= longest_side:
        return width, height
    shrink = longest_side / longest
    return max(1, round(width * shrink)), max(1, round(height * shrink))


def shrunk(pixels: Tensor, longest_side: int | None) -> Tensor:
    """Return an image in the size in which it is kept, antialiased; itself, if it is not larger."""
    height, width = pixels.shape[-2:]
    kept = _kept_size(width, height, longest_side=longest_side)
    if kept == (width, height):
        return pixels
    smaller: Tensor = functional.resize(pixels, [kept[1], kept[0]], antialias=True)
    return smaller


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
        slots: The image of each row of the table, int64, or None if each row has its own.

    """

    table: AnnotationTable
    reader: ImageReading
    settings: CacheSettings

    def __post_init__(self) -> None:
        places: dict[str, int] = {}
        paths = self.table.image_paths
        slots = np.array([places.setdefault(path, len(places)) for path in paths], dtype=np.int64)
        self.slots: IndexArray | None = slots if len(places) < len(slots) else None
        self._rows = np.arange(len(slots)) if self.slots is None else np.unique(slots, return_index=True)[1]
        self._names = list(places)
        self.num_images = len(places)
        self.subject = self._hash([], versions=())
        self.key = self._present_key()

    def _present_key(self) -> str:
        versions = [PIL.__version__]
        if self.settings.size is not None:
            versions += [torch.__version__, torchvision.__version__]  # they shrink
        root = str(self.table.root)
        return self._hash([image_stamp(root, name) for name in self._names], versions=versions)

    def _hash(self, stamps: list[int], *, versions: Sequence[str]) -> str:
        settings = {
            "max_pixels": self.reader.max_pixels,
            "exif_orientation": self.reader.exif_orientation,
            "size": self.settings.size,
            "versions": list(versions),
        }
        return cache_key(
            reader="decoded images",
            version=FORMAT,
            root=self.table.root,
            settings=settings,
            files=self._names,
            stamps=stamps,
        )

    @property
    def name(self) -> str:
        """The block's name on disk, without a suffix."""
        return f"{self.subject}-{self.key}"

    def needed_bytes(self) -> int:
        """Return what the block takes by the sizes that the annotations give; an image of unknown size counts 0."""
        columns = self.table.widths, self.table.heights
        sizes = zip(*(column[self._rows].tolist() for column in columns), strict=True)
        kept = [_kept_size(*size, longest_side=self.settings.size) for size in sizes if all(size)]
        return pixels_start(self.num_images) + sum(3 * width * height for width, height in kept)

    def fill(self, descriptor: int) -> None:
        """Decode every image into an empty file, on threads, within the budget, and write index and header.

        An image that cannot be decoded is noted in the index; whoever asks for it decodes it again and gets its
        error. Where an image lies depends on which thread was first, its pixels do not.

        Raises:
            CacheError: The block does not fit, or a file differs from what the key was made of.
            OSError: It cannot be written.
        """
        budget, words = self._budget()
        needed = self.needed_bytes()
        if budget is not None and needed > budget:
            raise self._too_large(f"need {byte_words(needed)} by the sizes in their annotations", words)
        end, lock = pixels_start(self.num_images), threading.Lock()
        index: npt.NDArray[Any] = np.zeros(self.num_images, dtype=INDEX)

        def keep(slot: int) -> None:
            nonlocal end
            try:
                pixels = self.reader.read(self.table.image_path(int(self._rows[slot])))
            except ImageError:
                return
            kept = shrunk(pixels, self.settings.size).permute(1, 2, 0).contiguous()
            with lock:
                start, end = end, end + kept.numel()
            if budget is not None and start + kept.numel() > budget:
                raise self._too_large(f"need at least {byte_words(start + kept.numel())}", words)
            index[slot] = (start, kept.shape[1], kept.shape[0], pixels.shape[2], pixels.shape[1])
            write_all(descriptor, kept.numpy().reshape(-1).data, start)

        console = Console(stderr=True)
        bar = Progress(console=console, disable=not (self.settings.progress and console.is_terminal))
        threads = max(1, min(count_cores(), _MAX_THREADS, self.num_images))
        with bar, ThreadPoolExecutor(threads, thread_name_prefix="lit_loader_decode") as pool:
            task = bar.add_task("Decoding images", total=self.num_images)
            try:
                # Some at a time: a pool holds an object for each task that it was given.
                for first in range(0, self.num_images, _AT_ONCE):
                    for _ in pool.map(keep, range(first, min(first + _AT_ONCE, self.num_images))):
                        bar.advance(task)
            finally:
                pool.shutdown(cancel_futures=True)
        write_head(descriptor, index, key=self.key, end=end)
        if self._present_key() != self.key:
            raise CacheError(
                f"images under {self.table.root} changed while they were decoded for the cache; nothing was kept: "
                "run again when nobody writes there"
            )

    def _budget(self) -> tuple[int | None, str]:
        settings = self.settings
        free, given = free_bytes(settings.kind, settings.folder), byte_count(settings.budget)
        what = "memory" if settings.kind == "ram" else "disk space"
        if given is None:
            half = None if free is None else free // 2
            return half, f"cache_budget=None allows half of the free {what}, {byte_words(half or 0)}"
        named = f"cache_budget={settings.budget!r}"
        if free is not None and free < given:
            return free, f"{byte_words(free)} of {what} are free, less than {named}"
        return given, f"{named} allows {byte_words(given)}"

    def _too_large(self, need: str, allowed: str) -> CacheError:
        size = "as decoded" if self.settings.size is None else self.settings.size
        return CacheError(
            f"{self.num_images} decoded images {need}, and {allowed}; lower cache_size (now {size}), raise "
            "cache_budget if there is room, or give cache=None"
        )
