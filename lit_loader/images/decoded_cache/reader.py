"""The reader of a data set with a cache: it decodes every image once, and gives pixels from the file."""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import numpy as np
import PIL
import torch
import torchvision
from PIL import ImageFile
from rich.console import Console
from rich.progress import Progress
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional

from lit_loader.annotations.cache import cache_key, image_stamp
from lit_loader.errors import CacheError, ImageError
from lit_loader.foundation.host import count_cores
from lit_loader.images.decoded_cache.pixel_file import (
    FORMAT,
    INDEX,
    Index,
    head,
    open_or_build,
    pixels_start,
)
from lit_loader.images.decoded_cache.settings import CacheSettings, byte_count, byte_words
from lit_loader.images.lazy_image import DecodedImage, LazyImage
from lit_loader.images.reading import ImageReading
from lit_loader.types import IndexArray

if TYPE_CHECKING:
    from lit_loader.annotations import AnnotationTable

__all__ = ["CachedReader", "shrink_target"]

_MAX_THREADS: Final = 16
_AHEAD: Final = 4
"""Images that a thread may be ahead of the one that is written."""


class CachedReader:
    """Reads the images of a data set from a decoded cache, which it makes if there is none.

    Runs in: the main process, workers and threads alike; it has no state that changes.
    Owns: its mapping of the file.

    Args:
        table: The annotations that name the images.
        reader: Decodes, when the cache is made and where an image could not be decoded then.
        settings: Of the cache.

    Attributes:
        num_bytes: What the cache takes, once a host.
        key: Which cache it is; readers with the same key share one.

    Raises:
        CacheError: The cache does not fit, cannot be written, or its images change while it is made.
    """

    def __init__(self, table: AnnotationTable, reader: ImageReading, settings: CacheSettings) -> None:
        self._table, self._reader, self._longest_side = table, reader, settings.cache_size
        slots: dict[str, int] = {}
        of_rows = np.array([slots.setdefault(path, len(slots)) for path in table.image_paths], dtype=np.int64)
        # None: each row has an image of its own, which is the common case and needs no memory
        self._slots: IndexArray | None = of_rows if len(slots) < len(of_rows) else None
        names, size = list(slots), settings.cache_size
        given = {"max_pixels": reader.max_pixels, "exif_orientation": reader.exif_orientation, "size": size}
        if reader.sixteen_bit_max is not None:
            given["sixteen_bit_max"] = reader.sixteen_bit_max
        shrinkers = [] if size is None else [torch.__version__, torchvision.__version__]
        key_of = partial(cache_key, reader="decoded images", version=FORMAT, root=table.root, files=names)

        def present_key() -> str:
            stamps = [image_stamp(str(table.root), name) for name in names]
            truncated = {"truncated": True} if ImageFile.LOAD_TRUNCATED_IMAGES else {}
            versions = {"versions": [PIL.__version__, *shrinkers]}
            return key_of(settings={**given, **versions, **truncated}, stamps=stamps)

        def fill(file: BinaryIO) -> None:
            rows = np.unique(of_rows, return_index=True)[1]
            sizes = np.stack([table.widths[rows], table.heights[rows]], axis=1).tolist()
            _fill(file, [f"{table.root}/{name}" for name in names], sizes, reader, settings, self.key)
            if present_key() != self.key:
                raise CacheError(
                    f"images under {table.root} changed while they were decoded for the cache; nothing was kept: "
                    "run again when nobody writes there"
                )

        def tell_waiting() -> None:
            if settings.progress:
                Console(stderr=True).print("Waiting for another process that decodes these images ...")

        self.key = present_key()
        path = settings.folder / f"{key_of(settings=given)}-{self.key}.pixels"
        self._file = open_or_build(path, self.key, len(names), fill=fill, on_wait=tell_waiting)
        self.num_bytes = self._file.num_bytes

    def open(self, position: int) -> tuple[DecodedImage, tuple[int, int]]:
        """Return one image, whose regions are views of the file, and its (width, height) as decoded.

        Args:
            position: The row of the table.

        Raises:
            ImageError: The image cannot be decoded.
        """
        found = self._file.image(position if self._slots is None else int(self._slots[position]))
        if found is None:
            pixels = self._reader.read(self._table.image_path(position))
            found = _shrunk(pixels, self._longest_side), (pixels.shape[2], pixels.shape[1])
        return DecodedImage(found[0], is_shared=True), found[1]


