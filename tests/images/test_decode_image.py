"""Every kind of image file decodes to upright 8-bit RGB or to an error that names the file."""

from __future__ import annotations

import itertools
import os
import struct
import time
import warnings
import zlib

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from lit_loader.errors import ImageError
from lit_loader.images import decode_image

HEIGHT = 24
WIDTH = 40


def draw(mode="RGB"):
    """Four flat quarters of different colours: an orientation cannot hide, JPEG changes little."""
    image = Image.new("RGB", (WIDTH, HEIGHT), (200, 30, 30))
    pen = ImageDraw.Draw(image)
    pen.rectangle((WIDTH // 2, 0, WIDTH, HEIGHT // 2 - 1), fill=(30, 180, 60))
    pen.rectangle((0, HEIGHT // 2, WIDTH // 2 - 1, HEIGHT), fill=(40, 60, 220))
    pen.rectangle((WIDTH // 2, HEIGHT // 2, WIDTH, HEIGHT), fill=(240, 240, 240))
    return image if mode == "RGB" else image.convert(mode)


def as_tensor(image):
    return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)


def assert_near(pixels, expected, *, tolerance):
    assert pixels.dtype == torch.uint8
    assert pixels.permute(1, 2, 0).is_contiguous()
    assert pixels.shape == expected.shape
    assert (pixels.int() - expected.int()).abs().float().mean() <= tolerance


FORMATS = {
    # Format, modes, settings of the encoder, and the mean difference that it may cause.
    "PNG": (["RGB", "L", "1", "P", "RGBA", "LA"], {}, 0),
    "JPEG": (["RGB", "L", "CMYK"], {"quality": 98, "subsampling": 0}, 4),
    "WEBP": (["RGB"], {"lossless": True}, 3),
    **{name: (["RGB"], {}, 3) for name in ("BMP", "TIFF", "PPM", "GIF")},
}


@pytest.mark.parametrize("format", FORMATS)
def test_files_of_every_mode_decode_by_content_whatever_their_name(tmp_path, format):
    modes, settings, tolerance = FORMATS[format]
    for mode, name in itertools.product(modes, ("image", "image.jpg", "image.png")):
        path = tmp_path / name
        draw(mode).save(path, format=format, **settings)
        assert_near(decode_image(path), as_tensor(draw(mode)), tolerance=tolerance)
        assert torch.equal(decode_image(str(path)), decode_image(path))


def test_alpha_is_dropped_and_the_stored_colours_kept(tmp_path):
    image = draw("RGBA")
    image.putalpha(Image.new("L", image.size, 0))
    image.save(tmp_path / "clear.png")
    assert_near(decode_image(tmp_path / "clear.png"), as_tensor(draw()), tolerance=0)


@pytest.mark.parametrize("transparency", [0, b"\x00\x80\xff"])
def test_a_palettes_transparency_is_dropped_without_a_warning(tmp_path, transparency):
    image = draw("P")
    image.save(tmp_path / "palette.png", transparency=transparency)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert_near(decode_image(tmp_path / "palette.png"), as_tensor(image), tolerance=0)
    assert warned == []


@pytest.mark.parametrize("suffix", ["png", "tiff"])
def test_16_bit_grayscale_is_divided_by_257(tmp_path, suffix):
    values = np.array([[0, 128, 129, 257], [32768, 65278, 65407, 65535]], dtype=np.uint16)
    Image.fromarray(values).save(tmp_path / f"deep.{suffix}")
    expected = [[0, 0, 1, 1], [128, 254, 255, 255]]
    assert decode_image(tmp_path / f"deep.{suffix}").tolist() == [expected] * 3


def test_big_endian_16_bit_is_read_as_such(tmp_path):
    values = np.array([[0, 257, 65535]], dtype=">u2")
    header = b"MM\0*" + struct.pack(">I", 14) + values.tobytes()
    entries = [(256, 3), (257, 1), (258, 16), (259, 1), (262, 1), (273, 8), (277, 1), (278, 1), (279, 6)]
    directory = b"".join(struct.pack(">HHIHH", tag, 3, 1, value, 0) for tag, value in entries)
    path = tmp_path / "big.tiff"
    path.write_bytes(header + struct.pack(">H", len(entries)) + directory + bytes(4))
    assert decode_image(path)[0].tolist() == [[0, 1, 255]]


# Pillow shows a signed 8-bit TIFF as gray: only tag 339 has the sign.
@pytest.mark.parametrize(("mode", "tags"), [("I", {}), ("F", {}), ("L", {339: 2})])
def test_signed_and_float_images_are_refused_with_file_and_mode(tmp_path, mode, tags):
    Image.new(mode, (2, 2)).save(tmp_path / "deep.tiff", tiffinfo=tags)
    with pytest.raises(ImageError, match=rf"deep\.tiff: mode {mode} .*no agreed range"):
        decode_image(tmp_path / "deep.tiff")


def test_the_first_frame_of_an_animation_is_read(tmp_path):
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    frames[0].save(tmp_path / "two.gif", save_all=True, append_images=frames[1:])
    assert decode_image(tmp_path / "two.gif")[:, 0, 0].tolist() == [255, 0, 0]


TURNS = {
    1: lambda t: t,
    2: lambda t: t.flip(2),
    3: lambda t: t.flip(1, 2),
    4: lambda t: t.flip(1),
    5: lambda t: t.transpose(1, 2),
    6: lambda t: t.transpose(1, 2).flip(2),
    7: lambda t: t.transpose(1, 2).flip(1, 2),
    8: lambda t: t.transpose(1, 2).flip(1),
}


@pytest.mark.parametrize("orientation", TURNS)
@pytest.mark.parametrize("suffix", ["png", "jpg", "webp", "tiff"])
def test_exif_orientation_turns_the_image_upright(tmp_path, orientation, suffix):
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / f"turned.{suffix}"
    draw().save(path, exif=exif, quality=98)
    assert_near(decode_image(path), TURNS[orientation](as_tensor(draw())), tolerance=4)
    if suffix != "tiff":  # Pillow turns a TIFF while loading, whatever is asked
        assert_near(decode_image(path, exif_orientation=False), as_tensor(draw()), tolerance=4)


@pytest.mark.parametrize("value", [0, 9, 200])
def test_an_orientation_without_meaning_is_ignored(tmp_path, value):
    exif = Image.Exif()
    exif[0x0112] = value
    draw().save(tmp_path / "odd.png", exif=exif)
    assert_near(decode_image(tmp_path / "odd.png"), as_tensor(draw()), tolerance=0)


@pytest.mark.parametrize(
    "exif",
    [b"Exif\0\0", b"Exif\0\0nonsense", b"Exif\0\0II*\0\x08\0\0\0\xff\xff\x12\x01", b"Exif\0\0MM\0*\xff\xff\xff\xff"],
)
@pytest.mark.parametrize("action", ["error", "ignore"])
def test_broken_exif_does_not_fail_a_good_image(tmp_path, exif, action):
    draw().save(tmp_path / "broken.jpg", exif=exif, quality=98)
    with warnings.catch_warnings():
        warnings.simplefilter(action)
        assert_near(decode_image(tmp_path / "broken.jpg"), as_tensor(draw()), tolerance=4)


@pytest.mark.parametrize("suffix", ["jpg", "png"])
@pytest.mark.parametrize("keep", [0.1, 0.5, 0.9])
def test_a_truncated_file_is_refused_by_name(tmp_path, suffix, keep):
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    path = tmp_path / f"cut.{suffix}"
    Image.fromarray(noise).save(path)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)])
    with pytest.raises(ImageError, match=rf"cut\.{suffix}"):
        decode_image(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"hello, world", "cannot be identified"),
        (b"\x89PNG\r\n\x1a\n" + bytes(40), "cannot be identified"),
    ],
)
def test_files_that_are_not_images_are_refused_by_name(tmp_path, content, message):
    (tmp_path / "no.png").write_bytes(content)
    with pytest.raises(ImageError, match=rf"no\.png: .*{message}"):
        decode_image(tmp_path / "no.png")


