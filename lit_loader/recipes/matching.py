"""Matches of detections with annotated objects, and the confusions and errors that follow from them."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor
from torchvision.ops import box_area, box_iou

from lit_loader.types import FIRST_LABEL

__all__ = ["add_confusions", "add_scores", "detection_error", "mark_errors", "match_detections"]


def match_detections(
    boxes: Tensor,
    scores: Tensor,
    objects: Tensor,
    *,
    min_iou: float = 0.5,
    classes: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Match detections with annotated objects.

    In the order of their scores, each detection takes the unmatched object that it overlaps most, if their IoU is at
    least ``min_iou``.

    Args:
        boxes: float ``(N, 4)``, detected, xyxy.
        scores: float ``(N,)``.
        objects: float ``(M, 4)``, annotated, xyxy.
        min_iou: Smallest IoU of a pair.
        classes: Labels of detections ``(N,)`` and of objects ``(M,)``, which are equal in a pair; None for pairs of any
            classes.

    Returns:
        Positions of detections and of objects, int64 ``(P,)`` each; each position is in at most one pair.

    Source:
        The matching of PASCAL VOC and COCO: Lin et al. 2014, "Microsoft COCO".
    """
    pairs: list[tuple[int, int]] = []
    if len(boxes) and len(objects):
        # Greedy, as in COCO: a detection with a high score keeps its object, whatever those after it overlap.
        # Copied once; the loop would otherwise wait for the device at every step.
        overlaps = box_iou(boxes, objects)
        if classes is not None:
            overlaps = overlaps.masked_fill(classes[0][:, None] != classes[1], -1.0)
        overlaps = overlaps.cpu()
        order = scores.argsort(descending=True, stable=True).cpu()
        # Most detections overlap nothing, and need no step.
        for row in order[(overlaps >= min_iou).any(dim=1)[order]].tolist():
            best = int(overlaps[row].argmax())
            if overlaps[row, best] >= min_iou:
                pairs.append((row, best))
                overlaps[:, best] = -1.0  # no other detection may take this object
    rows = torch.tensor(pairs, dtype=torch.int64, device=boxes.device).reshape(-1, 2)
    return rows[:, 0], rows[:, 1]


def add_confusions(
    counts: Tensor, detections: Mapping[str, Tensor], target: Mapping[str, Tensor], *, min_score: float, min_iou: float
) -> None:
    """Add the objects and the detections of an image to a confusion matrix, in place.

    Objects are matched with detections of any class, so that an object of one class that is detected as another counts
    as their confusion. An object without a match counts as answered by the background, a detection without one as an
    answer for the background; one on a crowd region of its class does not count.

    Args:
        counts: int64 ``(C + 1, C + 1)`` on the CPU: true classes in rows, predicted ones in columns, background last.
        detections: ``boxes``, ``labels`` from 1, and ``scores``.
        target: ``boxes``, ``labels`` and ``iscrowd``.
        min_score: Detections with lower scores do not count.
        min_iou: Smallest IoU of a pair.

    Source:
        ultralytics' `ConfusionMatrix` has the same row and column of the background, but pairs by the largest IoU; the
        order by score is COCO's.
    """
    background = len(counts) - 1
    counted, objects, crowds = _counted(detections, target, min_score)
    rows, columns = match_detections(counted["boxes"], counted["scores"], objects["boxes"], min_iou=min_iou)
    true_labels = objects["labels"] - FIRST_LABEL
    answers = torch.full_like(true_labels, background)
    answers[columns] = counted["labels"][rows] - FIRST_LABEL
    is_false = _is_false(counted, rows, crowds, min_iou)
    false_labels = counted["labels"][is_false] - FIRST_LABEL
    row_ids = torch.cat([true_labels, torch.full_like(false_labels, background)])
    column_ids = torch.cat([answers, false_labels])
    counts.index_put_((row_ids, column_ids), torch.ones_like(row_ids), accumulate=True)


def add_scores(
    histogram: Tensor, thresholds: Tensor, detections: Mapping[str, Tensor], target: Mapping[str, Tensor]
) -> None:
    """Add the detections of an image to the numbers of wrong and correct ones of each class by score, in place.

    A detection is correct if it has an object of its class at an IoU of at least 0.5, see `match_detections`. One on a
    crowd region of its class does not count.

    Args:
        histogram: int64 ``(C, T, 2)`` on the CPU.
        thresholds: Scores at which the T bins begin, ascending, ``(T,)``.
        detections: ``boxes``, ``labels`` from 1, and ``scores``.
        target: ``boxes``, ``labels`` and ``iscrowd``.
    """
    counted, objects, crowds = _counted(detections, target, min_score=-math.inf)
    classes = (counted["labels"], objects["labels"])
    rows, _ = match_detections(counted["boxes"], counted["scores"], objects["boxes"], classes=classes)
    is_false = _is_false(counted, rows, crowds, min_iou=0.5)
    is_correct = torch.zeros_like(is_false)
    is_correct[rows] = True
    is_counted = is_correct | is_false
    # Thresholds in the precision of scores, so that a score of 0.9 is at the threshold 0.9.
    scores = counted["scores"].float()
    bins = (torch.bucketize(scores, thresholds.float(), right=True) - 1).clamp(min=0)
    cells = (counted["labels"] - FIRST_LABEL, bins, is_correct.long())
    histogram.index_put_(cells, is_counted.long(), accumulate=True)


