"""A region of a JPEG has the bits of the whole image, from every decoder and at every scale."""

from __future__ import annotations

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lit_loader.images import decode_image, open_image
from tests.support.jpeg_decoders import DECODERS, UNNAMED, only, with_sampling
from tests.support.photo_like import jpeg, photo_like

SAMPLINGS = ("11", "21", "22", "12", "41", "14", "grey", UNNAMED)
NOT_TURBOS = (UNNAMED, "41")  # the latter but where it starts at a block of 32 columns
PROGRESSIVE = ("11", "21", "22", "grey")  # the others have blocks in another arrangement, which scans leave out
KINDS = {"baseline": {}, "progressive": {"progressive": True}, "restarts": {"restart_marker_blocks": 3}}

BLOCK_SIDES = st.integers(0, 18).map(lambda block: 8 * block)  # colours are interpolated across them


@functools.cache
def encoded(size, sampling, kind):
    image = photo_like(*size)
    if sampling == "grey":
        return jpeg(image.convert("L"), **KINDS[kind])
    return with_sampling(image, sampling, **KINDS[kind])


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_region_has_the_bits_of_the_whole_image(tmp_path, decoder):
    path = tmp_path / "image.jpg"

    @settings(max_examples=200, deadline=None, database=None, derandomize=True)
    @given(
        size=st.sampled_from([(97, 131), (64, 96), (16, 45), (133, 17)]),
        sampling=st.sampled_from(SAMPLINGS),
        kind=st.sampled_from(sorted(KINDS)),
        shrink=st.sampled_from([1, 2, 4, 8]),
        sides=st.tuples(*[st.builds(sum, st.tuples(BLOCK_SIDES, st.sampled_from([0, 0, 1, 7])))] * 4),
    )
    def check(size, sampling, kind, shrink, sides):
        if kind == "progressive" and sampling not in PROGRESSIVE:
            kind = "baseline"
        path.write_bytes(encoded(size, sampling, kind))
        with only("pillow"):
            image = open_image(path)
            height, width = image.size
            full_region = image.read_region((0, 0, width, height), zoom=1 / shrink)
        left, right = sorted(min(side, width - 1) for side in sides[:2])
        top, bottom = sorted(min(side, height - 1) for side in sides[2:])
        with only("pillow" if sampling in NOT_TURBOS else decoder):
            region = open_image(path).read_region((left, top, right + 1, bottom + 1), zoom=1 / shrink)
        factor = 1 if min(image.size) < 16 else shrink
        assert region[1:] == (left // factor * factor, top // factor * factor, 1 / factor)
        rows = slice(top // factor, bottom // factor + 1)
        columns = slice(left // factor, right // factor + 1)
        assert torch.equal(region.pixels, full_region.pixels[:, rows, columns])
        if factor == 1:
            assert torch.equal(full_region.pixels, decode_image(path))

    check()


def test_parts_of_a_cropped_image_have_its_pixels_at_every_scale(tmp_path):
    path = tmp_path / "image.jpg"
    path.write_bytes(jpeg(photo_like(97, 131)))
    image = open_image(path)

    @settings(max_examples=200, deadline=None, database=None, derandomize=True)
    @given(
        corners=st.tuples(*[st.tuples(st.integers(0, 12), st.integers(0, 12)).map(sorted)] * 2),
        unit=st.sampled_from([1, 2, 4, 8]),
        part=st.tuples(*[st.floats(0, 1)] * 4),
        zoom=st.sampled_from([1, 1 / 2, 1 / 4, 1 / 8]),
    )
    def check(corners, unit, part, zoom):
        (x0, x1), (y0, y1) = corners
        # Only a side at the image's edge may have a length that 8 does not divide.
        region = (x0 * unit, y0 * unit, min(x1 * unit + unit, 131), min(y1 * unit + unit, 97))
        cropped = image.cropped(region)
        height, width = cropped.size
        assert (width, height) == (region[2] - region[0], region[3] - region[1])
        x_min, x_max = sorted(int(share * (width - 1)) for share in part[:2])
        y_min, y_max = sorted(int(share * (height - 1)) for share in part[2:])
        pixels, x, y, scale = cropped.read_region((x_min, y_min, x_max + 1, y_max + 1), zoom=zoom)
        assert scale >= zoom
        assert (x * scale, y * scale) == (int(x * scale), int(y * scale))
        # The pixels contain the part, and none of them is outside the region.
        assert x <= x_min
        assert y <= y_min
        assert x_max < x + pixels.shape[2] / scale
        assert y_max < y + pixels.shape[1] / scale
        if region[2] < 131:
            assert x + pixels.shape[2] / scale <= width
        full_pixels = image.read_region((0, 0, 131, 97), zoom=scale).pixels
        column, row = ((start + offset) * scale for start, offset in zip(region[:2], (x, y), strict=True))
        assert (column, row) == (int(column), int(row))
        rows = slice(int(row), int(row) + pixels.shape[1])
        columns = slice(int(column), int(column) + pixels.shape[2])
        assert torch.equal(pixels, full_pixels[:, rows, columns])

    check()
