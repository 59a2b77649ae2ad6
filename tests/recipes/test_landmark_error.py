"""The landmark metric against numbers worked out by hand, and what it leaves out."""

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


def scores(*faces: dict[str, Tensor], **settings: Any) -> Any:
    metric = NormalizedMeanError(**settings)
    for one in faces:
        metric.update(**one)
    return metric.compute_scores()


@pytest.mark.parametrize(
    ("settings", "size"),
    [
        ({"normalize_by": "pair", "normalization_pair": (0, 1)}, 10.0),
        ({"normalize_by": "box"}, 12.0),
        ({"normalize_by": "diagonal"}, math.hypot(8, 18)),
    ],
)
def test_the_error_is_the_mean_distance_of_present_points_over_the_size_of_the_face(
    settings: dict[str, Any], size: float
) -> None:
    found = scores(face(), **settings)
    assert found.nme == pytest.approx((1 + 2 + 5) / 3 / size)
    assert (found.num_faces, found.num_excluded) == (1, 0)


def test_faces_weigh_the_same_however_many_points_they_have() -> None:
    one_point = face(mask=torch.tensor([[True, False, False, False]]))
    assert scores(face(), one_point).nme == pytest.approx((8 / 3 / 12 + 1 / 12) / 2)


@pytest.mark.parametrize(("threshold", "share"), [(0.05, 1.0), (0.10, 0.5), (0.25, 0.0)])
def test_the_failure_rate_is_the_share_of_faces_above_the_threshold(threshold: float, share: float) -> None:
    one_point = face(mask=torch.tensor([[True, False, False, False]]))  # 0.083 beside 0.222
    assert scores(face(), one_point, failure_threshold=threshold).failure_rate == share


@pytest.mark.parametrize(("threshold", "share"), [(0.05, 0.0), (0.10, (1 - 1 / 12 / 0.1) / 2), (0.25, None)])
def test_auc_is_the_area_under_the_cumulative_errors(threshold: float, share: float | None) -> None:
    one_point = face(mask=torch.tensor([[True, False, False, False]]))
    errors = torch.tensor([1 / 12, 8 / 3 / 12], dtype=torch.float64)
    steps = torch.linspace(0, threshold, 20001, dtype=torch.float64)
    curve = (errors[:, None] <= steps).double().mean(dim=0)
    found = scores(face(), one_point, failure_threshold=threshold)
    assert found.auc == pytest.approx(float(torch.trapezoid(curve, steps)) / threshold, abs=1e-4)
    if share is not None:
        assert found.auc == pytest.approx(share, abs=1e-6)
    assert (found.logged["auc"], dict(found.report())["test"][f"AUC up to {threshold:g}"]) == (found.auc,) * 2


def test_points_without_error_have_the_whole_area() -> None:
    assert scores(face(predicted=face()["target"])).auc == 1.0


def test_what_is_masked_changes_nothing() -> None:
    other = face()
    other["target"][0, 3] = float("nan")
    other["predicted"][0, 3] = float("inf")
    assert scores(other) == scores(face())


def test_a_face_that_cannot_be_measured_is_counted_apart() -> None:
    no_eye = face(mask=torch.tensor([[True, False, True, False]]))
    nothing = face(mask=torch.zeros(1, 4, dtype=torch.bool))
    flat = face(boxes=torch.tensor([[3.0, 3.0, 3.0, 9.0]]))
    by_eyes: dict[str, Any] = {"normalize_by": "pair", "normalization_pair": (0, 1)}
    found = scores(face(), no_eye, nothing, flat, **by_eyes)
    assert (found.num_faces, found.num_excluded) == (2, 2)
    assert found.nme == scores(face(), **by_eyes).nme
    by_box = scores(face(), no_eye, nothing, flat)
    assert (by_box.num_faces, by_box.num_excluded) == (2, 2)


def test_eyes_at_one_place_give_no_size() -> None:
    together = face(target=torch.zeros(1, 4, 2))
    assert scores(together, normalize_by="pair", normalization_pair=(0, 1)).num_excluded == 1


def test_a_point_that_is_no_number_fails() -> None:
    found = scores(face(predicted=torch.full((1, 4, 2), float("nan"))))
    assert (found.failure_rate, found.auc) == (1.0, 0.0)
    assert math.isnan(found.nme)


def test_no_face_scores_no_number_and_reset_forgets() -> None:
    metric = NormalizedMeanError()
    metric.update(**face())
    metric.reset()
    metric.update(**{name: value[:0] for name, value in face().items()})
    found = metric.compute_scores()
    assert math.isnan(found.nme)
    assert math.isnan(found.failure_rate)
    assert math.isnan(found.auc)
    assert (found.num_faces, found.num_excluded) == (0, 0)


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
def test_settings_that_do_not_go_together_are_refused(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        NormalizedMeanError(**settings)


def test_shapes_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(N, K, 2\)"):
        NormalizedMeanError().update(**face(mask=torch.ones(1, 3, dtype=torch.bool)))
