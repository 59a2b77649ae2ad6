"""A region of a JPEG has the bits of the whole image; shrunk, it stays within the bound; hostile files are refused."""

from __future__ import annotations

import contextlib
import math
import struct
import time

import numpy as np
import pytest
import torch
from PIL import Image

from lit_loader.errors import ImageError
from lit_loader.images import decode_image, open_image
from lit_loader.images.decoding import decode_bytes
from tests.support.jpeg_decoders import DECODERS, only
from tests.support.photo_like import jpeg, many_scans, photo_like


@pytest.fixture(params=DECODERS)
def decoder(request):
    with only(request.param):
        yield request.param


def written(tmp_path, data):
    path = tmp_path / "image.jpg"
    path.write_bytes(data)
    return path


def shown(image_region, region):
    """Return the pixels of a region at full size."""
    assert image_region.zoom == 1
    left, top, right, bottom = region
    return image_region.pixels[
        :, top - image_region.top : bottom - image_region.top, left - image_region.left : right - image_region.left
    ]


@pytest.mark.parametrize("zoom", [0.5, 0.26, 0.25, 0.125, 0.01])
def test_a_shrunk_region_is_the_smallest_that_is_enough(tmp_path, decoder, zoom):
    path = written(tmp_path, jpeg(photo_like(181, 243)))
    part, _, _, reached = open_image(path).read_region((0, 0, 243, 181), zoom=zoom)
    assert reached == {0.5: 0.5, 0.26: 0.5, 0.25: 0.25, 0.125: 0.125, 0.01: 0.125}[zoom]
    assert part.shape == (3, math.ceil(181 * reached), math.ceil(243 * reached))


@pytest.mark.parametrize("shape", [(184, 248), (181, 243)])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_turned_part_is_turned_as_the_whole_image(tmp_path, decoder, orientation, shape):
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = written(tmp_path, jpeg(photo_like(*shape), exif=exif, subsampling=0))
    full_image = decode_image(path)
    image = open_image(path)
    assert image.size == tuple(full_image.shape[1:])
    assert torch.equal(image.read_region((5, 7, 35, 40), zoom=1).pixels, full_image[:, 7:40, 5:35])
    assert decode_image(path).permute(1, 2, 0).is_contiguous()
    part, _, _, zoom = open_image(path).read_region((0, 0, *image.size[::-1]), zoom=0.5)
    expected = torch.nn.functional.interpolate(full_image[None].float(), part.shape[1:], mode="area")[0]
    assert (part.float() - expected).abs().mean() < 5  # 20 and more where it is turned wrongly
    assert zoom in ((0.5,) if shape[0] % 8 == 0 or orientation == 1 else (1,))
    if zoom == 0.5:
        inner = open_image(path).read_region((41, 30, 101, 77), zoom=0.5)
        assert inner[1:] == (40, 30, 0.5)
        assert torch.equal(inner.pixels, part[:, 15:39, 20:51])
    as_stored = open_image(path, exif_orientation=False)
    assert as_stored.size == shape


@pytest.mark.parametrize("mode", ["L", "CMYK", "RGB"])
def test_other_colours_and_other_formats_are_those_of_the_full_decode(tmp_path, decoder, mode):
    image = photo_like(80, 96).convert(mode)
    path = written(tmp_path, jpeg(image))
    assert torch.equal(open_image(path).read_region((0, 0, 96, 80), zoom=1).pixels, decode_image(path))
    if mode != "CMYK":
        image.save(tmp_path / "image.png")
        region = open_image(tmp_path / "image.png").read_region((3, 5, 20, 10), zoom=0.1)
        assert region[1:] == (0, 0, 1)
        assert torch.equal(region.pixels, decode_image(tmp_path / "image.png"))


@pytest.mark.parametrize("cut", [3, 100, 2000])
def test_a_truncated_file_is_refused_by_name_as_in_a_full_decode(tmp_path, decoder, cut):
    data = jpeg(photo_like(181, 243))
    path = written(tmp_path, data[:-cut])
    with pytest.raises(ImageError, match=r"image\.jpg"):
        open_image(path).read_region((0, 0, 40, 20), zoom=0.5)
    with pytest.raises(ImageError, match=r"image\.jpg"):
        decode_image(path)


def changed(kind, draws, data):
    """Bytes of a file: some changed, cut off at a place, cut out, or another size in the header."""
    data = bytearray(data)
    first, second = sorted(draws.integers(2, len(data), 2))
    if kind == "bytes":
        for at in draws.integers(2, len(data), 3):
            data[at] = draws.integers(256)
    elif kind == "size":
        at = data.index(b"\xff\xc0") + 5
        data[at : at + 4] = struct.pack(">HH", *draws.integers(1, 200, 2))
    elif kind == "cut off":
        del data[first:]
    elif kind == "cut off before the end":
        del data[first:-2]
    else:
        del data[first:second]
    return bytes(data)


