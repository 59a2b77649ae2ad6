"""Crops far larger than their image: the same pixels, and no more memory than the image and the result ask for."""

from __future__ import annotations

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torchvision import tv_tensors

from lit_loader.images import views
from lit_loader.transforms import CropToObjects, classification_transforms
from tests.support.drawn_samples import check_marks, draw
from tests.support.seeded import seeded


def most_memory(function):
    """Return the most bytes that one operator asked for."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        function()
    return max(event.cpu_memory_usage for event in profiled.events())


@pytest.mark.parametrize("settings", [{}, {"rotation": 25}], ids=str)
@pytest.mark.parametrize("shift", [0.0, 0.3])
def test_the_marks_land_where_the_points_say(settings, shift, monkeypatch):
    monkeypatch.setattr(views, "_MAX_CUT_PIXELS", 0)
    crop = CropToObjects(size=300, margin=2.4, fill=90, shift=shift, **settings)
    seen = 0
    for seed in range(8):
        image, target = seeded(seed, crop, *draw(objects=(0,)))
        seen += check_marks(image, target, tolerance=0.2)
    assert seen > 12


@pytest.mark.parametrize("settings", [{}, {"rotation": 25}], ids=str)
def test_the_pixels_are_those_of_a_cut_that_was_made(settings, monkeypatch):
    crop = CropToObjects(size=96, margin=3, fill=90, shift=0.2, **settings)
    for seed in range(4):
        images = []
        for limit in (1 << 24, 0):
            monkeypatch.setattr(views, "_MAX_CUT_PIXELS", limit)
            images.append(seeded(seed, crop, *draw(objects=(0,)))[0].float())
        off = (images[0] - images[1]).abs()
        assert off.mean() < 0.7
        assert (off > 12).float().mean() < 0.05  # the image's rim alone
        assert (images[1] == 90).float().mean() > 0.3


@pytest.mark.parametrize("settings", [{}, {"rotation": 30}], ids=str)
def test_a_box_of_a_million_pixels_takes_no_memory(settings):
    image, target = draw(objects=(0,))
    huge = torch.tensor([[-1e6, -1e6, 1e6, 1e6]])
    target["boxes"] = tv_tensors.BoundingBoxes(huge, format="XYXY", canvas_size=(110, 150))
    crop = CropToObjects(size=64, fill=9, **settings)
    assert most_memory(lambda: crop(image, target)) < 10e6
    crop_image, moved = crop(image, target)
    assert crop_image.shape == (3, 64, 64)
    assert (crop_image == 9).float().mean() > 0.99
    assert torch.isfinite(moved["keypoints"]).all()


def test_a_long_strip_in_a_square_takes_no_memory():
    strip = tv_tensors.Image(torch.full((3, 400, 12_000), 200, dtype=torch.uint8))
    transform = classification_transforms(False, size=64, resize="letterbox", to_float=False)
    assert most_memory(lambda: transform(strip)) < 20e6  # the strip has 14e6, the square 432e6
    result = transform(strip)
    assert (result[:, :30] == 0).all()
    assert (result[:, 34:] == 0).all()
    assert result[:, 31:33].min() > 150


def test_masks_of_such_a_view_stay_masks(monkeypatch):
    monkeypatch.setattr(views, "_MAX_CUT_PIXELS", 0)
    image, target = draw(objects=(0,))
    target["masks"] = tv_tensors.Mask(torch.ones((1, 110, 150), dtype=torch.uint8))
    for settings in ({}, {"rotation": 20}):
        _, moved = CropToObjects(size=64, margin=3, fill=200, **settings)(image, target)
        assert isinstance(moved["masks"], tv_tensors.Mask)
        assert set(moved["masks"].unique().tolist()) == {0, 1}
