"""`MixUp`: two images blended into one, with the objects of both."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lit_loader.errors import SettingError
from lit_loader.images.lazy_image import DecodedImage
from lit_loader.mixing import MixSample
from lit_loader.schedules import Scheduled, current_value
from lit_loader.seeding import SampleRng
from lit_loader.transforms.geometry import letterbox_geometry
from lit_loader.transforms.image_mix import ImageMix, checked_setting, fields_of, is_number, pixel_rows
from lit_loader.transforms.mix_objects import Placement, cut, join, place

__all__ = ["MixUp"]

_LEVELS = 256
_ROWS_AT_ONCE = 32


class MixUp(ImageMix):
    """Blend an image with another one, and keep the objects of both.

    The canvas is the sample's own image. The partner is resized to fit into it with its aspect ratio, and its place is
    drawn uniformly. There a pixel is ``lambda * image + (1 - lambda) * partner``, with lambda drawn from
    Beta(alpha, alpha) and rounded to 1/256; elsewhere the image is unchanged. All objects of both images stay, with
    equal weight in the loss.

    Determinism: one beta and two uniform numbers of the sample's generator.

    Args:
        p: Probability that a sample is mixed; may be a schedule of epochs.
        alpha: Parameter of the beta distribution, above 0; may be a schedule. At 32, 9 of 10 values of lambda are
            between 0.4 and 0.6.

    Raises:
        SettingError: An argument is outside of its range.

    Source:
        Zhang et al. 2018, mixup: Beyond Empirical Risk Minimization; for detection Zhang et al. 2019, Bag of Freebies
        for Training Object Detection Neural Networks, section 3.1.
    """

    def __init__(self, *, p: Scheduled = 1.0, alpha: Scheduled = 32.0) -> None:
        super().__init__(p=p)
        self.alpha = checked_setting("alpha", alpha, _check_alpha)

    def num_partners(self, epoch: int) -> int:
        """Return 1."""
        return 1

    def mixed(self, samples: list[MixSample], rng: SampleRng) -> MixSample:
        """Return the blend of two samples.

        Raises:
            ValueError: There are not two samples.
        """
        if len(samples) != 2:
            raise ValueError(f"MixUp blends 2 samples, got {len(samples)}.")
        sample, partner = samples
        alpha = current_value(self.alpha)
        weight = round(float(rng.numpy.beta(alpha, alpha)) * _LEVELS)
        x_draw, y_draw = rng.numpy.random(2).tolist()
        height, width = sample.image.size
        partner_height, partner_width = partner.image.size
        size, _ = letterbox_geometry(partner.image.size, (height, width))
        corner = (int(x_draw * (width - size[1] + 1)), int(y_draw * (height - size[0] + 1)))
        placement = Placement((0, 0, partner_width, partner_height), size, corner)
        canvas = sample.image.read()
        _blend(cut(pixel_rows(canvas), placement.region), pixel_rows(partner.image.resized(size).read()), weight)
        canvas_size = (height, width)
        whole_image = Placement((0, 0, width, height), canvas_size)
        fields = fields_of(sample)
        targets = [
            place(target, place_on_canvas, canvas_size, min_visible=0, fields=fields)
            for target, place_on_canvas in ((sample.target, whole_image), (partner.target, placement))
        ]
        return MixSample(DecodedImage(canvas), join(targets, canvas_size, fields=fields), fields=sample.fields)


def _blend(pixels: npt.NDArray[np.uint8], partner: npt.NDArray[np.uint8], weight: int) -> None:
    """Blend pixels in place, rounded to nearest; ``weight / 256`` is their share, the remainder the partner's."""
    # Integers give the same bits on every machine; a few rows at a time stay in the processor's cache.
    for start in range(0, len(pixels), _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        blended = pixels[rows].astype(np.uint16)
        blended *= np.uint16(weight)
        share = partner[rows].astype(np.uint16)
        share *= np.uint16(_LEVELS - weight)
        # At most 255 * 256 + 128, which is below 2**16.
        blended += share
        blended += np.uint16(_LEVELS // 2)
        blended >>= np.uint16(8)
        pixels[rows] = blended


def _check_alpha(name: str, value: Any) -> None:
    if not is_number(value) or value <= 0:
        raise SettingError(name, value, "is not a number above 0")
