"""Image reader with a decoded cache: decodes every image once, and then returns pixels from the cache file."""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from itertools import islice
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
from torchvision.tv_tensors import BoundingBoxFormat

from lit_loader.annotations.cache import cache_key, image_stamp
from lit_loader.annotations.quadrangles import rotated_corners, smallest_rectangles
from lit_loader.annotations.tiling import file_sizes
from lit_loader.errors import CacheError, ImageError
from lit_loader.foundation.byte_sizes import byte_count, byte_words
from lit_loader.foundation.host import count_cores
from lit_loader.foundation.stage_times import DECODING
from lit_loader.images.decoded_cache.pixel_file import FORMAT, INDEX, Index, head, open_or_build, pixels_start
from lit_loader.images.decoded_cache.settings import CacheSettings
from lit_loader.images.lazy_image import DecodedImage, LazyImage
from lit_loader.images.reading import ImageReading
from lit_loader.types import IndexArray

if TYPE_CHECKING:
    from lit_loader.annotations import AnnotationTable

__all__ = ["CachedReader", "shrink_target"]

_MAX_THREADS: Final = 16
_IMAGES_AHEAD: Final = 4
"""Images to decode ahead of the one being written, for each thread."""


class CachedReader:
    """Reads the images of a dataset from a decoded cache, which it builds if there is none.

    Runs in: the main process, workers and threads; it has no mutable state.
    Owns: its mapping of the file.

    Args:
        table: The annotations that name the images.
        reader: Decodes the images for the cache; later, only those that could not be decoded then.
        settings: Settings of the cache.

    Attributes:
        num_bytes: Size of the cache, which a host stores once.
        key: Identifies the cache; readers with the same key share one.

    Raises:
        CacheError: The cache exceeds its budget, cannot be written, or its images change while it is built.
    """

    def __init__(self, table: AnnotationTable, reader: ImageReading, settings: CacheSettings) -> None:
        self._table = table
        self._reader = reader
        self._longest_side = settings.cache_size
        slot_by_name: dict[str, int] = {}
        row_slots = np.array(
            [slot_by_name.setdefault(name, len(slot_by_name)) for name in table.image_paths], dtype=np.int64
        )
        names = list(slot_by_name)
        # None if every row has its own image, which is common and saves the memory of the array.
        self._slots: IndexArray | None = row_slots if len(names) < len(row_slots) else None
        pixel_settings = {
            "max_pixels": reader.max_pixels,
            "exif_orientation": reader.exif_orientation,
            "size": settings.cache_size,
            "sixteen_bit_max": reader.sixteen_bit_max,
        }
        make_key = partial(cache_key, reader="decoded images", version=FORMAT, root=table.root, files=names)

        def current_key() -> str:
            stamps = [image_stamp(str(table.root), name) for name in names]
            # torch and torchvision shrink the images.
            shrinkers = () if settings.cache_size is None else (torch.__version__, torchvision.__version__)
            state = {"versions": (PIL.__version__, *shrinkers), "truncated": ImageFile.LOAD_TRUNCATED_IMAGES}
            if reader.store_keys:
                state["stores"] = reader.store_keys
            return make_key(settings={**pixel_settings, **state}, stamps=stamps)

        def fill(file: BinaryIO) -> None:
            rows = np.unique(row_slots, return_index=True)[1]
            sizes = file_sizes(table)[rows].tolist()
            _fill(file, [f"{table.root}/{name}" for name in names], sizes, reader, settings, self.key)
            # An image that changed after its stamp was taken would be cached under the wrong key.
            if current_key() != self.key:
                problem = f"images in {table.root} changed while they were decoded for the cache, so it was not saved"
                raise CacheError(problem, remedy="run again when no process writes there")

        def report_waiting() -> None:
            if settings.progress:
                Console(stderr=True).print("Waiting for another process that decodes these images ...")

        self.key = current_key()
        path = settings.folder / f"{make_key(settings=pixel_settings)}-{self.key}.pixels"
        self._file = open_or_build(path, self.key, len(names), fill=fill, on_wait=report_waiting)
        self.num_bytes = self._file.num_bytes

    def open(self, position: int) -> tuple[DecodedImage, tuple[int, int]]:
        """Return one image, whose regions are views of the file, and its (width, height) as decoded.

        Args:
            position: Row of the table.

        Raises:
            ImageError: The image cannot be decoded.
        """
        with DECODING:
            cached_image = self._file.image(position if self._slots is None else int(self._slots[position]))
        if cached_image is None:
            decoded = self._reader.read(self._table.image_path(position))
            cached_image = _shrunk(decoded, self._longest_side), (decoded.shape[2], decoded.shape[1])
        pixels, true_size = cached_image
        return DecodedImage(pixels, is_shared=True), true_size


