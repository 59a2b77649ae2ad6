"""Samples to be mixed, drawn so that every object has a colour of its own, and checks of mixed samples by colour."""

from __future__ import annotations

import io

import numpy as np
import torch
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor
from torchvision import tv_tensors

from lit_loader import MixSample, sample_key, sample_rng
from lit_loader.images import DecodedImage
from lit_loader.images.encoded_image import open_bytes
from lit_loader.images.lazy_image import ExactImage
from lit_loader.transforms.sanitize import DeclaredFields

PER_OBJECT = ("boxes", "labels", "area", "iscrowd", "truncated", "colour", "names", "keypoints", "visibility", "masks")
FIELDS = DeclaredFields(("colour", "names"))
"""Declared names of the targets here."""
SEEDS = st.integers(0, 2**20)


def apply(mix, samples, seed=0, epoch=0):
    """Return the mixed sample under a sample's key."""
    with sample_key(seed=seed, epoch=epoch):
        return mix.apply(samples, sample_rng())


def colour(label):
    """Return the colour of a label, different in every channel for labels below 200, and not dark."""
    return np.array([label * 67 % 200 + 55, label * 131 % 200 + 55, label * 29 % 200 + 55], dtype=np.uint8)


def drawn_sample(number, rng, *, size=None, num_objects=None, masks=False, image="decoded", sides=(6, 30)):
    """Return a sample with solid objects that do not overlap, on black: rectangles, or ellipses if there are masks.

    The label of object k of image n is 10 n + k + 1. Each object has a point in its middle, and one anywhere.
    """
    height, width = rng.integers(24, 90, 2).tolist() if size is None else size
    pixels = np.zeros((height, width, 3), dtype=np.uint8)
    boxes = []
    bitmaps = []
    for _ in range(rng.integers(0, 5) if num_objects is None else num_objects):
        w, h = (int(min(rng.integers(*sides), side)) for side in (width, height))
        x, y = rng.integers(0, [width - w + 1, height - h + 1]).tolist()
        if pixels[max(0, y - 1) : y + h + 1, max(0, x - 1) : x + w + 1].any():
            continue
        bitmap = np.zeros((height, width), dtype=np.uint8)
        bitmap[y : y + h, x : x + w] = ellipse(h, w) if masks else 1
        pixels[bitmap > 0] = colour(10 * number + len(boxes) + 1)
        boxes.append([x, y, x + w, y + h])
        bitmaps.append(bitmap)
    target = target_of(number, boxes, (height, width), rng, bitmaps if masks else None)
    return mix_sample(lazy(pixels, image), target)


def mix_sample(image, target, object_row=None):
    """Return a `MixSample` whose fields are declared."""
    return MixSample(image, target, object_row, FIELDS)


def target_of(number, boxes, size, rng, bitmaps=None):
    """Return a target with every kind of field."""
    height, width = size
    corners = np.array(boxes, dtype=np.float32).reshape(-1, 4)
    count = len(corners)
    labels = torch.arange(count) + 10 * number + 1
    middles = (corners[:, :2] + corners[:, 2:]) / 2
    points = np.stack([middles, rng.uniform(-5, max(size) + 5, (count, 2))], axis=1).astype(np.float32)
    is_inside = ((points >= 0) & (points <= [width, height])).all(axis=2)
    target = {
        "boxes": tv_tensors.BoundingBoxes(torch.from_numpy(corners), format="XYXY", canvas_size=size),
        "labels": labels,
        "image_id": number,
        "is_duplicate": False,
        "area": torch.from_numpy((corners[:, 2:] - corners[:, :2]).prod(axis=1)),
        "iscrowd": torch.zeros(count, dtype=torch.int64),
        "truncated": labels % 2 == 0,
        "colour": labels * 3,
        "names": [f"object {label}" for label in labels.tolist()],
        "keypoints": tv_tensors.KeyPoints(torch.from_numpy(points), canvas_size=size),
        "visibility": torch.from_numpy(np.where(is_inside, 2, 0).astype(np.uint8)),
    }
    if bitmaps is not None:
        stack = np.array(bitmaps, dtype=np.uint8).reshape(count, *size)
        target["masks"] = tv_tensors.Mask(torch.from_numpy(stack))
    return target


