"""Metrics of one task each, exact over ranks, and their scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torchmetrics import Metric
from torchmetrics.detection import MeanAveragePrecision
from torchmetrics.functional.classification import multiclass_stat_scores, multilabel_stat_scores

from lit_loader.foundation.extras import require
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
"""Titled sections of named numbers. The first holds those of the whole set, the others one number by class, attribute
value and so on. A number is NaN where there was nothing to measure it on."""


class JointMetric(nn.Module):
    """Metrics that are fed together."""

    def reset(self) -> None:
        """Forget what was collected."""
        for metric in self.modules():
            if isinstance(metric, Metric):
                metric.reset()


# -- detection -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class DetectionScores:
    """Scores of boxes or of masks.

    Args:
        map: Mean over classes and IoU thresholds 0.50 to 0.95; 0 where no object was to be found.
        map_50: Mean over classes at IoU 0.5; 0 where no object was to be found.
        ap_50: AP at IoU 0.5 of every class by name; NaN for a class without objects to be found.
        masks: The scores of masks, beside those of boxes, or None of a model without them.
        map_75: Mean over classes at IoU 0.75; 0 where no object was to be found.
        ap: AP of every class by name, mean over IoU thresholds 0.50 to 0.95; NaN as ``ap_50``.
        map_by_size: mAP of small, medium and large objects; NaN for a size without objects. The limits are COCO's
            areas, ``32**2`` and ``96**2`` pixels.
        recall: Average recall by the number of detections of an image that count, such as ``"1"``, ``"10"`` and
            ``"100"``: mean over classes and IoU thresholds of the largest recall.
        recall_by_size: The same of the largest number, of small, medium and large objects.
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
        masks = {} if self.masks is None else self.masks.logged
        return {"map": self.map, "map_50": self.map_50, **{f"mask_{name}": masks[name] for name in masks}}

    def report(self) -> Report:
        """Return mAP and mAP@50, and AP@50 by class."""
        figures = {"mAP@50": self.map_50, "mAP": self.map}
        if self.masks is None:
            return [("test", figures), ("AP@50", dict(self.ap_50))]
        of_masks = {"mask mAP@50": self.masks.map_50, "mask mAP": self.masks.map}
        return [
            ("test", figures | of_masks),
            ("AP@50", dict(self.ap_50)),
            ("mask AP@50", dict(self.masks.ap_50)),
        ]


_SIZES: Final = ("small", "medium", "large")
_IOU_75: Final = 5  # of the thresholds 0.50, 0.55, ... 0.95


class AveragePrecision(MeanAveragePrecision):
    """torchmetrics' mean average precision of boxes, and of masks, with AP of each class by name.

    A detection on a crowd region, marked by ``iscrowd`` in the targets, counts neither for nor against. Masks are bool
    or uint8 ``(n, H, W)``, in detections and targets.

    NOTE AP of a class. ``class_metrics=True`` evaluates once more for every class and averages over ten IoU
    thresholds. The precision table of the one evaluation (``extended_summary=True``) already holds every
    class at every threshold; AP@50 of a class is the mean of its row over the recall thresholds, as in COCO.

    Args:
        class_names: Names of the classes; label ``i + 1`` is ``class_names[i]``.
        masks: Score masks too.
        max_detections: Detections of an image that count, those of the highest scores; COCO counts 100.

    Raises:
        ImportError: If faster-coco-eval is not installed.
        ValueError: If ``max_detections`` is below 1.
    """

    def __init__(self, class_names: Sequence[str], *, masks: bool = False, max_detections: int = 100) -> None:
        require("faster_coco_eval", "recipes")
        if max_detections < 1:
            raise ValueError(f"max_detections={max_detections} must be 1 or more; COCO counts 100")
        super().__init__(
            backend="faster_coco_eval",
            iou_type=("bbox", "segm") if masks else "bbox",
            extended_summary=True,
            max_detection_thresholds=[1, min(10, max_detections), max_detections],
        )
        self.warn_on_many_detections = False  # a detector of COCO may give more than count
        self.class_names, self.masks = tuple(class_names), masks

    def update(self, preds: list[dict[str, Tensor]], target: list[dict[str, Tensor]]) -> None:
        """Collect the detections and the targets of images."""
        if self.masks:  # the encoder of masks takes uint8 only
            preds, target = (
                [{**one, "masks": one["masks"].to(torch.uint8)} for one in each] for each in (preds, target)
            )
        super().update(preds, target)

    def compute_scores(self) -> DetectionScores:
        """Return the scores of everything collected since the last reset, over all ranks."""
        found: dict[str, Any] = self.compute()
        if not self.masks:
            return self._scores(found["precision"], found["recall"], found["classes"])
        masks = self._scores(found["segm_precision"], found["segm_recall"], found["classes"])
        boxes = self._scores(found["bbox_precision"], found["bbox_recall"], found["classes"])
        return replace(boxes, masks=masks)

    def _scores(self, precision: Tensor, recall: Tensor, classes: Tensor) -> DetectionScores:
        # torchmetrics' own means are those of 100 detections only.
        # Axes: IoU threshold, recall threshold (of precision alone), class, area, number of detections.
        table = precision[:, :, :, 0, -1]
        nan = float("nan")
        ap = dict.fromkeys(self.class_names, nan)
        ap_50 = dict.fromkeys(self.class_names, nan)
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
            map_by_size={
                size: _mean_of_defined(precision[:, :, :, area, -1], default=nan) for area, size in areas
            },
            recall={
                count: _mean_of_defined(recall[:, :, 0, column], default=nan)
                for column, count in enumerate(counts)
            },
            recall_by_size={
                size: _mean_of_defined(recall[:, :, area, -1], default=nan) for area, size in areas
            },
        )


