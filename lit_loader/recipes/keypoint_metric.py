"""Scores of the points of detected objects: average precision by OKS, correct points, and errors, exact over ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchmetrics import Metric, SumMetric
from torchmetrics.utilities.data import dim_zero_cat

from lit_loader.foundation.extras import require
from lit_loader.inspection.curves import EvaluationCurves
from lit_loader.recipes.average_precision import AveragePrecision, DetectionScores, mean_of_defined
from lit_loader.recipes.detection import plain_targets
from lit_loader.recipes.matching import match_detections
from lit_loader.recipes.metrics import JointMetric, NormalizedMeanError, Report
from lit_loader.types import FIRST_LABEL

__all__ = ["CorrectKeypoints", "DEFAULT_SIGMA", "KeypointMetric", "KeypointPrecision", "KeypointScores"]

DEFAULT_SIGMA: Final = 0.05
"""Sigma of points without a known one: between COCO's 0.025 of eyes and 0.107 of hips, whose mean is 0.067."""

_AREA_SHARE: Final = 0.53
"""Area of an object as a share of its box, see `KeypointPrecision`."""

_THRESHOLD_75: Final = 5  # of 0.50, 0.55, ... 0.95


@dataclass(frozen=True, kw_only=True)
class KeypointScores:
    """Scores of boxes and of points.

    Args:
        detection: Scores of the boxes, over all objects.
        map: Mean AP of points over classes and OKS thresholds 0.50 to 0.95; 0 without annotated points.
        map_50: The same at OKS 0.5.
        map_75: The same at OKS 0.75.
        ap: AP of points of every class by name; NaN for a class without annotated points.
        pck: Share of the annotated points of matched objects that are predicted within the threshold; NaN without any.
        pck_threshold: Largest distance of a correct point, as a share of the larger side of its object's box.
        pck_by_point: The same share of every point by name.
        nme: Mean over matched objects of the normalised error of their points, see `NormalizedMeanError`; NaN without.
        nme_by_point: Mean normalised distance of every point by name.
        num_matched: Number of annotated objects with a matching detection.
        num_missed: Number of annotated objects without one, whose points only ``map`` counts.
    """

    detection: DetectionScores
    map: float
    map_50: float
    map_75: float
    ap: Mapping[str, float]
    pck: float
    pck_threshold: float
    pck_by_point: Mapping[str, float]
    nme: float
    nme_by_point: Mapping[str, float]
    num_matched: int
    num_missed: int

    @property
    def logged(self) -> dict[str, float]:
        """AP of points, correct points and error, the share of matched objects, and mAP and mAP@50 of boxes."""
        matched = self.num_matched / max(1, self.num_matched + self.num_missed)
        points = {"keypoint_map": self.map, "keypoint_map_50": self.map_50, "pck": self.pck, "nme": self.nme}
        return {**points, "matched": matched, **self.detection.logged}

    def report(self) -> Report:
        """Return the figures of points and boxes, AP by class, and correct points and errors by point."""
        (_, box_figures), *sections = self.detection.report()
        pck = f"PCK@{self.pck_threshold:g}"
        figures: dict[str, float] = {
            "keypoint mAP": self.map,
            "keypoint mAP@50": self.map_50,
            "keypoint mAP@75": self.map_75,
            pck: self.pck,
            "NME": self.nme,
            "objects matched": self.num_matched,
            "objects missed": self.num_missed,
        }
        by_point = [(f"{pck} by point", dict(self.pck_by_point)), ("NME by point", dict(self.nme_by_point))]
        return [("test", figures | box_figures), ("keypoint AP", dict(self.ap)), *by_point, *sections]


