"""An image whose pixels are read when a transform says which of them it shows, and at which size.

NOTE [What is put off]
    A flip, or a change of colours, of an image that is shrunk next costs less after the resize. So steps that come
    before are noted and made on the pixels once they are read, in the order in which they were noted. What is drawn
    for them is drawn when they are noted, so random numbers come in the order of a decoded image's. Read in full, or
    enlarged, the image gets the same steps on the same pixels: the same bits. An image that is to have torchvision's
    bits at any size (``exact``) gets them before it is resized or cut.

NOTE [What is resized last]
    A resize or a crop settles which pixels are shown, and those are read. The resize itself is put off too: `ToUInt8`
    that comes next has it write to the memory of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torchvision import tv_tensors

from lit_loader.transforms.resampling import Allocate, resample
from lit_loader.transforms.views import View, needs_care

__all__ = ["DecodedImage", "ImageRegion", "ImageSource", "LazyImage", "Part", "ResizedImage", "Step"]

Part: TypeAlias = tuple[int, int, int, int]
"""Left, top, right and bottom, in pixels of the image."""

Step: TypeAlias = Callable[[Any], Any]
"""Returns the pixels of an image ``(3, H, W)`` changed where they are, or mirrored; the size stays."""

_MOST_MOVED: Final = 4


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


class ImageSource(Protocol):
    """A source of pixels whose size is known."""

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the whole image, upright, in pixels."""

    def read(self) -> Tensor:
        """Return all pixels, uint8 ``(3, H, W)``, in memory that the caller may write to."""

    def read_region(self, region: Part, *, zoom: float) -> ImageRegion:
        """Return pixels that show at least a region, not smaller than ``zoom`` times its size or than it is.

        Args:
            region: Left, top, right and bottom, in whole pixels of the image; at least one pixel, inside the image.
            zoom: Pixels of the result for one of the image that are enough, along both axes.
        """


