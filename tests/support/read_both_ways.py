"""One sample of a decoded image and of the undecoded one, after the same draws."""

from __future__ import annotations

import torch
from torchvision import tv_tensors

from lit_loader.images import decode_image, open_image

__all__ = ["HEIGHT", "LARGEST", "LEAST_PSNR", "RARE", "WIDTH", "both", "target"]

HEIGHT, WIDTH = 239, 317
LEAST_PSNR, LARGEST, RARE = 33, 96, 64  # the bound that EncodedImage states


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
    """The sample of the decoded image and that of the undecoded one, after the same draws."""
    found = []
    for image, call in ((tv_tensors.Image(decode_image(path)), transform), (open_image(path), transform.read)):
        torch.manual_seed(seed)
        sample = call(image, make_target(num_objects) if num_objects else {})
        found.append((sample, torch.rand(1)))
    (exact, after), (fast, after_too) = found
    assert torch.equal(after, after_too), "not as many draws"
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
