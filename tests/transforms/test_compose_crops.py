"""A random crop of an undecoded image matches the crop of the decoded image at every decoded size."""

from __future__ import annotations

import math

import pytest
import torch
from torchvision.transforms import v2

from lit_loader.images import open_image
from lit_loader.transforms import CropToObjects, DecodeAwareCompose, RandomHorizontalFlip, RandomResizedCrop
from tests.support.photo_like import jpeg, photo_like
from tests.support.read_both_ways import HEIGHT, LARGEST, LEAST_PSNR, WIDTH, both

PAIRS = ((0, 1),)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "image.jpg"
    path.write_bytes(jpeg(photo_like(HEIGHT, WIDTH)))
    return path


@pytest.mark.parametrize("kind", [RandomResizedCrop, v2.RandomResizedCrop])
@pytest.mark.parametrize("side", [40, 70])
def test_draws_and_targets_are_those_of_the_decoded_image(path, kind, side):
    transform = DecodeAwareCompose([kind(side), RandomHorizontalFlip(flip_pairs=PAIRS)])
    changed = False
    for seed in range(12):
        apart = both(transform, path, 3, seed=seed)
        mean = float((apart**2).mean())
        assert not mean or 10 * math.log10(255**2 / mean) >= LEAST_PSNR
        assert apart.max() <= LARGEST
        changed |= mean > 0
    assert changed, "nothing was decoded at a smaller size"


def test_a_crop_of_ours_is_resized_from_whole_pixels(path, monkeypatch):
    """A box of parts of pixels takes a third more time."""
    monkeypatch.setattr("lit_loader.images.resampling._resize_with_pillow", lambda *_: pytest.fail("parts"))
    transform = DecodeAwareCompose([RandomResizedCrop(40, scale=(0.2, 1.0))])
    for seed in range(300):
        torch.manual_seed(seed)
        transform.read(open_image(path), {})


def test_a_turned_view_that_is_too_large_for_its_region_alone_shows_the_decoded_image(path, monkeypatch):
    monkeypatch.setattr("lit_loader.images.views._MAX_CUT_PIXELS", 1 << 10)
    view = CropToObjects(size=250, around="image", margin=0, shift=0.9, rotation=45)
    for seed in range(12):
        assert both(DecodeAwareCompose([view]), path, 0, seed=seed).max() == 0  # nothing is shrunk to half


def test_a_crop_that_ends_with_the_image_still_ends_there(path):
    """At 1/8 the image's 317 columns are 39 and a part of one."""
    full_crop = RandomResizedCrop((29, 39), scale=(1, 1), ratio=(WIDTH / HEIGHT, WIDTH / HEIGHT))
    # equal targets, but pixels read at 1/8
    assert both(DecodeAwareCompose([full_crop]), path, 3, seed=0).max() > 0