class DecodedImage:
    """Pixels that are there already, as an `ImageSource`.

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


@dataclass(frozen=True, eq=False)
class ResizedImage:
    """A box of pixels at another size, as an `ImageSource`; see NOTE [What is resized last].

    Attributes:
        pixels: uint8 ``(3, h, w)``.
        box: Left, top, right and bottom, in those pixels; sides may lie between them.
        size: Height and width of the result.
        fill: Value beyond the pixels.
    """

    pixels: Tensor
    box: tuple[float, float, float, float]
    size: tuple[int, int]
    fill: float = 0

    def read(self, empty: Allocate | None = None) -> Tensor:
        """Return the result, see `resample`."""
        return resample(self.pixels, self.box, self.size, fill=self.fill, empty=empty)

    def read_region(self, region: Part, *, zoom: float) -> ImageRegion:
        """Return a region of the result, which is made for it."""
        left, top, right, bottom = region
        return ImageRegion(self.read()[:, top:bottom, left:right], left, top, 1.0)


@dataclass(frozen=True, eq=False)
class LazyImage:
    """An image to be read, with the steps that its pixels still need.

    Attributes:
        source: Gives the pixels.
        exact: Whether steps are made before a resize, see NOTE [What is put off], and no image is read at 1/2, 1/4 or
            1/8.
        steps: What is made of the pixels, first to last.
    """

    source: ImageSource
    exact: bool = False
    steps: tuple[Step, ...] = ()

    @property
    def size(self) -> tuple[int, int]:
        """Height and width, in pixels."""
        return self.source.size

    def placeholder(self, *, channels: int = 0) -> tv_tensors.Image:
        """Return an image of this size without pixels, or with pixels that take no memory, for torchvision."""
        if not channels:
            return torch.empty((0, *self.size), dtype=torch.uint8).as_subclass(tv_tensors.Image)
        return tv_tensors.Image(torch.zeros((), dtype=torch.uint8).expand(channels, *self.size))

    def then(self, step: Step) -> LazyImage:
        """Return this image with one more step, see NOTE [What is put off]."""
        return LazyImage(self.source, self.exact, (*self.steps, step))

    def read(self) -> tv_tensors.Image:
        """Return all pixels, after the steps."""
        return self._finished(self.source.read(), self.steps)

    def read_into(self, empty: Allocate) -> tv_tensors.Image:
        """Return all pixels in memory of ``empty``, the three values of a pixel side by side."""
        if isinstance(self.source, ResizedImage) and not self.steps:
            placed = self.source.read(empty)
        else:
            pixels = self.read().as_subclass(Tensor)
            placed = empty((*self.size, 3), torch.uint8).permute(2, 0, 1).copy_(pixels)
        return placed.as_subclass(tv_tensors.Image)

    def resized(self, size: tuple[int, int]) -> LazyImage:
        """Return the whole image at ``size`` (height, width), in pixels."""
        height, width = self.size
        is_enlarged = size[0] * size[1] > height * width  # steps cost less before
        if self.steps and (self.exact or is_enlarged):
            return self._with_steps_made().resized(size)
        return self._part((0, 0, width, height), size)

    def cropped(self, part: Part, size: tuple[int, int]) -> tuple[LazyImage, Part]:
        """Return (left, top, right, bottom) of the image at ``size`` (height, width).

        Returns:
            The image, and the part that it shows: read at 1/2, 1/4 or 1/8, it is the nearest that has no pixel in part,
            which saves a third of the time.
        """
        if self.steps:  # a flip may be among them, after which the part lies elsewhere
            return self._with_steps_made().cropped(part, size)
        left, top, right, bottom = part
        zoom = max(size[0] / (bottom - top), size[1] / (right - left))
        rim = _MOST_MOVED if zoom <= 0.5 else 0
        found = self._region((left - rim, top - rim, right + rim, bottom + rim), zoom=zoom)
        if found.zoom < 1:
            (height, width), by = self.size, round(1 / found.zoom)
            left, right = (_nearest(x, by, width) for x in (left, right))
            top, bottom = (_nearest(y, by, height) for y in (top, bottom))
            part = (left, top, right, bottom)
        return self._resized(found, part, size), part

    def shown(self, view: View, *, fill: float) -> LazyImage | tv_tensors.Image:
        """Return what a view shows of the image; see `View.pixels`."""
        if self.steps or needs_care(view, self.size):
            return view.pixels(self.read(), fill=fill).as_subclass(tv_tensors.Image)
        if view.upright:
            left, top, right, bottom = (round(value) for value in view.corners[[0, 2]].ravel().tolist())
            return self._part((left, top, right, bottom), view.size, fill=fill)
        wanted = float(view.scale().max())
        # The view reads up to two pixels more on each side, of those that it gets.
        rim = 2 / min(wanted, 1.0)
        low = np.floor(view.corners.min(axis=0) - rim).astype(int).tolist()
        high = np.ceil(view.corners.max(axis=0) + rim).astype(int).tolist()
        found = self._region((*low, *high), zoom=wanted)
        scaled = View(corners=view.corners * found.zoom, size=view.size)
        origin = (int(found.left * found.zoom), int(found.top * found.zoom))
        return scaled.pixels(found.pixels, fill=fill, origin=origin).as_subclass(tv_tensors.Image)

    def _part(self, part: Part, size: tuple[int, int], *, fill: float = 0) -> LazyImage:
        """Return (left, top, right, bottom) of the image, ``fill`` beyond it, resized once."""
        left, top, right, bottom = part
        found = self._region(part, zoom=max(size[0] / (bottom - top), size[1] / (right - left)))
        return self._resized(found, part, size, fill=fill)

    def _resized(
        self, found: ImageRegion, part: Part, size: tuple[int, int], *, fill: float = 0
    ) -> LazyImage:
        """Return a part of the image at another size, of which ``found`` shows at least what lies in the image."""
        pixels, x, y, zoom = found
        left, top, right, bottom = part
        box = (left - x) * zoom, (top - y) * zoom, (right - x) * zoom, (bottom - y) * zoom
        return LazyImage(ResizedImage(pixels, box, size, fill), self.exact, self.steps)

    def _region(self, part: Part, *, zoom: float) -> ImageRegion:
        """Return what lies of a part in the image, or a pixel at its rim if nothing does."""
        height, width = self.size
        left, top = min(max(part[0], 0), width - 1), min(max(part[1], 0), height - 1)
        right, bottom = min(max(part[2], left + 1), width), min(max(part[3], top + 1), height)
        return self.source.read_region((left, top, right, bottom), zoom=1.0 if self.exact else zoom)

    def _with_steps_made(self) -> LazyImage:
        height, width = self.size
        whole = self.source.read_region((0, 0, width, height), zoom=1.0).pixels
        made = self._finished(whole, self.steps)
        if made.data_ptr() == whole.data_ptr():  # a step that changes nothing returns the source's own memory
            return LazyImage(self.source, self.exact)
        return LazyImage(DecodedImage(made.as_subclass(Tensor)), self.exact)

    @staticmethod
    def _finished(pixels: Tensor, steps: Sequence[Step]) -> tv_tensors.Image:
        image = pixels.as_subclass(tv_tensors.Image)
        for step in steps:
            image = step(image)
        return image


def _nearest(side: int, by: int, length: int) -> int:
    """Return the nearest multiple of ``by``, or ``length`` if that is less."""
    return min((side + by // 2) // by * by, length)
