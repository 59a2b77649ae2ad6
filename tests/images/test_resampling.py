"""Resampled pixels have the bits of torchvision's crop and resize, whatever surrounds them in memory."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision.transforms.v2 import functional

from lit_loader.images import resampling
from lit_loader.images.resampling import resample

SIDE = st.integers(1, 40)


def pixels_of(height, width, *, seed=0):
    """Random pixels, the three values of one side by side, as decoders give them."""
    draws = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (height, width, 3), dtype=torch.uint8, generator=draws).permute(2, 0, 1)


@given(st.data(), SIDE, SIDE, SIDE, SIDE, st.booleans())
def test_a_cut_of_whole_pixels_upsample_matches_torchvision(data, height, width, new_height, new_width, planes):
    pixels = pixels_of(height, width)
    left = data.draw(st.integers(0, width - 1))
    top = data.draw(st.integers(0, height - 1))
    right = data.draw(st.integers(left + 1, width))
    bottom = data.draw(st.integers(top + 1, height))
    size = (new_height, new_width)
    if size == (1, 1):
        return  # torch 2.15 fails an assertion of its own there
    resampled = resample(pixels.contiguous() if planes else pixels, (left, top, right, bottom), size)
    expected = functional.resize_image(pixels[:, top:bottom, left:right].contiguous(), list(size), antialias=True)
    assert torch.equal(resampled, expected)


@pytest.mark.parametrize("size", [(20, 30), (10, 15), (45, 50)])
def test_the_result_has_memory_of_its_own_or_what_it_was_given(size):
    pixels = pixels_of(20, 30)
    given_memory = []

    def empty(shape, dtype):
        given_memory.append(torch.empty(tuple(shape), dtype=dtype))
        return given_memory[-1]

    plain = resample(pixels, (0, 0, 30, 20), size)
    placed = resample(pixels, (0, 0, 30, 20), size, empty=empty)
    original = pixels.clone()
    plain.zero_()
    assert torch.equal(pixels, original)
    assert [placed.data_ptr()] == [memory.data_ptr() for memory in given_memory]
    assert placed.permute(1, 2, 0).is_contiguous()


def test_beyond_the_image_is_fill():
    resampled = resample(pixels_of(8, 8), (-4, -4, 8, 8), (12, 12), fill=9)
    assert (resampled[:, :4] == 9).all()
    assert (resampled[:, :, :4] == 9).all()
    assert torch.equal(resampled[:, 4:, 4:], pixels_of(8, 8))


def test_without_a_kernel_for_bytes_torchvision_resizes(monkeypatch):
    monkeypatch.setattr(resampling, "_upsample_matches_torchvision", lambda: False)
    monkeypatch.setattr(resampling, "_upsample", None)
    pixels = pixels_of(30, 40)
    expected = functional.resize_image(pixels, [17, 50], antialias=True)
    assert torch.equal(resample(pixels, (0, 0, 40, 30), (17, 50)), expected)


@pytest.mark.parametrize("planes", [True, False])
def test_the_last_column_may_be_part_of_one(planes):
    """A ramp of 37.5 columns: its right end is where half of the last one ends."""
    ramp = torch.arange(38, dtype=torch.uint8).mul(6).expand(3, 20, 38)
    pixels = ramp.contiguous() if planes else ramp.permute(1, 2, 0).contiguous().permute(2, 0, 1)
    resampled = resample(pixels, (0, 0, 37.5, 20), (20, 75)).float()
    assert (resampled[0, 0, :-1] - (torch.arange(74) * 3 - 1.5).clamp(0)).abs().max() <= 1


def test_resampling_ignores_the_default_device():
    pixels = pixels_of(20, 30)
    expected = resampling._upsample_matches_torchvision()
    with torch.device("meta"):
        assert resampling._upsample_matches_torchvision.__wrapped__() == expected
        resampled = resample(pixels, (2, 3, 22, 19), (10, 12))
    assert torch.equal(resampled, resample(pixels, (2, 3, 22, 19), (10, 12)))