def _fill(
    file: BinaryIO,
    paths: Sequence[str],
    sizes: Sequence[tuple[int, int]],
    reader: ImageReading,
    settings: CacheSettings,
    key: str,
) -> None:
    """Decode images on threads and write them, in their order and within the budget, as `PixelFile` reads them.

    One that cannot be decoded is noted in the index; whoever asks for it decodes it again and gets its error.

    Args:
        file: Empty.
        paths: Of the images.
        sizes: (width, height) of each by its annotation, or 0 where it is not known.
        reader: Decodes.
        settings: Of the cache.
        key: For the head of the file.

    Raises:
        CacheError: The images do not fit.
        OSError: They cannot be written.
    """
    free, given = shutil.disk_usage(settings.folder).free, byte_count(settings.cache_budget)
    budget = free // 2 if given is None else min(free, given)

    def check_budget(needed: int, how: str) -> None:
        if needed > budget:
            raise CacheError(
                f"{len(paths)} decoded images need {byte_words(needed)} {how}, and may take {byte_words(budget)}: "
                f"{byte_words(free)} of disk space are free, and cache_budget={settings.cache_budget!r} (None: half of "
                f"it); lower cache_size (now {settings.cache_size}), raise cache_budget, name another cache_dir, or "
                "give cache=False"
            )

    def decode(path: str) -> tuple[Tensor, tuple[int, ...]] | None:
        try:
            pixels = reader.read(path)
        except ImageError:
            return None
        return _shrunk(pixels, settings.cache_size).permute(1, 2, 0).contiguous(), pixels.shape[:0:-1]

    kept = [_kept_size(*size, longest_side=settings.cache_size) for size in sizes if all(size)]
    end = pixels_start(len(paths))
    check_budget(end + sum(3 * width * height for width, height in kept), "by the sizes in their annotations")
    file.seek(end)
    index: Index = np.zeros(len(paths), dtype=INDEX)
    threads = min(count_cores(), _MAX_THREADS)
    console = Console(stderr=True)
    bar = Progress(console=console, disable=not (settings.progress and console.is_terminal))
    with bar, ThreadPoolExecutor(threads, thread_name_prefix="lit_loader_decode") as pool:
        waiting = deque(pool.submit(decode, path) for path in paths[: _AHEAD * threads])
        try:
            for slot in bar.track(range(len(paths)), description="Decoding images"):
                image = waiting.popleft().result()
                if (following := slot + _AHEAD * threads) < len(paths):
                    waiting.append(pool.submit(decode, paths[following]))
                if image is not None:
                    end += image[0].numel()
                    check_budget(end, "or more")
                    file.write(image[0].numpy().data)
                    index[slot] = (end, *image[0].shape[1::-1], *image[1])
                else:
                    index[slot]["end"] = end
        finally:
            pool.shutdown(cancel_futures=True)
    file.seek(0)
    file.write(head(index, key))


def _kept_size(width: int, height: int, *, longest_side: int | None) -> tuple[int, int]:
    """Return (width, height) in which an image is kept: its own, or shrunk to a longest side."""
    longest = max(width, height)
    if longest_side is None or longest <= longest_side:
        return width, height
    shrink = longest_side / longest
    return max(1, round(width * shrink)), max(1, round(height * shrink))


def _shrunk(pixels: Tensor, longest_side: int | None) -> Tensor:
    """Return an image in the size in which it is kept, antialiased; itself, if it is not larger."""
    height, width = pixels.shape[-2:]
    kept = _kept_size(width, height, longest_side=longest_side)
    if kept == (width, height):
        return pixels
    smaller: Tensor = functional.resize(pixels, [kept[1], kept[0]], antialias=True)
    return smaller


def shrink_target(target: dict[str, Any], *, true_size: tuple[int, int], image: LazyImage) -> dict[str, Any]:
    """Return a target of an image for the image as it is kept.

    Args:
        target: With ``boxes`` in pixels of the image as decoded, ``area``, and ``keypoints`` if it has any. Masks are
            drawn at the size that is kept, see `object_target`.
        true_size: (width, height) as decoded.
        image: The image as it is kept.

    Returns:
        The target, or a new one: coordinates are multiplied by the exact ratios of the sides, in float64.
    """
    height, width = image.size
    if (width, height) == true_size:
        return target
    ratios = torch.tensor([width / true_size[0], height / true_size[1]], dtype=torch.float64)
    boxes = (target["boxes"].as_subclass(Tensor).double() * ratios.repeat(2)).float()
    small = {
        **target,
        "boxes": tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=(height, width)),
        "area": (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]),
    }
    if "keypoints" in target:
        points = (target["keypoints"].as_subclass(Tensor).double() * ratios).float()
        small["keypoints"] = tv_tensors.KeyPoints(points, canvas_size=(height, width))
    return small
