"""Which detection stands for which object, and what is measured on the pairs."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from lit_loader.recipes import AveragePrecision, NormalizedMeanError
from lit_loader.recipes.multi_task_metric import MultiTaskMetric, match_detections

A, B, FAR = [0.0, 0, 10, 10], [20.0, 0, 30, 10], [80.0, 80, 90, 90]


def pairs(boxes: list[list[float]], scores: list[float], objects: list[list[float]]) -> list[tuple[int, int]]:
    rows, columns = match_detections(
        torch.tensor(boxes).reshape(-1, 4), torch.tensor(scores), torch.tensor(objects).reshape(-1, 4)
    )
    return list(zip(rows.tolist(), columns.tolist(), strict=True))


def test_the_surest_detection_chooses_first_and_an_object_is_chosen_once() -> None:
    assert pairs([[0.0, 0, 10, 9], A, B], [0.5, 0.9, 0.2], [B, A]) == [(1, 1), (2, 0)]


def test_a_second_detection_takes_the_other_object_that_it_overlaps_enough() -> None:
    near = [2.0, 0, 12, 10]  # IoU 2 / 3 with A
    assert pairs([A, A], [0.9, 0.8], [A, near]) == [(0, 0), (1, 1)]


@pytest.mark.parametrize(("height", "found"), [(5.0, 1), (4.9, 0)])
def test_a_pair_overlaps_by_half_at_least(height: float, found: int) -> None:
    assert len(pairs([[0.0, 0, 10, height]], [1.0], [A])) == found


@pytest.mark.parametrize(("boxes", "objects"), [([], []), ([A], []), ([], [A]), ([FAR], [A])])
def test_nothing_pairs_with_nothing(boxes: list[list[float]], objects: list[list[float]]) -> None:
    assert pairs(boxes, [0.5] * len(boxes), objects) == []


def metric(**settings: Any) -> MultiTaskMetric:
    return MultiTaskMetric(
        boxes=AveragePrecision(("x", "y")),
        points=NormalizedMeanError(**settings),
        attributes={"finish": ("plain", "hollow")},
    )


def image() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Found: A with a point 2 pixels off and the wrong finish. Missed: B. A crowd at FAR is found as well."""
    found = {
        "boxes": torch.tensor([A, FAR]),
        "labels": torch.tensor([2, 1]),
        "scores": torch.tensor([0.9, 0.8]),
        "keypoints": torch.tensor([[[2.0, 0.0], [5.0, 5.0]], [[85.0, 85.0], [85.0, 85.0]]]),
        "finish": torch.tensor([0, 0]),
    }
    target = {
        "boxes": torch.tensor([B, FAR, A]),
        "labels": torch.tensor([1, 1, 1]),
        "keypoints": torch.tensor([[[0.0, 0.0]] * 2, [[0.0, 0.0]] * 2, [[0.0, 0.0], [5.0, 5.0]]]),
        "keypoint_mask": torch.ones(3, 2, dtype=torch.bool),
        "finish": torch.tensor([0, 0, 1]),
        "iscrowd": torch.tensor([0, 1, 0]),
    }
    return found, target


def test_points_and_attributes_are_measured_on_matched_objects_whatever_their_class() -> None:
    measured = metric()
    measured.update(*([one] for one in image()))
    scores = measured.compute_scores()
    assert (scores.num_matched, scores.num_missed) == (1, 1)
    assert scores.landmarks is not None
    assert (scores.landmarks.num_faces, scores.landmarks.nme) == (1, pytest.approx((2 + 0) / 2 / 10))
    assert scores.attributes["finish"].recall["hollow"] == 0.0
    assert scores.attributes["finish"].support == {"plain": 0, "hollow": 1}
    assert scores.detection.map_50 == 0.0  # A was found under the other class
    assert scores.mean == pytest.approx((0.0 + 0.0 + 1 - scores.landmarks.failure_rate) / 3)


def test_the_threshold_and_the_normaliser_are_honoured() -> None:
    measured = metric(normalize_by="pair", normalization_pair=(0, 1), failure_threshold=0.14)
    measured.update(*([one] for one in image()))
    scores = measured.compute_scores().landmarks
    assert scores is not None
    assert scores.nme == pytest.approx(1 / math.hypot(5, 5))
    assert scores.failure_rate == 1.0


def test_an_object_without_the_attribute_or_points_is_not_asked() -> None:
    measured, (found, target) = metric(), image()
    target |= {"finish": torch.full((3,), -1), "keypoint_mask": torch.zeros(3, 2, dtype=torch.bool)}
    measured.update([found], [target])
    scores = measured.compute_scores()
    assert math.isnan(scores.attributes["finish"].macro_f1)
    assert scores.landmarks is not None
    assert (scores.landmarks.num_faces, scores.landmarks.num_excluded) == (0, 1)
    assert scores.mean == 0.0


def test_reset_forgets_everything() -> None:
    measured, (found, target) = metric(), image()
    measured.update([found], [target])
    measured.reset()
    measured.update(
        [{name: value[:0] for name, value in found.items()}], [{name: value[:0] for name, value in target.items()}]
    )
    scores = measured.compute_scores()
    assert (scores.num_matched, scores.num_missed) == (0, 0)
    assert scores.landmarks is not None
    assert scores.landmarks.num_faces + scores.landmarks.num_excluded == 0
    assert sum(scores.attributes["finish"].support.values()) == 0
