"""The decoders of JPEG one at a time, and files of any sampling to try them on."""

from __future__ import annotations

import contextlib
import struct
from unittest import mock

import pytest

from lit_loader.images import encoded_image, jpeg_decoders
from tests.support.photo_like import jpeg

__all__ = ["DECODERS", "UNNAMED", "only", "with_sampling"]

AVAILABLE = {
    "turbojpeg": jpeg_decoders.turbo_decoder() is not None,
    "simplejpeg": jpeg_decoders.decode_jpeg is not None,
    "pillow": True,
}
DECODERS = [
    pytest.param(name, marks=pytest.mark.skipif(not AVAILABLE[name], reason=f"no {name} here")) for name in AVAILABLE
]
# Pillow writes three samplings. The others have as many blocks to a unit as one of them, in another arrangement.
PILLOWS = {"11": 0, "21": 1, "22": 2}
AS_MANY_BLOCKS = {"12": ("21", 8, 16), "41": ("22", 32, 8), "14": ("22", 8, 32)}
UNNAMED = "11 to 21"  # 4:2:2 with the first channel and the second exchanged, for which TurboJPEG has no name


@contextlib.contextmanager
def only(name):
    """Within it no other decoder is used."""
    with contextlib.ExitStack() as stack:
        if name == "turbojpeg":
            stack.enter_context(mock.patch.object(encoded_image, "decode_whole", return_value=None))
        else:
            stack.enter_context(mock.patch.object(encoded_image, "turbo_decoder", return_value=None))
        if name == "pillow":
            stack.enter_context(mock.patch.object(jpeg_decoders, "decode_jpeg", None))
        yield


def with_sampling(image, sampling, *, progressive=False, **settings):
    """A file whose first channel has this many samples (columns, rows) for one of the others.

    What it shows is the image, or its blocks in another arrangement.
    """
    settings = {"progressive": progressive, **settings}
    if sampling in PILLOWS:
        return jpeg(image, subsampling=PILLOWS[sampling], **settings)
    origin, columns, rows = AS_MANY_BLOCKS.get(sampling, ("21", 16, 8))
    data = bytearray(jpeg(image, subsampling=PILLOWS[origin], **settings))
    at = data.index(b"\xff\xc2" if progressive else b"\xff\xc0")
    num_columns, num_rows = -(-image.width // (8 * int(origin[0]))), -(-image.height // (8 * int(origin[1])))
    odd = 0 if progressive else 5  # scans of one channel leave out blocks beyond the rim
    data[at + 5 : at + 9] = struct.pack(">HH", rows * num_rows - odd, columns * num_columns - odd)
    data[at + 11] = int(sampling[:2], 16)
    data[at + 14] = 0x21 if sampling == UNNAMED else 0x11
    return bytes(data)
