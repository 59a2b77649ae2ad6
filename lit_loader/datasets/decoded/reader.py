"""The reader of a data set with a cache: pixels from the block, copied, with the size that they had in the file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchvision import tv_tensors

from lit_loader.datasets.decoded.disk import block_on_disk
from lit_loader.datasets.decoded.layout import PixelBlock
from lit_loader.datasets.decoded.memory import block_in_memory
from lit_loader.datasets.decoded.settings import CacheSettings
from lit_loader.datasets.decoded.wanted import CacheRequest, shrunk
from lit_loader.datasets.reading import ImageReading
from lit_loader.transforms import ImageRegion
from lit_loader.types import IndexArray

if TYPE_CHECKING:
    from lit_loader.annotations import AnnotationTable

__all__ = ["CachedImage", "CachedReader", "shrink_target"]


class CachedImage:
    """An image of a cache that is copied as far as a transform shows it.

    Args:
        pixels: uint8 ``(H, W, 3)``, a view that is not written to.
        true_size: (width, height) of the image as decoded.
    """

    def __init__(self, pixels: npt.NDArray[np.uint8], true_size: tuple[int, int]) -> None:
        self._pixels, self.true_size = pixels, true_size

    @property
    def size(self) -> tuple[int, int]:
        """Height and width as it is kept, in pixels."""
        return self._pixels.shape[0], self._pixels.shape[1]

    def read(self) -> Tensor:
        """Return a copy of all pixels, uint8 ``(3, H, W)``, laid out as `decode_image` lays them out."""
        return torch.from_numpy(np.array(self._pixels)).permute(2, 0, 1)

    def read_region(self, region: tuple[int, int, int, int], *, zoom: float) -> ImageRegion:
        """Return a copy of a region (left, top, right, bottom), at a zoom of 1: none costs less here."""
        left, top, right, bottom = region
        pixels = torch.from_numpy(np.array(self._pixels[top:bottom, left:right])).permute(2, 0, 1)
        return ImageRegion(pixels, left, top, 1.0)


class CachedReader:
    """Reads the images of a data set from a decoded cache.

    Runs in: the main process, workers and threads alike; it has no state that changes.
    Owns: its part of the block, which is mapped until the last reader on the host is gone.

    NOTE [pixels are copied]
        The mapping is read-only, and a transform may edit its image in place. So a sample gets a copy, its channels
        interleaved as they lie in the block and as a decoder gives them: 0.03 ms for 500x375, in one thread.

    Args:
        table: The annotations that name the images.
        reader: Decodes, when the cache is made and where an image could not be decoded then.
        settings: Of the cache.

    Attributes:
        num_bytes: What the cache takes, once a host.
        key: Which block it is; readers with the same key share one.

    Raises:
        CacheError: The cache does not fit, cannot be written, or its images change while it is made.
    """

    def __init__(self, table: AnnotationTable, reader: ImageReading, settings: CacheSettings) -> None:
        wanted = CacheRequest(table=table, reader=reader, settings=settings)
        self._block: PixelBlock = block_in_memory(wanted) if settings.kind == "ram" else block_on_disk(wanted)
        self.num_bytes, self.key = self._block.num_bytes, self._block.key
        self._reader, self._longest_side = reader, settings.size
        self._slots: IndexArray | None = wanted.slots

    def read(self, path: Path | str, position: int) -> Tensor:
        """Return one image as it is kept, uint8 ``(3, H, W)``, memory of its own; see `open`."""
        return self.open(path, position).read()

    def open(self, path: Path | str, position: int) -> CachedImage:
        """Return one image, whose pixels are copied when they are asked for.

        Args:
            path: The file, for an image that could not be decoded when the cache was made.
            position: The row of the table.

        Raises:
            ImageError: The image cannot be decoded.
        """
        found = self._block.image(position if self._slots is None else int(self._slots[position]))
        if found is None:
            pixels = self._reader.read(path)
            kept = shrunk(pixels, self._longest_side).permute(1, 2, 0).numpy()
            return CachedImage(kept, (pixels.shape[2], pixels.shape[1]))
        return CachedImage(*found)


def shrink_target(
    target: dict[str, Any], *, true_size: tuple[int, int], image: Tensor | CachedImage
) -> dict[str, Any]:
    """Return a target of an image for the image as it is kept.

    Args:
        target: With ``boxes`` in pixels of the image as decoded, ``area``, and ``keypoints`` if it has any. Masks are
            drawn at the size that is kept, see `object_target`.
        true_size: (width, height) as decoded.
        image: The image as it is kept, ``(3, H, W)`` if it is a tensor.

    Returns:
        The target, or a new one: coordinates are multiplied by the exact ratios of the sides, in float64.
    """
    height, width = image.shape[-2:] if isinstance(image, Tensor) else image.size
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
