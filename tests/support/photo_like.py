"""Generated JPEG files: shading, sharp edges, texture of several scales and a little noise."""

from __future__ import annotations

import io
import struct

from PIL import Image

from benchmarks import decode_error


def photo_like(height, width, *, seed=0):
    return decode_error.photo_like(height, width, seed=seed, num_discs=10)


def jpeg(image, **settings):
    file = io.BytesIO()
    image.save(file, "JPEG", **{"quality": 85, **settings})
    return file.getvalue()


def many_scans(height, width, count):
    """A progressive file that goes over its pixels ``count`` times, a few bytes each."""
    data = jpeg(Image.new("RGB", (64, 64)), progressive=True)
    first = data.index(b"\xff\xda")
    second = data.index(b"\xff\xda", first + 2)
    head, frame = bytearray(data[:first]), data.index(b"\xff\xc2")
    head[frame + 5 : frame + 9] = struct.pack(">HH", height, width)
    empty = b"\xff\xda\x00\x08\x01\x01\x00\x01\x05\x02\x00"
    return bytes(head) + data[first:second] + empty * (count - 1) + b"\xff\xd9"
