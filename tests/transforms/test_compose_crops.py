"""A random crop that reads a JPEG at 1/2, 1/4 or 1/8 shows whole pixels of it."""

from __future__ import annotations

import math

from torchvision.transforms import v2

from lit_loader.datasets import EncodedImage
from lit_loader.transforms import DecodeAwareCompose, RandomHorizontalFlip
from lit_loader.transforms.lazy_image import LazyImage
from tests.photo_like import jpeg, photo_like
from tests.read_both_ways import HEIGHT, LARGEST, LEAST_PSNR, WIDTH, both

PAIRS = ((0, 1),)


class WholePixelsCrop(v2.RandomResizedCrop):
    """A random crop of the decoded image whose sides are moved as those of one decoded at 1/2, 1/4 or 1/8."""

    moved = 0

    def make_params(self, flat_inputs):
        drawn = super().make_params(flat_inputs)
        by = next((by for by in (8, 4, 2) if max(40 / drawn["height"], 40 / drawn["width"]) * by <= 1), 1)
        sides = {}
        for start, length, limit in (("top", "height", HEIGHT), ("left", "width", WIDTH)):
            low, high = drawn[start], drawn[start] + drawn[length]
            nearest = [min(math.floor(side / by + 0.5) * by, limit) for side in (low, high)]
            self.moved = max(
                self.moved, *(abs(a - b) / by for a, b in zip(nearest, (low, high), strict=True))
            )
            sides |= {start: nearest[0], length: nearest[1] - nearest[0]}
        return sides


def test_a_random_crop_is_moved_to_whole_pixels_of_what_is_decoded_and_its_targets_with_it(tmp_path):
    path = tmp_path / "image.jpg"
    path.write_bytes(jpeg(photo_like(HEIGHT, WIDTH)))
    rest = [RandomHorizontalFlip(flip_pairs=PAIRS)]
    transform, expected = (
        DecodeAwareCompose([v2.RandomResizedCrop(40), *rest]),
        DecodeAwareCompose([WholePixelsCrop(40), *rest]),
    )
    transform.forward = expected.forward  # of the decoded image
    for seed in range(12):
        apart = both(transform, path, 3, seed=seed)
        mean = float((apart**2).mean())
        assert not mean or 10 * math.log10(255**2 / mean) >= LEAST_PSNR
        assert apart.max() <= LARGEST
    assert 0.25 <= expected.transforms[0].moved <= 0.5, "in pixels of what is decoded"


def test_a_crop_that_ends_with_the_image_still_ends_there(tmp_path):
    """At 1/8 the image's 317 columns are 39 and a part of one."""
    path = tmp_path / "image.jpg"
    path.write_bytes(jpeg(photo_like(HEIGHT, WIDTH)))
    whole = v2.RandomResizedCrop((29, 39), scale=(1, 1), ratio=(WIDTH / HEIGHT, WIDTH / HEIGHT))
    assert both(DecodeAwareCompose([whole]), path, 3, seed=0).max() > 0  # equal targets, pixels read at 1/8


def test_a_crop_of_one_pixel_is_not_empty(tmp_path):
    path = tmp_path / "image.jpg"
    path.write_bytes(jpeg(photo_like(40, 23)))
    shown, part = LazyImage(EncodedImage(path)).cropped((15, 0, 23, 40), (1, 1))
    assert part == (16, 0, 23, 40)
    assert shown.read().shape == (3, 1, 1)
