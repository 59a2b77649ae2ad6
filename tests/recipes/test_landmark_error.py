"""The landmark metric compared with numbers worked out by hand, and the faces that it excludes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from lit_loader.recipes import NormalizedMeanError


def face(**changes: Any) -> dict[str, Tensor]:
    """Eyes 10 pixels apart in a box of 8 x 18; errors of 1, 2 and 5 pixels, the last point absent."""
    values = {
        "predicted": torch.tensor([[[1.0, 0.0], [10.0, 2.0], [8.0, 9.0], [77.0, 77.0]]]),
        "target": torch.tensor([[[0.0, 0.0], [10.0, 0.0], [5.0, 5.0], [0.0, 0.0]]]),
        "mask": torch.tensor([[True, True, True, False]]),
        "boxes": torch.tensor([[0.0, 0.0, 8.0, 18.0]]),
    }
    return values | changes


def one_point() -> dict[str, Tensor]:
    """A face with its first point alone: an error of 1 / 12 of the box; `face` has 8 / 3 / 12."""
    return face(mask=torch.tensor([[True, False, False, False]]))


def scores(*faces: dict[str, Tensor], **settings: Any) -> Any:
    metric = NormalizedMeanError(**settings)
    for values in faces:
        metric.update(**values)
    return metric.compute_scores()


@pytest.mark.parametrize(
    ("settings", "size"),
    [
        ({"normalize_by": "pair", "normalization_pair": (0, 1)}, 10.0),
        ({"normalize_by": "box"}, 12.0),
        ({"normalize_by": "diagonal"}, math.hypot(8, 18)),
    ],
)
def test_error_is_the_mean_distance_of_present_points_over_the_size_of_the_face(
    settings: dict[str, Any], size: float
) -> None:
    result = scores(face(), **settings)
    assert result.nme == pytest.approx((1 + 2 + 5) / 3 / size)
    assert (result.num_faces, result.num_excluded) == (1, 0)


def test_faces_count_the_same_for_any_number_of_points() -> None:
    assert scores(face(), one_point()).nme == pytest.approx((8 / 3 / 12 + 1 / 12) / 2)


@pytest.mark.parametrize(
    ("threshold", "failure_rate", "auc"),
    [(0.05, 1.0, 0.0), (0.10, 0.5, (1 - 1 / 12 / 0.1) / 2), (0.25, 0.0, (2 - 11 / 3 / 12 / 0.25) / 2)],
)
def test_failure_rate_and_auc_depend_on_the_threshold(threshold: float, failure_rate: float, auc: float) -> None:
    result = scores(face(), one_point(), failure_threshold=threshold)
    assert result.failure_rate == failure_rate
    assert result.auc == pytest.approx(auc, abs=1e-6)
    # The area under the cumulative distribution of the errors, by numeric integration.
    errors = torch.tensor([1 / 12, 8 / 3 / 12], dtype=torch.float64)
    steps = torch.linspace(0, threshold, 20001, dtype=torch.float64)
    curve = (errors[:, None] <= steps).double().mean(dim=0)
    assert result.auc == pytest.approx(float(torch.trapezoid(curve, steps)) / threshold, abs=1e-4)
    assert result.logged["auc"] == dict(result.report())["test"][f"AUC up to {threshold:g}"] == result.auc


def test_points_without_error_have_an_auc_of_one() -> None:
    assert scores(face(predicted=face()["target"])).auc == 1.0


def test_masked_points_do_not_change_the_scores() -> None:
    changed = face()
    changed["target"][0, 3] = float("nan")
    changed["predicted"][0, 3] = float("inf")
    assert scores(changed) == scores(face())


@pytest.mark.parametrize("settings", [{}, {"normalize_by": "pair", "normalization_pair": (0, 1)}])
def test_faces_that_cannot_be_measured_are_counted_and_excluded(settings: dict[str, Any]) -> None:
    no_points = face(mask=torch.zeros(1, 4, dtype=torch.bool))
    # Without a size: a flat box, an absent eye, or both eyes at one point.
    if settings:
        unsized = [face(mask=torch.tensor([[True, False, True, False]])), face(target=torch.zeros(1, 4, 2))]
    else:
        unsized = [face(boxes=torch.tensor([[3.0, 3.0, 3.0, 9.0]]))] * 2
    result = scores(face(), no_points, *unsized, **settings)
    assert (result.num_faces, result.num_excluded) == (1, 3)
    assert result.nme == scores(face(), **settings).nme


def test_face_with_a_nan_point_fails() -> None:
    result = scores(face(predicted=torch.full((1, 4, 2), float("nan"))))
    assert (result.failure_rate, result.auc) == (1.0, 0.0)
    assert math.isnan(result.nme)


def test_scores_without_faces_are_nan_also_after_a_reset() -> None:
    metric = NormalizedMeanError()
    metric.update(**face())
    metric.reset()
    metric.update(**{name: value[:0] for name, value in face().items()})
    result = metric.compute_scores()
    assert all(map(math.isnan, (result.nme, result.failure_rate, result.auc)))
    assert (result.num_faces, result.num_excluded) == (0, 0)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"normalize_by": "pupils"}, "must be 'pair', 'box' or 'diagonal'"),
        ({"normalize_by": "pair"}, "needs normalization_pair"),
        ({"normalize_by": "box", "normalization_pair": (0, 1)}, "no effect"),
        ({"normalize_by": "pair", "normalization_pair": (1, 1)}, "different points"),
        ({"normalize_by": "pair", "normalization_pair": (-1, 1)}, "different points"),
        ({"failure_threshold": 0.0}, "above 0"),
    ],
)
def test_contradictory_settings_are_refused(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        NormalizedMeanError(**settings)


def test_shapes_that_do_not_match_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(N, K, 2\)"):
        NormalizedMeanError().update(**face(mask=torch.ones(1, 3, dtype=torch.bool)))
