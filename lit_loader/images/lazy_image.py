"""An image whose pixels are read when a transform says which of them it shows, and at which size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torchvision import tv_tensors

from lit_loader.images.resampling import Allocate, resample
from lit_loader.images.views import View, needs_care

__all__ = ["ChangedImage", "DecodedImage", "ImageRegion", "LazyImage", "Part", "Step"]

Part: TypeAlias = tuple[int, int, int, int]
"""Left, top, right and bottom, in pixels of the image."""

Step: TypeAlias = Callable[[tv_tensors.Image], tv_tensors.Image]
"""Returns an image ``(3, H, W)`` with other colours, or mirrored; the given one stays as it is."""

# JPEG's scaled decode keeps the low frequencies, an antialiased resize takes weighted means: they differ most where
# the decode has hardly more pixels than the result. The fewer pixels the result has, the more of them show an edge:
# PSNR falls to 29 dB at 16 pixels. With so many more pixels along its shorter side it stays above 33 dB. A larger
# result does so without them, and decoding more would cost it the most: two thirds, where 960 rows are shown at 480.
_SPARE_PIXELS: Final = 24
_SMALL_SIDE: Final = 192


class ImageRegion(NamedTuple):
    """Pixels that show at least a region of an image.

    Attributes:
        pixels: uint8 ``(3, h, w)`` in any memory format; not to be written to.
        left: Column of the image at the left edge of ``pixels``, a multiple of ``1 / zoom``.
        top: Row of the image at the upper edge of ``pixels``, a multiple of ``1 / zoom``.
        zoom: 1, 1/2, 1/4 or 1/8: point (x, y) of the image lies at ``((x - left) * zoom, (y - top) * zoom)``.
    """

    pixels: Tensor
    left: int
    top: int
    zoom: float


class LazyImage:
    """An image that is read when its pixels are needed. A subclass defines `read` and `read_region`.

    Attributes:
        size: Height and width of the whole image, upright, in pixels.
    """

    size: tuple[int, int]

    def read(self) -> Tensor:
        """Return all pixels, uint8 ``(3, H, W)``, in memory that the caller may write to."""
        raise NotImplementedError

    def read_region(self, region: Part, *, zoom: float) -> ImageRegion:
        """Return pixels that show at least a region, not smaller than ``zoom`` times its size or than it is.

        Args:
            region: In whole pixels of the image; at least one pixel, inside the image.
            zoom: Pixels of the result for one of the image that are enough, along both axes.
        """
        raise NotImplementedError

    def image(self) -> tv_tensors.Image:
        """Return all pixels, as torchvision's transforms take them."""
        return self.read().as_subclass(tv_tensors.Image)

    def read_into(self, empty: Allocate) -> Tensor:
        """Return all pixels in memory of ``empty``, the three values of a pixel side by side."""
        return empty((*self.size, 3), torch.uint8).permute(2, 0, 1).copy_(self.read())

    def changed(self, step: Step) -> LazyImage:
        """Return the image after a step."""
        return DecodedImage(self.read()).changed(step)

    def resized(self, size: tuple[int, int]) -> LazyImage:
        """Return the whole image at ``size`` (height, width), in pixels."""
        height, width = self.size
        return self.part((0, 0, width, height), size)

    def part(self, part: Part, size: tuple[int, int], *, fill: float = 0) -> LazyImage:
        """Return a part of the image, ``fill`` beyond it, at ``size`` (height, width): resized once."""
        left, top, right, bottom = part
        scale = max(size[0] / (bottom - top), size[1] / (right - left))
        pixels, x, y, zoom = self._region(part, zoom=_with_margin(scale, size), fill=fill)
        box = (left - x) * zoom, (top - y) * zoom, (right - x) * zoom, (bottom - y) * zoom
        return _ResizedImage(pixels, box, size, fill)

    def shown(self, view: View, *, fill: float) -> LazyImage:
        """Return what a view shows of the image; see `View.pixels`."""
        if needs_care(view, self.size):
            return DecodedImage(view.pixels(self.read(), fill=fill))
        part, size = view.part()
        source = self.part(part, size, fill=fill)
        return source if view.upright else DecodedImage(view.warped(source.read()))

    def _region(self, part: Part, *, zoom: float, fill: float) -> ImageRegion:
        """Return the pixels of a part that are in the image, or a pixel at its rim if none are."""
        height, width = self.size
        left, top = min(max(part[0], 0), width - 1), min(max(part[1], 0), height - 1)
        right, bottom = min(max(part[2], left + 1), width), min(max(part[3], top + 1), height)
        region = self.read_region((left, top, right, bottom), zoom=zoom)
        beyond_right = part[2] > width
        beyond_bottom = part[3] > height
        if region.zoom == 1 or not (beyond_right or beyond_bottom):
            return region
        # Of a side that is no multiple of 1 / zoom, the last pixel is part image and part fill.
        x_share = (width - region.left) * region.zoom - (region.pixels.shape[2] - 1) if beyond_right else 1.0
        y_share = (height - region.top) * region.zoom - (region.pixels.shape[1] - 1) if beyond_bottom else 1.0
        if x_share == y_share == 1:
            return region
        pixels = region.pixels.permute(1, 2, 0).clone(memory_format=torch.contiguous_format).permute(2, 0, 1)
        _mix(pixels[:, :, -1], x_share, fill)
        _mix(pixels[:, -1], y_share, fill)
        return region._replace(pixels=pixels)