def _fill(
    file: BinaryIO,
    paths: Sequence[str],
    sizes: Sequence[tuple[int, int]],
    reader: ImageReading,
    settings: CacheSettings,
    key: str,
) -> None:
    """Decode images on threads and write them to a cache file, in order and within the budget.

    The index marks an image that cannot be decoded; reading it later decodes it again and raises its error.

    Args:
        file: The empty file.
        paths: Paths of the images.
        sizes: Annotated (width, height) of each image, 0 if unknown.
        reader: Decodes the images.
        settings: Settings of the cache.
        key: Key of the cache.

    Raises:
        CacheError: The images exceed the budget.
        OSError: The file cannot be written.
    """
    free_bytes = shutil.disk_usage(settings.folder).free
    budget = byte_count(settings.cache_budget)
    max_bytes = free_bytes // 2 if budget is None else min(free_bytes, budget)

    def check_budget(num_bytes: int, qualifier: str) -> None:
        if num_bytes > max_bytes:
            raise CacheError(
                f"{len(paths)} decoded images need {byte_words(num_bytes)} {qualifier}, but the cache may take "
                f"{byte_words(max_bytes)}: {byte_words(free_bytes)} of disk space is free, and "
                f"cache_budget={settings.cache_budget!r} (None means half of the free space)",
                remedy=f"lower cache_size (now {settings.cache_size}), raise cache_budget, choose another cache_dir",
                settings={"cache": False},
            )

    end = pixels_start(len(paths))
    # Fail before decoding anything if the annotated sizes already exceed the budget.
    cached_sizes = [_cached_size(*size, longest_side=settings.cache_size) for size in sizes if all(size)]
    num_pixels = sum(width * height for width, height in cached_sizes)
    check_budget(end + 3 * num_pixels, "according to their annotated sizes")
    # The head is written last, when the index is known.
    file.seek(end)
    index: Index = np.zeros(len(paths), dtype=INDEX)
    # Closed here, because an error would keep the threads of the generator until its traceback is gone.
    with closing(_decode_all(paths, reader=reader, settings=settings)) as images:
        for slot, image in enumerate(images):
            if image is None:
                index[slot]["end"] = end
                continue
            pixels, true_size = image
            end += pixels.numel()
            check_budget(end, "or more")
            file.write(pixels.numpy().data)
            index[slot] = (end, *pixels.shape[1::-1], *true_size)
    file.seek(0)
    file.write(head(index, key))


def _decode_all(
    paths: Sequence[str], *, reader: ImageReading, settings: CacheSettings
) -> Generator[tuple[Tensor, tuple[int, ...]] | None, None, None]:
    """Decode images on threads and yield the results of `_decode` in order, with a progress bar."""
    decode = partial(_decode, reader=reader, longest_side=settings.cache_size)
    num_threads = min(count_cores(), _MAX_THREADS)
    console = Console(stderr=True)
    bar = Progress(console=console, disable=not (settings.progress and console.is_terminal))
    with bar, ThreadPoolExecutor(num_threads, thread_name_prefix="lit_loader_decode") as pool:
        # Submitting all images at once could fill the memory with decoded images that wait to be written.
        upcoming_paths = reader.in_order(paths)
        pending = deque(pool.submit(decode, path) for path in islice(upcoming_paths, _IMAGES_AHEAD * num_threads))
        try:
            for _ in bar.track(range(len(paths)), description="Decoding images"):
                image = pending.popleft().result()
                # One image is submitted for each that is taken, until there are none.
                pending.extend(pool.submit(decode, path) for path in islice(upcoming_paths, 1))
                yield image
        finally:
            pool.shutdown(cancel_futures=True)


