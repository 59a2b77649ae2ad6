"""Matching of detections with objects, and the scores of the pairs."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from lit_loader.recipes import AveragePrecision, NormalizedMeanError
from lit_loader.recipes.matching import match_detections
from lit_loader.recipes.multi_task_metric import MultiTaskMetric

A = [0.0, 0, 10, 10]
B = [20.0, 0, 30, 10]
FAR = [80.0, 80, 90, 90]


def pairs(boxes: list[list[float]], scores: list[float], objects: list[list[float]]) -> list[tuple[int, int]]:
    detected, annotated = (torch.tensor(rows).reshape(-1, 4) for rows in (boxes, objects))
    rows, columns = match_detections(detected, torch.tensor(scores), annotated)
    return list(zip(rows.tolist(), columns.tolist(), strict=True))


@pytest.mark.parametrize(
    ("boxes", "scores", "objects", "expected"),
    [
        # The detection with the highest score chooses first, and an object is chosen once.
        ([[0.0, 0, 10, 9], A, B], [0.5, 0.9, 0.2], [B, A], [(1, 1), (2, 0)]),
        # A second detection takes another object that it overlaps enough: an IoU of 2 / 3 with A.
        ([A, A], [0.9, 0.8], [A, [2.0, 0, 12, 10]], [(0, 0), (1, 1)]),
        # A pair has an IoU of at least one half.
        ([[0.0, 0, 10, 5.0]], [1.0], [A], [(0, 0)]),
        ([[0.0, 0, 10, 4.9]], [1.0], [A], []),
        ([FAR], [0.5], [A], []),
        ([], [], [], []),
        ([A], [0.5], [], []),
        ([], [], [A], []),
    ],
)
def test_detections_are_matched_with_objects_by_score_and_overlap(
    boxes: list[Any], scores: list[float], objects: list[Any], expected: list[tuple[int, int]]
) -> None:
    assert pairs(boxes, scores, objects) == expected


def metric(**settings: Any) -> MultiTaskMetric:
    return MultiTaskMetric(
        boxes=AveragePrecision(("x", "y")),
        points=NormalizedMeanError(**settings),
        attributes={"finish": ("plain", "hollow")},
    )


def image() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Detected: A, with a point 2 pixels off and the wrong finish, and a crowd at FAR. Missed: B."""
    detection = {
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
    return detection, target


def test_points_and_attributes_are_measured_on_matched_objects_of_any_class() -> None:
    measured = metric()
    measured.update(*([fields] for fields in image()))
    scores = measured.compute_scores()
    assert (scores.num_matched, scores.num_missed) == (1, 1)
    assert scores.landmarks is not None
    assert (scores.landmarks.num_faces, scores.landmarks.nme) == (1, pytest.approx((2 + 0) / 2 / 10))
    assert scores.attributes["finish"].recall["hollow"] == 0.0
    assert scores.attributes["finish"].support == {"plain": 0, "hollow": 1}
    assert scores.detection.map_50 == 0.0  # A was detected with the other class
    assert scores.mean == pytest.approx((0.0 + 0.0 + 1 - scores.landmarks.failure_rate) / 3)


def test_threshold_and_normaliser_change_the_scores() -> None:
    measured = metric(normalize_by="pair", normalization_pair=(0, 1), failure_threshold=0.14)
    measured.update(*([fields] for fields in image()))
    scores = measured.compute_scores().landmarks
    assert scores is not None
    assert scores.nme == pytest.approx(1 / math.hypot(5, 5))
    assert scores.failure_rate == 1.0


def test_objects_without_attribute_and_points_are_not_measured() -> None:
    measured = metric()
    detection, target = image()
    target |= {"finish": torch.full((3,), -1), "keypoint_mask": torch.zeros(3, 2, dtype=torch.bool)}
    measured.update([detection], [target])
    scores = measured.compute_scores()
    assert math.isnan(scores.attributes["finish"].macro_f1)
    assert scores.landmarks is not None
    assert (scores.landmarks.num_faces, scores.landmarks.num_excluded) == (0, 1)
    assert scores.mean == 0.0


def test_reset_clears_all_scores() -> None:
    measured = metric()
    measured.update(*([fields] for fields in image()))
    measured.reset()
    measured.update(*([{name: value[:0] for name, value in fields.items()}] for fields in image()))
    scores = measured.compute_scores()
    assert (scores.num_matched, scores.num_missed) == (0, 0)
    assert scores.landmarks is not None
    assert scores.landmarks.num_faces + scores.landmarks.num_excluded == 0
    assert sum(scores.attributes["finish"].support.values()) == 0


def test_logarithms_of_probabilities_are_taken_for_curves_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Tensor] = []
    logarithm = Tensor.log
    monkeypatch.setattr(Tensor, "log", lambda values: (calls.append(values), logarithm(values))[1])
    detection, target = image()
    detection["finish_probabilities"] = torch.tensor([[0.3, 0.7]]).expand(len(detection["boxes"]), 2)
    scores = metric(normalize_by="box")
    scores.update([detection], [target])
    assert not calls
    scores.record_curves(point_names=["tip", "tail"])
    scores.update([detection], [target])
    assert len(calls) == 1
    assert {part.label: len(part.precision_recall) for part in scores.compute_curves()}["finish"] == 1