def _with_margin(scale: float, size: tuple[int, int]) -> float:
    """Return the zoom to read pixels at that are shown at ``scale``, as a result of ``size``."""
    side = min(size)
    return scale * (side + _SPARE_PIXELS) / side if side <= _SMALL_SIDE else scale


def _mix(pixels: Tensor, share: float, fill: float) -> None:
    """Replace all but a share of each pixel by ``fill``, in place."""
    if share < 1:
        pixels.copy_((pixels * share + fill * (1 - share)).round_())


class DecodedImage(LazyImage):
    """Pixels that are there already.

    Args:
        pixels: uint8 ``(3, H, W)`` in any memory format.
        is_shared: Whether others read them too, such as those of a cache: they are copied where they may be written to.
    """

    def __init__(self, pixels: Tensor, *, is_shared: bool = False) -> None:
        self._pixels, self._is_shared = pixels, is_shared
        self.size = (pixels.shape[1], pixels.shape[2])

    def read(self) -> Tensor:
        """Return the pixels, or a copy in the same memory format."""
        return self._pixels.clone() if self._is_shared else self._pixels

    def read_region(self, region: Part, *, zoom: float) -> ImageRegion:
        """Return all pixels, which costs nothing."""
        return ImageRegion(self._pixels, 0, 0, 1.0)

    def changed(self, step: Step) -> DecodedImage:
        """Return the image after a step."""
        made = step(self._pixels.as_subclass(tv_tensors.Image)).as_subclass(Tensor)
        # Others share the result only if the step changed nothing; else it need not be copied.
        is_same = made.data_ptr() == self._pixels.data_ptr()
        return DecodedImage(made, is_shared=self._is_shared and is_same)


@dataclass(frozen=True, eq=False)
class _ResizedImage(LazyImage):
    """A box of pixels at another size: `ToUInt8` that comes next has the resize write to the memory of the batch.

    Attributes:
        pixels: uint8 ``(3, h, w)``.
        box: Left, top, right and bottom, in those pixels; sides may lie between them.
        size: Height and width of the result.
        fill: Value beyond the pixels.
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


class ChangedImage(LazyImage):
    """An image with steps put off: where a resize to fewer pixels comes next they cost less after it.

    Read as it is, in part, or resized to more pixels, the image gets the steps first: the bits of a decoded image.

    Args:
        source: The image before the steps.
        steps: First to last. What is random about them is drawn already, so draws come in the order of a decoded image.
    """

    def __init__(self, source: LazyImage, *steps: Step) -> None:
        self._source, self._steps, self.size = source, steps, source.size

    def read(self) -> Tensor:
        """Return all pixels, after the steps."""
        return self._decoded().read()

    def read_region(self, region: Part, *, zoom: float) -> ImageRegion:
        """Return all pixels, after the steps."""
        return self._decoded().read_region(region, zoom=zoom)

    def changed(self, step: Step) -> ChangedImage:
        """Return the image with one more step put off."""
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
