"""libjpeg-turbo is used where it is new enough and right, and keeps nothing of a file."""

from __future__ import annotations

import io
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image

from lit_loader.images import decode_image, jpeg_decoders, open_image
from lit_loader.images.jpeg_decoders import TurboDecoder, turbo_decoder
from tests.support.jpeg_decoders import UNNAMED, with_sampling
from tests.support.photo_like import jpeg, photo_like

needs_library = pytest.mark.skipif(turbo_decoder() is None, reason="no libjpeg-turbo 3 here")


class Fake:
    """A decoder with Pillow's bits that tests override."""

    def __init__(self, path):
        pass

    def decode(self, data, size, crop, *, shrink):
        with Image.open(io.BytesIO(data)) as image:
            image.draft(None, (size[1] // shrink, size[0] // shrink))
            return np.array(image.crop(crop))


class Shifted(Fake):
    def decode(self, data, size, crop, *, shrink):
        pixels = super().decode(data, size, crop, shrink=shrink)
        return np.roll(pixels, 1, 1) if any(crop[:2]) else None


class Refusing(Fake):
    def decode(self, data, size, crop, *, shrink):
        return None


class WrongWhenShrunk(Fake):
    def decode(self, data, size, crop, *, shrink):
        return super().decode(data, size, crop, shrink=shrink) + (shrink == 2)


class Old(Fake):
    def __init__(self, path):
        raise AttributeError("undefined symbol: tj3Decompress8")


class Absent(Fake):
    def __init__(self, path):
        raise OSError("no such file")


@pytest.mark.parametrize("kind", [Fake, Shifted, Refusing, WrongWhenShrunk, Old, Absent])
def test_a_library_is_used_if_it_is_there_and_new_enough_and_gives_pillows_bits(monkeypatch, kind):
    monkeypatch.setattr(jpeg_decoders, "TurboDecoder", kind)
    assert type(turbo_decoder.__wrapped__()) is (Fake if kind is Fake else type(None))


@needs_library
def test_decoding_ignores_the_default_device(tmp_path):
    path = tmp_path / "image.jpg"
    path.write_bytes(jpeg(photo_like(32, 48)))
    expected = decode_image(path)
    with torch.device("meta"):
        assert turbo_decoder.__wrapped__() is not None
        pixels = decode_image(path)
    assert torch.equal(pixels, expected)


def test_a_library_without_the_functions_is_refused():
    with pytest.raises(AttributeError, match="tj3Decompress8"):
        TurboDecoder("libc.so.6")


def test_the_wheels_library_is_tried_and_the_wheel_not_imported(tmp_path, monkeypatch):
    (tmp_path / "pylibjxl").mkdir()
    (tmp_path / "pylibjxl" / "__init__.py").write_text("raise RuntimeError\n")
    (tmp_path / "pylibjxl-9.dist-info").mkdir()
    (tmp_path / "pylibjxl-9.dist-info" / "METADATA").write_text("Name: pylibjxl\nVersion: 9\n")
    listed = "pylibjxl/__init__.py,,\npylibjxl/_pylibjxl.abi3.so,,\n"
    (tmp_path / "pylibjxl-9.dist-info" / "RECORD").write_text(listed)
    (tmp_path / "pylibjxl" / "_pylibjxl.abi3.so").write_bytes(b"")
    monkeypatch.syspath_prepend(tmp_path)
    tried = []

    class Noting(Absent):
        def __init__(self, path):
            tried.append(path)
            super().__init__(path)

    monkeypatch.setattr(jpeg_decoders, "TurboDecoder", Noting)
    assert turbo_decoder.__wrapped__() is None
    assert tried == ["libturbojpeg.so.0", str(tmp_path / "pylibjxl" / "_pylibjxl.abi3.so")]
    assert "pylibjxl" not in sys.modules


@needs_library
def test_a_file_is_decoded_by_its_own_tables_alone():
    decoder = turbo_decoder()
    data = jpeg(photo_like(40, 48))
    size = (40, 48)
    full_crop = (0, 0, 48, 40)
    expected = decoder.decode(data, size, full_crop)
    without = data[: data.index(b"\xff\xdb")] + data[data.index(b"\xff\xc0") :]
    assert decoder.decode(without, size, full_crop) is None
    bogus = bytearray(data)
    first = data.index(b"\xff\xc4")
    bogus[first + 5 : first + 21] = bytes([255] * 16)
    assert decoder.decode(bytes(bogus), size, full_crop) is None
    assert np.array_equal(decoder.decode(data, size, full_crop), expected)


@needs_library
def test_threads_decode_at_once():
    decoder = turbo_decoder()
    files = [jpeg(photo_like(64, 96, seed=seed)) for seed in range(4)]
    crop = (16, 10, 90, 60)
    expected = [decoder.decode(data, (64, 96), crop) for data in files]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda data: decoder.decode(data, (64, 96), crop), files * 25))
    assert all(np.array_equal(pixels, expected[index % 4]) for index, pixels in enumerate(results))


@needs_library
def test_another_size_than_the_headers_is_refused_before_pixels_are_written():
    data = jpeg(photo_like(40, 48))
    decoder = turbo_decoder()
    assert decoder.decode(data, (40, 48), (0, 0, 48, 40)).shape == (40, 48, 3)
    for size, crop in (((40, 47), (0, 0, 47, 40)), ((41, 48), (0, 0, 48, 41)), ((40, 48), (0, 0, 49, 40))):
        assert decoder.decode(data, size, crop) is None
    assert decoder.decode(data, (40, 48), (8, 0, 48, 40)) is None  # no block starts there
    assert decoder.decode(data[:-100], (40, 48), (0, 0, 48, 40)) is None
    assert decoder.decode(b"", (40, 48), (0, 0, 48, 40)) is None


@needs_library
def test_files_that_the_library_refuses_go_to_the_next_decoder(tmp_path):
    path = tmp_path / "image.jpg"
    path.write_bytes(with_sampling(photo_like(64, 96), UNNAMED))
    image = open_image(path)
    height, width = image.size
    assert turbo_decoder().decode(path.read_bytes(), image.size, (0, 0, width, height)) is None
    assert image.read_region((0, 0, width, height), zoom=0.5).zoom == 0.5
    assert torch.equal(image.read_region((9, 8, 40, 30), zoom=1).pixels, decode_image(path)[:, 8:30, 9:40])
