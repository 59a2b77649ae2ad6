"""Scores of a model that detects objects, finds their points and tells their attributes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor, nn
from torchmetrics import SumMetric

from lit_loader.inspection.curves import EvaluationCurves
from lit_loader.recipes.average_precision import AveragePrecision, DetectionScores
from lit_loader.recipes.detection import plain_targets
from lit_loader.recipes.matching import match_detections
from lit_loader.recipes.metrics import (
    ClassificationScores,
    ClassMetric,
    JointMetric,
    LandmarkScores,
    NormalizedMeanError,
    Report,
)

__all__ = ["MultiTaskMetric", "MultiTaskScores"]


@dataclass(frozen=True, kw_only=True)
class MultiTaskScores:
    """Scores of boxes, points and attributes.

    Args:
        detection: mAP, mAP@50 and AP@50 by class, over all objects.
        landmarks: Error and failure rate of points, over matched objects, or None for a model without points.
        attributes: Accuracy, macro-F1, F1 and recall of each attribute by name, over matched objects.
        num_matched: Number of annotated objects with a matching detection.
        num_missed: Number of annotated objects without one, whose points and attributes were not measured.
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
        # mAP is 0, not NaN, for a set without objects, so there is always a part.
        defined = [part for part in parts if not math.isnan(part)]
        return sum(defined) / len(defined)

    @property
    def logged(self) -> dict[str, float]:
        """The mean and its parts, and the fraction of matched objects."""
        # Without the accuracies and recalls, which `report` has: they would crowd the progress bar.
        values = {"mean": self.mean, **self.detection.logged}
        if self.landmarks is not None:
            values |= self.landmarks.logged
        values |= {f"{name}/macro_f1": scores.macro_f1 for name, scores in self.attributes.items()}
        return values | {"matched": self.num_matched / max(1, self.num_matched + self.num_missed)}

    def report(self) -> Report:
        """Return the figures of all tasks, AP@50 by class, and recall of each attribute by value."""
        (_, figures), ap_50 = self.detection.report()
        if self.landmarks is not None:
            figures |= self.landmarks.report()[0][1]
        figures |= {f"{name} macro-F1": scores.macro_f1 for name, scores in self.attributes.items()}
        figures |= {"objects matched": self.num_matched, "objects missed": self.num_missed}
        recalls = [(f"{name}: recall", dict(scores.recall)) for name, scores in self.attributes.items()]
        return [("test", figures), ap_50, *recalls]


class MultiTaskMetric(JointMetric):
    """The metrics of detection, points and attributes, fed together.

    Points and attributes are measured on objects that `match_detections` matches with a detection of any class. Crowds
    are excluded.

    Args:
        boxes: Metric of the detections.
        points: Metric of the points, or None without points.
        attributes: Values of every attribute by its name.
    """

    def __init__(
        self, *, boxes: AveragePrecision, points: NormalizedMeanError | None, attributes: Mapping[str, Sequence[str]]
    ) -> None:
        super().__init__()
        self.precision = boxes
        self.points = points
        self.attribute_names = tuple(attributes)
        self.values = nn.ModuleList(ClassMetric(names) for names in attributes.values())
        self.matched = SumMetric()
        self.missed = SumMetric()

    def update(self, detections: Sequence[Mapping[str, Tensor]], targets: Sequence[Mapping[str, Tensor]]) -> None:
        """Collect the images of a batch.

        Args:
            detections: One dict an image: ``boxes``, ``labels``, ``scores``, ``keypoints`` and attributes.
            targets: One dict an image: ``boxes``, ``labels``, ``keypoints``, ``keypoint_mask``, attributes (-1
                for none) and ``iscrowd``.
        """
        self.precision.update([dict(detection) for detection in detections], plain_targets(targets))
        for detection, target in zip(detections, targets, strict=True):
            # A crowd region has no points of a single object, and its box would match any detection inside.
            is_single = target["iscrowd"] == 0
            objects = {name: values[is_single] for name, values in target.items()}
            # Without classes, so that a wrong class costs precision, but not also the points and attributes.
            rows, columns = match_detections(detection["boxes"], detection["scores"], objects["boxes"])
            self.matched.update(float(len(rows)))
            self.missed.update(float(len(objects["boxes"]) - len(rows)))
            if self.points is not None:
                points = [objects[name][columns] for name in ("keypoints", "keypoint_mask", "boxes")]
                self.points.update(detection["keypoints"][rows], *points)
            for name, metric in self._metric_by_attribute().items():
                # Merged detections of tiles have no probabilities.
                probabilities = detection.get(f"{name}_probabilities")
                logits = None
                if probabilities is not None and metric.records_curves:
                    # Logarithms of probabilities are logits with the same softmax.
                    logits = probabilities[rows].log()
                metric.update(detection[name][rows], objects[name][columns], logits=logits)

    def compute_scores(self) -> MultiTaskScores:
        """Return the scores of everything collected since the last reset, over all ranks."""
        return MultiTaskScores(
            detection=self.precision.compute_scores(),
            landmarks=None if self.points is None else self.points.compute_scores(),
            attributes={name: metric.compute_scores() for name, metric in self._metric_by_attribute().items()},
            num_matched=int(self.matched.compute()),
            num_missed=int(self.missed.compute()),
        )

    def record_curves(self, *, point_names: Sequence[str], **limits: Any) -> None:
        """Record the curves of all metrics, see `AveragePrecision.record_curves` for the limits of detections."""
        self.precision.record_curves(**limits)
        if self.points is not None:
            self.points.record_curves(point_names)
        for metric in self._metric_by_attribute().values():
            metric.record_curves()

    def compute_curves(self) -> list[EvaluationCurves]:
        """Return the curves of boxes, points and attributes, over all ranks."""
        curves = self.precision.compute_curves()
        if self.points is not None:
            curves += self.points.compute_curves()
        for name, metric in self._metric_by_attribute().items():
            curves += metric.compute_curves(name)
        return curves

    def _metric_by_attribute(self) -> dict[str, ClassMetric]:
        return dict(zip(self.attribute_names, cast(list[ClassMetric], list(self.values)), strict=True))