class KeypointPrecision(Metric):
    """Average precision of points by object keypoint similarity (OKS), as COCO's evaluation computes it.

    ``OKS = mean over annotated points k of exp(-d_k^2 / (2 * area * (2 * sigma_k)^2))`` with the distance ``d_k`` in
    pixels. A detection is correct at a threshold if its OKS with an object of its class is at least that. Detections on
    a crowd region or on an object without annotated points count neither for nor against.

    The area is 0.53 times the area of the box, because the tables have no area of the object itself.

    Args:
        class_names: Names of the classes; label ``i + 1`` is ``class_names[i]``.
        sigmas: Sigma of each of the K points: the larger, the farther a point may be off.
        max_detections: Number of detections counted per image and class, those with the highest scores; COCO counts 20.

    Raises:
        ImportError: If faster-coco-eval is not installed.
        ValueError: If ``max_detections`` is below 1.

    Source:
        https://cocodataset.org/#keypoints-eval; xtcocotools and faster-coco-eval use the share 0.53 for sets
        without areas, such as CrowdPose.
    """

    full_state_update = False
    counts: list[Tensor]
    detections: list[Tensor]
    objects: list[Tensor]

    def __init__(self, class_names: Sequence[str], *, sigmas: Sequence[float], max_detections: int = 20) -> None:
        require("faster_coco_eval", "recipes")
        if max_detections < 1:
            raise ValueError(f"max_keypoint_detections={max_detections} must be 1 or more; COCO counts 20")
        super().__init__()
        self.class_names = tuple(class_names)
        self.sigmas = tuple(sigmas)
        self.max_detections = max_detections
        # One row an image: its numbers of detections and of objects.
        self.add_state("counts", default=[], dist_reduce_fx="cat")
        # One row a detection: label, score and K points.
        self.add_state("detections", default=[], dist_reduce_fx="cat")
        # One row an object: label, crowd mark, box, and K points with their visibility.
        self.add_state("objects", default=[], dist_reduce_fx="cat")

    def update(self, detections: Sequence[Mapping[str, Tensor]], targets: Sequence[Mapping[str, Tensor]]) -> None:
        """Collect the images of a batch.

        Args:
            detections: One dict an image: ``labels`` ``(n,)``, ``scores`` ``(n,)`` and ``keypoints`` ``(n, K, 2)``.
            targets: One dict an image: ``boxes`` ``(N, 4)``, ``labels`` ``(N,)``, ``keypoints`` ``(N, K, 3)`` with the
                visibility in the last column, and optionally ``iscrowd`` ``(N,)``.
        """
        for detection, target in zip(detections, targets, strict=True):
            labels = target["labels"]
            is_crowd = target["iscrowd"] if "iscrowd" in target else torch.zeros_like(labels)
            counts = torch.tensor([[len(detection["labels"]), len(labels)]], device=self.device)
            # Labels and marks are small whole numbers, which single precision represents exactly.
            predicted = (detection["labels"][:, None], detection["scores"][:, None], detection["keypoints"][..., :2])
            annotated = (labels[:, None], is_crowd[:, None], target["boxes"], target["keypoints"])
            self.counts.append(counts)
            self.detections.append(torch.cat([values.detach().float().flatten(1) for values in predicted], dim=1))
            self.objects.append(torch.cat([values.detach().float().flatten(1) for values in annotated], dim=1))

    def compute(self) -> dict[str, Tensor]:
        """Return ``precision`` by OKS threshold, recall threshold and class, -1 where undefined, and ``classes``."""
        counts, detections, objects = map(dim_zero_cat, (self.counts, self.detections, self.objects))
        images = torch.arange(len(counts))
        # The ranks' images follow each other, and their rows in the same order.
        detection_images, object_images = (
            images.repeat_interleave(column).tolist() for column in counts.cpu().unbind(1)
        )
        annotations = _annotations(objects.cpu().double().numpy(), object_images)
        results = _results(detections.cpu().double().numpy(), detection_images)
        precision, classes = self._evaluate(len(counts), annotations, results)
        return {"precision": torch.from_numpy(precision), "classes": torch.tensor(classes, dtype=torch.int64)}

    def average_precision(self) -> tuple[dict[str, float], dict[str, float]]:
        """Return AP of everything collected since the last reset, over all ranks.

        Returns:
            The means over classes by name, ``map``, ``map_50`` and ``map_75``, 0 without annotated points; AP of each
            class by its name, NaN without annotated points.
        """
        result = self.compute()
        precision = result["precision"]
        rows = {"map": precision, "map_50": precision[:1], "map_75": precision[_THRESHOLD_75 : _THRESHOLD_75 + 1]}
        means = {name: mean_of_defined(row, default=0.0) for name, row in rows.items()}
        ap = dict.fromkeys(self.class_names, float("nan"))
        # torchmetrics returns a 0-d tensor of classes if there is only one.
        for column, label in enumerate(result["classes"].reshape(-1).tolist()):
            ap[self.class_names[label - FIRST_LABEL]] = mean_of_defined(precision[:, :, column], default=float("nan"))
        return means, ap

    def _evaluate(self, num_images: int, annotations: list[Any], results: list[Any]) -> tuple[Any, list[int]]:
        """Return the precision of COCO's evaluation, ``(T, R, classes)``, and the labels of its classes."""
        faster_coco_eval: Any = require("faster_coco_eval", "recipes")
        categories = [{"id": label} for label in range(FIRST_LABEL, len(self.class_names) + FIRST_LABEL)]
        images = [{"id": image} for image in range(num_images)]
        truth = faster_coco_eval.COCO({"images": images, "categories": categories, "annotations": annotations})
        evaluation = faster_coco_eval.COCOeval_faster(
            truth, truth.loadRes(results), iouType="keypoints", kpt_oks_sigmas=list(self.sigmas)
        )
        evaluation.params.maxDets = [self.max_detections]
        evaluation.evaluate()
        evaluation.accumulate()
        # Axes: OKS threshold, recall threshold, class, area, number of detections.
        precision = np.asarray(evaluation.eval["precision"], dtype=np.float64)[:, :, :, 0, -1]
        return precision, [int(label) for label in evaluation.params.catIds]


