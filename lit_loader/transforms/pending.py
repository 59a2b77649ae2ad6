"""An image that is not decoded yet, for transforms that say which of its pixels they want, and at which size.

NOTE [What is put off]
    A flip, or a change of colours, of an image that is shrunk next costs less after the resize. So steps that come
    before are noted and made on the pixels once they are read, in the order in which they were noted. What is drawn
    for them is drawn when they are noted, so random numbers come in the order of a decoded image's. Read in full, or
    enlarged, the image gets the same steps on the same pixels: the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional

from lit_loader.transforms.views import View, cut_pixels, needs_care

__all__ = ["ImageRegion", "ImageSource", "LazyImage", "Part", "Step", "nothing_to_move"]

Part: TypeAlias = tuple[int, int, int, int]
"""Left, top, right and bottom, in pixels of the image."""

Step: TypeAlias = Callable[[Any], Any]
"""Changes the pixels of an image ``(3, H, W)`` where they are, or mirrors them; the size stays."""

# A scale that is a whole number but for rounding must not lose the last row.
_ROUNDING: Final = 1 + 1e-12

_WHOLE_SHRINKS: Final = (1 / 2, 1 / 4, 1 / 8)
_MOST_MOVED: Final = 4


class ImageRegion(NamedTuple):
    """Pixels that show at least a region of an image.

    Attributes:
        pixels: uint8 ``(3, h, w)`` in any memory format.
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
        """Return all pixels, uint8 ``(3, H, W)``."""

    def read_region(self, region: Part, *, zoom: float) -> ImageRegion:
        """Return pixels that show at least a region, not smaller than ``zoom`` times its size or than it is.

        Args:
            region: Left, top, right and bottom, in whole pixels of the image; at least one pixel, inside the image.
            zoom: Pixels of the result for one of the image that are enough, along both axes.
        """


@dataclass(frozen=True, eq=False)
class LazyImage:
    """An image to be read, with the steps that its pixels still need.

    Attributes:
        source: Gives the pixels.
        steps: What is made of them, first to last.
    """

    source: ImageSource
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
        return replace(self, steps=(*self.steps, step))

    def read(self) -> tv_tensors.Image:
        """Return the image decoded in full, after its steps."""
        return self._finished(self.source.read())

    def resized(self, size: tuple[int, int]) -> tv_tensors.Image:
        """Return the whole image at ``size`` (height, width), after its steps."""
        height, width = self.size
        whole = (0, 0, width, height)
        if size[0] * size[1] > height * width:
            # the steps cost less before, and give the bits of a decoded image
            finished = self._finished(self.source.read())
            return tv_tensors.Image(_resized_part(finished.as_subclass(Tensor), [*whole], size, fill=0))
        return self._finished(self._part(whole, size, fill=0))

    def cropped(self, part: Part, size: tuple[int, int]) -> tuple[tv_tensors.Image, Part]:
        """Return (left, top, right, bottom) of the image at ``size`` (height, width), after its steps.

        Returns:
            The pixels, and the part that they show: read at 1/2, 1/4 or 1/8, it is the nearest that has no pixel
            in part, which saves a third of the time.
        """
        left, top, right, bottom = part
        if self.steps:  # a flip may be among them, after which the part lies elsewhere
            crop = (top, left, bottom - top, right - left)
            cropped: tv_tensors.Image = functional.resized_crop(
                self.read(), *crop, list(size), antialias=True
            )
            return cropped, part
        wanted = max(size[0] / (bottom - top), size[1] / (right - left))
        low, high = (left - _MOST_MOVED, top - _MOST_MOVED), (right + _MOST_MOVED, bottom + _MOST_MOVED)
        found = self._read_region((*low, *high), zoom=wanted)
        if found.zoom in _WHOLE_SHRINKS:
            height, width = self.size
            left, right = (_whole(x, found.zoom, width) for x in (left, right))
            top, bottom = (_whole(y, found.zoom, height) for y in (top, bottom))
            part = (left, top, right, bottom)
        return tv_tensors.Image(_resized_part(found.pixels, _scaled(part, found), size, fill=0)), part

    def shown(self, view: View, *, fill: float) -> tv_tensors.Image:
        """Return what a view shows of the image; see `View.pixels`."""
        if self.steps or needs_care(view, self.size):
            shown: tv_tensors.Image = view.pixels(self.read(), fill=fill)
            return shown
        if view.upright:
            left, top, right, bottom = (round(value) for value in view.corners[[0, 2]].ravel().tolist())
            return tv_tensors.Image(self._part((left, top, right, bottom), view.size, fill=fill))
        wanted = float(view.scale().max())
        # The view reads up to two pixels more on each side, of those that it gets.
        rim = 2 / min(wanted, 1.0)
        low = np.floor(view.corners.min(axis=0) - rim).astype(int).tolist()
        high = np.ceil(view.corners.max(axis=0) + rim).astype(int).tolist()
        found = self._read_region((*low, *high), zoom=wanted)
        scaled = View(corners=view.corners * found.zoom, size=view.size)
        left, top = int(found.left * found.zoom), int(found.top * found.zoom)
        return tv_tensors.Image(scaled.pixels(found.pixels, fill=fill, origin=(left, top)))

    def _part(self, part: Part, size: tuple[int, int], *, fill: float) -> Tensor:
        """Return (left, top, right, bottom) of the image, ``fill`` beyond it, resized once."""
        left, top, right, bottom = part
        wanted = max(size[0] / (bottom - top), size[1] / (right - left))
        found = self._read_region(part, zoom=wanted)
        return _resized_part(found.pixels, _scaled(part, found), size, fill=fill)

    def _read_region(self, part: Part, *, zoom: float) -> ImageRegion:
        """Return what lies of a part in the image, or a pixel at its rim if nothing does."""
        height, width = self.size
        left, top = min(max(part[0], 0), width - 1), min(max(part[1], 0), height - 1)
        right, bottom = min(max(part[2], left + 1), width), min(max(part[3], top + 1), height)
        return self.source.read_region((left, top, right, bottom), zoom=zoom)

    def _finished(self, pixels: Tensor) -> tv_tensors.Image:
        image = tv_tensors.Image(pixels)
        for step in self.steps:
            image = step(image)
        return image


