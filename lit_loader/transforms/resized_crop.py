"""torchvision's random crop of any size and shape, drawn at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from lit_loader.seeding import rand

__all__ = ["RandomResizedCrop"]

_TRIES = 10  # as torchvision's


class RandomResizedCrop(v2.RandomResizedCrop):  # type: ignore[misc] # torchvision is untyped
    """torchvision's ``RandomResizedCrop``; all numbers come from one draw of 40.

    torchvision draws them one by one, which takes longer than to resize a small crop. Crops have the distribution of
    torchvision's, but those that are shrunk to 1/2, 1/4 or 1/8 or less are grown to whole multiples of 2, 4 or 8
    pixels, by less than a pixel of the result at each side: of a JPEG that is decoded at that scale they show whole
    pixels, which are resized in two thirds of the time.

    Determinism: one draw from torch's global generator, whatever the image.

    Args:
        size: As in torchvision, and so are all others.
    """

    def make_params(self, flat_inputs: list[Any]) -> dict[str, int]:
        """Draw top, left, height and width of the crop, in pixels, for an image, as torchvision asks for it."""
        return self.crop(functional.get_size(flat_inputs[0]))

    def crop(self, size: Sequence[int]) -> dict[str, int]:
        """Draw top, left, height and width of the crop, in pixels, for an image of a size (height, width)."""
        height, width = size
        (least, most), (narrow, wide) = self.scale, self.ratio
        low, high = math.log(narrow), math.log(wide)
        numbers = rand(4 * _TRIES).tolist()  # flat: ten lists of four take twice the time
        for area, shape, down, right in zip(*[iter(numbers)] * 4, strict=True):
            pixels = height * width * (least + (most - least) * area)
            ratio = math.exp(low + (high - low) * shape)
            h, w = round(math.sqrt(pixels / ratio)), round(math.sqrt(pixels * ratio))
            if 0 < w <= width and 0 < h <= height:
                top, left = int(down * (height - h + 1)), int(right * (width - w + 1))
                return self._grown(top, left, h, w, size)
        # the middle, of the nearest shape allowed
        h, w = min(height, max(1, round(width / narrow))), min(width, max(1, round(height * wide)))
        return self._grown((height - h) // 2, (width - w) // 2, h, w, size)

    def _grown(self, top: int, left: int, height: int, width: int, size: Sequence[int]) -> dict[str, int]:
        """Return the crop as the class says, by the largest multiple of which it then shows enough pixels."""
        for by in (8, 4, 2):
            low_y, high_y = top // by * by, min(-(-(top + height) // by) * by, size[0])
            low_x, high_x = left // by * by, min(-(-(left + width) // by) * by, size[1])
            if by * self.size[0] <= high_y - low_y and by * self.size[1] <= high_x - low_x:
                return {"top": low_y, "left": low_x, "height": high_y - low_y, "width": high_x - low_x}
        return {"top": top, "left": left, "height": height, "width": width}
