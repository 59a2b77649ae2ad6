"""One sample of a decoded image and of the undecoded one, after the same draws, and the bound of their difference."""

from __future__ import annotations

import numpy as np
import torch
from torchvision import tv_tensors

from lit_loader.images import decode_image, open_image
from tests.support.seeded import seeded

__all__ = ["HEIGHT", "WIDTH", "BatchMemory", "assert_within_bound", "both", "target"]

HEIGHT = 239
WIDTH = 317
# The bound that EncodedImage states.
LEAST_PSNR = 33
LARGEST = 96
RARE = 64


def assert_within_bound(difference, context=""):
    """Check differences of pixels, in levels of 255, against the published bound."""
    mean = float((difference**2).mean())
    assert mean <= 255**2 / 10 ** (LEAST_PSNR / 10), context
    assert difference.max() <= LARGEST, context
    assert np.quantile(difference.numpy(), 0.999) <= RARE, context


class BatchMemory:
    """Memory of a batch that records its allocations."""

    def __init__(self):
        self.allocations = []

    def empty(self, shape, dtype):
        self.allocations.append(torch.empty(tuple(shape), dtype=dtype))
        return self.allocations[-1]

    def rows(self, column):
        return None


def target(num_objects):
    boxes = torch.tensor([[20.5, 30, 150, 180.25], [200, 5, 300, 90], [0, 0, WIDTH, HEIGHT]])[:num_objects]
    points = torch.tensor([[40.25, 50], [100, 60.5]]).expand(num_objects, 2, 2).clone()
    masks = torch.zeros((num_objects, HEIGHT, WIDTH), dtype=torch.uint8)
    masks[:, 40:120, 30:200] = 1
    return {
        "boxes": tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=(HEIGHT, WIDTH)),
        "labels": torch.arange(num_objects),
        "keypoints": tv_tensors.KeyPoints(points, canvas_size=(HEIGHT, WIDTH)),
        "visibility": torch.full((num_objects, 2), 2, dtype=torch.uint8),
        "masks": tv_tensors.Mask(masks),
        "area": (boxes[:, 2:] - boxes[:, :2]).prod(dim=1),
        "image_id": 4,
    }


def both(transform, path, num_objects, *, seed, make_target=target):
    """Compare the samples of the decoded and the undecoded image after equal draws; return differences of pixels."""
    results = []
    for image, call in ((tv_tensors.Image(decode_image(path)), transform), (open_image(path), transform.read)):
        sample = seeded(seed, call, image, make_target(num_objects) if num_objects else {})
        results.append((sample, torch.rand(1)))
    (exact, exact_draw), (fast, fast_draw) = results
    assert torch.equal(exact_draw, fast_draw), "not as many draws"
    assert exact[1].keys() == fast[1].keys()
    for name, value in exact[1].items():
        if isinstance(value, torch.Tensor):
            assert type(fast[1][name]) is type(value)
            assert torch.equal(fast[1][name], value), name
            assert getattr(fast[1][name], "canvas_size", 0) == getattr(value, "canvas_size", 0)
        else:
            assert fast[1][name] == value
    assert type(fast[0]) is type(exact[0]) is tv_tensors.Image
    assert fast[0].dtype == exact[0].dtype
    assert fast[0].shape == exact[0].shape
    scale = 1 if exact[0].dtype == torch.uint8 else 255
    return (exact[0].double() - fast[0].double()).abs() * scale