def _decode(path: str, *, reader: ImageReading, longest_side: int | None) -> tuple[Tensor, tuple[int, ...]] | None:
    """Return the pixels to cache, ``(height, width, 3)``, and the decoded (width, height); None for a bad image."""
    try:
        pixels = reader.read(path)
    except ImageError:
        return None
    return _shrunk(pixels, longest_side).permute(1, 2, 0).contiguous(), pixels.shape[:0:-1]


def _cached_size(width: int, height: int, *, longest_side: int | None) -> tuple[int, int]:
    """Return the (width, height) to cache an image at: its own, or shrunk to a longest side."""
    if longest_side is None or max(width, height) <= longest_side:
        return width, height
    shrink = longest_side / max(width, height)
    return max(1, round(width * shrink)), max(1, round(height * shrink))


def _shrunk(pixels: Tensor, longest_side: int | None) -> Tensor:
    """Shrink an image to the size to cache it at, with antialiasing; return it unchanged if it is not larger."""
    height, width = pixels.shape[-2:]
    cached_width, cached_height = _cached_size(width, height, longest_side=longest_side)
    if (cached_width, cached_height) == (width, height):
        return pixels
    shrunk: Tensor = functional.resize(pixels, [cached_height, cached_width], antialias=True)
    return shrunk


def shrink_target(target: dict[str, Any], *, true_size: tuple[int, int], image: LazyImage) -> dict[str, Any]:
    """Scale the target of an image to the size of the cached image.

    Args:
        target: ``boxes`` in pixels of the image as decoded, XYXY or oriented, ``area``, and optionally ``keypoints``.
            Masks are already drawn at the cached size, see `object_target`.
        true_size: (width, height) as decoded.
        image: The cached image.

    Returns:
        ``target`` itself if the sizes are equal, otherwise a new one: coordinates are multiplied by the exact ratios of
        the sides, in float64.
    """
    height, width = image.size
    if (width, height) == true_size:
        return target
    ratios = torch.tensor([width / true_size[0], height / true_size[1]], dtype=torch.float64)
    scaled_target = {**target, **_shrunk_boxes(target, ratios, canvas_size=(height, width))}
    if "keypoints" in target:
        points = (target["keypoints"].as_subclass(Tensor).double() * ratios).float()
        scaled_target["keypoints"] = tv_tensors.KeyPoints(points, canvas_size=(height, width))
    return scaled_target


def _shrunk_boxes(target: Mapping[str, Any], ratios: Tensor, *, canvas_size: tuple[int, int]) -> dict[str, Tensor]:
    """Return ``boxes`` and ``area`` of a target, scaled along x and y."""
    boxes = target["boxes"]
    plain = boxes.as_subclass(Tensor).double()
    if boxes.format is BoundingBoxFormat.XYXY:
        scaled = (plain * ratios.repeat(2)).float()
        areas = (scaled[:, 2] - scaled[:, 0]) * (scaled[:, 3] - scaled[:, 1])
    elif boxes.format is BoundingBoxFormat.XYXYXYXY:
        scaled = (plain * ratios.repeat(4)).float()
        areas = target["area"] * ratios.prod().float()
    else:
        # Both ratios are equal except for rounding to whole pixels, so a rectangle stays nearly a rectangle.
        corners = rotated_corners(plain.numpy()) * ratios.numpy()
        scaled = torch.from_numpy(smallest_rectangles(corners)).float()
        areas = target["area"] * ratios.prod().float()
    return {"boxes": tv_tensors.wrap(scaled, like=boxes, canvas_size=canvas_size), "area": areas}
