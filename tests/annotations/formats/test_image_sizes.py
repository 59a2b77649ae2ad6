from __future__ import annotations

import os
import struct
import time
import tracemalloc
import zlib

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from lit_loader.annotations.formats import image_sizes
from lit_loader.annotations.formats.image_sizes import read_image_sizes, read_shown_sizes
from lit_loader.errors import ImageError
from lit_loader.images import decode_image


def read(root, *names, num_workers=0):
    sizes, reasons = read_image_sizes(root, names, num_workers=num_workers, progress=False)
    return sizes.tolist(), reasons


def exif(orientation):
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags.tobytes()


@pytest.mark.parametrize("ending", ["jpg", "png", "webp", "tif", "bmp", "gif", "ppm"])
def test_width_and_height_are_read(tmp_path, ending):
    Image.new("RGB", (31, 17)).save(tmp_path / f"a.{ending}")
    assert read(tmp_path, f"a.{ending}") == ([[31, 17]], {})


def test_size_of_a_png_is_upright_by_the_exif_in_a_text_chunk(tmp_path):
    """ImageMagick writes EXIF of a PNG as text."""
    tags = b"Exif\0\0" + exif(6).removeprefix(b"Exif\0\0")
    chunks = PngInfo()
    chunks.add_text("Raw profile type exif", f"\nexif\n{len(tags):8}\n{tags.hex()}\n")
    Image.new("RGB", (31, 17)).save(tmp_path / "a.png", pnginfo=chunks)
    assert read(tmp_path, "a.png") == ([[17, 31]], {})
    assert decode_image(tmp_path / "a.png").shape == (3, 31, 17)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("ending", ["jpg", "png", "webp", "tif"])
def test_sizes_are_upright(tmp_path, ending, orientation):
    path = tmp_path / f"a.{ending}"
    Image.new("RGB", (31, 17)).save(path, exif=exif(orientation))
    decoded = decode_image(path)
    assert read(tmp_path, path.name)[0] == [[decoded.shape[2], decoded.shape[1]]]
    assert decoded.shape[2] == (17 if orientation > 4 else 31)
    turned = read_shown_sizes(tmp_path, [path.name], num_workers=0, progress=False)[1]
    assert turned.tolist() == [orientation > 4]


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def test_exif_after_png_pixels_is_applied(tmp_path):
    path = tmp_path / "a.png"
    Image.new("RGB", (31, 17)).save(path)
    data = path.read_bytes()
    path.write_bytes(data[:-12] + chunk(b"eXIf", exif(6).removeprefix(b"Exif\0\0")) + data[-12:])
    assert list(decode_image(path).shape) == [3, 31, 17]
    assert read(tmp_path, "a.png") == ([[17, 31]], {})


def test_pixels_are_not_decoded(tmp_path):
    Image.effect_noise((600, 400), 90).save(tmp_path / "a.png")
    Image.effect_noise((600, 400), 90).save(tmp_path / "a.jpg")
    for name in ("a.png", "a.jpg"):
        path = tmp_path / name
        path.write_bytes(path.read_bytes()[:5000])
        with pytest.raises(ImageError):
            decode_image(path)
        assert read(tmp_path, name) == ([[600, 400]], {})


def test_unreadable_image_gives_zero_and_reason(tmp_path):
    Image.new("RGB", (31, 17)).save(tmp_path / "a.jpg")
    (tmp_path / "text.jpg").write_text("no image")
    (tmp_path / "empty.jpg").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe.jpg")
    names = ["text.jpg", "a.jpg", "empty.jpg", "pipe.jpg", "none.jpg"]
    sizes, reasons = read(tmp_path, *names)
    assert sizes == [[0, 0], [31, 17], [0, 0], [0, 0], [0, 0]]
    assert sorted(reasons) == [0, 2, 3, 4]
    assert "its format is not supported" in reasons[0]
    assert "not a regular file" in reasons[3]
    assert "No such file" in reasons[4]


@pytest.mark.parametrize("ending", ["webp", "tif"])
def test_no_more_than_the_limit_is_read(tmp_path, monkeypatch, ending):
    path = tmp_path / f"a.{ending}"
    Image.effect_noise((100, 100), 90).convert("RGB").save(path)
    monkeypatch.setattr(image_sizes, "MAX_HEADER_BYTES", 20)
    sizes, reasons = read(tmp_path, path.name)
    assert sizes == [[0, 0]]
    assert "MAX_HEADER_BYTES" in reasons[0]


def test_real_images_have_the_size_that_they_are_decoded_to(shared_data):
    folder = shared_data / "nasty_images"
    names = [
        str(path.relative_to(folder)) for path in sorted(folder.rglob("*.*")) if path.suffix not in (".txt", ".md")
    ]
    sizes, _ = read(folder, *names)
    compared = 0
    for name, size in zip(names, sizes, strict=True):
        try:
            decoded = decode_image(folder / name, max_pixels=10**9)
        except ImageError:
            continue
        compared += 1
        assert size == [decoded.shape[2], decoded.shape[1]], name
    assert compared > 30
    assert np.array(sizes).max() < 100_000


HOSTILE = {
    "segments.jpg": b"\xff\xd8" + b"\xff\xe1\0\x02" * 2_000_000,
    "exif.jpg": b"\xff\xd8" + (b"\xff\xe1" + struct.pack(">H", 65_535) + b"Exif\0\0" + bytes(65_527)) * 600,
    "fill.jpg": b"\xff\xd8" + b"\xff" * 5_000_000,
    "chunks.png": b"\x89PNG\r\n\x1a\n" + chunk(b"abCd", b"") * 1_000_000,
    "comments.gif": b"GIF89a\x04\0\x04\0\0\0\0" + b"!\xfe\x01a\0" * 2_000_000,
    "comments.ppm": b"P6\n" + b"#c\n" * 2_000_000,
    "script.jpg": b"%!PS-Adobe-3.0 EPSF-3.0\n" + b"%%Title: x\n" * 500_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_header_that_does_not_end_costs_little(tmp_path, name):
    (tmp_path / name).write_bytes(HOSTILE[name])
    tracemalloc.start()
    start = time.process_time()
    sizes, reasons = read(tmp_path, name)
    spent = time.process_time() - start
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sizes == [[0, 0]]
    assert ("its format is not supported" if name == "script.jpg" else "MAX_HEADER") in reasons[0]
    assert spent < 5
    assert peak < 100e6


def test_a_png_of_many_chunks_is_read(tmp_path):
    path = tmp_path / "a.png"
    Image.new("RGB", (31, 17)).save(path)
    data = path.read_bytes()
    path.write_bytes(data[:33] + chunk(b"abCd", bytes(20_000)) * 400 + data[33:])
    assert read(tmp_path, "a.png") == ([[31, 17]], {})


def test_size_beyond_32_bits_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)  # as programs set it that trust their images
    head = struct.pack(">4sIIBBBBB", b"IHDR", 2**32 - 1, 1, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head))
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + chunk + struct.pack(">I4sI", 0, b"IDAT", 0x35AF061E))
    sizes, reasons = read_image_sizes(tmp_path, ["a.png"], num_workers=0, progress=False)
    assert (sizes.tolist(), reasons) == (
        [[0, 0]],
        {0: "its header gives a size of 4294967295 x 1 pixels, beyond 2**31 - 1"},
    )
