"""Heatmaps: where a point stands, how sure it is, and what a masked point teaches."""

from __future__ import annotations

import pytest
import torch

from lit_loader.recipes.network import heatmap_loss, point_loss, soft_argmax


def test_a_sharp_peak_is_the_middle_of_its_cell_and_certain() -> None:
    logits = torch.zeros(1, 2, 4, 8)
    logits[0, 0, 3, 1] = logits[0, 1, 0, 6] = 100.0
    points, scores = soft_argmax(logits)
    torch.testing.assert_close(points[0], torch.tensor([[1.5 / 8, 3.5 / 4], [6.5 / 8, 0.5 / 4]]))
    torch.testing.assert_close(scores, torch.ones(1, 2))


def test_two_equal_peaks_meet_in_the_middle_and_are_not_sure() -> None:
    logits = torch.zeros(1, 1, 16, 16)
    logits[0, 0, 8, 1] = logits[0, 0, 8, 14] = 100.0
    points, scores = soft_argmax(logits)
    assert points[0, 0].tolist() == pytest.approx([0.5, 8.5 / 16])
    assert float(scores) < 1e-6


def test_a_gaussian_is_found_between_cells_and_has_no_divergence_from_itself() -> None:
    wanted = torch.tensor([[0.4, 0.55]])
    cells = (torch.arange(16) + 0.5) / 16
    distance = (cells[None, :] - 0.4).square() + (cells[:, None] - 0.55).square()
    logits = -0.5 * 16**2 * distance[None]
    torch.testing.assert_close(soft_argmax(logits)[0], wanted, atol=1e-3, rtol=0)
    seen = torch.ones(1, dtype=torch.bool)
    assert float(heatmap_loss(logits, wanted, seen, sigma=1.0)) == pytest.approx(0.0, abs=1e-5)
    assert float(heatmap_loss(logits, wanted, seen, sigma=2.0)) > 0.1
    assert float(heatmap_loss(logits, wanted + 0.1, seen, sigma=1.0)) > 0.1


def test_the_error_of_points_is_the_mean_over_present_coordinates() -> None:
    points, wanted = torch.tensor([[0.1, 0.2], [0.5, 0.5]]), torch.tensor([[0.2, 0.4], [0.0, 0.0]])
    assert float(point_loss(points, wanted, torch.tensor([True, False]))) == pytest.approx(0.15)


@pytest.mark.parametrize("junk", [0.0, 9e9, float("nan")])
def test_a_masked_point_changes_neither_loss_nor_gradient(junk: float) -> None:
    generator = torch.Generator().manual_seed(0)
    given = torch.randn(3, 2, 8, 8, generator=generator)
    wanted = torch.rand(3, 2, 2, generator=generator)
    mask = torch.tensor([[True, False], [True, True], [False, False]])
    results = []
    for value in (0.5, junk):
        logits = given.clone().requires_grad_()
        target = torch.where(mask[..., None], wanted, torch.tensor(value))
        loss = point_loss(soft_argmax(logits)[0], target, mask) + heatmap_loss(logits, target, mask, sigma=1.0)
        loss.backward()
        assert logits.grad is not None
        results.append((loss.detach(), logits.grad))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)
    assert bool((results[0][1][~mask] == 0).all())


def test_no_present_point_costs_nothing_and_can_be_stepped_on() -> None:
    logits, nothing = torch.randn(2, 1, 8, 8, requires_grad=True), torch.zeros(2, 1, dtype=torch.bool)
    wanted = torch.rand(2, 1, 2)
    loss = point_loss(soft_argmax(logits)[0], wanted, nothing) + heatmap_loss(logits, wanted, nothing, sigma=1.0)
    loss.backward()
    assert logits.grad is not None
    assert (float(loss.detach()), float(logits.grad.abs().sum())) == (0.0, 0.0)
