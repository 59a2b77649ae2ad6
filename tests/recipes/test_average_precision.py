"""The metric of boxes: AP of each class by name, crowds, and torchmetrics' own means."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from lit_loader.recipes import AveragePrecision, DetectionScores


def boxes(*rows: tuple[float, float, float, float], labels: list[int]) -> dict[str, Tensor]:
    return {"boxes": torch.tensor(rows).reshape(-1, 4), "labels": torch.tensor(labels, dtype=torch.int64)}


def scored(target: dict[str, Tensor]) -> dict[str, Tensor]:
    return {**target, "scores": torch.full((len(target["labels"]),), 0.9)}


A = (10.0, 10.0, 50.0, 50.0)
B = (60.0, 60.0, 90.0, 90.0)


def scores_of(detections: dict[str, Tensor], target: dict[str, Tensor], names: Any = ("disc",)) -> DetectionScores:
    metric = AveragePrecision(names)
    metric.update([detections], [target])
    return metric.compute_scores()


def test_perfect_detections_score_one_in_every_class() -> None:
    target = boxes(A, B, labels=[1, 2])
    scores = scores_of(scored(target), target, ("disc", "square"))
    assert (scores.map, scores.map_50) == (pytest.approx(1.0), pytest.approx(1.0))
    assert scores.ap_50 == {"disc": pytest.approx(1.0), "square": pytest.approx(1.0)}


def test_ap_50_of_a_class_ignores_stricter_thresholds() -> None:
    loose = boxes((10.0, 10.0, 50.0, 40.0), B, labels=[1, 2])  # IoU 0.75 with A
    scores = scores_of(scored(loose), boxes(A, B, labels=[1, 2]), ("disc", "square"))
    assert scores.ap_50["disc"] == pytest.approx(1.0)
    assert scores.ap["disc"] == pytest.approx(0.6)  # matched at 6 of the 10 thresholds
    assert scores.map == pytest.approx((0.6 + 1.0) / 2)


def test_mean_over_classes_ignores_classes_without_objects() -> None:
    scores = scores_of(scored(boxes(A, labels=[1])), boxes(A, B, labels=[1, 3]), ("disc", "square", "star"))
    assert scores.ap_50["star"] == 0.0
    assert math.isnan(scores.ap_50["square"])
    assert scores.map_50 == pytest.approx(0.5)


@pytest.mark.parametrize(("detected", "annotated"), [((), ()), ((A,), ()), ((), (A,))])
def test_image_without_detections_or_objects_scores_zero(detected: Any, annotated: Any) -> None:
    target = boxes(*annotated, labels=[1] * len(annotated))
    scores = scores_of(scored(boxes(*detected, labels=[1] * len(detected))), target)
    assert (scores.map, scores.map_50) == (0.0, 0.0)


def test_detection_on_a_crowd_region_counts_neither_for_nor_against() -> None:
    target = boxes(A, B, labels=[1, 1])
    # The detection with the higher score is on the crowd.
    detections = scored(boxes(B, A, labels=[1, 1])) | {"scores": torch.tensor([0.9, 0.5])}
    for iscrowd in ([0, 1], [0, 0]):
        assert scores_of(detections, target | {"iscrowd": torch.tensor(iscrowd)}).ap_50["disc"] == pytest.approx(1.0)
    assert scores_of(detections, boxes(A, labels=[1])).ap_50["disc"] == pytest.approx(0.5)


def many(count: int) -> dict[str, Tensor]:
    rows = [(10.0 * i, 0.0, 10.0 * i + 8, 8.0) for i in range(count)]
    return {"boxes": torch.tensor(rows), "labels": torch.ones(count, dtype=torch.int64)}


@pytest.mark.parametrize(("settings", "count"), [({}, 100), ({"max_detections": 150}, 150), ({"max_detections": 5}, 5)])
def test_only_max_detections_with_the_highest_scores_count(settings: dict[str, int], count: int) -> None:
    metric = AveragePrecision(["disc"], **settings)
    target = many(200)
    metric.update([{**target, "scores": torch.linspace(0.9, 0.1, 200)}], [target])
    scores = metric.compute_scores()
    assert scores.map_50 == scores.map == pytest.approx(count / 200, abs=0.01)


def test_max_detections_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="max_detections=0 must be 1 or more"):
        AveragePrecision(["disc"], max_detections=0)


def test_scores_are_equal_to_torchmetrics() -> None:
    generator = torch.Generator().manual_seed(0)
    metric = AveragePrecision(["disc", "square", "star"])
    # Small and large objects, none of medium size.
    for side in (15, 15, 15, 15, 130, 130):
        corners = torch.rand(6, 2, generator=generator) * 80
        labels = torch.randint(1, 4, (6,), generator=generator)
        target = {"boxes": torch.cat([corners, corners + side], dim=1), "labels": labels}
        moved = target["boxes"] + torch.rand(6, 4, generator=generator) * side * 0.4
        metric.update([{**target, "boxes": moved, "scores": torch.rand(6, generator=generator)}], [target])
    scores = metric.compute_scores()
    expected = {name: pytest.approx(float(value)) for name, value in metric.compute().items() if name[:2] == "ma"}
    assert 0 < scores.map < scores.map_50 < 1
    assert (scores.map, scores.map_50, scores.map_75) == (expected["map"], expected["map_50"], expected["map_75"])
    for size in ("small", "large"):
        assert scores.map_by_size[size] == expected[f"map_{size}"]
        assert scores.recall_by_size[size] == expected[f"mar_{size}"]
    assert math.isnan(scores.map_by_size["medium"])
    assert scores.recall == {count: expected[f"mar_{count}"] for count in ("1", "10", "100")}
