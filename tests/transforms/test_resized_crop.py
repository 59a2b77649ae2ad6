"""The random crop that is drawn at once: torchvision's crops, of torchvision's distribution."""

from __future__ import annotations

import pytest
import torch
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from lit_loader.transforms import RandomResizedCrop
from tests.support.seeded import seeded

SHRINKS_NOTHING = 900


def drawn(transform, height, width, *, num):
    """Return the area, the log of the ratio, and the relative position of the crop for each draw."""
    image = torch.empty((0, height, width), dtype=torch.uint8).as_subclass(tv_tensors.Image)
    torch.manual_seed(0)
    rows = []
    for _ in range(num):
        crop = transform.make_params([image])
        assert 0 <= crop["top"] <= height - crop["height"]
        assert 0 <= crop["left"] <= width - crop["width"]
        rows.append(
            (
                crop["height"] * crop["width"] / (height * width),
                crop["width"] / crop["height"],
                crop["top"] / max(1, height - crop["height"]),
                crop["left"] / max(1, width - crop["width"]),
            )
        )
    return torch.tensor(rows)


def largest_gap(ours, theirs):
    """The Kolmogorov-Smirnov distance of two samples."""
    both = torch.cat([ours, theirs]).sort().values
    shares = [torch.searchsorted(sample.sort().values, both, right=True) / len(sample) for sample in (ours, theirs)]
    return float((shares[0] - shares[1]).abs().max())


@pytest.mark.parametrize(
    ("size", "settings"),
    [
        ((375, 500), {}),
        ((200, 900), {}),
        ((300, 300), {"scale": (0.5, 0.6), "ratio": (0.5, 0.7)}),
        ((300, 40), {"scale": (0.9, 1.0)}),
    ],
    ids=str,
)
def test_crops_have_the_distribution_of_torchvisions(size, settings):
    num = 3000
    ours, theirs = (
        drawn(kind(SHRINKS_NOTHING, **settings), *size, num=num) for kind in (RandomResizedCrop, v2.RandomResizedCrop)
    )
    bound = 2.2 * (2 / num) ** 0.5  # 1 in 8,000 of equal distributions is farther apart
    for column in range(4):
        assert largest_gap(ours[:, column], theirs[:, column]) < bound


@pytest.mark.parametrize("size", [(300, 20), (20, 300), (1, 1), (1, 900)])
def test_without_a_fitting_crop_the_central_crop_matches_torchvision(size):
    image = tv_tensors.Image(torch.zeros((3, *size), dtype=torch.uint8))
    settings = {"scale": (0.99, 1.0), "ratio": (0.9, 1.1)}
    ours, theirs = (
        kind(SHRINKS_NOTHING, **settings).make_params([image]) for kind in (RandomResizedCrop, v2.RandomResizedCrop)
    )
    assert ours == theirs


@pytest.mark.parametrize("ratio", [(0.9, 1.1), (5, 6)])  # the second fits nowhere: the middle
@pytest.mark.parametrize("side", [200, 120, 60, 30, 10])
def test_a_crop_that_is_shrunk_to_a_half_or_less_has_whole_pixels_at_that_scale(side, ratio):
    """And it is the plain crop, grown by less than a pixel of the result at each side."""
    image = torch.empty((0, 301, 299), dtype=torch.uint8).as_subclass(tv_tensors.Image)
    settings = {"scale": (0.5, 1.0), "ratio": ratio}
    for seed in range(100):
        plain = seeded(seed, RandomResizedCrop(SHRINKS_NOTHING, **settings).make_params, [image])
        crop = seeded(seed, RandomResizedCrop(side, **settings).make_params, [image])
        shorter_side = min(crop["height"], crop["width"])
        # the factor that a JPEG is shrunk by
        factor = max(factor for factor in (1, 2, 4, 8) if factor == 1 or factor * side <= shorter_side)
        for start, length, limit in (("top", "height", 301), ("left", "width", 299)):
            low = crop[start]
            high = crop[start] + crop[length]
            assert low % factor == 0
            assert high % factor == 0 or high == limit
            assert high <= limit
            assert 0 <= plain[start] - low < factor
            assert 0 <= high - plain[start] - plain[length] < factor


def test_a_crop_is_not_empty_where_torchvisions_is():
    crop = RandomResizedCrop(8, ratio=(5, 6)).crop((15, 1))
    assert crop == {"top": 7, "left": 0, "height": 1, "width": 1}


def test_pixels_and_targets_are_those_of_torchvisions_crop_and_one_draw_is_taken():
    image = tv_tensors.Image(torch.randint(0, 256, (3, 90, 120), dtype=torch.uint8))
    boxes = tv_tensors.BoundingBoxes([[10.0, 20, 50, 80]], format="XYXY", canvas_size=(90, 120))
    transform = RandomResizedCrop((30, 40))
    crop_pixels, target = seeded(1, transform, image, {"boxes": boxes})
    next_draw = torch.rand(3)
    crop = seeded(1, transform.make_params, [image])
    assert torch.equal(crop_pixels, functional.resized_crop(image, **crop, size=[30, 40], antialias=True))
    assert torch.equal(target["boxes"], functional.resized_crop(boxes, **crop, size=[30, 40]))
    seeded(1, torch.rand, 10, 4)
    assert torch.equal(torch.rand(3), next_draw)
