"""Generated JPEG files: shading, sharp edges, texture of several scales and a little noise."""

from __future__ import annotations

import io
import struct

import numpy as np
from PIL import Image


def photo_like(height, width, *, seed=0):
    draws = np.random.default_rng(seed)
    rows, columns = np.meshgrid(np.linspace(0, 1, height), np.linspace(0, 1, width), indexing="ij")
    picture = np.stack([0.3 + 0.4 * rows, 0.6 - 0.3 * columns, 0.3 + 0.2 * (rows + columns)], axis=-1)
    for _ in range(10):
        y, x, radius = draws.random(3) * (1, 1, 0.22) + (0, 0, 0.03)
        inside = (rows - y) ** 2 + (columns - x) ** 2 < radius**2
        waves = np.sin(rows * height * draws.random() * 0.8 + columns * width * draws.random() * 0.8)
        picture[inside] = draws.random(3) * (0.85 + 0.15 * waves[inside])[:, None]
    picture += draws.normal(0, 0.012, picture.shape)
    return Image.fromarray((picture.clip(0, 1) * 255).astype(np.uint8))


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
