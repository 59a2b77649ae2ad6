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
