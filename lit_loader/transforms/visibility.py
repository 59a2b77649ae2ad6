"""Whether a point is still on the canvas: read from a target with checks, and brought up to date."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torchvision import tv_tensors

from lit_loader.images.views import points_on_canvas

__all__ = ["UpdateVisibility", "target_points"]

# NOTE [What torchvision does to points]
# Read and tried in torchvision 0.26 to 0.29. Boxes, points and pixels share continuous coordinates here: pixel
# (0, 0) covers [0, 1) x [0, 1), the canvas [0, W] x [0, H].
# - Crop, pad (zoom out), resize, rotate, affine and perspective move `KeyPoints` as they move boxes and
#   pixels. They do not clamp points to the canvas (`ClampKeyPoints` would, and is not used here).
# - The flips do not: a point goes to W - 1 - x, as if coordinates named pixels, while a box goes to W - x.
#   Each flip moves points by one pixel against the image. flips.py mirrors them itself.
# - No flip exchanges left and right points, and no transform knows of visibility.
# - rotate(expand=True) gives points and boxes a canvas_size that can be a pixel smaller than the image, and
#   leaves it as it was where there are none. Nothing here expands.
# - perspective can bring a point from behind the horizon back onto the canvas. Only points that were off the
#   canvas can be there, so visibility is brought up to date before such a step, not only at the end.


def target_points(target: Any) -> tuple[tv_tensors.KeyPoints, Tensor] | None:
    """Return ``keypoints`` and ``visibility`` of a target, or ``None`` where it has no points.

    Raises:
        TypeError: ``keypoints`` is not a ``tv_tensors.KeyPoints``: transforms would leave it where it is.
        ValueError: The shapes are not ``(N, K, 2)`` and ``(N, K)``, or ``visibility`` is missing.
    """
    if not isinstance(target, Mapping) or target.get("keypoints") is None:
        return None
    points, visibility = target["keypoints"], target.get("visibility")
    if not isinstance(points, tv_tensors.KeyPoints):
        raise TypeError(
            f"target['keypoints'] is a {type(points).__name__}, which transforms do not move; "
            "wrap it as tv_tensors.KeyPoints(points, canvas_size=(height, width))."
        )
    if not isinstance(visibility, Tensor):
        raise ValueError(
            "target has keypoints and no visibility tensor, so that points which leave the image cannot be "
            "marked; add visibility, uint8 (N, K): 0 absent, 1 hidden, 2 visible."
        )
    if points.ndim != 3 or points.shape[:2] != visibility.shape:
        raise ValueError(
            f"keypoints {tuple(points.shape)} and visibility {tuple(visibility.shape)} must be (N, K, 2) "
            "and (N, K)."
        )
    return points, visibility


class UpdateVisibility(nn.Module):
    """Set the visibility of points that lie off the canvas to 0 (absent).

    A point is off where x < 0, y < 0, x > W or y > H, or where it is not finite. Its coordinates stay, so that
    flips and crops that follow move it as all others; a point that is absent stays absent, even where a
    later transform puts its coordinates back on the canvas. Put it after every transform that can move
    points off (crops, rotations), and before one that enlarges the canvas (padding). A target without points
    passes as it is.

    Called as ``transform(image, target)`` or ``transform((image, target))``; further elements pass through.

    Determinism: no randomness.
    """

    def forward(self, *inputs: Any) -> Any:
        """Return the sample with a new target; the given one is not changed.

        Raises:
            TypeError: The points are not ``tv_tensors.KeyPoints``.
            ValueError: The points have no visibility, or another shape.
        """
        sample = inputs if len(inputs) > 1 else inputs[0]
        if not isinstance(sample, tuple | list) or len(sample) < 2:
            return sample
        image, target, *rest = sample
        found = target_points(target)
        if found is None:
            return sample
        points, visibility = found
        on_canvas = points_on_canvas(points, points.canvas_size)
        kept = torch.where(on_canvas, visibility, torch.zeros_like(visibility))
        return (image, {**target, "visibility": kept}, *rest)