def ellipse(height, width):
    """Return a mask that touches all sides of its rectangle."""
    y, x = ((np.arange(side) + 0.5) / side * 2 - 1 for side in (height, width))
    bitmap = (x[None] ** 2 + y[:, None] ** 2 <= 1).astype(np.uint8)
    bitmap[height // 2] = bitmap[:, width // 2] = 1
    return bitmap


def lazy(pixels, kind):
    """Return an image ``(H, W, 3)`` as a lazy one: decoded, cached, a JPEG, or a JPEG that is read at full size."""
    if kind in ("decoded", "cached"):
        frozen = torch.from_numpy(pixels.copy()).permute(2, 0, 1)
        return DecodedImage(frozen, is_shared=kind == "cached")
    encoded = encoded_image(pixels)
    return {"fast": encoded, "exact": ExactImage(encoded)}.get(kind) or DecodedImage(encoded.read())


def encoded_image(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=95, subsampling=0)
    return open_bytes(file.getvalue(), "drawn", max_pixels=10**6, exif_orientation=True, sixteen_bit_max=65535)


def canvas_of(image):
    """Return the pixels of a lazy or decoded image, ``(H, W, 3)``."""
    pixels = image if isinstance(image, Tensor) else image.read()
    return pixels.as_subclass(Tensor).permute(1, 2, 0).numpy()


def rows_of(target):
    """Return the boxes of a target as a float64 array and its labels as a list."""
    return target["boxes"].as_subclass(Tensor).double().numpy(), target["labels"].tolist()


def check_fields(target, size):
    """Check types, and that every field still has the row of its object."""
    boxes, labels = rows_of(target)
    count = len(labels)
    assert type(target["boxes"]) is tv_tensors.BoundingBoxes
    assert target["boxes"].dtype == torch.float32
    assert target["boxes"].canvas_size == size
    assert boxes.min(initial=0) >= 0
    assert (boxes <= np.tile(size[::-1], 2)).all()
    assert (boxes[:, :2] <= boxes[:, 2:]).all()
    assert all(len(target[name]) == count for name in PER_OBJECT if name in target)
    assert target["colour"].tolist() == [3 * label for label in labels]
    assert target["truncated"].tolist() == [label % 2 == 0 for label in labels]
    assert target["names"] == [f"object {label}" for label in labels]
    assert np.allclose(target["area"].numpy(), (boxes[:, 2:] - boxes[:, :2]).prod(axis=1))
    assert type(target["keypoints"]) is tv_tensors.KeyPoints
    assert target["keypoints"].canvas_size == size
    if "masks" in target:
        assert type(target["masks"]) is tv_tensors.Mask
        assert target["masks"].dtype == torch.uint8
        assert tuple(target["masks"].shape) == (count, *size)


def frozen_copies(samples):
    """Return all values of samples that must not change."""
    return [
        (canvas_of(sample.image).copy(), {name: _copy(value) for name, value in sample.target.items()})
        for sample in samples
    ]


def assert_unchanged(samples, copies):
    for sample, (pixels, target) in zip(samples, copies, strict=True):
        assert np.array_equal(canvas_of(sample.image), pixels)
        assert list(sample.target) == list(target)
        assert all(_equal(sample.target[name], value) for name, value in target.items())


def assert_same_targets(first, second):
    assert list(first) == list(second)
    assert all(_equal(first[name], second[name]) for name in first)


def _copy(value):
    return value.clone() if isinstance(value, Tensor) else list(value) if isinstance(value, list) else value


def _equal(first, second):
    return torch.equal(first, second) if isinstance(first, Tensor) else first == second