def test_pipes_and_devices_are_refused_without_blocking(tmp_path):
    os.mkfifo(tmp_path / "pipe.jpg")
    for path in (tmp_path / "pipe.jpg", "/dev/zero"):
        with pytest.raises(ImageError, match=f"{path}: cannot be read: it is not a regular file"):
            decode_image(path)


@pytest.mark.parametrize("suffix", [".ico", ".pcx", ".eps"])
def test_formats_that_run_programs_or_hide_pixels_are_refused(tmp_path, suffix):
    path = tmp_path / f"image{suffix}"
    Image.new("RGB", (16, 16)).save(path)
    with pytest.raises(ImageError, match="the format is not one of JPEG, PNG"):
        decode_image(path)


def test_a_tiff_whose_tile_is_far_larger_than_the_image_is_refused_before_it_is_decoded(tmp_path):
    path = tmp_path / "image.tif"
    tags = [(256, 3, 1, 1), (257, 3, 1, 1), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1)]
    tags += [(277, 3, 1, 1), (322, 4, 1, 30_000), (323, 4, 1, 30_000), (324, 4, 1, 200), (325, 4, 1, 100)]
    entries = b"".join(struct.pack("<HHII", *tag) for tag in tags)
    path.write_bytes(b"II*\0\x08\0\0\0" + struct.pack("<H", len(tags)) + entries + bytes(400))
    with pytest.raises(ImageError, match="a tile of 900000000 pixels exceeds max_pixels=89478485"):
        decode_image(path)


