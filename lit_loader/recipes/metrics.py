"""Metrics of one task each, exact over ranks, and their scores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torchmetrics import Metric
from torchmetrics.detection import MeanAveragePrecision
from torchmetrics.functional.classification import multiclass_stat_scores, multilabel_stat_scores
from torchmetrics.utilities.distributed import gather_all_tensors

from lit_loader.foundation.extras import require
from lit_loader.inspection.curves import ConfusionMatrix, EvaluationCurves, ThresholdCounts, best_threshold
from lit_loader.recipes.curves import (
    MAX_CONFUSION_CLASSES,
    NUM_ERROR_BINS,
    NUM_LOGIT_BINS,
    NUM_SCORE_BINS,
    add_logits,
    class_curve,
    class_thresholds,
    coco_curves,
    error_curve,
    error_histogram,
    score_thresholds,
    threshold_counts,
)
from lit_loader.recipes.matching import add_confusions, add_scores
from lit_loader.types import FIRST_LABEL

__all__ = [
    "AveragePrecision",
    "ClassMetric",
    "ClassificationScores",
    "DetectionScores",
    "JointMetric",
    "LandmarkScores",
    "NormalizeBy",
    "NormalizedMeanError",
    "Report",
    "landmark_metric",
]

NormalizeBy: TypeAlias = Literal["pair", "box", "diagonal"]
Report: TypeAlias = list[tuple[str, dict[str, float]]]
"""Titled sections of named numbers. The first section has the scores of the whole set, the others have one number per
class, attribute value and so on. A number is NaN if there was nothing to measure."""


class JointMetric(nn.Module):
    """Metrics that are fed together."""

    def reset(self) -> None:
        """Clear the collected data."""
        # Not only children: a metric may be in a ModuleList.
        for metric in self.modules():
            if isinstance(metric, Metric):
                metric.reset()


# -- detection -------------------------------------------------------------------------------------------


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
        """MAP and mAP@50, of masks as ``mask_map`` and ``mask_map_50``."""
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
            ap[name] = _mean_of_defined(table[:, :, column], default=nan)
            ap_50[name] = _mean_of_defined(table[0, :, column], default=nan)
        areas = tuple(enumerate(_SIZES, start=1))  # area 0 is objects of any size
        counts = [str(count) for count in self.max_detection_thresholds]
        return DetectionScores(
            map=_mean_of_defined(table, default=0.0),
            map_50=_mean_of_defined(table[0], default=0.0),
            ap_50=ap_50,
            map_75=_mean_of_defined(table[_IOU_75], default=0.0),
            ap=ap,
            map_by_size={size: _mean_of_defined(precision[:, :, :, area, -1], default=nan) for area, size in areas},
            recall={
                count: _mean_of_defined(recall[:, :, 0, column], default=nan) for column, count in enumerate(counts)
            },
            recall_by_size={size: _mean_of_defined(recall[:, :, area, -1], default=nan) for area, size in areas},
        )


def _xyxy(boxes: Tensor) -> Tensor:
    """Return boxes ``(N, 4)`` from those that torchmetrics collects: x, y, width and height."""
    boxes = boxes.reshape(-1, 4)
    return torch.cat([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], dim=1)


def _sum_over_ranks(values: Tensor) -> Tensor:
    if dist.is_available() and dist.is_initialized():
        dist.all_reduce(values)
    return values


def _mean_of_defined(values: Tensor, *, default: float) -> float:
    """Return the mean of the values other than -1, COCO's mark for undefined ones, or a default without any."""
    defined = values[values > -1]
    return float(defined.mean()) if len(defined) else default


