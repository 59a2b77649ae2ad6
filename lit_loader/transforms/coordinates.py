"""Map points of a crop back to the image that it was cut from."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["to_image_points"]


def to_image_points(points: Tensor, crop: Tensor, size: Sequence[int]) -> Tensor:
    """Map points from pixels of a crop to pixels of the image it was cut from.

    Exact for crops that were not rotated, warped or flipped, as in evaluation.

    Args:
        points: Float tensor, shape ``(..., K, 2)``, in pixels of the crop.
        crop: Shape ``(..., 4)``: the region of the image that the crop shows, x1, y1, x2, y2 in pixels, as returned by
            ``CropToObjects``.
        size: (height, width) of the crop that the points refer to, in pixels.

    Returns:
        A plain tensor of the points' shape and dtype, in pixels of the image.

    Raises:
        ValueError: The shapes do not match, or ``size`` is not two positive numbers.
        TypeError: The points are integers.
    """
    # A size of zero would divide by zero below and return points that are not finite.
    if len(size) != 2 or min(size) <= 0:
        raise ValueError(f"size={list(size)} is not (height, width) in pixels.")
    if not points.is_floating_point():
        raise TypeError(f"points are {points.dtype}; convert them to float32.")
    # A crop may have been resized: points scale with the sides of its region.
    sides = torch.tensor([size[1], size[0]], dtype=points.dtype, device=points.device)
    region = crop.as_subclass(Tensor).to(points)
    if points.ndim < 2 or points.shape[-1] != 2 or region.shape != (*points.shape[:-2], 4):
        shapes = f"crop {tuple(crop.shape)} does not fit points {tuple(points.shape)}"
        raise ValueError(f"{shapes}; give one (x1, y1, x2, y2) for each (K, 2).")
    top_left = region[..., None, :2]
    bottom_right = region[..., None, 2:]
    return top_left + points.as_subclass(Tensor) * (bottom_right - top_left) / sides
