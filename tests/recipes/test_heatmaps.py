"""Heatmaps: the point of a map, its score, and masked points, which do not contribute."""

from __future__ import annotations

import pytest
import torch

from lit_loader.recipes import LandmarkLoss
from lit_loader.recipes.network import heatmap_loss, soft_argmax

LOSS = LandmarkLoss(point_weight=1.0)


def test_sharp_peak_gives_the_centre_of_its_cell_with_score_one() -> None:
    logits = torch.zeros(1, 2, 4, 8)
    logits[0, 0, 3, 1] = logits[0, 1, 0, 6] = 100.0
    points, scores = soft_argmax(logits)
    torch.testing.assert_close(points[0], torch.tensor([[1.5 / 8, 3.5 / 4], [6.5 / 8, 0.5 / 4]]))
    torch.testing.assert_close(scores, torch.ones(1, 2))


def test_two_equal_peaks_give_their_middle_with_score_zero() -> None:
    logits = torch.zeros(1, 1, 16, 16)
    logits[0, 0, 8, 1] = logits[0, 0, 8, 14] = 100.0
    points, scores = soft_argmax(logits)
    assert points[0, 0].tolist() == pytest.approx([0.5, 8.5 / 16])
    assert float(scores) < 1e-6


def test_gaussian_between_cells_is_located_and_does_not_diverge_from_itself() -> None:
    target = torch.tensor([[0.4, 0.55]])
    cells = (torch.arange(16) + 0.5) / 16
    distance = (cells[None, :] - 0.4).square() + (cells[:, None] - 0.55).square()
    logits = -0.5 * 16**2 * distance[None]
    torch.testing.assert_close(soft_argmax(logits)[0], target, atol=1e-3, rtol=0)
    mask = torch.ones(1, dtype=torch.bool)
    assert float(heatmap_loss(logits, target, mask, sigma=1.0)) == pytest.approx(0.0, abs=1e-5)
    assert float(heatmap_loss(logits, target, mask, sigma=2.0)) > 0.1
    assert float(heatmap_loss(logits, target + 0.1, mask, sigma=1.0)) > 0.1


def test_loss_of_points_is_the_mean_over_present_coordinates() -> None:
    points = torch.tensor([[0.1, 0.2], [0.5, 0.5]])
    target = torch.tensor([[0.2, 0.4], [0.0, 0.0]])
    assert float(LOSS.points(points, target, torch.tensor([True, False]))) == pytest.approx(0.15)


@pytest.mark.parametrize("masked_value", [0.0, 9e9, float("nan")])
def test_masked_point_changes_neither_loss_nor_gradient(masked_value: float) -> None:
    generator = torch.Generator().manual_seed(0)
    initial_logits = torch.randn(4, 2, 8, 8, generator=generator)
    points = torch.rand(4, 2, 2, generator=generator)
    # In the last two images no point is present.
    mask = torch.tensor([[True, False], [True, True], [False, False], [False, False]])
    results = []
    for value in (0.5, masked_value):
        logits = initial_logits.clone().requires_grad_()
        target = torch.where(mask[..., None], points, torch.tensor(value))
        loss = LOSS.points(soft_argmax(logits)[0], target, mask) + LOSS.heatmaps(logits, target, mask)
        loss.backward()
        assert logits.grad is not None
        results.append((loss.detach(), logits.grad))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)
    assert bool((results[0][1][~mask] == 0).all())


def test_no_present_point_gives_a_loss_and_a_gradient_of_zero() -> None:
    logits = torch.randn(2, 1, 8, 8, requires_grad=True)
    mask = torch.zeros(2, 1, dtype=torch.bool)
    target = torch.rand(2, 1, 2)
    loss = LOSS.points(soft_argmax(logits)[0], target, mask) + LOSS.heatmaps(logits, target, mask)
    loss.backward()
    assert logits.grad is not None
    assert (float(loss.detach()), float(logits.grad.abs().sum())) == (0.0, 0.0)