def _mean_of_defined(values: Tensor, *, default: float) -> float:
    """Return the mean of the values that are defined, which -1 is not, or a default without any."""
    defined = values[values > -1]
    return float(defined.mean()) if len(defined) else default


# -- classification --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ClassificationScores:
    """Scores of class labels.

    Args:
        accuracy: Share of right answers; of several labels an image: of right yes-or-no answers. NaN without any.
        macro_f1: Mean of F1 over the classes that occur; NaN where none does.
        f1: F1 of every class by name; NaN for a class that does not occur.
        recall: Recall of every class by name; NaN for a class that does not occur.
        support: How often every class occurs.
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
        """Accuracy and macro-F1, and the loss where there is one."""
        loss = {} if self.loss is None else {"loss": self.loss}
        return {**loss, "accuracy": self.accuracy, "macro_f1": self.macro_f1}

    def report(self) -> Report:
        """Return accuracy and macro-F1, and recall and F1 by class."""
        figures = {"accuracy": self.accuracy, "macro-F1": self.macro_f1}
        return [("test", figures), ("recall", dict(self.recall)), ("F1", dict(self.f1))]


class ClassMetric(Metric):
    """Accuracy, F1 and recall, by the classes' names.

    NOTE macro-F1. The mean goes over the classes that occur among the true labels. torchmetrics' own
    ``average="macro"`` also counts, with 0, a class that does not occur but was answered once: one stray
    answer of the rare class in a small set then costs as much as missing a whole class. Here it costs the
    class that it was taken for. Where every class occurs the two are equal.

    Args:
        class_names: Names of the classes; id ``i`` is ``class_names[i]``.
        multi_label: An image has any number of classes.
    """

    full_state_update = False
    counts: Tensor
    losses: Tensor

    def __init__(self, class_names: Sequence[str], *, multi_label: bool = False) -> None:
        super().__init__()
        self.class_names, self.multi_label = tuple(class_names), multi_label
        # By class: true positives, false positives, true negatives, false negatives, support.
        self.add_state("counts", torch.zeros(len(class_names), 5, dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("losses", torch.zeros(2), dist_reduce_fx="sum")  # their sum and number
        self._has_losses = False

    def update(self, predicted: Tensor, wanted: Tensor, losses: Tensor | None = None) -> None:
        """Collect answers.

        Args:
            predicted: int64 ``(N,)``, ids; with ``multi_label`` int64 ``(N, num_classes)`` of 0 and 1.
            wanted: The same shape; an answer where it is -1 is not counted. N may be 0.
            losses: float ``(N,)``, or None if none are scored.
        """
        if len(wanted):
            stat_scores: Any = multilabel_stat_scores if self.multi_label else multiclass_stat_scores
            settings: dict[str, Any] = {"average": None, "ignore_index": -1, "validate_args": False}
            found = stat_scores(predicted, wanted, len(self.class_names), **settings)
            self.counts += found.reshape(-1, 5)  # of one class torchmetrics returns a row, not a table
        if losses is not None:
            self._has_losses = True
            self.losses += torch.stack([losses.detach().sum(), losses.new_full((), len(losses))])

    def compute(self) -> dict[str, Tensor]:
        """Return the counts by class, and the mean loss."""
        return {"counts": self.counts, "loss": self.losses[0] / self.losses[1]}

    def compute_scores(self) -> ClassificationScores:
        """Return the scores of everything collected since the last reset, over all ranks."""
        found = self.compute()
        right, wrong, right_no, missed, support = found["counts"].cpu().double().unbind(1)
        hits = right + right_no if self.multi_label else right
        asked = support + (wrong + right_no if self.multi_label else 0)
        occurs, nan = support > 0, torch.full_like(support, float("nan"))
        f1 = torch.where(occurs, 2 * right / (2 * right + wrong + missed), nan)
        recall = torch.where(occurs, right / support, nan)
        return ClassificationScores(
            accuracy=float(hits.sum() / asked.sum()),
            macro_f1=float(f1[occurs].mean()),
            f1=dict(zip(self.class_names, f1.tolist(), strict=True)),
            recall=dict(zip(self.class_names, recall.tolist(), strict=True)),
            support=dict(zip(self.class_names, found["counts"][:, 4].tolist(), strict=True)),
            loss=float(found["loss"]) if self._has_losses else None,
        )


# -- landmarks -------------------------------------------------------------------------------------------


_NORMALIZERS: Final = {
    "pair": "distance of two points",
    "box": "root of box area",
    "diagonal": "box diagonal",
}


@dataclass(frozen=True, kw_only=True)
class LandmarkScores:
    """Scores of landmarks.

    Args:
        nme: Mean over faces of the normalised mean error; 0.05 is 5 % of the normaliser. NaN without faces.
        failure_rate: Share of faces whose error is above the threshold; NaN without faces.
        auc: Area under the cumulative distribution of errors up to the threshold, over the threshold: 1 where all
            errors are 0, 0 where all faces fail. NaN without faces.
        num_faces: Faces (or other objects) that were measured.
        num_excluded: Faces that could not be: no point present, or nothing to divide by.
        failure_threshold: Error above which a face fails.
        normalize_by: What the errors are divided by, see `NormalizedMeanError`; `report` names it.
        classes: Scores of the faces' classes, or None if a model tells none.
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
        (_, of_classes), *by_class = [("", {})] if self.classes is None else self.classes.report()
        return [("test", figures | of_classes), *by_class]


