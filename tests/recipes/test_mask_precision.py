"""The metric with masks: scores of masks and boxes, crowds, and several ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from lit_loader.recipes import AveragePrecision, WithoutDuplicates
from tests.support.lightning_ranks import on_ranks

NAMES = ("disc", "square")
NUM_IMAGES = 5  # not divisible by two ranks


def image(*shapes: tuple[int, int, int, int], labels: list[int], half: bool = False) -> dict[str, Tensor]:
    """Boxes with masks that fill them, or with ``half`` the left half of them."""
    masks = torch.zeros(len(shapes), 40, 60, dtype=torch.uint8)
    for mask, (x1, y1, x2, y2) in zip(masks, shapes, strict=True):
        mask[y1:y2, x1 : (x1 + x2) // 2 if half else x2] = 1
    boxes = torch.tensor(shapes, dtype=torch.float32).reshape(-1, 4)
    return {"boxes": boxes, "masks": masks, "labels": torch.tensor(labels, dtype=torch.int64)}


def scored(target: dict[str, Tensor]) -> dict[str, Tensor]:
    return {**target, "masks": target["masks"].bool(), "scores": torch.linspace(0.9, 0.5, len(target["labels"]))}


A = (2, 2, 22, 22)
B = (30, 10, 50, 30)


def scores_of(detections: dict[str, Tensor], target: dict[str, Tensor]) -> Any:
    """Return `DetectionScores`, typed as Any because their ``masks`` may be None."""
    metric = AveragePrecision(NAMES, masks=True)
    metric.update([detections], [target])
    return metric.compute_scores()


def test_masks_are_scored_by_pixels_and_boxes_by_edges() -> None:
    target = image(A, B, labels=[1, 2])
    scores = scores_of(scored(target), target)
    assert (scores.map, scores.masks.map, scores.masks.map_50) == (1.0, 1.0, 1.0)
    assert scores.masks.ap_50 == {"disc": 1.0, "square": 1.0}
    assert set(scores.logged) == {"map", "map_50", "mask_map", "mask_map_50"}
    halves = image(A, B, labels=[1, 2], half=True)
    halves["masks"][0, 2:22, 2:14] = 1
    halves["masks"][0, 2:12, 14] = 1  # 12 of the first one's 20 columns and a half: an IoU of 0.625
    scores = scores_of(scored(halves), target)
    assert scores.map == 1.0
    assert scores.masks.map == pytest.approx((0.3 + 0.1) / 2)  # 0.5 to 0.6, and 0.5 alone, of ten thresholds
    assert [title for title, _ in scores.report()] == ["test", "AP@50", "mask AP@50"]


def test_detection_on_the_mask_of_a_crowd_counts_neither_for_nor_against() -> None:
    target = image(A, B, labels=[1, 1])
    detections = scored(image(B, A, labels=[1, 1]))
    for iscrowd in ([0, 1], [0, 0]):
        scores = scores_of(detections, {**target, "iscrowd": torch.tensor(iscrowd)})
        assert scores.masks.ap_50["disc"] == pytest.approx(1.0)
    assert scores_of(detections, image(A, labels=[1])).masks.ap_50["disc"] == pytest.approx(0.5)


# -- several ranks ---------------------------------------------------------------------------------------


def samples() -> list[tuple[dict[str, Tensor], dict[str, Tensor]]]:
    """Detections and targets of each image: shifted, missed, too many, none, and a crowd."""
    shifted = scored(image((4, 2, 24, 22), B, labels=[1, 2]))
    half = scored(image(A, B, labels=[2, 1], half=True))
    crowd = {**image(A, B, labels=[1, 1]), "iscrowd": torch.tensor([0, 1])}
    return [
        (shifted, image(A, B, labels=[1, 2])),
        (half, image(A, B, labels=[2, 1])),
        (scored(image(labels=[])), image(B, labels=[2])),
        (scored(image(A, B, labels=[2, 2])), image(labels=[])),
        (scored(image(B, labels=[1])), crowd),
    ]


def measure(rank: int, world_size: int) -> dict[str, Any]:
    """Return the scores on a rank; where the images do not divide, the last one is a duplicate of the first."""
    metric = WithoutDuplicates(AveragePrecision(NAMES, masks=True))
    for start in range(0, NUM_IMAGES, world_size):
        number = start + rank
        detections, target = samples()[number % NUM_IMAGES]
        metric.update([detections], [target], is_duplicate=[number >= NUM_IMAGES])
    scores: Any = metric.metric.compute_scores()
    return {**scores.logged, **scores.ap_50, **{f"mask {name}": ap for name, ap in scores.masks.ap_50.items()}}


def check_rank(expected: dict[str, Any]) -> None:
    assert measure(dist.get_rank(), dist.get_world_size()) == pytest.approx(expected)


def test_two_ranks_score_masks_like_one_process(tmp_path: Path) -> None:
    expected = measure(0, 1)
    assert 0 < expected["mask_map"] < expected["map"] < 1
    on_ranks(2, tmp_path, check_rank, expected)
