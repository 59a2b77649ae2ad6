"""Average precision of boxes and masks, exact over ranks, with its scores and curves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torchmetrics.detection import MeanAveragePrecision
from torchmetrics.utilities.distributed import gather_all_tensors

from lit_loader.foundation.extras import require
from lit_loader.inspection.curves import ConfusionMatrix, EvaluationCurves, ThresholdCounts, best_threshold
from lit_loader.recipes.curves import (
    MAX_CONFUSION_CLASSES,
    NUM_SCORE_BINS,
    coco_curves,
    score_thresholds,
    threshold_counts,
)
from lit_loader.recipes.matching import add_confusions, add_scores
from lit_loader.recipes.metrics import Report
from lit_loader.types import FIRST_LABEL

__all__ = ["AveragePrecision", "DetectionScores"]


@dataclass(frozen=True, kw_only=True)
class DetectionScores:
    """Scores of boxes or of masks.

    Args:
        map: Mean over classes and IoU thresholds 0.50 to 0.95; 0 without annotated objects.
        map_50: Mean over classes at IoU 0.5; 0 without annotated objects.
        ap_50: AP at IoU 0.5 of every class by name; NaN for a class without annotated objects.
        masks: The scores of masks, or None if the model predicts no masks.
        map_75: Mean over classes at IoU 0.75; 0 without annotated objects.
        ap: AP of every class by name, mean over IoU thresholds 0.50 to 0.95; NaN as ``ap_50``.
        map_by_size: mAP of small, medium and large objects; NaN for a size without objects. The limits are COCO's
            areas, ``32**2`` and ``96**2`` pixels.
        recall: Average recall by the number of detections counted per image, such as ``"1"``, ``"10"`` and ``"100"``:
            mean over classes and IoU thresholds of the largest recall.
        recall_by_size: Average recall of small, medium and large objects, for the largest number of detections.
    """

    map: float
    map_50: float
    ap_50: Mapping[str, float]
    masks: DetectionScores | None = None
    map_75: float = float("nan")
    ap: Mapping[str, float] = field(default_factory=dict)
    map_by_size: Mapping[str, float] = field(default_factory=dict)
    recall: Mapping[str, float] = field(default_factory=dict)
    recall_by_size: Mapping[str, float] = field(default_factory=dict)

    @property
    def logged(self) -> dict[str, float]:
        """The mAP and mAP@50 of boxes, of masks under ``mask_map`` and ``mask_map_50``."""
        boxes = {"map": self.map, "map_50": self.map_50}
        return boxes if self.masks is None else boxes | {f"mask_{k}": v for k, v in self.masks.logged.items()}

    def report(self) -> Report:
        """Return mAP and mAP@50, and AP@50 by class."""
        figures = {"mAP@50": self.map_50, "mAP": self.map}
        if self.masks is None:
            return [("test", figures), ("AP@50", dict(self.ap_50))]
        mask_figures = {"mask mAP@50": self.masks.map_50, "mask mAP": self.masks.map}
        return [("test", figures | mask_figures), ("AP@50", dict(self.ap_50)), ("mask AP@50", dict(self.masks.ap_50))]


_SIZES: Final = ("small", "medium", "large")
_IOU_75: Final = 5  # of the thresholds 0.50, 0.55, ... 0.95


class AveragePrecision(MeanAveragePrecision):
    """torchmetrics' mean average precision of boxes, and of masks, with AP of each class by name.

    A detection on a crowd region, marked by ``iscrowd`` in the targets, counts neither for nor against. Masks are bool
    or uint8 ``(n, H, W)``, in detections and targets.


    Args:
        class_names: Names of the classes; label ``i + 1`` is ``class_names[i]``.
        masks: Also score masks.
        max_detections: Number of detections counted per image, those with the highest scores; COCO counts 100.

    Raises:
        ImportError: If faster-coco-eval is not installed.
        ValueError: If ``max_detections`` is below 1.
    """

    def __init__(self, class_names: Sequence[str], *, masks: bool = False, max_detections: int = 100) -> None:
        # torchmetrics' own backend, pycocotools, is several times slower, and needs a compiler to install.
        require("faster_coco_eval", "recipes")
        if max_detections < 1:
            raise ValueError(f"max_detections={max_detections} must be 1 or more; COCO counts 100")
        super().__init__(
            backend="faster_coco_eval",
            iou_type=("bbox", "segm") if masks else "bbox",
            extended_summary=True,
            max_detection_thresholds=[1, min(10, max_detections), max_detections],
        )
        self.warn_on_many_detections = False  # a detector may return more detections than COCO counts
        self.class_names = tuple(class_names)
        self.masks = masks
        self.min_score: float | None = None
        self.min_iou = 0.5

    def record_curves(self, *, min_score: float | None = None, min_iou: float = 0.5) -> None:
        """Set the limits of `compute_curves`; the collected data is the same.

        Args:
            min_score: Detections with lower scores are not in the confusion matrix; None for the threshold with the
                highest mean F1 over classes.
            min_iou: Smallest IoU of an object and its detection in the confusion matrix.
        """
        self.min_score = min_score
        self.min_iou = min_iou

    def update(self, preds: list[dict[str, Tensor]], target: list[dict[str, Tensor]]) -> None:
        """Collect the detections and the targets of images."""
        if self.masks:  # the encoder of masks takes uint8 only
            preds = [{**image, "masks": image["masks"].to(torch.uint8)} for image in preds]
            target = [{**image, "masks": image["masks"].to(torch.uint8)} for image in target]
        super().update(preds, target)

    def compute_scores(self) -> DetectionScores:
        """Return the scores of everything collected since the last reset, over all ranks."""
        self._fill_up()
        result: dict[str, Any] = self.compute()
        classes = result["classes"]
        # torchmetrics prefixes its results with the kind of overlap only if there are several.
        if not self.masks:
            return self._scores(result["precision"], result["recall"], classes)
        masks = self._scores(result["segm_precision"], result["segm_recall"], classes)
        return replace(self._scores(result["bbox_precision"], result["bbox_recall"], classes), masks=masks)

    def compute_curves(self) -> list[EvaluationCurves]:
        """Return the curves of boxes, and of masks, of everything collected since the last reset, over all ranks.

        Precision and recall are the ones behind `compute_scores`. Only boxes have a confusion matrix, see
        `add_confusions`, and counts by threshold, see `add_scores`; neither with more than `MAX_CONFUSION_CLASSES`.
        """
        self._fill_up()
        # torchmetrics keeps the result of `compute_scores` until the next update.
        result: dict[str, Any] = self.compute()
        labels = [label - FIRST_LABEL for label in result["classes"].reshape(-1).tolist()]
        by_threshold, support = self._count_by_threshold()
        confusion = None
        if by_threshold is not None:
            min_score = best_threshold(by_threshold) if self.min_score is None else self.min_score
            confusion = self._confusion(min_score)
        kinds = {"boxes": "bbox_", "masks": "segm_"} if self.masks else {"boxes": ""}
        return [
            EvaluationCurves(
                label=kind,
                class_names=self.class_names,
                support=support,
                precision_recall=coco_curves(
                    result[f"{prefix}precision"][:, :, :, 0, -1],
                    result[f"{prefix}scores"][:, :, :, 0, -1],
                    labels,
                    len(self.class_names),
                ),
                by_threshold=by_threshold if kind == "boxes" else None,
                confusion=confusion if kind == "boxes" else None,
            )
            for kind, prefix in kinds.items()
        ]

    def _count_by_threshold(self) -> tuple[ThresholdCounts | None, np.ndarray[Any, np.dtype[np.int64]]]:
        """Return the detections by score, and the number of objects of each class, of the images of all ranks."""
        num_classes = len(self.class_names)
        is_counted = num_classes <= MAX_CONFUSION_CLASSES
        thresholds = score_thresholds()
        support = torch.zeros(num_classes, dtype=torch.int64)
        histogram = torch.zeros(num_classes if is_counted else 0, NUM_SCORE_BINS, 2, dtype=torch.int64)
        for detections, target in self._collected():
            labels = target["labels"][target["iscrowd"] == 0].cpu() - FIRST_LABEL
            support += torch.bincount(labels, minlength=num_classes)
            if is_counted:
                add_scores(histogram, thresholds, detections, target)
        support, histogram = (_sum_over_ranks(values.to(self.device)).cpu() for values in (support, histogram))
        return threshold_counts(histogram, thresholds, support) if is_counted else None, support.numpy()

    def _confusion(self, min_score: float) -> ConfusionMatrix:
        """Return the confusion matrix of the images of all ranks."""
        side = len(self.class_names) + 1
        counts = torch.zeros(side, side, dtype=torch.int64)
        for detections, target in self._collected():
            add_confusions(counts, detections, target, min_score=min_score, min_iou=self.min_iou)
        counts = _sum_over_ranks(counts.to(self.device)).cpu()
        names = (*self.class_names, None)
        note = f"scores from {min_score:.3f}, IoU from {self.min_iou:g}"
        return ConfusionMatrix(row_names=names, column_names=names, counts=counts.numpy(), note=note)

    def _collected(self) -> Iterator[tuple[dict[str, Tensor], dict[str, Tensor]]]:
        """Return the detections and the target of each image of this rank; each rank matches those it collected."""
        for image in range(len(self.detection_labels)):
            detections = {
                "boxes": _xyxy(self.detection_box[image]),
                "labels": self.detection_labels[image],
                "scores": self.detection_scores[image],
            }
            target = {
                "boxes": _xyxy(self.groundtruth_box[image]),
                "labels": self.groundtruth_labels[image],
                "iscrowd": self.groundtruth_crowds[image],
            }
            yield detections, target

    def _fill_up(self) -> None:
        """Add images without objects, which no score counts, until all ranks have equally many, and at least one."""
        # torchmetrics gathers image by image, so ranks with different numbers of images would wait forever.
        count = torch.tensor(len(self.detection_labels), device=self.device)
        counts = gather_all_tensors(count) if dist.is_available() and dist.is_initialized() else [count]
        num_missing = max(1, *map(int, counts)) - len(self.detection_labels)
        if num_missing > 0:
            boxes = torch.zeros(0, 4, device=self.device)
            labels = torch.zeros(0, dtype=torch.int64, device=self.device)
            masks = torch.zeros(0, 1, 1, dtype=torch.uint8, device=self.device)
            image = {"boxes": boxes, "labels": labels, "scores": boxes[:, 0], "masks": masks}
            self.update([image] * num_missing, [image] * num_missing)

    def _scores(self, precision: Tensor, recall: Tensor, classes: Tensor) -> DetectionScores:
        # Not `class_metrics=True`, which evaluates once more for every class and averages over ten IoU thresholds. The
        # precision table of the one evaluation (`extended_summary=True`) already has every class at every threshold;
        # AP@50 of a class is the mean of its row over the recall thresholds, as in COCO.
        # torchmetrics' own means always use 100 detections, for any thresholds.
        # Axes: IoU threshold, recall threshold (of precision alone), class, area, number of detections.
        table = precision[:, :, :, 0, -1]
        nan = float("nan")
        ap = dict.fromkeys(self.class_names, nan)
        ap_50 = dict.fromkeys(self.class_names, nan)
        # torchmetrics returns a 0-d tensor of classes if there is only one.
        for column, label in enumerate(classes.reshape(-1).tolist()):
            name = self.class_names[label - FIRST_LABEL]
            ap[name] = mean_of_defined(table[:, :, column], default=nan)
            ap_50[name] = mean_of_defined(table[0, :, column], default=nan)
        areas = tuple(enumerate(_SIZES, start=1))  # area 0 is objects of any size
        counts = [str(count) for count in self.max_detection_thresholds]
        return DetectionScores(
            map=mean_of_defined(table, default=0.0),
            map_50=mean_of_defined(table[0], default=0.0),
            ap_50=ap_50,
            map_75=mean_of_defined(table[_IOU_75], default=0.0),
            ap=ap,
            map_by_size={size: mean_of_defined(precision[:, :, :, area, -1], default=nan) for area, size in areas},
            recall={
                count: mean_of_defined(recall[:, :, 0, column], default=nan) for column, count in enumerate(counts)
            },
            recall_by_size={size: mean_of_defined(recall[:, :, area, -1], default=nan) for area, size in areas},
        )


def _xyxy(boxes: Tensor) -> Tensor:
    """Return boxes ``(N, 4)`` from those that torchmetrics collects: x, y, width and height."""
    boxes = boxes.reshape(-1, 4)
    return torch.cat([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], dim=1)


def _sum_over_ranks(values: Tensor) -> Tensor:
    if dist.is_available() and dist.is_initialized():
        dist.all_reduce(values)
    return values


def mean_of_defined(values: Tensor, *, default: float) -> float:
    """Return the mean of the values other than -1, COCO's mark for undefined ones, or a default without any."""
    defined = values[values > -1]
    return float(defined.mean()) if len(defined) else default