def test_a_file_that_comes_in_parts_is_read_whole(tmp_path, monkeypatch):
    Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)).save(tmp_path / "image.png")
    expected = decode_image(tmp_path / "image.png")
    read = os.read
    monkeypatch.setattr(os, "read", lambda file, size: read(file, min(size, 7)))
    assert torch.equal(decode_image(tmp_path / "image.png"), expected)


def test_a_missing_file_and_a_folder_are_refused_by_name(tmp_path):
    for path in (tmp_path / "gone.jpg", tmp_path):
        with pytest.raises(ImageError, match=f"{path}: cannot be read"):
            decode_image(path)


def make_bomb(width, height):
    """A PNG of a few bytes that claims any size."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(100))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


GIF_HEAD = b"GIF89a\x03\0\x02\0\0\0\0"
ENDLESS_HEADERS = {
    "comments.gif": GIF_HEAD + b"!\xfe\x01a\0" * 500_000,
    "comments.ppm": b"P6\n" + b"#c\n" * 500_000 + b"3 2\n255\n" + bytes(18),
    "comment.ppm": b"P6\n#" + b"c" * 1_500_000 + b"\n3 2\n255\n" + bytes(18),
    # 30,000 tags of 8 KB, all of the same bytes
    "tags.tif": b"II*\0\x08\0\0\0"
    + struct.pack("<H", 30_000)
    + b"".join(struct.pack("<HHII", 1000 + tag, 1, 8192, 8) for tag in range(30_000))
    + bytes(4),
}


@pytest.mark.parametrize("name", ENDLESS_HEADERS)
def test_a_header_without_end_is_refused_by_name(tmp_path, name):
    (tmp_path / name).write_bytes(ENDLESS_HEADERS[name])
    begin = time.process_time()
    with pytest.raises(ImageError, match=rf"{name}: its header asks for more than MAX_HEADER_\w+=\d+"):
        decode_image(tmp_path / name)
    assert time.process_time() - begin < 3


@pytest.mark.parametrize("side", [10_000, 60_000])
@pytest.mark.parametrize("action", ["error", "ignore"])
def test_a_decompression_bomb_is_refused_from_its_header(tmp_path, side, action):
    (tmp_path / "bomb.png").write_bytes(make_bomb(side, side))
    with warnings.catch_warnings():
        warnings.simplefilter(action)
        with pytest.raises(ImageError, match=r"bomb\.png: .*max_pixels"):
            decode_image(tmp_path / "bomb.png")


def test_max_pixels_is_the_largest_size_accepted(tmp_path):
    draw().save(tmp_path / "image.png")
    assert decode_image(tmp_path / "image.png", max_pixels=WIDTH * HEIGHT).shape == (3, HEIGHT, WIDTH)
    with pytest.raises(ImageError, match=r"image\.png: 40x24 = 960 pixels exceeds max_pixels=959"):
        decode_image(tmp_path / "image.png", max_pixels=WIDTH * HEIGHT - 1)
    with pytest.raises(ValueError, match="max_pixels=0"):
        decode_image(tmp_path / "image.png", max_pixels=0)
