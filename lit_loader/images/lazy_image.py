"""Lazy images: pixels are read once a transform has chosen the region and the size that it shows."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torchvision import tv_tensors

from lit_loader.foundation.stage_times import DECODING
from lit_loader.images.decoding import interleaved
from lit_loader.images.resampling import Allocate, resample
from lit_loader.images.views import View

__all__ = ["ChangedImage", "CroppedImage", "DecodedImage", "ExactImage", "ImageRegion", "LazyImage", "Part", "Step"]

Part: TypeAlias = tuple[int, int, int, int]
"""Left, top, right and bottom, in pixels of the image."""

Step: TypeAlias = Callable[[tv_tensors.Image], tv_tensors.Image]
"""Changes the colours of an image ``(3, H, W)``, or mirrors it, and returns a new image."""

# The scaled decode of a JPEG drops high frequencies, an antialiased resize takes weighted means. The two differ most if
# the decode has hardly more pixels than the result, and if the result is small, since more of its pixels are edges:
# PSNR falls to 29 dB at 16 pixels. With 24 extra pixels along the shorter side it stays above 33 dB. A larger result
# stays above it without them, and would pay most for them: two thirds more time to show 960 rows at 480.
_EXTRA_PIXELS: Final = 24
_MAX_SMALL_SIDE: Final = 192

_MAX_SHRINK: Final = 8
"""Largest factor by which `LazyImage.read_region` shrinks."""


class ImageRegion(NamedTuple):
    """Pixels that contain a requested region of an image.

    Attributes:
        pixels: uint8 ``(3, h, w)`` in any memory format; must not be written to.
        left: Column of the image at the left edge of ``pixels``, a multiple of ``1 / zoom``.
        top: Row of the image at the upper edge of ``pixels``, a multiple of ``1 / zoom``.
        zoom: 1, 1/2, 1/4 or 1/8: point (x, y) of the image is at ``((x - left) * zoom, (y - top) * zoom)``.
    """

    pixels: Tensor
    left: int
    top: int
    zoom: float


class LazyImage(ABC):
    """An image that is read when its pixels are needed; a subclass defines `read` and `read_region`.

    Attributes:
        size: Height and width of the whole, upright image, in pixels.
    """

    size: tuple[int, int]

    @abstractmethod
    def read(self) -> Tensor:
        """Return all pixels, uint8 ``(3, H, W)``; the caller may write to them."""

    @abstractmethod
    def read_region(self, region: Part, *, zoom: float) -> ImageRegion:
        """Return pixels that contain a region, shrunk no further than ``zoom`` and never enlarged.

        Args:
            region: In whole pixels of the image; not empty, inside the image.
            zoom: Smallest sufficient size of the result, as a fraction of the image's size, along both axes.
        """

    def image(self) -> tv_tensors.Image:
        """Return all pixels as an image for torchvision's transforms."""
        return self.read().as_subclass(tv_tensors.Image)

    def read_into(self, empty: Allocate) -> Tensor:
        """Return all pixels in memory from ``empty``, with the channels of each pixel adjacent."""
        return empty((*self.size, 3), torch.uint8).permute(2, 0, 1).copy_(self.read())

    def cropped(self, region: Part) -> LazyImage:
        """Return a region of the image, which is not empty and inside it."""
        return DecodedImage(self.read()).cropped(region)

    def changed(self, step: Step) -> LazyImage:
        """Return the image after a step."""
        return DecodedImage(self.read()).changed(step)

    def resized(self, size: tuple[int, int]) -> LazyImage:
        """Return the whole image at ``size`` (height, width), in pixels."""
        height, width = self.size
        return self.part((0, 0, width, height), size)

    def part(self, part: Part, size: tuple[int, int], *, fill: float = 0) -> LazyImage:
        """Return a part of the image, padded with ``fill`` beyond it, resized once to ``size`` (height, width)."""
        left, top, right, bottom = part
        zoom = max(size[0] / (bottom - top), size[1] / (right - left))
        side = min(size)
        if side <= _MAX_SMALL_SIDE:
            zoom = zoom * (side + _EXTRA_PIXELS) / side
        pixels, x, y, zoom = self._read_part(part, zoom=zoom, fill=fill)
        box = (left - x) * zoom, (top - y) * zoom, (right - x) * zoom, (bottom - y) * zoom
        return _ResizedImage(pixels, box, size, fill)

    def shown(self, view: View, *, fill: float) -> LazyImage:
        """Return the image as a view shows it; see `View.pixels`."""
        if view.exceeds_cut_limit(self.size):
            return DecodedImage(view.pixels(self.read(), fill=fill))
        source = self.part(*view.part(), fill=fill)
        return source if view.upright else DecodedImage(view.warped(source.read()))

    def _read_part(self, part: Part, *, zoom: float, fill: float) -> ImageRegion:
        """Return the pixels of a part inside the image, or one pixel at the image's edge if the part is outside."""
        height, width = self.size
        left = min(max(part[0], 0), width - 1)
        top = min(max(part[1], 0), height - 1)
        right = min(max(part[2], left + 1), width)
        bottom = min(max(part[3], top + 1), height)
        region = self.read_region((left, top, right, bottom), zoom=zoom)
        # If a side of the image is not a multiple of 1 / zoom, its last pixel covers image and fill. x_share and
        # y_share are the fractions that the image covers.
        x_share = y_share = 1.0
        if region.zoom != 1 and part[2] > width:
            x_share = (width - region.left) * region.zoom - (region.pixels.shape[2] - 1)
        if region.zoom != 1 and part[3] > height:
            y_share = (height - region.top) * region.zoom - (region.pixels.shape[1] - 1)
        if x_share == y_share == 1:
            return region
        pixels = region.pixels.permute(1, 2, 0).clone(memory_format=torch.contiguous_format).permute(2, 0, 1)
        _blend(pixels[:, :, -1], x_share, fill)
        _blend(pixels[:, -1], y_share, fill)
        return region._replace(pixels=pixels)


