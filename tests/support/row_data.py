"""Rows with drawn images and objects, as lists of dicts and as Hugging Face data sets."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

SIZE = (64, 48)
NAMES = ["cat", "dog", "owl"]


def pixels_of(number, size=SIZE):
    """Return a smooth image that no other number has, uint8 ``(H, W, 3)``."""
    rng = np.random.default_rng(number)
    coarse = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8))
    return np.array(coarse.resize(size, Image.Resampling.BICUBIC))


def encoded(number, format="PNG", size=SIZE, **settings):
    """Return the bytes of an image file."""
    file = io.BytesIO()
    Image.fromarray(pixels_of(number, size)).save(file, format, **settings)
    return file.getvalue()


def object_of(number, index):
    """Return one object of an image: a box (x, y, width, height) and a class id."""
    return {"bbox": [2.0 + index, 3.0, 20.0 + number % 5, 24.0], "category": (number + index) % 3}


def detection_rows(count=6, **columns):
    """Return rows with 0 to 2 objects in lists of dicts, and encoded images.

    Args:
        count: Number of rows.
        columns: Functions of a row's number that give further columns, or replace one.
    """
    rows = []
    for number in range(count):
        row = {
            "image": {"bytes": encoded(number, ("PNG", "JPEG")[number % 2]), "path": None},
            "objects": [object_of(number, index) for index in range(number % 3)],
        }
        rows.append(row | {name: value(number) for name, value in columns.items()})
    return rows


def point_rows(count=4):
    """Return rows with one object of 3 points each: x, y, visibility."""
    return [
        {
            "image": {"bytes": encoded(number), "path": None},
            "objects": {
                "bbox": [[5.0, 5.0, 45.0, 40.0]],
                "category": [number % 3],
                "points": [[10.0 + number, 10.0, 2.0, 40.0, 12.0, 2.0, 25.0, 35.0, 1.0]],
            },
        }
        for number in range(count)
    ]


POINTS = {"names": ["left", "right", "below"], "flip_pairs": [["left", "right"]]}
DETECTION = {
    "boxes": "objects.bbox",
    "box_format": "xywh",
    "labels": "objects.category",
    "class_names": NAMES,
    "progress": False,
}
