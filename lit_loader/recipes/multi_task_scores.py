"""Scores of a model that detects objects, finds their points and tells their attributes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torchmetrics import Metric, SumMetric
from torchvision.ops import box_iou

from lit_loader.recipes.average_precision import AveragePrecision, DetectionScores
from lit_loader.recipes.class_scores import ClassificationScores, ClassMetric
from lit_loader.recipes.detector import plain_targets
from lit_loader.recipes.landmark_error import LandmarkScores, NormalizeBy, NormalizedMeanError

__all__ = ["MultiTaskMetric", "MultiTaskScores", "match_detections"]


@dataclass(frozen=True, kw_only=True)
class MultiTaskScores:
    """What one evaluation found.

    Args:
        detection: mAP, mAP@50 and AP@50 by class, over all objects.
        landmarks: Error and failure rate of points, over matched objects; None for a model without points.
        attributes: Accuracy, macro-F1, F1 and recall of each attribute by name, over matched objects.
        num_matched: Annotated objects that a detection was matched with.
        num_missed: Annotated objects that none was; points and attributes know nothing of them.
    """

    detection: DetectionScores
    landmarks: LandmarkScores | None
    attributes: Mapping[str, ClassificationScores]
    num_matched: int
    num_missed: int

    @property
    def mean(self) -> float:
        """Mean of mAP@50, one minus the failure rate, and each macro-F1; without those that are NaN."""
        parts = [self.detection.map_50, *(scores.macro_f1 for scores in self.attributes.values())]
        if self.landmarks is not None:
            parts.append(1 - self.landmarks.failure_rate)
        known = [part for part in parts if not math.isnan(part)]
        return sum(known) / len(known)


class MultiTaskMetric(nn.Module):
    """The metrics of detection, points and attributes, fed together.

    A detection stands for the object that `match_detections` gives it, whatever its class; crowds are left
    out. Points and attributes are measured on what is matched, and how much is not is counted.

    Args:
        class_names: Label ``i + 1`` is ``class_names[i]``.
        num_keypoints: Points of an object; 0 for none.
        attributes: Values of every attribute by its name.
        normalize_by: See `NormalizedMeanError`.
        normalization_pair: See `NormalizedMeanError`.
        failure_threshold: See `NormalizedMeanError`.
    """

    def __init__(
        self,
        *,
        class_names: Sequence[str],
        num_keypoints: int,
        attributes: Mapping[str, Sequence[str]],
        normalize_by: NormalizeBy = "box",
        normalization_pair: Sequence[int] | None = None,
        failure_threshold: float = 0.10,
    ) -> None:
        super().__init__()
        self.precision = AveragePrecision(class_names)
        self.points = (
            NormalizedMeanError(
                normalize_by=normalize_by,
                normalization_pair=normalization_pair,
                failure_threshold=failure_threshold,
            )
            if num_keypoints
            else None
        )
        self.attribute_names = tuple(attributes)
        self.values = nn.ModuleList(ClassMetric(names) for names in attributes.values())
        self.matched, self.missed = SumMetric(), SumMetric()

    def update(
        self, detections: Sequence[Mapping[str, Tensor]], targets: Sequence[Mapping[str, Tensor]]
    ) -> None:
        """Collect the images of a batch.

        Args:
            detections: One dict an image: ``boxes``, ``labels``, ``scores``, ``keypoints`` and attributes.
            targets: One dict an image: ``boxes``, ``labels``, ``keypoints``, ``keypoint_mask``, attributes (-1
                for none) and, where known, ``iscrowd``.
        """
        kept = ("boxes", "labels", "scores")
        found = [{key: one[key] for key in kept} for one in detections]
        self.precision.update(found, plain_targets(targets))
        for one, target in zip(detections, targets, strict=True):
            everything = torch.ones_like(target["labels"], dtype=torch.bool)
            objects = (target["iscrowd"] == 0 if "iscrowd" in target else everything).nonzero()[:, 0]
            rows, columns = match_detections(one["boxes"], one["scores"], target["boxes"][objects])
            columns = objects[columns]
            self.matched.update(float(len(rows)))
            self.missed.update(float(len(objects) - len(rows)))
            if self.points is not None:
                self.points.update(
                    one["keypoints"][rows],
                    target["keypoints"][columns],
                    target["keypoint_mask"][columns],
                    target["boxes"][columns],
                )
            for name, metric in self._by_attribute().items():
                metric.update(one[name][rows], target[name][columns])

    def compute_scores(self) -> MultiTaskScores:
        """Return the scores of everything collected since the last reset, over all ranks."""
        return MultiTaskScores(
            detection=self.precision.compute_scores(),
            landmarks=None if self.points is None else self.points.compute_scores(),
            attributes={name: metric.compute_scores() for name, metric in self._by_attribute().items()},
            num_matched=int(self.matched.compute()),
            num_missed=int(self.missed.compute()),
        )

    def reset(self) -> None:
        """Forget what was collected."""
        metrics: list[Metric | ClassMetric] = [self.precision, self.matched, self.missed]
        for metric in [*metrics, *self._by_attribute().values()]:
            metric.reset()
        if self.points is not None:
            self.points.reset()

    def _by_attribute(self) -> dict[str, ClassMetric]:
        return dict(zip(self.attribute_names, cast(list[ClassMetric], list(self.values)), strict=True))


def match_detections(
    boxes: Tensor, scores: Tensor, objects: Tensor, *, min_iou: float = 0.5
) -> tuple[Tensor, Tensor]:
    """Return which detection stands for which object.

    Detections choose in the order of their scores, each the object that it overlaps most among those that
    are free; it stands for it where their IoU is at least ``min_iou``.

    Args:
        boxes: float ``(N, 4)``, detected, xyxy.
        scores: float ``(N,)``.
        objects: float ``(M, 4)``, annotated, xyxy.
        min_iou: Smallest IoU of a pair.

    Returns:
        Positions of detections and of objects, int64 ``(P,)`` each; a position stands in one pair at most.

    Source:
        The matching of PASCAL VOC and COCO, without classes: Lin et al. 2014, "Microsoft COCO".
    """
    pairs: list[tuple[int, int]] = []
    if len(boxes) and len(objects):
        overlaps = box_iou(boxes, objects).cpu()
        for row in scores.argsort(descending=True, stable=True).tolist():
            best = int(overlaps[row].argmax())
            if overlaps[row, best] >= min_iou:
                pairs.append((row, best))
                overlaps[:, best] = -1.0
    rows = torch.tensor(pairs, dtype=torch.int64, device=boxes.device).reshape(-1, 2)
    return rows[:, 0], rows[:, 1]
