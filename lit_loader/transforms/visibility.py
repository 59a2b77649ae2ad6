"""Visibility of keypoints: read it from a target, and update it for points that left the canvas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torchvision import tv_tensors

from lit_loader.images.views import points_on_canvas

__all__ = ["UpdateVisibility", "target_points"]

# NOTE [How torchvision transforms points]
# Checked in torchvision 0.26 to 0.29. Boxes, points and pixels share continuous coordinates here: pixel (0, 0) covers
# [0, 1) x [0, 1), the canvas [0, W] x [0, H].
# - Crop, pad (zoom out), resize, rotate, affine and perspective transform `KeyPoints` like boxes and pixels. They do
#   not clamp points to the canvas (`ClampKeyPoints` would, and is not used here).
# - Flips move a point to W - 1 - x, as if coordinates were pixel indices, but a box to W - x. Each flip therefore
#   shifts points by one pixel relative to the image. moving.py mirrors them instead.
# - No flip swaps left and right points, and no transform handles visibility.
# - rotate(expand=True) sets a canvas_size of points and boxes that can be a pixel smaller than the image, and does not
#   update it if there are none. Nothing here expands.
# - perspective can move a point from behind the horizon back onto the canvas. Such a point was off the canvas before,
#   so visibility must be updated before a perspective transform, not only at the end.


def target_points(target: Any) -> tuple[tv_tensors.KeyPoints, Tensor] | None:
    """Return the ``keypoints`` and ``visibility`` of a target, or None if it has no points.

    Raises:
        TypeError: ``keypoints`` is not a ``tv_tensors.KeyPoints``, so transforms would not move it.
        ValueError: The shapes are not ``(N, K, 2)`` and ``(N, K)``, or ``visibility`` is missing.
    """
    if not isinstance(target, Mapping) or target.get("keypoints") is None:
        return None
    points = target["keypoints"]
    visibility = target.get("visibility")
    if not isinstance(points, tv_tensors.KeyPoints):
        remedy = "wrap it as tv_tensors.KeyPoints(points, canvas_size=(height, width))"
        raise TypeError(f"target['keypoints'] is a {type(points).__name__}, which transforms do not move; {remedy}.")
    if not isinstance(visibility, Tensor):
        remedy = "add visibility, uint8 (N, K): 0 absent, 1 hidden, 2 visible"
        raise ValueError(f"target has keypoints but no visibility tensor, which marks points outside; {remedy}.")
    if points.ndim != 3 or points.shape[:2] != visibility.shape:
        shapes = f"{tuple(points.shape)} and {tuple(visibility.shape)}"
        raise ValueError(f"expected keypoints (N, K, 2) and visibility (N, K), got {shapes}.")
    return points, visibility


class UpdateVisibility(nn.Module):
    """Set the visibility of points outside the canvas to 0 (absent).

    A point is outside if x < 0, y < 0, x > W or y > H, or if it is not finite. It keeps its coordinates, and later
    flips and crops move it like all others, but it stays absent even if a later transform moves it back onto the
    canvas. Use this after every transform that can move points off the canvas (crops, rotations), and before one that
    enlarges the canvas (padding). A target without points is unchanged.

    Called as ``transform(image, target)`` or ``transform((image, target))``; further elements pass through.

    Determinism: no randomness.
    """

    def forward(self, *inputs: Any) -> Any:
        """Return the sample with a new target; the input is not modified.

        Raises:
            TypeError: The points are not ``tv_tensors.KeyPoints``.
            ValueError: The points have no visibility, or its shape differs.
        """
        sample = inputs if len(inputs) > 1 else inputs[0]
        if not isinstance(sample, tuple | list) or len(sample) < 2:
            return sample
        image, target, *extras = sample
        points_and_visibility = target_points(target)
        if points_and_visibility is None:
            return sample
        points, visibility = points_and_visibility
        # Comparisons with NaN are False, so a point that is not finite is outside.
        on_canvas = points_on_canvas(points, points.canvas_size)
        visibility = torch.where(on_canvas, visibility, torch.zeros_like(visibility))
        return (image, {**target, "visibility": visibility}, *extras)
