"""COCO's mean average precision with AP at IoU 0.5 of every class, from one evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torchmetrics.detection import MeanAveragePrecision

__all__ = ["AveragePrecision", "DetectionScores"]


@dataclass(frozen=True, kw_only=True)
class DetectionScores:
    """What one evaluation found.

    Args:
        map: Mean over classes and IoU thresholds 0.50 to 0.95; 0 where no object was to be found.
        map_50: Mean over classes at IoU 0.5; 0 where no object was to be found.
        ap_50: AP at IoU 0.5 of every class by name; NaN for a class without objects to be found.
    """

    map: float
    map_50: float
    ap_50: Mapping[str, float]


class AveragePrecision(MeanAveragePrecision):
    """torchmetrics' metric over boxes that knows the classes' names.

    NOTE AP of a class. ``class_metrics=True`` evaluates once more for every class and averages over ten IoU
    thresholds. The precision table of the one evaluation (``extended_summary=True``) already holds every
    class at every threshold; AP@50 of a class is the mean of its row over the recall thresholds, as in COCO.

    Args:
        class_names: Names of the classes; label ``i + 1`` is ``class_names[i]``.
    """

    def __init__(self, class_names: Sequence[str]) -> None:
        super().__init__(backend="faster_coco_eval", iou_type="bbox", extended_summary=True)
        self.class_names = tuple(class_names)

    def compute_scores(self) -> DetectionScores:
        """Return the scores of everything collected since the last reset, over all ranks."""
        ap_50 = dict.fromkeys(self.class_names, float("nan"))
        found: dict[str, Any] = self.compute()
        # Axes: IoU threshold, recall threshold, class, area, number of detections; -1 is undefined.
        at_50 = found["precision"][0, :, :, 0, -1]
        for label, precision in zip(found["classes"].reshape(-1).tolist(), at_50.unbind(1), strict=True):
            if (precision > -1).all():
                ap_50[self.class_names[label - 1]] = float(torch.mean(precision))
        return DetectionScores(
            map=max(0.0, float(found["map"])), map_50=max(0.0, float(found["map_50"])), ap_50=ap_50
        )