def _blend(pixels: Tensor, share: float, fill: float) -> None:
    """Blend pixels with ``fill`` in place; ``share`` is the weight of the pixels."""
    if share < 1:
        pixels.copy_((pixels * share + fill * (1 - share)).round_())


class DecodedImage(LazyImage):
    """An image whose pixels are already in memory.

    Args:
        pixels: uint8 ``(3, H, W)`` in any memory format.
        is_shared: The pixels belong to a cache or another reader, so `read` copies them.
    """

    def __init__(self, pixels: Tensor, *, is_shared: bool = False) -> None:
        self._pixels = pixels
        self._is_shared = is_shared
        self.size = (pixels.shape[1], pixels.shape[2])

    def read(self) -> Tensor:
        """Return the pixels, or a copy in the same memory format if they are shared."""
        if not self._is_shared:
            return self._pixels
        # A cache is mapped, so this reads its pages.
        with DECODING:
            return self._pixels.clone()

    def read_region(self, region: Part, *, zoom: float) -> ImageRegion:
        """Return all pixels, without a copy."""
        return ImageRegion(self._pixels, 0, 0, 1.0)

    def cropped(self, region: Part) -> DecodedImage:
        """Return a region of the image, without a copy."""
        x0, y0, x1, y1 = region
        # Shared, so that `read` copies the region and releases the memory of the whole image.
        return DecodedImage(self._pixels[:, y0:y1, x0:x1], is_shared=True)

    def changed(self, step: Step) -> DecodedImage:
        """Return the image after a step."""
        pixels = step(self._pixels.as_subclass(tv_tensors.Image)).as_subclass(Tensor)
        # A step that changes nothing may return its input, which is still shared.
        is_same = pixels.data_ptr() == self._pixels.data_ptr()
        return DecodedImage(pixels, is_shared=self._is_shared and is_same)


@dataclass(frozen=True, eq=False)
class _ResizedImage(LazyImage):
    """A box of pixels, resized when it is read; a following `ToUInt8` can write the result to the batch's memory.

    Attributes:
        pixels: uint8 ``(3, h, w)``.
        box: Left, top, right and bottom in ``pixels``; may be fractional.
        size: Height and width of the result.
        fill: Value outside ``pixels``.
    """

    pixels: Tensor
    box: tuple[float, float, float, float]
    size: tuple[int, int]
    fill: float

    def read(self) -> Tensor:
        return resample(self.pixels, self.box, self.size, fill=self.fill)

    def read_into(self, empty: Allocate) -> Tensor:
        return resample(self.pixels, self.box, self.size, fill=self.fill, empty=empty)

    def read_region(self, region: Part, *, zoom: float) -> ImageRegion:
        return ImageRegion(self.read(), 0, 0, 1.0)


