"""Points from heatmaps by their expectation, and the losses that teach them; both know absent points."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["heatmap_loss", "masked_mean", "point_loss", "soft_argmax"]


def soft_argmax(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the expected place of each heatmap's softmax, and how sure it is.

    The heat of cell (row i, column j) stands at its middle, ``((j + 0.5) / w, (i + 0.5) / h)``: 0 and 1 are
    the outer edges of the map, and a point nearer to them than half a cell cannot be given.

    Args:
        logits: float, shape ``(..., h, w)``.

    Returns:
        Points float32 ``(..., 2)``, x and y as shares of the map's width and height; scores float32 ``(...,)``
        in [0, 1], the share of the heat within two cells of the point.

    Source:
        Sun et al. 2018, "Integral Human Pose Regression"; Nibali et al. 2018, "Numerical Coordinate
        Regression with Convolutional Neural Networks" (DSNT).
    """
    height, width = logits.shape[-2:]
    heat = logits.float().flatten(-2).softmax(dim=-1).reshape(logits.shape)
    columns, rows = _middles(width, logits.device), _middles(height, logits.device)
    x = (heat.sum(dim=-2) * columns).sum(dim=-1)
    y = (heat.sum(dim=-1) * rows).sum(dim=-1)
    with torch.no_grad():
        near_x = (columns - x[..., None]).abs() * width <= 2
        near_y = (rows - y[..., None]).abs() * height <= 2
        scores = (heat * (near_y[..., :, None] & near_x[..., None, :])).sum(dim=(-2, -1))
    return torch.stack([x, y], dim=-1), scores


def point_loss(points: Tensor, wanted: Tensor, mask: Tensor) -> Tensor:
    """Return the mean absolute error of present coordinates; 0 where no point is present.

    Args:
        points: float, shape ``(..., 2)``.
        wanted: The same shape; what is masked may be anything, NaN too.
        mask: bool, shape ``(...,)``.
    """
    wanted = torch.where(mask[..., None], wanted, torch.zeros_like(wanted))
    return masked_mean((points - wanted).abs().mean(dim=-1), mask)


def heatmap_loss(logits: Tensor, wanted: Tensor, mask: Tensor, *, sigma: float) -> Tensor:
    """Return how far heatmaps are from a Gaussian around each present point; 0 where no point is present.

    The divergence ``KL(G || softmax(logits))``, the mean over present points; G is a Gaussian of ``sigma``
    cells, normalised over the map.

    Args:
        logits: float, shape ``(..., h, w)``.
        wanted: float, shape ``(..., 2)``, shares of the map's width and height; what is masked may be anything.
        mask: bool, shape ``(...,)``.
        sigma: Width of the Gaussian in cells.

    Source:
        Nibali et al. 2018 (DSNT), section 3.4, which regularises towards a Gaussian by a divergence.
    """
    height, width = logits.shape[-2:]
    wanted = torch.where(mask[..., None], wanted, torch.full_like(wanted, 0.5)).float()
    across = (_middles(width, logits.device) - wanted[..., 0, None]) * (width / sigma)
    down = (_middles(height, logits.device) - wanted[..., 1, None]) * (height / sigma)
    target_logits = -0.5 * (across.square()[..., None, :] + down.square()[..., :, None]).flatten(-2)
    target = target_logits.log_softmax(dim=-1)
    found = logits.float().flatten(-2).log_softmax(dim=-1)
    return masked_mean((target.exp() * (target - found)).sum(dim=-1), mask)


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of the values under a mask of the same shape; 0, with a gradient, where there is none."""
    return values.masked_fill(~mask, 0.0).sum() / mask.sum().clamp(min=1)


def _middles(count: int, device: torch.device) -> Tensor:
    return (torch.arange(count, device=device, dtype=torch.float32) + 0.5) / count
