"""Points in other coordinates: shares of a canvas, and the image that a crop was cut from."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["denormalize_keypoints", "normalize_keypoints", "to_image_points"]


def normalize_keypoints(points: Tensor, size: Sequence[int]) -> Tensor:
    """Map pixels to [-1, 1], where -1 and +1 are the outer edges of the canvas.

    Args:
        points: Float tensor, shape ``(..., 2)``, x and y in pixels; pixel (0, 0) covers [0, 1) x [0, 1).
        size: (height, width) of the canvas, in pixels.

    Returns:
        A plain tensor of the same shape and dtype. Points off the canvas lie outside [-1, 1].

    Raises:
        ValueError: ``size`` is not two positive numbers, or the points have no last dimension of 2.
        TypeError: The points are integers.
    """
    sides = _sides(points, size)
    return points.as_subclass(Tensor) * 2 / sides - 1


def denormalize_keypoints(points: Tensor, size: Sequence[int]) -> Tensor:
    """Map [-1, 1] to pixels; the inverse of ``normalize_keypoints``, with the same arguments and errors."""
    sides = _sides(points, size)
    return (points.as_subclass(Tensor) + 1) * sides / 2


def to_image_points(points: Tensor, crop: Tensor, size: Sequence[int]) -> Tensor:
    """Map the pixels of a crop to those of the image it was cut from.

    Exact for crops that were not turned, bent or flipped, which is how evaluation cuts them.

    Args:
        points: Float tensor, shape ``(..., K, 2)``, in pixels of the crop.
        crop: Shape ``(..., 4)``, the region that the crop shows: x1, y1, x2, y2 in pixels of the image, as
            ``CropToObjects`` gives it.
        size: (height, width) of the crop as the points see it, in pixels.

    Returns:
        A plain tensor of the points' shape and dtype, in pixels of the image.

    Raises:
        ValueError: The shapes do not go together, or ``size`` is not two positive numbers.
        TypeError: The points are integers.
    """
    sides = _sides(points, size)
    region = crop.as_subclass(Tensor).to(points)
    if points.ndim < 2 or region.shape != (*points.shape[:-2], 4):
        raise ValueError(
            f"crop {tuple(crop.shape)} does not fit points {tuple(points.shape)}; "
            "give one (x1, y1, x2, y2) for each (K, 2)."
        )
    corner, opposite = region[..., None, :2], region[..., None, 2:]
    return corner + points.as_subclass(Tensor) * (opposite - corner) / sides


def _sides(points: Tensor, size: Sequence[int]) -> Tensor:
    """Return (width, height) as a tensor that goes with the points."""
    if len(size) != 2 or min(size) <= 0:
        raise ValueError(f"size={list(size)} is not (height, width) in pixels.")
    if points.ndim < 1 or points.shape[-1] != 2:
        raise ValueError(f"points {tuple(points.shape)} must be (..., 2).")
    if not points.is_floating_point():
        raise TypeError(f"points are {points.dtype}; convert them to float32.")
    return torch.tensor([size[1], size[0]], dtype=points.dtype, device=points.device)