class CroppedImage(LazyImage):
    """A region of an image that decodes no more than the region.

    Args:
        source: The image.
        region: In pixels of the image; not empty, inside the image.
    """

    def __init__(self, source: LazyImage, region: Part) -> None:
        self._source = source
        self._region = region
        self.size = (region[3] - region[1], region[2] - region[0])

    def read(self) -> Tensor:
        """Return a copy of the region's pixels, with the channels of each pixel adjacent in memory."""
        pixels = self._pixels()
        packed_pixels = interleaved(pixels)
        return pixels.clone() if packed_pixels is pixels else packed_pixels

    def read_into(self, empty: Allocate) -> Tensor:
        """Return the pixels of the region in memory from ``empty``, with the channels of each pixel adjacent."""
        return empty((*self.size, 3), torch.uint8).permute(2, 0, 1).copy_(self._pixels())

    def read_region(self, region: Part, *, zoom: float) -> ImageRegion:
        """Return pixels that contain a part of the region, and none outside the region."""
        x0, y0, x1, y1 = self._region
        height, width = self._source.size
        # A shrunk pixel must not mix both sides of an edge of the region. The image's own last pixels may be partial.
        inner_edges = [x0, y0, *([x1] if x1 < width else []), *([y1] if y1 < height else [])]
        zoom = max(zoom, 1 / math.gcd(_MAX_SHRINK, *inner_edges))
        part = (region[0] + x0, region[1] + y0, region[2] + x0, region[3] + y0)
        pixels, x, y, zoom = self._source.read_region(part, zoom=zoom)
        # Some decoders return more than the part. The edges of the region are edges of the shrunk pixels.
        columns = slice(max(0, int((x0 - x) * zoom)), math.ceil((x1 - x) * zoom))
        rows = slice(max(0, int((y0 - y) * zoom)), math.ceil((y1 - y) * zoom))
        return ImageRegion(pixels[:, rows, columns], max(x - x0, 0), max(y - y0, 0), zoom)

    def changed(self, step: Step) -> ChangedImage:
        """Return the region with a postponed step."""
        return ChangedImage(self, step)

    def _pixels(self) -> Tensor:
        height, width = self.size
        return self.read_region((0, 0, width, height), zoom=1.0).pixels


class ExactImage(LazyImage):
    """An image that decodes no more than a region, always at full size, with the bits of the decoded image.

    Args:
        source: The image.
    """

    def __init__(self, source: LazyImage) -> None:
        self._source = source
        self.size = source.size

    def read(self) -> Tensor:
        """Return all pixels, uint8 ``(3, H, W)``."""
        return self._source.read()

    def read_region(self, region: Part, *, zoom: float) -> ImageRegion:
        """Return pixels that contain a region, never shrunk."""
        return self._source.read_region(region, zoom=1.0)

    def cropped(self, region: Part) -> CroppedImage:
        """Return a region of the image; the rest is not decoded."""
        return CroppedImage(self, region)


class ChangedImage(LazyImage):
    """An image with postponed steps, which cost less after a following resize to fewer pixels.

    If the image is read unchanged, by region, or resized to more pixels, the steps come first, with the same bits as
    for a decoded image.

    Args:
        source: The image before the steps.
        steps: First to last. Their random parameters are already drawn, in the same order as for a decoded image.
    """

    def __init__(self, source: LazyImage, *steps: Step) -> None:
        self._source = source
        self._steps = steps
        self.size = source.size

    def read(self) -> Tensor:
        """Return all pixels, after the steps."""
        return self._decoded().read()

    def read_region(self, region: Part, *, zoom: float) -> ImageRegion:
        """Return all pixels, after the steps."""
        return self._decoded().read_region(region, zoom=zoom)

    def changed(self, step: Step) -> ChangedImage:
        """Return the image with one more postponed step."""
        return ChangedImage(self._source, *self._steps, step)

    def resized(self, size: tuple[int, int]) -> LazyImage:
        """Return the whole image at ``size`` (height, width), in pixels."""
        if size[0] * size[1] > self.size[0] * self.size[1]:
            return self._decoded().resized(size)
        return self._after_steps(self._source.resized(size))

    def _decoded(self) -> LazyImage:
        return self._after_steps(DecodedImage(self._source.read()))

    def _after_steps(self, image: LazyImage) -> LazyImage:
        for step in self._steps:
            image = image.changed(step)
        return image