def _annotations(objects: npt.NDArray[np.float64], images: Sequence[int]) -> list[dict[str, Any]]:
    """Return COCO's annotations of objects: label, crowd mark, box xyxy, and K points with their visibility."""
    annotations = []
    for number, (image, row) in enumerate(zip(images, objects, strict=True), start=1):
        x1, y1, x2, y2 = row[2:6].tolist()
        points = row[6:].reshape(-1, 3).copy()
        # COCO's evaluation measures detections on an object without points by its box.
        points[(points[:, 2] <= 0) | bool(row[1])] = 0.0
        annotations.append(
            {
                "id": number,
                "image_id": image,
                "category_id": int(row[0]),
                "iscrowd": int(row[1]),
                "bbox": [x1, y1, x2 - x1, y2 - y1],
                "area": _AREA_SHARE * (x2 - x1) * (y2 - y1),
                "keypoints": points.reshape(-1).tolist(),
                "num_keypoints": int((points[:, 2] > 0).sum()),
            }
        )
    return annotations


def _results(detections: npt.NDArray[np.float64], images: Sequence[int]) -> list[dict[str, Any]]:
    """Return COCO's results of detections: label, score and K points."""
    results = []
    for image, row in zip(images, detections, strict=True):
        points = np.insert(row[2:].reshape(-1, 2), 2, 1.0, axis=1)
        keypoints = points.reshape(-1).tolist()
        results.append({"image_id": image, "category_id": int(row[0]), "score": row[1], "keypoints": keypoints})
    return results


