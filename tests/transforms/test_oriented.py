"""Oriented boxes stay on the pixels of their objects under every transform, in both formats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2

from lit_loader.transforms import (
    DecodeAwareCompose,
    Letterbox,
    RandomHorizontalFlip,
    RandomObjectCrop,
    RandomVerticalFlip,
    detection_transforms,
)
from lit_loader.transforms.oriented import boxes_of_corners

_HEIGHT = 200
_WIDTH = 240
# cx, cy, w, h, r: of all quadrants, one of them across the border, one along the axes.
_ROTATED = np.array([
    [70.0, 60.0, 90.0, 44.0, 25.0],
    [170.0, 70.0, 50.0, 80.0, -160.0],
    [60.0, 150.0, 70.0, 50.0, 100.0],
    [228.0, 160.0, 90.0, 50.0, -35.0],
    [140.0, 160.0, 60.0, 40.0, 0.0],
])  # fmt: skip
_TRAPEZOID = [[40.0, 30.0], [100.0, 45.0], [115.0, 105.0], [30.0, 85.0]]
_FORMATS = ("XYXYXYXY", "CXCYWHR")


def _boxes(corners: npt.NDArray[Any], kind: str, size: tuple[int, int] = (_HEIGHT, _WIDTH)) -> Any:
    like = tv_tensors.BoundingBoxes(torch.zeros((0, 5)), format=kind, canvas_size=size, clamping_mode=None)
    return boxes_of_corners(corners, like=like, canvas_size=size)


def _polygon_mask(polygon: npt.NDArray[Any], size: tuple[int, int]) -> npt.NDArray[np.bool_]:
    """Return the pixels whose centre is inside a polygon."""
    mask = np.zeros(size, dtype=np.uint8)
    # Fixed-point coordinates of pixel centres, 1/256 of a pixel.
    points = np.round((polygon - 0.5) * 256).astype(np.int32)
    cv2.fillPoly(mask, [points], 1, shift=8)
    return mask.astype(bool)


def _sample(polygon: npt.NDArray[Any], kind: str) -> tuple[Any, dict[str, Any]]:
    """Return an image with a white polygon in the first channel, white in the others, and its target."""
    image = tv_tensors.Image(torch.full((3, _HEIGHT, _WIDTH), 255, dtype=torch.uint8))
    image[0] = torch.from_numpy(_polygon_mask(polygon, (_HEIGHT, _WIDTH)).astype(np.uint8) * 255)
    return image, {"boxes": _boxes(polygon[None], kind), "labels": torch.tensor([1]), "area": torch.tensor([1.0])}


def _iou(image: Tensor, corners: npt.NDArray[Any]) -> float:
    """Return the IoU of the white pixels and a polygon, without pixels that a transform added."""
    pixels = image.as_subclass(Tensor).numpy()
    white, from_image, _ = pixels > (0.5 if pixels.dtype == np.float32 else 127)
    polygon = _polygon_mask(corners, white.shape) & from_image
    return float((white & polygon).sum() / max(1, (white | polygon).sum()))


def _resized_by_torchvision(size: Sequence[int]) -> Any:
    # A transform in front that decodes the image, so that torchvision's resize follows.
    return DecodeAwareCompose([v2.RandomZoomOut(p=0.0), v2.Resize(size)])


_TRANSFORMS: dict[str, Callable[[], Any]] = {
    "hflip": lambda: RandomHorizontalFlip(1.0),
    "vflip": lambda: RandomVerticalFlip(1.0),
    "torchvision hflip": lambda: v2.RandomHorizontalFlip(1.0),
    "resize": lambda: v2.Resize([100, 120]),
    "decoded resize": lambda: _resized_by_torchvision([150, 180]),
    "shorter sides": lambda: v2.RandomShortestSize([120, 160]),
    "letterbox": lambda: Letterbox([160, 240]),
    "zoom out": lambda: v2.RandomZoomOut(p=1.0, side_range=(1.2, 2.0)),
    "rotation": lambda: v2.RandomRotation(180, v2.InterpolationMode.BILINEAR),
    "affine": lambda: v2.RandomAffine(90, (0.1, 0.1), (0.8, 1.2), interpolation=v2.InterpolationMode.BILINEAR),
    "crop": lambda: v2.RandomCrop((150, 180)),
    "iou crop": lambda: RandomObjectCrop(p=1.0),
    "preset": lambda: detection_transforms(True, size=(160, 200), letterbox=True, hflip=0.5, vflip=0.5,
                                           zoom_out=0.5, rotation=45, fill=0),
}  # fmt: skip
# A rectangle becomes another quadrilateral, which only corners describe.
_BENDING: dict[str, Callable[[], Any]] = {
    "stretch": lambda: v2.Resize([100, 240]),
    "decoded stretch": lambda: _resized_by_torchvision([100, 240]),
    "shear": lambda: v2.RandomAffine(10, shear=25, interpolation=v2.InterpolationMode.BILINEAR),
    "perspective": lambda: v2.RandomPerspective(0.4, p=1.0),
    "resized crop": lambda: v2.RandomResizedCrop((120, 200), scale=(0.6, 1.0)),
}