def detection_error(
    detections: Mapping[str, Tensor], target: Mapping[str, Tensor], *, min_score: float, min_iou: float
) -> tuple[float, str]:
    """Return the error of the detections in an image, and its description.

    The error is the number of missed objects, which have no detection of their class, plus the sum of the scores of
    false detections, which have no object of their class. Crowd regions are never missed.

    Args:
        detections: ``boxes``, ``labels`` and ``scores``.
        target: ``boxes``, ``labels`` and ``iscrowd``.
        min_score: Detections with lower scores do not count.
        min_iou: Smallest IoU of a pair.
    """
    is_false, is_missed = mark_errors(detections, target, min_score=min_score, min_iou=min_iou)
    num_missed = int(is_missed.sum())
    error = num_missed + float(detections["scores"].detach().cpu()[is_false].double().sum())
    return error, f"{num_missed} missed, {int(is_false.sum())} false"


def mark_errors(
    detections: Mapping[str, Tensor], target: Mapping[str, Tensor], *, min_score: float, min_iou: float
) -> tuple[Tensor, Tensor]:
    """Return masks of the false detections and of the missed objects of an image, bool ``(N,)`` and ``(M,)``.

    See `detection_error` for the arguments, and for the definition of errors.
    """
    counted, objects, crowds = _counted(detections, target, min_score)
    classes = (counted["labels"], objects["labels"])
    rows, columns = match_detections(
        counted["boxes"], counted["scores"], objects["boxes"], min_iou=min_iou, classes=classes
    )
    is_false = detections["scores"].detach().cpu() >= min_score
    is_false[is_false.clone()] = _is_false(counted, rows, crowds, min_iou)
    is_unmatched = torch.ones(len(objects["labels"]), dtype=torch.bool)
    is_unmatched[columns] = False
    is_missed = ~_is_crowd(target)
    is_missed[is_missed.clone()] = is_unmatched
    return is_false, is_missed


def _counted(
    detections: Mapping[str, Tensor], target: Mapping[str, Tensor], min_score: float
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """Return the detections that count, the objects and the crowd regions of an image, on the CPU."""
    # One image at a time: the loop over its detections would wait for a device at every step.
    counted = {name: detections[name].detach().cpu() for name in ("boxes", "labels", "scores")}
    annotated = {name: target[name].detach().cpu() for name in ("boxes", "labels")}
    is_counted = counted["scores"] >= min_score
    counted = {name: values[is_counted] for name, values in counted.items()}
    is_crowd = _is_crowd(target)
    objects = {name: values[~is_crowd] for name, values in annotated.items()}
    crowds = {name: values[is_crowd] for name, values in annotated.items()}
    return counted, objects, crowds


def _is_crowd(target: Mapping[str, Tensor]) -> Tensor:
    """Return a mask of the crowd regions of an image on the CPU, bool ``(M,)``."""
    if "iscrowd" in target:
        return target["iscrowd"].cpu() != 0
    return torch.zeros(len(target["labels"]), dtype=torch.bool)


def _is_false(counted: Mapping[str, Tensor], matched: Tensor, crowds: Mapping[str, Tensor], min_iou: float) -> Tensor:
    """Return a mask of detections that are neither matched nor on a crowd region of their class, bool ``(N,)``."""
    is_false = torch.ones(len(counted["labels"]), dtype=torch.bool)
    is_false[matched] = False
    if len(crowds["labels"]) and len(is_false):
        boxes = counted["boxes"]
        low = torch.maximum(boxes[:, None, :2], crowds["boxes"][:, :2])
        high = torch.minimum(boxes[:, None, 2:], crowds["boxes"][:, 2:])
        # COCO divides by the area of the detection alone, since a crowd region is larger than any of its objects.
        overlaps = (high - low).clamp(min=0).prod(dim=-1) / box_area(boxes)[:, None].clamp(min=1e-9)
        is_same_class = counted["labels"][:, None] == crowds["labels"]
        is_false &= ~((overlaps >= min_iou) & is_same_class).any(dim=1)
    return is_false
