"""Averages of the predictions for an image and for its mirror image, left and right exchanged."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from lit_loader.errors import SettingError
from lit_loader.transforms.flips import FLIP_REMEDY, check_flip_pairs

__all__ = ["average_answers", "average_logits", "average_points", "average_scores", "mirror", "mirror_order"]


def mirror(images: Tensor) -> Tensor:
    """Return images ``(..., H, W)`` with left and right exchanged."""
    return images.flip(-1)


def mirror_order(num_points: int, flip_pairs: Sequence[Sequence[int]] | None) -> tuple[int, ...]:
    """Return for each point the position of its mirror image.

    Args:
        num_points: Points K.
        flip_pairs: Pairs of positions of points that are mirror images of each other; empty if every point keeps its
            name; None if they are unknown.

    Raises:
        SettingError: If the pairs of several points are unknown.
        ValueError: If they are not disjoint pairs of positions below ``num_points``.
    """
    if flip_pairs is None and num_points > 1:
        rule = f"exchanges left and right of {num_points} points, whose pairs are unknown (flip_pairs=None)"
        raise SettingError("test_time_flip", True, rule, FLIP_REMEDY)
    order = list(range(num_points))
    for first, second in check_flip_pairs(flip_pairs or ()):
        if max(first, second) >= num_points:
            raise ValueError(f"flip_pairs contains ({first}, {second}); keypoint_names has {num_points} points")
        order[first] = second
        order[second] = first
    return tuple(order)


def average_points(points: Tensor, mirrored: Tensor, *, width: float, order: Sequence[int]) -> Tensor:
    """Return the mean of points in images, and of those in the mirrored images, as points of the images.

    Args:
        points: float ``(B, K, 2)``, x and y in pixels.
        mirrored: The same of the mirrored images.
        width: Width of the images in pixels.
        order: See `mirror_order`.
    """
    x, y = mirrored[:, list(order)].unbind(-1)
    # Pixel 0 covers [0, 1), so the right edge of an image is at its width, not at width - 1.
    return (points + torch.stack([width - x, y], dim=-1)) / 2


def average_scores(scores: Tensor, mirrored: Tensor, *, order: Sequence[int]) -> Tensor:
    """Return the mean of the scores ``(B, K)`` of points in images and in the mirrored images."""
    return (scores + mirrored[:, list(order)]) / 2


def average_logits(first: Tensor, second: Tensor) -> Tensor:
    """Return logits float32 ``(B, C)`` whose softmax is the mean of the softmax of both, NaN for infinite logits."""
    # Probabilities, whose mean is one again; a mean of logits would be a geometric mean. Logarithms for the metrics,
    # which take logits, and so that a small probability is not rounded to 0.
    return torch.logaddexp(first.float().log_softmax(dim=1), second.float().log_softmax(dim=1)) - math.log(2)


def average_answers(first: Tensor, second: Tensor) -> Tensor:
    """Return logits float32 ``(B, C)`` whose sigmoid is the mean of the sigmoid of both."""
    # Half precision rounds probabilities near 0 and 1 before their mean is taken.
    first = first.float()
    second = second.float()
    log_yes = torch.logaddexp(functional.logsigmoid(first), functional.logsigmoid(second))
    # Not log(1 - p), which is infinite where p is rounded to 1.
    log_no = torch.logaddexp(functional.logsigmoid(-first), functional.logsigmoid(-second))
    return log_yes - log_no
