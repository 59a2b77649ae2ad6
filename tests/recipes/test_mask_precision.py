"""The metric with masks: its figures beside those of boxes, crowds, and several ranks."""

from __future__ import annotations

import os
import pickle
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from lit_loader.recipes import AveragePrecision, DetectionScores, WithoutDuplicates

NAMES = ("disc", "square")
NUM_IMAGES = 5  # no multiple of two ranks


def image(*shapes: tuple[int, int, int, int], labels: list[int], empty: bool = False) -> dict[str, Tensor]:
    """Boxes with masks that fill them, or their left half."""
    masks = torch.zeros(len(shapes), 40, 60, dtype=torch.uint8)
    for mask, (x1, y1, x2, y2) in zip(masks, shapes, strict=True):
        mask[y1:y2, x1 : (x1 + x2) // 2 if empty else x2] = 1
    boxes = torch.tensor(shapes, dtype=torch.float32).reshape(-1, 4)
    return {"boxes": boxes, "masks": masks, "labels": torch.tensor(labels, dtype=torch.int64)}


def scored(target: dict[str, Tensor]) -> dict[str, Tensor]:
    return {**target, "masks": target["masks"].bool(), "scores": torch.linspace(0.9, 0.5, len(target["labels"]))}


A, B = (2, 2, 22, 22), (30, 10, 50, 30)


def scores_of(found: dict[str, Tensor], wanted: dict[str, Tensor], **settings: Any) -> DetectionScores:
    metric = AveragePrecision(NAMES, masks=True, **settings)
    metric.update([found], [wanted])
    return metric.compute_scores()


def test_masks_are_scored_by_their_pixels_and_boxes_by_their_edges() -> None:
    wanted = image(A, B, labels=[1, 2])
    scores = scores_of(scored(wanted), wanted)
    assert scores.masks is not None
    assert (scores.map, scores.masks.map, scores.masks.map_50) == (1.0, 1.0, 1.0)
    assert scores.masks.ap_50 == {"disc": 1.0, "square": 1.0}
    assert set(scores.logged) == {"map", "map_50", "mask_map", "mask_map_50"}
    halves = image(A, B, labels=[1, 2], empty=True)
    halves["masks"][0, 2:22, 2:14] = 1
    halves["masks"][0, 2:12, 14] = 1  # 12 of the first one's 20 columns and a half: an IoU of 0.625
    scores = scores_of(scored(halves), wanted)
    assert scores.masks is not None
    assert scores.map == 1.0
    assert scores.masks.map == pytest.approx((0.3 + 0.1) / 2)  # 0.5 to 0.6, and 0.5 alone, of ten thresholds
    assert [title for title, _ in scores.report()] == ["test", "AP@50", "mask AP@50"]


def test_a_detection_on_the_mask_of_a_crowd_counts_neither_for_nor_against() -> None:
    wanted = image(A, B, labels=[1, 1])
    found = scored(image(B, A, labels=[1, 1]))
    for crowd, ap in (([0, 1], 1.0), ([0, 0], 1.0)):
        scores = scores_of(found, {**wanted, "iscrowd": torch.tensor(crowd)})
        assert scores.masks is not None
        assert scores.masks.ap_50["disc"] == pytest.approx(ap)
    without = scores_of(found, image(A, labels=[1]))
    assert without.masks is not None
    assert without.masks.ap_50["disc"] == pytest.approx(0.5)


@pytest.mark.parametrize(("found", "wanted"), [((), ()), ((A,), ()), ((), (A,))])
def test_nothing_found_or_nothing_to_find_scores_zero(found: Any, wanted: Any) -> None:
    scores = scores_of(scored(image(*found, labels=[1] * len(found))), image(*wanted, labels=[1] * len(wanted)))
    assert scores.masks is not None
    assert (scores.map, scores.masks.map, scores.masks.map_50) == (0.0, 0.0, 0.0)


# -- several ranks ---------------------------------------------------------------------------------------


def samples() -> list[tuple[dict[str, Tensor], dict[str, Tensor]]]:
    """Detections and targets of each image: shifted, missed, too many, none, and a crowd."""
    shifted = scored(image((4, 2, 24, 22), B, labels=[1, 2]))
    half = scored(image(A, B, labels=[2, 1], empty=True))
    crowd = {**image(A, B, labels=[1, 1]), "iscrowd": torch.tensor([0, 1])}
    return [
        (shifted, image(A, B, labels=[1, 2])),
        (half, image(A, B, labels=[2, 1])),
        (scored(image(labels=[])), image(B, labels=[2])),
        (scored(image(A, B, labels=[2, 2])), image(labels=[])),
        (scored(image(B, labels=[1])), crowd),
    ]


def measure(rank: int, world_size: int) -> dict[str, Any]:
    """What a rank finds; the last is a duplicate of the first image where the number does not divide."""
    metric = WithoutDuplicates(AveragePrecision(NAMES, masks=True))
    for start in range(0, NUM_IMAGES, world_size):
        number = start + rank
        found, wanted = samples()[number % NUM_IMAGES]
        metric.update([found], [wanted], is_duplicate=[number >= NUM_IMAGES])
    scores: DetectionScores = metric.metric.compute_scores()
    assert scores.masks is not None
    return {**scores.logged, **scores.ap_50, **{f"mask {name}": ap for name, ap in scores.masks.ap_50.items()}}


def on_a_rank(rank: int, world_size: int, folder: Path) -> None:
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size, timeout=timedelta(minutes=1))
    os.environ |= {"LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)}
    (folder / f"{rank}.pkl").write_bytes(pickle.dumps(measure(rank, world_size)))
    dist.barrier()
    dist.destroy_process_group()


def test_two_ranks_score_masks_as_one_process_does(tmp_path: Path) -> None:
    alone = measure(0, 1)
    assert 0 < alone["mask_map"] < alone["map"] < 1
    torch.multiprocessing.start_processes(on_a_rank, (2, tmp_path), nprocs=2, start_method="fork")
    for rank in range(2):
        assert pickle.loads((tmp_path / f"{rank}.pkl").read_bytes()) == pytest.approx(alone)