class CorrectKeypoints(Metric):
    """Number of correct and of annotated points (PCK).

    A point is correct if its distance is at most ``threshold`` times the larger side of its object's box.

    Args:
        num_points: Number of points K.
        threshold: Largest distance of a correct point, as a share of the larger side of the box.

    Raises:
        ValueError: If ``threshold`` is not finite and above 0.

    Source:
        Yang and Ramanan 2013, "Articulated Human Detection with Flexible Mixtures of Parts": 0.2 for upper bodies,
        0.1 for whole ones.
    """

    full_state_update = False
    counts: Tensor

    def __init__(self, num_points: int, *, threshold: float) -> None:
        super().__init__()
        if not 0 < threshold < math.inf:
            raise ValueError(
                f"pck_threshold={threshold} must be finite and above 0, a share of the larger side of a box; give 0.2"
            )
        self.threshold = threshold
        self.add_state("counts", torch.zeros(num_points, 2, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, predicted: Tensor, target: Tensor, mask: Tensor, boxes: Tensor) -> None:
        """Collect objects.

        Args:
            predicted: Predicted points, float ``(N, K, 2)``, pixels.
            target: Annotated points, same shape and pixels; masked ones may have any value.
            mask: bool ``(N, K)``, True for points that are present.
            boxes: Annotated boxes, float ``(N, 4)``, xyxy in the same pixels.
        """
        larger_sides = (boxes[:, 2:] - boxes[:, :2]).float().amax(dim=1)
        distances = (predicted.float() - target.float()).norm(dim=-1)
        is_correct = mask & (distances <= self.threshold * larger_sides[:, None])
        self.counts += torch.stack([is_correct.sum(dim=0), mask.sum(dim=0)], dim=1)

    def compute(self) -> Tensor:
        """Return the counts of correct and of annotated points, int64 ``(K, 2)``."""
        return self.counts


class KeypointMetric(JointMetric):
    """The metrics of boxes and of points, fed together.

    Correct points and errors are measured on objects that `match_detections` matches with a detection of any class.
    Crowds are excluded.

    Args:
        boxes: Metric of the boxes.
        precision: Metric of the points by OKS.
        correct: Metric of correct points.
        errors: Metric of the points' errors.
        point_names: Names of the K points.
    """

    def __init__(
        self,
        *,
        boxes: AveragePrecision,
        precision: KeypointPrecision,
        correct: CorrectKeypoints,
        errors: NormalizedMeanError,
        point_names: Sequence[str],
    ) -> None:
        super().__init__()
        self.boxes = boxes
        self.precision = precision
        self.correct = correct
        self.errors = errors
        self.point_names = tuple(point_names)
        self.matched = SumMetric()
        self.missed = SumMetric()
        # The report needs the errors of each point, which only curves collect.
        errors.record_curves(point_names)

    def update(self, detections: Sequence[Mapping[str, Tensor]], targets: Sequence[Mapping[str, Tensor]]) -> None:
        """Collect the images of a batch, see `KeypointPrecision.update`; detections have ``boxes`` as well."""
        self.boxes.update([dict(detection) for detection in detections], plain_targets(targets))
        self.precision.update(detections, targets)
        for detection, target in zip(detections, targets, strict=True):
            # A crowd region has no points of a single object, and its box would match any detection inside.
            is_single = target["iscrowd"] == 0 if "iscrowd" in target else slice(None)
            boxes = target["boxes"][is_single]
            points = target["keypoints"][is_single]
            # Without classes, so that a wrong class costs precision, but not also correct points.
            rows, columns = match_detections(detection["boxes"], detection["scores"], boxes)
            self.matched.update(float(len(rows)))
            self.missed.update(float(len(boxes) - len(rows)))
            truth = (points[columns, :, :2], points[columns, :, 2] > 0, boxes[columns])
            for metric in (self.correct, self.errors):
                metric.update(detection["keypoints"][rows, :, :2], *truth)

    def compute_scores(self) -> KeypointScores:
        """Return the scores of everything collected since the last reset, over all ranks."""
        # A rank without a batch still takes part in the exchange; an image without objects changes no score.
        if not self.precision.counts:
            self._add_blank_image()
        means, ap = self.precision.average_precision()
        counts = self.correct.compute().cpu().double()
        errors = self.errors.compute()
        point_errors = errors["point_sums"].cpu().double()
        pck_by_point = (counts[:, 0] / counts[:, 1]).tolist()
        nme_by_point = (point_errors[:, 0] / point_errors[:, 1]).tolist()
        return KeypointScores(
            detection=self.boxes.compute_scores(),
            **means,
            ap=ap,
            pck=float(counts[:, 0].sum() / counts[:, 1].sum()),
            pck_threshold=self.correct.threshold,
            pck_by_point=dict(zip(self.point_names, pck_by_point, strict=True)),
            nme=float(errors["nme"]),
            nme_by_point=dict(zip(self.point_names, nme_by_point, strict=True)),
            num_matched=int(self.matched.compute()),
            num_missed=int(self.missed.compute()),
        )

    def _add_blank_image(self) -> None:
        points = torch.zeros(0, len(self.point_names), 3, device=self.precision.device)
        labels = torch.zeros(0, dtype=torch.int64, device=self.precision.device)
        boxes = torch.zeros(0, 4, device=self.precision.device)
        blank = {"boxes": boxes, "labels": labels, "scores": boxes[:, 0], "keypoints": points}
        self.update([blank], [blank])

    def record_curves(self, **limits: Any) -> None:
        """Record the curves of the boxes, see `AveragePrecision.record_curves`; errors are always recorded."""
        self.boxes.record_curves(**limits)

    def compute_curves(self) -> list[EvaluationCurves]:
        """Return the curves of boxes and of errors of points, over all ranks."""
        return self.boxes.compute_curves() + self.errors.compute_curves()