@pytest.mark.parametrize("kind", ["bytes", "size", "cut off", "cut off before the end", "cut out"])
def test_damaged_files_are_refused_where_pillow_refuses_them_and_else_have_its_bits(tmp_path, decoder, kind):
    data = jpeg(photo_like(60, 80))
    draws = np.random.default_rng(0)
    refused = 0
    for _ in range(60):
        path = written(tmp_path, changed(kind, draws, data))
        try:
            expected = decode_bytes(path.read_bytes(), path, max_pixels=10**6, exif_orientation=True)
        except ImageError:
            refused += 1
            with pytest.raises(ImageError, match=r"image\.jpg"):
                decode_image(path)
            with contextlib.suppress(ImageError):
                open_image(path).read_region((0, 0, 1, 1), zoom=1)
        else:
            assert torch.equal(decode_image(path), expected)
            image = open_image(path)
            height, width = image.size
            region = image.read_region((width // 2, height // 3, width, height), zoom=1)
            assert torch.equal(
                shown(region, (width // 2, height // 3, width, height)), expected[:, height // 3 :, width // 2 :]
            )
    assert refused < 60 or kind == "cut off"


@pytest.mark.parametrize("read", [decode_image, open_image])
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: many_scans(9000, 9000, 5000), "5000 scans over 81000000 pixels exceed the limit of 64 scans"),
        (lambda: many_scans(9000, 9000, 60), "60 scans .* more than 16 scans"),
        (lambda: b"\xff\xd8" + b"\xff\xe0\x00\x02" * 200_000, "its header is longer than"),
        (lambda: b"\xff\xd8" + b"\0" * 200_000 + jpeg(photo_like(16, 16))[2:], "its header is longer than"),
        (lambda: b"\xff\xd8" + b"\xff\xe1\x00\x0aExif\0\0??" * 65 + jpeg(photo_like(16, 16))[2:], "65 EXIF segments"),
        (lambda: b"\xff\xd8" + (b"\xff\xed\xff\xff" + b"\0" * 65533) * 600, "its header is longer than"),
        (lambda: jpeg(photo_like(16, 16), progressive=True) + b"\0" * (65 << 20), "exceed the limit of 67108864"),
    ],
    ids=["5000 scans", "60 scans", "empty segments", "stray bytes", "EXIF", "Photoshop", "64 MiB behind the image"],
)
def test_a_file_that_costs_far_more_than_its_pixels_is_refused_before_it_is_decoded(tmp_path, read, make, message):
    path = written(tmp_path, make())
    begin = time.process_time()
    with pytest.raises(ImageError, match=rf"image\.jpg: refused before decoding: .*{message}.*again"):
        read(path)
    assert time.process_time() - begin < 20  # minutes, where it is decoded


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("num_scans", [1, 2, 5, 8])
def test_a_progressive_file_that_ends_early_has_the_same_bits_in_part_and_as_a_whole(tmp_path, name, num_scans):
    """libjpeg smooths from block to block if scans are missing, and does not warn."""
    scans = jpeg(photo_like(90, 130), progressive=True).split(b"\xff\xda")
    last = scans[num_scans][: scans[num_scans].index(b"\xff\xc4")]  # without the tables of the next scan
    path = written(tmp_path, b"\xff\xda".join([*scans[:num_scans], last]) + b"\xff\xd9")
    with only("pillow"):
        full_image = decode_image(path)
        halves = open_image(path).read_region((0, 0, 130, 90), zoom=0.5).pixels
    with only(name):
        assert torch.equal(decode_image(path), full_image)
        region = open_image(path).read_region((40, 30, 100, 70), zoom=1)
        assert torch.equal(region.pixels, full_image[:, 30:70, 40:100])
        region = open_image(path).read_region((40, 30, 100, 70), zoom=0.5)
        assert torch.equal(region.pixels, halves[:, 15:35, 20:50])


def test_damaged_progressive_files_leave_no_pixel_unwritten(tmp_path):
    """A decoder that continues after a warning may fail later and leave pixels unwritten."""
    data = jpeg(photo_like(200, 200), progressive=True)
    draws = np.random.default_rng(0)
    num_read = 0
    for _ in range(150):
        damaged = bytearray(data)
        damaged[draws.integers(data.index(b"\xff\xda") + 12, len(data) - 2)] = draws.integers(256)
        path = written(tmp_path, bytes(damaged))
        try:
            expected = decode_bytes(path.read_bytes(), path, max_pixels=10**6, exif_orientation=True)
        except ImageError:
            with pytest.raises(ImageError, match=r"image\.jpg"):
                open_image(path).read_region((20, 30, 150, 170), zoom=1)
        else:
            num_read += 1
            region = open_image(path).read_region((20, 30, 150, 170), zoom=1)
            assert torch.equal(shown(region, (20, 30, 150, 170)), expected[:, 30:170, 20:150])
    assert num_read > 20


def test_a_file_larger_than_any_image_of_max_pixels_is_not_read(tmp_path):
    path = written(tmp_path, b"\xff\xd8")
    with path.open("r+b") as file:
        file.truncate(1 << 40)  # a hole
    with pytest.raises(ImageError, match="refused before reading: 1099511627776 bytes exceed"):
        decode_image(path)


def test_a_header_of_more_than_max_pixels_is_refused_before_pixels_are_allocated(tmp_path):
    data = bytearray(jpeg(photo_like(16, 16)))
    at = data.index(b"\xff\xc0")
    data[at + 5 : at + 9] = b"\xff\xdc\xff\xdc"
    path = written(tmp_path, bytes(data))
    with pytest.raises(ImageError, match=r"image\.jpg: .*exceeds"):
        open_image(path)
    small = written(tmp_path, jpeg(photo_like(16, 16)))
    with pytest.raises(ImageError, match="16x16 = 256 pixels exceeds max_pixels=255"):
        open_image(small, max_pixels=255)
    assert open_image(small, max_pixels=256).size == (16, 16)


def test_normal_files_of_many_scans_pass(tmp_path):
    path = written(tmp_path, many_scans(100, 100, 60))
    assert decode_image(path).shape == (3, 100, 100)
