"""`Mosaic`: four images in the quarters of one canvas."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import torch

from lit_loader.errors import SettingError
from lit_loader.images.lazy_image import DecodedImage
from lit_loader.mixing import MixSample
from lit_loader.schedules import Schedule, Scheduled, current_value
from lit_loader.seeding import SampleRng
from lit_loader.transforms.image_mix import (
    ImageMix,
    check_fraction,
    check_pair,
    check_scale,
    checked_setting,
    fields_of,
    is_number,
    pixel_rows,
)
from lit_loader.transforms.mix_objects import Placement, cut, join, place

__all__ = ["Mosaic"]

_NUM_IMAGES: Final = 4
_SHRINK_FACTORS: Final = (8, 4, 2)


class Mosaic(ImageMix):
    """Show four images in the quarters of one canvas.

    The crossing point of the quarters is drawn uniformly. Each image is resized by a factor ``s * min(H / h, W / w)``,
    s drawn uniformly from ``scale``, with H x W the canvas and h x w the image. A larger image shows a random crop in
    its quarter. A smaller one touches the crossing point, and the rest of the quarter is ``fill``. Only the pixels that
    are shown are decoded, and each is resampled once.

    An object stays if its quarter shows at least ``min_visible`` of its area: of its mask if it has one, else of its
    box. Boxes are clipped to the quarter, and to the rest of the mask. A crowd stays if any part of it is shown. Points
    outside of the quarter have visibility 0. Objects are in the order of the images: upper left (the sample), upper
    right, lower left, lower right.

    Determinism: 14 uniform numbers of the sample's generator.

    Args:
        p: Probability that a sample is mixed; may be a schedule of epochs. So may all other arguments, and their
            entries; ``size`` may also be drawn for every batch.
        size: Height and width of the canvas, in pixels, or one number for both; None for the size of the sample's own
            image.
        center: Smallest and largest position of the crossing point, as fractions of the canvas, in [0, 1].
        scale: Smallest and largest s, above 0.
        min_visible: Smallest visible share of an object that stays, in [0, 1].
        fill: Value of pixels without an image, a whole number from 0 to 255.

    Raises:
        SettingError: An argument is outside of its range.

    Source:
        Bochkovskiy et al. 2020, YOLOv4, section 3.4.
    """

    def __init__(
        self,
        *,
        p: Scheduled = 1.0,
        size: Scheduled | Sequence[Scheduled] | None = None,
        center: Schedule | Sequence[Scheduled] = (0.25, 0.75),
        scale: Schedule | Sequence[Scheduled] = (0.5, 1.5),
        min_visible: Scheduled = 0.1,
        fill: Scheduled = 114,
    ) -> None:
        super().__init__(p=p)
        self.size = checked_setting("size", size, _check_size)
        self.center = checked_setting("center", center, partial(check_pair, low=0, high=1))
        self.scale = checked_setting("scale", scale, check_scale)
        self.min_visible = checked_setting("min_visible", min_visible, check_fraction)
        self.fill = checked_setting("fill", fill, _check_fill)

    def num_partners(self, epoch: int) -> int:
        """Return 3."""
        return _NUM_IMAGES - 1

    def mixed(self, samples: list[MixSample], rng: SampleRng) -> MixSample:
        """Return the mosaic of four samples.

        Raises:
            ValueError: There are not four samples.
        """
        if len(samples) != _NUM_IMAGES:
            raise ValueError(f"a mosaic is made of {_NUM_IMAGES} samples, got {len(samples)}.")
        height, width = self._canvas_size(samples[0])
        x_draw, y_draw, *image_draws = rng.numpy.random(2 + 3 * _NUM_IMAGES).tolist()
        low, high = current_value(self.center)
        x = _crossing(low + (high - low) * x_draw, width)
        y = _crossing(low + (high - low) * y_draw, height)
        quarters = ((0, 0, x, y), (x, 0, width, y), (0, y, x, height), (x, y, width, height))
        canvas = np.full((height, width, 3), round(current_value(self.fill)), dtype=np.uint8)
        min_visible = current_value(self.min_visible)
        low, high = current_value(self.scale)
        fields = fields_of(samples[0])
        targets = []
        for number, (sample, quarter) in enumerate(zip(samples, quarters, strict=True)):
            room_width = quarter[2] - quarter[0]
            room_height = quarter[3] - quarter[1]
            # The canvas is one pixel wide or high.
            if not room_width or not room_height:
                continue
            scale_draw, *place_draws = image_draws[3 * number : 3 * number + 3]
            image_height, image_width = sample.image.size
            factor = (low + (high - low) * scale_draw) * min(height / image_height, width / image_width)
            x0, x1, shown_width = _shown_span(image_width, room_width, factor, place_draws[0])
            y0, y1, shown_height = _shown_span(image_height, room_height, factor, place_draws[1])
            # A smaller image touches the crossing point.
            corner = (x - shown_width if number % 2 == 0 else x, y - shown_height if number < 2 else y)
            placement = Placement((x0, y0, x1, y1), (shown_height, shown_width), corner)
            cut(canvas, placement.region)[:] = pixel_rows(sample.image.part(placement.part, placement.size).read())
            target = place(sample.target, placement, (height, width), min_visible=min_visible, fields=fields)
            targets.append(target)
        image = DecodedImage(torch.from_numpy(canvas).permute(2, 0, 1))
        return MixSample(image, join(targets, (height, width), fields=fields), fields=samples[0].fields)

    def _canvas_size(self, sample: MixSample) -> tuple[int, int]:
        size = current_value(self.size)
        if size is None:
            return sample.image.size
        height, width = size if isinstance(size, list | tuple) else (size, size)
        return round(height), round(width)


def _crossing(fraction: float, side: int) -> int:
    """Return a coordinate of the crossing point; the upper left quarter always has pixels."""
    return max(1, min(side - 1, round(fraction * side)))


def _shown_span(side: int, room: int, factor: float, draw: float) -> tuple[int, int, int]:
    """Return what part of a side of an image its quarter shows.

    Args:
        side: Length of the image, in pixels.
        room: Length of the quarter.
        factor: Scale of the image.
        draw: Place of a crop, in [0, 1).

    Returns:
        First pixel of the image, first pixel after the part, and length of the part on the canvas.
    """
    if side * factor <= room:
        return 0, side, max(1, round(side * factor))
    length = min(side, max(1, round(room / factor)))
    start = int(draw * (side - length + 1))
    stop = start + length
    # A JPEG that is decoded at 1/8, 1/4 or 1/2 then has whole pixels at both ends, and resizing takes two thirds of the
    # time. The part grows by less than a pixel of the canvas at each end.
    shrink = next((shrink for shrink in _SHRINK_FACTORS if factor * shrink <= 1), 1)
    return start // shrink * shrink, min(-(-stop // shrink) * shrink, side), room


def _check_size(name: str, value: Any) -> None:
    if value is None:
        return
    sides = value if isinstance(value, list | tuple) else [value]
    is_pair = len(sides) == 2 or not isinstance(value, list | tuple)
    if not is_pair or not all(is_number(side) and round(side) >= 1 for side in sides):
        raise SettingError(name, value, "is not (height, width) in pixels, or one number for both")


def _check_fill(name: str, value: Any) -> None:
    if not is_number(value) or not 0 <= value <= 255:
        raise SettingError(name, value, "is not a pixel value from 0 to 255")
