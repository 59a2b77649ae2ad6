"""Decode images into a block, on threads, within a number of bytes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor
from torchvision.transforms.v2 import functional

from lit_loader.datasets.decoded.layout import INDEX, pixels_start, write_all, write_head
from lit_loader.datasets.reading import ImageReading
from lit_loader.errors import CacheError, ImageError
from lit_loader.resources import count_cores

__all__ = ["Filling", "kept_size", "shrunk"]

_MAX_THREADS: Final = 16
_AT_ONCE: Final = 4096


def kept_size(width: int, height: int, longest_side: int | None) -> tuple[int, int]:
    """Return (width, height) in which an image is kept: its own, or shrunk to a longest side."""
    longest = max(width, height)
    if longest_side is None or longest <= longest_side:
        return width, height
    shrink = longest_side / longest
    return max(1, round(width * shrink)), max(1, round(height * shrink))


def shrunk(pixels: Tensor, longest_side: int | None) -> Tensor:
    """Return an image in the size in which it is kept, antialiased; itself, if it is not larger."""
    height, width = pixels.shape[-2:]
    kept = kept_size(width, height, longest_side)
    if kept == (width, height):
        return pixels
    smaller: Tensor = functional.resize(pixels, [kept[1], kept[0]], antialias=True)
    return smaller


@dataclass(kw_only=True)
class Filling:
    """Fills a block with decoded images.

    An image that cannot be decoded is noted in the index; whoever asks for it decodes it again and gets its error.
    Where an image lies depends on which thread was first, its pixels do not.

    Args:
        descriptor: An empty file that can be written.
        reader: Decodes; called from several threads.
        path_of: The file of each image.
        num_images: How many there are.
        longest_side: See `shrunk`.
        most_bytes: Largest size of the block; None: no limit.
        too_large: Makes the error for a block of at least so many bytes.
        progress: Draw a bar on a terminal.

    Raises:
        CacheError: The block would be larger than ``most_bytes``.
        OSError: It cannot be written.
    """

    descriptor: int
    reader: ImageReading
    path_of: Callable[[int], Path]
    num_images: int
    longest_side: int | None
    most_bytes: int | None
    too_large: Callable[[int], CacheError]
    progress: bool
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def run(self, *, key: str) -> None:
        """Decode every image, then write the index and the header with the block's key."""
        self._end = pixels_start(self.num_images)
        self._index: npt.NDArray[Any] = np.zeros(self.num_images, dtype=INDEX)
        console = Console(stderr=True)
        bar = Progress(
            *(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()),
            console=console,
            disable=not (self.progress and console.is_terminal),
        )
        threads = max(1, min(count_cores(), _MAX_THREADS, self.num_images))
        with bar, ThreadPoolExecutor(threads, thread_name_prefix="lit_loader_decode") as pool:
            task = bar.add_task("Decoding images", total=self.num_images)
            try:
                # Some at a time: a pool holds an object for each task that it was given.
                for start in range(0, self.num_images, _AT_ONCE):
                    for _ in pool.map(self._keep, range(start, min(start + _AT_ONCE, self.num_images))):
                        bar.advance(task)
            finally:
                pool.shutdown(cancel_futures=True)
        write_head(self.descriptor, self._index, key=key, end=self._end)

    def _keep(self, slot: int) -> None:
        try:
            pixels = self.reader.read(self.path_of(slot))
        except ImageError:
            return
        kept = shrunk(pixels, self.longest_side).permute(1, 2, 0).contiguous()
        with self._lock:
            start, self._end = self._end, self._end + kept.numel()
        if self.most_bytes is not None and start + kept.numel() > self.most_bytes:
            raise self.too_large(start + kept.numel())
        self._index[slot] = (start, kept.shape[1], kept.shape[0], pixels.shape[2], pixels.shape[1])
        write_all(self.descriptor, kept.numpy().reshape(-1).data, start)
