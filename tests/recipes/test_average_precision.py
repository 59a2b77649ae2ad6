"""The metric: per-class AP at IoU 0.5 under the classes' names, and its edges."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from lit_loader.recipes import AveragePrecision


def boxes(*rows: tuple[float, float, float, float], labels: list[int]) -> dict[str, Tensor]:
    return {"boxes": torch.tensor(rows).reshape(-1, 4), "labels": torch.tensor(labels, dtype=torch.int64)}


def scored(target: dict[str, Tensor]) -> dict[str, Tensor]:
    return {**target, "scores": torch.full((len(target["labels"]),), 0.9)}


A, B = (10.0, 10.0, 50.0, 50.0), (60.0, 60.0, 90.0, 90.0)


def test_perfect_detections_score_one_in_every_class() -> None:
    metric = AveragePrecision(["disc", "square"])
    target = boxes(A, B, labels=[1, 2])
    metric.update([scored(target)], [target])
    scores = metric.compute_scores()
    assert (scores.map, scores.map_50) == (pytest.approx(1.0), pytest.approx(1.0))
    assert scores.ap_50 == {"disc": pytest.approx(1.0), "square": pytest.approx(1.0)}


def test_a_class_is_scored_at_iou_one_half_and_not_over_stricter_ones() -> None:
    metric = AveragePrecision(["disc", "square"])
    loose = boxes((10.0, 10.0, 50.0, 40.0), B, labels=[1, 2])  # IoU 0.75 with A
    metric.update([scored(loose)], [boxes(A, B, labels=[1, 2])])
    scores = metric.compute_scores()
    assert scores.ap_50["disc"] == pytest.approx(1.0)
    assert scores.map == pytest.approx((0.6 + 1.0) / 2)  # found at 6 of the 10 thresholds


def test_the_mean_over_classes_is_the_mean_of_the_table() -> None:
    metric = AveragePrecision(["disc", "square", "star"])
    metric.update([scored(boxes(A, labels=[1]))], [boxes(A, B, labels=[1, 3])])
    scores = metric.compute_scores()
    assert scores.ap_50["star"] == 0.0
    assert math.isnan(scores.ap_50["square"])
    assert scores.map_50 == pytest.approx(0.5)


@pytest.mark.parametrize(("found", "wanted"), [((), ()), ((A,), ()), ((), (A,))])
def test_nothing_found_or_nothing_to_find_scores_zero(
    found: tuple[tuple[float, float, float, float], ...], wanted: tuple[tuple[float, float, float, float], ...]
) -> None:
    metric = AveragePrecision(["disc"])
    metric.update([scored(boxes(*found, labels=[1] * len(found)))], [boxes(*wanted, labels=[1] * len(wanted))])
    scores = metric.compute_scores()
    assert (scores.map, scores.map_50) == (0.0, 0.0)


def test_a_detection_on_a_crowd_region_counts_neither_for_nor_against() -> None:
    target, on_both = boxes(A, B, labels=[1, 1]), scored(boxes(B, A, labels=[1, 1]))
    on_both["scores"] = torch.tensor([0.9, 0.5])  # the surer one lies on the crowd
    for iscrowd, ap in (([0, 1], 1.0), ([0, 0], 1.0)):
        metric = AveragePrecision(["disc"])
        metric.update([on_both], [{**target, "iscrowd": torch.tensor(iscrowd)}])
        assert metric.compute_scores().ap_50["disc"] == pytest.approx(ap)
    without = AveragePrecision(["disc"])
    without.update([on_both], [boxes(A, labels=[1])])
    assert without.compute_scores().ap_50["disc"] == pytest.approx(0.5)


def many(count: int) -> dict[str, Tensor]:
    rows = [(10.0 * i, 0.0, 10.0 * i + 8, 8.0) for i in range(count)]
    return {"boxes": torch.tensor(rows), "labels": torch.ones(count, dtype=torch.int64)}


@pytest.mark.parametrize(("given", "recall"), [({}, 100), ({"max_detections": 150}, 150), ({"max_detections": 5}, 5)])
def test_the_surest_detections_of_an_image_count_a_hundred_unless_asked_otherwise(
    given: dict[str, int], recall: int
) -> None:
    metric = AveragePrecision(["disc"], **given)
    wanted = many(200)
    metric.update([{**wanted, "scores": torch.linspace(0.9, 0.1, 200)}], [wanted])
    scores = metric.compute_scores()
    assert scores.map_50 == scores.map == pytest.approx(recall / 200, abs=0.01)


def test_no_detections_to_count_are_refused() -> None:
    with pytest.raises(ValueError, match="max_detections=0 must be 1 or more"):
        AveragePrecision(["disc"], max_detections=0)


def test_the_means_are_torchmetrics_own() -> None:
    generator = torch.Generator().manual_seed(0)
    metric = AveragePrecision(["disc", "square", "star"])
    for _ in range(8):
        corners = torch.rand(6, 2, generator=generator) * 80
        wanted = {
            "boxes": torch.cat([corners, corners + 15], dim=1),
            "labels": torch.randint(1, 4, (6,), generator=generator),
        }
        moved = wanted["boxes"] + torch.rand(6, 4, generator=generator) * 6
        metric.update([{**wanted, "boxes": moved, "scores": torch.rand(6, generator=generator)}], [wanted])
    scores, found = metric.compute_scores(), metric.compute()
    assert 0 < scores.map < scores.map_50 < 1
    assert (scores.map, scores.map_50) == (pytest.approx(float(found["map"])), pytest.approx(float(found["map_50"])))


def test_scores_at_iou_three_quarters_by_size_and_recall_are_those_of_torchmetrics() -> None:
    metric = AveragePrecision(["disc", "square"])
    small = (10.0, 10.0, 30.0, 30.0)
    large = (60.0, 60.0, 190.0, 190.0)
    loose = scored(boxes((10.0, 10.0, 30.0, 25.0), B, large, large, labels=[1, 2, 2, 1]))
    metric.update([loose], [boxes(small, B, large, labels=[1, 2, 2])])
    scores = metric.compute_scores()
    expected = metric.compute()
    assert scores.map_75 == pytest.approx(float(expected["map_75"]))
    sizes = ("small", "medium", "large")
    assert scores.map_by_size["small"] == pytest.approx(float(expected["map_small"]))
    assert scores.map_by_size["large"] == pytest.approx(float(expected["map_large"]))
    assert [scores.recall_by_size[size] for size in sizes if size != "medium"] == [
        pytest.approx(float(expected[f"mar_{size}"])) for size in sizes if size != "medium"
    ]
    assert math.isnan(scores.map_by_size["medium"])
    assert scores.recall == {count: pytest.approx(float(expected[f"mar_{count}"])) for count in ("1", "10", "100")}
    assert scores.ap["disc"] == pytest.approx(0.6)  # IoU 0.75: 6 of the 10 thresholds
