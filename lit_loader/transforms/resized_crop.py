"""torchvision's ``RandomResizedCrop`` with a single draw."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from lit_loader.seeding import rand
from lit_loader.transforms.moving import moved

__all__ = ["RandomResizedCrop"]

_NUM_TRIES = 10


class RandomResizedCrop(v2.RandomResizedCrop):  # type: ignore[misc] # torchvision is untyped
    """torchvision's ``RandomResizedCrop``, with all numbers from a single draw of 40.

    torchvision draws them one by one, which takes longer than resizing a small crop. Crops have the same distribution,
    but a crop to be shrunk to 1/2, 1/4 or 1/8 or less is first enlarged to a multiple of 2, 4 or 8 pixels, by less
    than a pixel of the result on each side. In a JPEG decoded at that scale it then has whole pixels, and resizing
    takes two thirds of the time.

    Determinism: one draw from torch's global generator, whatever the image.

    Args:
        size: See torchvision, as for all other arguments.
    """

    def make_params(self, flat_inputs: list[Any]) -> dict[str, int]:
        """Draw the top, left, height and width of a crop, in pixels, for an image; torchvision calls this."""
        return self.crop(functional.get_size(flat_inputs[0]))

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """Transform one leaf of the sample."""
        return moved(inpt, partial(super().transform, params=params))

    def crop(self, size: Sequence[int]) -> dict[str, int]:
        """Draw the top, left, height and width of a crop, in pixels, for an image of ``size`` (height, width)."""
        image_height, image_width = size
        min_scale, max_scale = self.scale
        min_ratio, max_ratio = self.ratio
        min_log_ratio = math.log(min_ratio)
        max_log_ratio = math.log(max_ratio)
        # A flat list: converting ten rows of four would take twice the time.
        numbers = rand(4 * _NUM_TRIES).tolist()
        for u_area, u_ratio, u_top, u_left in zip(*[iter(numbers)] * 4, strict=True):
            area = image_height * image_width * (min_scale + (max_scale - min_scale) * u_area)
            ratio = math.exp(min_log_ratio + (max_log_ratio - min_log_ratio) * u_ratio)
            height = round(math.sqrt(area / ratio))
            width = round(math.sqrt(area * ratio))
            if 0 < width <= image_width and 0 < height <= image_height:
                top = int(u_top * (image_height - height + 1))
                left = int(u_left * (image_width - width + 1))
                return self._aligned(top, left, height, width, size)
        # All tries failed: like torchvision, take the largest central crop with an allowed aspect ratio.
        height = min(image_height, max(1, round(image_width / min_ratio)))
        width = min(image_width, max(1, round(image_height * max_ratio)))
        return self._aligned((image_height - height) // 2, (image_width - width) // 2, height, width, size)

    def _aligned(self, top: int, left: int, height: int, width: int, size: Sequence[int]) -> dict[str, int]:
        """Enlarge a crop to multiples of 8, 4 or 2 pixels if it is to be shrunk by at least that factor."""
        # Largest factor first: a JPEG decoded at 1/8 costs the least.
        for factor in (8, 4, 2):
            aligned_top = top // factor * factor
            aligned_left = left // factor * factor
            aligned_height = min(-(-(top + height) // factor) * factor, size[0]) - aligned_top
            aligned_width = min(-(-(left + width) // factor) * factor, size[1]) - aligned_left
            if factor * self.size[0] <= aligned_height and factor * self.size[1] <= aligned_width:
                return {"top": aligned_top, "left": aligned_left, "height": aligned_height, "width": aligned_width}
        return {"top": top, "left": left, "height": height, "width": width}