class NormalizedMeanError(Metric):
    """Mean over faces of the mean distance of points from where they belong, divided by the face's size.

    ``error(face) = mean over present points k of |p_k - g_k| / d(face)``, and NME is its mean over faces.
    A face fails where its error is above ``failure_threshold`` or is NaN. A face without a present point, or
    whose d is 0 or not computable (an eye's point is absent), is left out and counted in ``num_excluded``.

    AUC is the area under the share of faces whose error is at most e, for e from 0 to t = ``failure_threshold``, over
    t: ``mean over faces of max(0, 1 - error(face) / t)``, without a histogram.

    Args:
        normalize_by: What d is: ``"pair"``, the distance of two points (of outer eye corners in 300-W
            and WFLW); ``"box"``, the square root of the box's area; ``"diagonal"``, of the box.
        normalization_pair: Positions of those two points; needed for ``"pair"`` and refused otherwise.
        failure_threshold: Error above which a face fails, and that AUC goes up to: 0.10 is WFLW's, 0.08 is 300-W's.

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
        if (normalize_by == "pair") != (pair is not None):
            raise ValueError(
                f'normalize_by={normalize_by!r} came with normalization_pair={pair}: "pair" needs '
                "normalization_pair=(left, right), the positions of two points, which has no effect on others"
            )
        if pair is not None and (len(pair) != 2 or pair[0] == pair[1] or min(pair) < 0):
            raise ValueError(f"normalization_pair={pair} must be the positions of two different points")
        if not failure_threshold > 0:
            raise ValueError(f"failure_threshold={failure_threshold} must be above 0; WFLW's is 0.10")
        self.normalize_by, self.normalization_pair = normalize_by, pair
        self.failure_threshold = failure_threshold
        # Of the errors; numbers of failures, of faces measured, of faces left out; of their areas.
        self.add_state("sums", torch.zeros(5), dist_reduce_fx="sum")

    def update(self, predicted: Tensor, wanted: Tensor, mask: Tensor, boxes: Tensor) -> None:
        """Collect faces.

        Args:
            predicted: Points found, float, shape ``(N, K, 2)``, pixels.
            wanted: Points as annotated, the same shape and pixels; what is masked may be anything.
            mask: bool ``(N, K)``, True on points that are present.
            boxes: The faces' annotated boxes, float, shape ``(N, 4)``, xyxy in the same pixels; read where
                the error is normalised by them.

        Raises:
            ValueError: If shapes do not go together.
        """
        if predicted.shape != wanted.shape or mask.shape != wanted.shape[:2] or len(boxes) != len(wanted):
            raise ValueError(
                f"expected points (N, K, 2) twice, a mask (N, K) and boxes (N, 4), got {tuple(predicted.shape)}, "
                f"{tuple(wanted.shape)}, {tuple(mask.shape)} and {tuple(boxes.shape)}"
            )
        mask = mask.bool()
        if self.normalization_pair is not None:
            left, right = self.normalization_pair
            scale = (wanted[:, left].float() - wanted[:, right].float()).norm(dim=-1)
            counted = mask[:, left] & mask[:, right]
        else:
            sides = (boxes[:, 2:] - boxes[:, :2]).float().clamp(min=0)
            scale = sides.prod(dim=1).sqrt() if self.normalize_by == "box" else sides.norm(dim=1)
            counted = mask.any(dim=1)
        counted = counted & scale.isfinite() & (scale > 0)
        distances = (predicted.float() - wanted.float()).norm(dim=-1).masked_fill(~mask, 0.0)
        errors = (distances.sum(dim=1) / mask.sum(dim=1).clamp(min=1) / scale)[counted]
        failed = ~(errors <= self.failure_threshold)  # NaN fails
        areas = (1 - errors / self.failure_threshold).masked_fill(failed, 0.0)
        self.sums += torch.stack([errors.sum(), failed.sum(), counted.sum(), (~counted).sum(), areas.sum()])

    def compute(self) -> dict[str, Tensor]:
        """Return the numbers of `LandmarkScores` for everything collected since the last reset, over all ranks."""
        error_sum, num_failures, num_faces, num_excluded, areas = self.sums.unbind()
        shares = {
            "nme": error_sum / num_faces,
            "failure_rate": num_failures / num_faces,
            "auc": areas / num_faces,
        }
        return {**shares, "num_faces": num_faces.long(), "num_excluded": num_excluded.long()}

    def compute_scores(self) -> LandmarkScores:
        """Return the scores of everything collected since the last reset, over all ranks."""
        values = {name: value.item() for name, value in self.compute().items()}
        return LandmarkScores(
            **values,  # type: ignore[arg-type] # two are ints
            failure_threshold=self.failure_threshold,
            normalize_by=self.normalize_by,
        )


def landmark_metric(settings: Mapping[str, Any]) -> NormalizedMeanError:
    """Return the metric that a recipe's hyperparameters name.

    Args:
        settings: ``keypoint_names``; ``normalize_by``, or None for ``"pair"`` where there is a pair and ``"box"``
            where there is none; ``normalization_pair``, or None if the data has none, not used by other normalisers;
            ``failure_threshold``.

    Raises:
        ValueError: If a setting is out of range, or the pair names a point that there is not.
    """
    pair, count = settings["normalization_pair"], len(settings["keypoint_names"])
    by: NormalizeBy = settings["normalize_by"] or ("box" if pair is None else "pair")
    if pair is not None and (len(set(pair)) != 2 or max(pair) >= count):
        raise ValueError(f"normalization_pair={tuple(pair)} must be two different points among {count}")
    return NormalizedMeanError(
        normalize_by=by,
        normalization_pair=pair if by == "pair" else None,
        failure_threshold=settings["failure_threshold"],
    )