def _scaled(part: Part, found: ImageRegion) -> list[float]:
    """Return the sides of a part of the image in pixels of ``found``."""
    return [(side - (found.left, found.top)[i % 2]) * found.zoom for i, side in enumerate(part)]


def _whole(side: int, zoom: float, length: int) -> int:
    """Return the nearest multiple of ``1 / zoom`` up to ``length``."""
    by = round(1 / zoom)
    return min((side + by // 2) // by, length // by) * by


def nothing_to_move(others: Sequence[Any]) -> bool:
    """Return whether what comes with an image is empty targets, so that torchvision need not look through it."""
    return all(isinstance(other, dict) and not other for other in others)


def _resized_part(pixels: Tensor, part: list[float], size: tuple[int, int], *, fill: float) -> Tensor:
    """Return (left, top, right, bottom) of ``pixels`` at ``size``; sides may lie between pixels."""
    left, top, right, bottom = part
    low_x, low_y, high_x, high_y = math.floor(left), math.floor(top), math.ceil(right), math.ceil(bottom)
    cut: Tensor = cut_pixels(pixels, (low_x, low_y, high_x, high_y), fill=fill)
    if (left, top, right, bottom) == (low_x, low_y, high_x, high_y):
        if tuple(cut.shape[-2:]) == size:
            return cut
        whole: Tensor = functional.resize_image(cut, list(size), antialias=True)
        return whole
    if (left, top) == (low_x, low_y):
        # Scales given as numbers: the last row and column may be parts of one, which sizes cannot say.
        scales = [_ROUNDING * size[0] / (bottom - top), _ROUNDING * size[1] / (right - left)]
        scaled = torch.nn.functional.interpolate(
            cut[None], scale_factor=scales, mode="bilinear", antialias=True
        )
        return scaled[0, :, : size[0], : size[1]]
    box = (left - low_x, top - low_y, right - low_x, bottom - low_y)
    picture = Image.fromarray(np.ascontiguousarray(cut.permute(1, 2, 0).numpy()))
    between = picture.resize((size[1], size[0]), Image.Resampling.BILINEAR, box=box)
    return torch.from_numpy(np.array(between)).permute(2, 0, 1)
