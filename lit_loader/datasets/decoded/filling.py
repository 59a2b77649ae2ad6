"""Decode images into a block, on threads, within a number of bytes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
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
_TOLD_EVERY_S: Final = 0.1


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
    _next: int = field(default=0, init=False)
    _done: int = field(default=0, init=False)
    _end: int = field(default=0, init=False)

    def run(self, *, key: str) -> None:
        """Decode every image, then write the index and the header with the block's key."""
        self._end = pixels_start(self.num_images)
        self._index: npt.NDArray[Any] = np.zeros(self.num_images, dtype=INDEX)
        threads = max(1, min(count_cores(), _MAX_THREADS, self.num_images))
        with ThreadPoolExecutor(threads, thread_name_prefix="lit_loader_decode") as pool:
            try:
                self._watch([pool.submit(self._work) for _ in range(threads)])
            finally:
                with self._lock:
                    self._next = self.num_images  # whatever broke off, nobody takes another image
        write_head(self.descriptor, self._index, key=key, end=self._end)

    def _watch(self, futures: list[Future[None]]) -> None:
        bar = self._bar()
        with bar if bar is not None else _no_bar():
            task = bar.add_task("Decoding images", total=self.num_images) if bar is not None else None
            waiting = set(futures)
            while waiting:
                finished, waiting = wait(waiting, timeout=_TOLD_EVERY_S, return_when="FIRST_EXCEPTION")
                for future in finished:
                    future.result()
                if bar is not None and task is not None:
                    bar.update(task, completed=self._done)

    def _bar(self) -> Progress | None:
        console = Console(stderr=True) if self.progress else None
        if console is None or not console.is_terminal:
            return None
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        return Progress(*columns, console=console)

    def _work(self) -> None:
        while (slot := self._take()) is not None:
            try:
                pixels = self.reader.read(self.path_of(slot))
            except ImageError:
                pixels = None
            if pixels is not None:
                self._put(slot, pixels)
            with self._lock:
                self._done += 1

    def _take(self) -> int | None:
        with self._lock:
            slot = self._next
            self._next = min(slot + 1, self.num_images)
        return slot if slot < self.num_images else None

    def _put(self, slot: int, pixels: Tensor) -> None:
        kept = shrunk(pixels, self.longest_side).permute(1, 2, 0).contiguous()
        with self._lock:
            start, self._end = self._end, self._end + kept.numel()
            if self.most_bytes is not None and self._end > self.most_bytes:
                raise self.too_large(self._end)
        self._index[slot] = (start, kept.shape[1], kept.shape[0], pixels.shape[2], pixels.shape[1])
        write_all(self.descriptor, kept.numpy().reshape(-1).data, start)


def _no_bar() -> AbstractContextManager[None]:
    return nullcontext()