# -- classification --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ClassificationScores:
    """Scores of class labels.

    Args:
        accuracy: Fraction of correct answers; with several labels per image, of correct yes-or-no answers. NaN without
            answers.
        macro_f1: Mean of F1 over the classes that occur; NaN if none does.
        f1: F1 of every class by name; NaN for a class that does not occur.
        recall: Recall of every class by name; NaN for a class that does not occur.
        support: Number of occurrences of every class.
        loss: Mean loss of the samples, or None if no losses were collected.
    """

    accuracy: float
    macro_f1: float
    f1: Mapping[str, float]
    recall: Mapping[str, float]
    support: Mapping[str, int]
    loss: float | None = None

    @property
    def logged(self) -> dict[str, float]:
        """Accuracy and macro-F1, and the loss if losses were collected."""
        loss = {} if self.loss is None else {"loss": self.loss}
        return {**loss, "accuracy": self.accuracy, "macro_f1": self.macro_f1}

    def report(self) -> Report:
        """Return accuracy and macro-F1, and recall and F1 by class."""
        figures = {"accuracy": self.accuracy, "macro-F1": self.macro_f1}
        return [("test", figures), ("recall", dict(self.recall)), ("F1", dict(self.f1))]


class ClassMetric(Metric):
    """Accuracy, F1 and recall by class name; macro-F1 is the mean over the classes that occur among the true labels.

    Args:
        class_names: Names of the classes; id ``i`` is ``class_names[i]``.
        multi_label: Whether an image has any number of classes.
    """

    full_state_update = False
    counts: Tensor
    losses: Tensor
    confusion: Tensor
    histograms: Tensor

    def __init__(self, class_names: Sequence[str], *, multi_label: bool = False) -> None:
        super().__init__()
        self.class_names = tuple(class_names)
        self.multi_label = multi_label
        # By class: true positives, false positives, true negatives, false negatives, support.
        self.add_state("counts", torch.zeros(len(class_names), 5, dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("losses", torch.zeros(2), dist_reduce_fx="sum")  # sum and number
        self.records_curves = False

    def record_curves(self) -> None:
        """Also collect a confusion matrix and histograms of scores, from now on, up to `MAX_CONFUSION_CLASSES`."""
        num_classes = len(self.class_names)
        if self.records_curves or num_classes > MAX_CONFUSION_CLASSES:
            return
        self.records_curves = True
        side = 0 if self.multi_label else num_classes
        integers: dict[str, Any] = {"dtype": torch.int64, "device": self.device}
        histograms = torch.zeros(num_classes, NUM_LOGIT_BINS, 2, **integers)
        self.add_state("confusion", torch.zeros(side, side, **integers), dist_reduce_fx="sum")
        self.add_state("histograms", histograms, dist_reduce_fx="sum")

    def update(
        self, predicted: Tensor, target: Tensor, losses: Tensor | None = None, logits: Tensor | None = None
    ) -> None:
        """Collect predictions.

        Args:
            predicted: Class ids, int64 ``(N,)``; with ``multi_label`` int64 ``(N, num_classes)`` of 0 and 1.
            target: True classes in the same shape; where it is -1, the prediction is not counted. N may be 0.
            losses: float ``(N,)``, or None if losses are not scored. The loss of an image without a labelled class
                does not count.
            logits: float ``(N, num_classes)`` of the scores for curves, or None. Without them, the curves are the
                confusion matrix alone.
        """
        # torchmetrics cannot reshape an empty batch, such as one without matched objects. Its `validate_args` reads all
        # labels, which waits for the device; tasks have checked them, see `Task.check_batch`.
        if len(target):
            stat_scores: Any = multilabel_stat_scores if self.multi_label else multiclass_stat_scores
            settings: dict[str, Any] = {"average": None, "ignore_index": -1, "validate_args": False}
            counts = stat_scores(predicted, target, len(self.class_names), **settings)
            self.counts += counts.reshape(-1, 5)  # for a single class torchmetrics returns a row, not a table
        if self.records_curves and len(target):
            self._update_curves(predicted, target, logits)
        if losses is not None:
            is_labelled = (target >= 0).any(dim=1) if self.multi_label else target >= 0
            labelled_losses = torch.where(is_labelled, losses.detach(), 0.0)
            self.losses += torch.stack([labelled_losses.sum(), is_labelled.sum().to(losses.dtype)])

    def _update_curves(self, predicted: Tensor, target: Tensor, logits: Tensor | None) -> None:
        # In place: a matrix for each batch would take as much memory as the whole one.
        if len(self.confusion):
            cells = target.clamp(min=0) * len(self.class_names) + predicted
            self.confusion.view(-1).scatter_add_(0, cells, (target >= 0).long())
        if logits is not None:
            add_logits(self.histograms, logits, target, multi_label=self.multi_label)

    def compute(self) -> dict[str, Tensor]:
        """Return the counts by class, the mean loss and the number of losses, and what curves need if recorded."""
        recorded = {"confusion": self.confusion, "histograms": self.histograms} if self.records_curves else {}
        scores = {"counts": self.counts, "loss": self.losses[0] / self.losses[1], "num_losses": self.losses[1]}
        return {**scores, **recorded}

    def compute_curves(self, label: str = "class") -> list[EvaluationCurves]:
        """Return the curves of everything collected since the last reset, over all ranks.

        Args:
            label: Name of the output, such as the attribute.

        Returns:
            The curves, or an empty list with more than `MAX_CONFUSION_CLASSES`.

        Raises:
            RuntimeError: If `record_curves` was not called before the collection.
        """
        if len(self.class_names) > MAX_CONFUSION_CLASSES:
            return []
        result = self.compute()
        if not self.records_curves:
            raise RuntimeError("curves were not recorded; call record_curves() before the first update")
        counts = result["counts"].cpu()
        confusion = None
        if self.multi_label:
            # Each class of an image is a question with two answers, so classes are not confused with each other.
            columns = ("true positive", "false positive", "true negative", "false negative")
            table = counts[:, :4].numpy()
            confusion = ConfusionMatrix(row_names=self.class_names, column_names=columns, counts=table)
        elif len(result["confusion"]):
            table = result["confusion"].cpu().numpy()
            confusion = ConfusionMatrix(row_names=self.class_names, column_names=self.class_names, counts=table)
        histograms = result["histograms"]
        by_threshold = None
        if histograms.any():
            by_threshold = threshold_counts(histograms, class_thresholds(), histograms[..., 1].sum(dim=1))
        curves = EvaluationCurves(
            label=label,
            class_names=self.class_names,
            support=counts[:, 4].numpy(),
            precision_recall=[] if by_threshold is None else [class_curve(by_threshold)],
            by_threshold=by_threshold,
            confusion=confusion,
        )
        return [curves]

    def compute_scores(self) -> ClassificationScores:
        """Return the scores of everything collected since the last reset, over all ranks."""
        result = self.compute()
        tp, fp, tn, fn, support = result["counts"].cpu().double().unbind(1)
        # With one label per image, a true negative is not an answer of its own.
        num_correct = tp + tn if self.multi_label else tp
        num_answers = support + (fp + tn if self.multi_label else 0)
        occurs = support > 0
        nan = torch.full_like(support, float("nan"))
        # The mean of F1 is over the classes that occur. torchmetrics' own `average="macro"` also includes, as 0, a
        # class that does not occur but was predicted: a single wrong prediction of a rare class in a small set then
        # costs as much as missing a whole class. Here it only lowers the score of the true class. If every class
        # occurs, both definitions agree.
        # Where a class occurs, neither denominator is 0; `torch.where` discards the others.
        f1 = torch.where(occurs, 2 * tp / (2 * tp + fp + fn), nan)
        recall = torch.where(occurs, tp / support, nan)
        return ClassificationScores(
            accuracy=float(num_correct.sum() / num_answers.sum()),
            macro_f1=float(f1[occurs].mean()),
            f1=dict(zip(self.class_names, f1.tolist(), strict=True)),
            recall=dict(zip(self.class_names, recall.tolist(), strict=True)),
            support=dict(zip(self.class_names, result["counts"][:, 4].tolist(), strict=True)),
            # Over all ranks: one without samples has to log the same names as the others.
            loss=float(result["loss"]) if result["num_losses"] else None,
        )


# -- landmarks -------------------------------------------------------------------------------------------


_NORMALIZERS: Final = {"pair": "distance of two points", "box": "root of box area", "diagonal": "box diagonal"}


@dataclass(frozen=True, kw_only=True)
class LandmarkScores:
    """Scores of landmarks.

    Args:
        nme: Mean over faces of the normalised mean error; 0.05 is 5 % of the normaliser. NaN without faces.
        failure_rate: Share of faces whose error is above the threshold; NaN without faces.
        auc: Area under the cumulative distribution of errors up to the threshold, over the threshold: 1 where all
            errors are 0, 0 where all faces fail. NaN without faces.
        num_faces: Number of measured faces (or other objects).
        num_excluded: Number of faces that could not be measured: no point is present, or the normaliser is undefined.
        failure_threshold: Error above which a face fails.
        normalize_by: Normaliser of the errors, see `NormalizedMeanError`; `report` names it.
        classes: Scores of the faces' classes, or None if the model predicts none.
    """

    nme: float
    failure_rate: float
    auc: float
    num_faces: int
    num_excluded: int
    failure_threshold: float
    normalize_by: NormalizeBy = "box"
    classes: ClassificationScores | None = None

    @property
    def logged(self) -> dict[str, float]:
        """Error, failure rate and AUC, and the scores of the classes."""
        classes = {} if self.classes is None else self.classes.logged
        return {"nme": self.nme, "failure_rate": self.failure_rate, "auc": self.auc, **classes}

    def report(self) -> Report:
        """Return error, failure rate and AUC; with classes also accuracy, and recall and F1 by class."""
        figures: dict[str, float] = {
            f"NME over {_NORMALIZERS[self.normalize_by]}": self.nme,
            f"failures above {self.failure_threshold:g}": self.failure_rate,
            f"AUC up to {self.failure_threshold:g}": self.auc,
            "objects measured": self.num_faces,
            "objects not measured": self.num_excluded,
        }
        if self.classes is None:
            return [("test", figures)]
        # The first section of each report has the scores of the whole set, which belong together.
        (_, class_figures), *sections = self.classes.report()
        return [("test", figures | class_figures), *sections]


class NormalizedMeanError(Metric):
    """Mean over faces of the mean distance between predicted and annotated points, divided by the size of the face.

    ``error(face) = mean over present points k of |p_k - g_k| / d(face)``, and NME is its mean over faces.
    A face fails if its error is above ``failure_threshold`` or is NaN. A face without a present point, or whose d is 0
    or undefined (the point of an eye is absent), is excluded and counted in ``num_excluded``.

    AUC is the area under the fraction of faces whose error is at most e, for e from 0 to t = ``failure_threshold``,
    divided by t. It equals the mean over faces of ``max(0, 1 - error(face) / t)``, so no histogram is needed.

    Args:
        normalize_by: Definition of d: ``"pair"``, the distance of two points (the outer eye corners in 300-W and WFLW);
            ``"box"``, the square root of the box's area; ``"diagonal"``, the diagonal of the box.
        normalization_pair: Positions of the two points; required for ``"pair"`` and refused otherwise.
        failure_threshold: Error above which a face fails, and upper limit of AUC: 0.10 is WFLW's, 0.08 is 300-W's.

    Raises:
        ValueError: If an argument is out of range, missing, or without effect.

    Source:
        Interocular distance, and failure rate at 0.08: Sagonas et al. 2016, "300 Faces In-The-Wild Challenge".
        Failure rate and AUC at 0.10: Wu et al. 2018, "Look at Boundary" (WFLW).
        AUC: Yang et al. 2015, "An Empirical Study of Recent Face Alignment Methods".
        Square root of the box's area: Bulat and Tzimiropoulos 2017, "How far are we from solving the 2D & 3D
        Face Alignment problem?".
    """

    full_state_update = False
    sums: Tensor
    error_counts: Tensor
    point_sums: Tensor

    def __init__(
        self,
        *,
        normalize_by: NormalizeBy = "box",
        normalization_pair: Sequence[int] | None = None,
        failure_threshold: float = 0.10,
    ) -> None:
        super().__init__()
        pair = None if normalization_pair is None else tuple(normalization_pair)
        if normalize_by not in ("pair", "box", "diagonal"):
            raise ValueError(f"normalize_by={normalize_by!r} must be 'pair', 'box' or 'diagonal'")
        # A reader of the config would take a pair without effect for the normaliser.
        if (normalize_by == "pair") != (pair is not None):
            raise ValueError(
                f'normalize_by={normalize_by!r} came with normalization_pair={pair}: "pair" needs '
                "normalization_pair=(left, right), the positions of two points, which has no effect on others"
            )
        if pair is not None and (len(pair) != 2 or pair[0] == pair[1] or min(pair) < 0):
            raise ValueError(f"normalization_pair={pair} must be the positions of two different points")
        if not failure_threshold > 0:
            raise ValueError(f"failure_threshold={failure_threshold} must be above 0; WFLW's is 0.10")
        self.normalize_by = normalize_by
        self.normalization_pair = pair
        self.failure_threshold = failure_threshold
        # One vector, so that ranks exchange one tensor instead of five:
        # sum of errors, number of failures, of measured faces, of excluded faces, sum of areas.
        self.add_state("sums", torch.zeros(5), dist_reduce_fx="sum")
        self._point_names: tuple[str, ...] | None = None

    def record_curves(self, point_names: Sequence[str]) -> None:
        """Also collect the distribution of errors and the errors of each point, from now on.

        Args:
            point_names: Names of the K points.
        """
        if self._point_names is None:
            counts = torch.zeros(NUM_ERROR_BINS, dtype=torch.int64, device=self.device)
            point_sums = torch.zeros(len(point_names), 2, device=self.device)
            self.add_state("error_counts", counts, dist_reduce_fx="sum")
            self.add_state("point_sums", point_sums, dist_reduce_fx="sum")
        self._point_names = tuple(point_names)

    def update(self, predicted: Tensor, target: Tensor, mask: Tensor, boxes: Tensor) -> None:
        """Collect faces.

        Args:
            predicted: Predicted points, float, shape ``(N, K, 2)``, pixels.
            target: Annotated points, same shape and pixels; masked ones may have any value.
            mask: bool ``(N, K)``, True for points that are present.
            boxes: Annotated boxes of the faces, float, shape ``(N, 4)``, xyxy in the same pixels; only used if the
                error is normalised by them.

        Raises:
            ValueError: If the shapes do not match.
        """
        if predicted.shape != target.shape or mask.shape != target.shape[:2] or len(boxes) != len(target):
            shapes = [tuple(values.shape) for values in (predicted, target, mask, boxes)]
            raise ValueError(f"expected points (N, K, 2) twice, a mask (N, K) and boxes (N, 4), got {shapes}")
        mask = mask.bool()
        distances, errors, is_measured = self._measure(predicted, target, mask, boxes)
        if self._point_names is not None:
            self._update_curves(distances, errors, mask & is_measured[:, None])
        errors = errors[is_measured]
        failed = ~(errors <= self.failure_threshold)  # NaN fails
        areas = (1 - errors / self.failure_threshold).masked_fill(failed, 0.0)
        num_measured = is_measured.sum()
        num_excluded = (~is_measured).sum()
        self.sums += torch.stack([errors.sum(), failed.sum(), num_measured, num_excluded, areas.sum()])

    def errors(self, predicted: Tensor, target: Tensor, mask: Tensor, boxes: Tensor) -> Tensor:
        """Return the error of each face, float32 ``(N,)``, NaN if it cannot be measured; see `update`."""
        _, errors, is_measured = self._measure(predicted, target, mask.bool(), boxes)
        return errors.masked_fill(~is_measured, float("nan"))

    def _measure(self, predicted: Tensor, target: Tensor, mask: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return normalised distances of points ``(N, K)``, errors ``(N,)``, and a mask of measured faces ``(N,)``."""
        if self.normalization_pair is not None:
            first, second = self.normalization_pair
            scale = (target[:, first].float() - target[:, second].float()).norm(dim=-1)
            is_measured = mask[:, first] & mask[:, second]
        else:
            sides = (boxes[:, 2:] - boxes[:, :2]).float().clamp(min=0)
            scale = sides.prod(dim=1).sqrt() if self.normalize_by == "box" else sides.norm(dim=1)
            is_measured = mask.any(dim=1)
        # Masked and excluded faces may hold NaN or infinity: they are removed before sums, never multiplied by 0.
        is_measured = is_measured & scale.isfinite() & (scale > 0)
        distances = (predicted.float() - target.float()).norm(dim=-1).masked_fill(~mask, 0.0)
        errors = distances.sum(dim=1) / mask.sum(dim=1).clamp(min=1) / scale
        return distances / scale[:, None], errors, is_measured

    def _update_curves(self, distances: Tensor, errors: Tensor, mask: Tensor) -> None:
        """Collect errors of faces ``(N,)``, and distances of points ``(N, K)`` where the mask is True."""
        self.error_counts += error_histogram(errors[mask.any(dim=1)], self.failure_threshold)
        sums = torch.where(mask, distances, 0.0).sum(dim=0)
        self.point_sums += torch.stack([sums, mask.sum(dim=0).to(sums.dtype)], dim=1)

    def compute(self) -> dict[str, Tensor]:
        """Return the numbers of `LandmarkScores` for everything collected since the last reset, over all ranks."""
        error_sum, num_failures, num_faces, num_excluded, areas = self.sums.unbind()
        shares = {"nme": error_sum / num_faces, "failure_rate": num_failures / num_faces, "auc": areas / num_faces}
        values = {**shares, "num_faces": num_faces.long(), "num_excluded": num_excluded.long()}
        if self._point_names is not None:
            values |= {"error_counts": self.error_counts, "point_sums": self.point_sums}
        return values

    def compute_scores(self) -> LandmarkScores:
        """Return the scores of everything collected since the last reset, over all ranks."""
        values = {name: value.item() for name, value in self.compute().items() if value.ndim == 0}
        return LandmarkScores(
            **values,  # type: ignore[arg-type] # two are ints
            failure_threshold=self.failure_threshold,
            normalize_by=self.normalize_by,
        )

    def compute_curves(self) -> list[EvaluationCurves]:
        """Return the distribution of errors since the last reset, over all ranks.

        Raises:
            RuntimeError: If `record_curves` was not called before the collection.
        """
        if self._point_names is None:
            raise RuntimeError("curves were not recorded; call record_curves(point_names) before the first update")
        result = self.compute()
        errors = error_curve(
            result["error_counts"],
            result["point_sums"],
            limit=self.failure_threshold,
            area=float(result["auc"]),
            mean=float(result["nme"]),
            normalizer=_NORMALIZERS[self.normalize_by],
            point_names=self._point_names,
        )
        return [EvaluationCurves(label="points", class_names=(), support=np.zeros(0, dtype=np.int64), errors=errors)]


def landmark_metric(settings: Mapping[str, Any]) -> NormalizedMeanError:
    """Build the metric that a recipe's hyperparameters describe.

    Args:
        settings: ``keypoint_names``; ``normalize_by``, or None for ``"pair"`` with a pair and ``"box"`` without one;
            ``normalization_pair``, or None if the data has none, ignored by other normalisers; ``failure_threshold``.

    Raises:
        ValueError: If a setting is out of range, or the pair refers to a point that does not exist.
    """
    pair = settings["normalization_pair"]
    num_points = len(settings["keypoint_names"])
    normalize_by: NormalizeBy = settings["normalize_by"] or ("box" if pair is None else "pair")
    # The pair is usually the keypoint schema's, while `keypoint_names` may be given by hand.
    if pair is not None and (len(set(pair)) != 2 or max(pair) >= num_points):
        raise ValueError(f"normalization_pair={tuple(pair)} must be two different points among {num_points}")
    return NormalizedMeanError(
        normalize_by=normalize_by,
        normalization_pair=pair if normalize_by == "pair" else None,
        failure_threshold=settings["failure_threshold"],
    )
