"""The decoders of JPEG one at a time, and files of any sampling to try them on."""

from __future__ import annotations

import struct
from unittest import mock

import pytest

from lit_loader.datasets import jpeg as jpeg_module
from lit_loader.datasets import turbojpeg
from tests.photo_like import jpeg

__all__ = ["DECODERS", "only", "with_sampling"]

FUNCTIONS = {
    "turbojpeg": turbojpeg.turbo_decode,
    "simplejpeg": jpeg_module._by_simplejpeg,
    "pillow": jpeg_module._by_pillow,
}
FOUND = {
    "turbojpeg": turbojpeg._library() is not None,
    "simplejpeg": jpeg_module.decode_jpeg is not None,
    "pillow": True,
}
DECODERS = [
    pytest.param(name, marks=pytest.mark.skipif(not found, reason=f"no {name} here"))
    for name, found in FOUND.items()
]
# Pillow writes three samplings. The others have as many blocks to a unit as one of them, in another arrangement.
PILLOWS = {"11": 0, "21": 1, "22": 2}
AS_MANY_BLOCKS = {"12": ("21", 8, 16), "41": ("22", 32, 8), "14": ("22", 8, 32)}


def only(name):
    """Within it no other decoder is used."""
    return mock.patch.object(jpeg_module, "_DECODERS", (FUNCTIONS[name],))


def with_sampling(image, sampling, *, progressive=False, **settings):
    """A file whose first channel has this many samples (columns, rows) for one of the others.

    What it shows is the image, or its blocks in another arrangement.
    """
    settings = {"progressive": progressive, **settings}
    if sampling in PILLOWS:
        return jpeg(image, subsampling=PILLOWS[sampling], **settings)
    origin, columns, rows = AS_MANY_BLOCKS[sampling]
    data = bytearray(jpeg(image, subsampling=PILLOWS[origin], **settings))
    at = data.index(b"\xff\xc2" if progressive else b"\xff\xc0")
    num_columns, num_rows = -(-image.width // (8 * int(origin[0]))), -(-image.height // (8 * int(origin[1])))
    odd = 0 if progressive else 5  # scans of one channel leave out blocks beyond the rim
    data[at + 5 : at + 9] = struct.pack(">HH", rows * num_rows - odd, columns * num_columns - odd)
    data[at + 11] = int(sampling, 16)
    return bytes(data)
