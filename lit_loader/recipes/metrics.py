"""Metrics of classes and of landmarks, exact over ranks, and their scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torchmetrics import Metric
from torchmetrics.functional.classification import multiclass_stat_scores, multilabel_stat_scores

from lit_loader.inspection.curves import ConfusionMatrix, EvaluationCurves
from lit_loader.recipes.curves import (
    MAX_CONFUSION_CLASSES,
    NUM_ERROR_BINS,
    NUM_LOGIT_BINS,
    add_logits,
    class_curve,
    class_thresholds,
    error_curve,
    error_histogram,
    threshold_counts,
)

__all__ = [
    "ClassMetric",
    "ClassificationScores",
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
        attributes: Scores of each attribute by name, over the faces that have it.
    """

    nme: float
    failure_rate: float
    auc: float
    num_faces: int
    num_excluded: int
    failure_threshold: float
    normalize_by: NormalizeBy = "box"
    classes: ClassificationScores | None = None
    attributes: Mapping[str, ClassificationScores] = field(default_factory=dict)

    @property
    def logged(self) -> dict[str, float]:
        """Error, failure rate and AUC, and accuracy and macro-F1 of the classes and of each attribute."""
        values = {"nme": self.nme, "failure_rate": self.failure_rate, "auc": self.auc}
        if self.classes is not None:
            values |= self.classes.logged
        for attribute, scores in self.attributes.items():
            values |= {f"{attribute}/{name}": value for name, value in scores.logged.items()}
        return values

    def report(self) -> Report:
        """Return error, failure rate and AUC; of classes and attributes accuracy, and recall and F1 by value."""
        figures: dict[str, float] = {
            f"NME over {_NORMALIZERS[self.normalize_by]}": self.nme,
            f"failures above {self.failure_threshold:g}": self.failure_rate,
            f"AUC up to {self.failure_threshold:g}": self.auc,
            "objects measured": self.num_faces,
            "objects not measured": self.num_excluded,
        }
        sections: Report = []
        if self.classes is not None:
            # The first section of each report has the scores of the whole set, which belong together.
            (_, class_figures), *sections = self.classes.report()
            figures |= class_figures
        for attribute, scores in self.attributes.items():
            (_, attribute_figures), *attribute_sections = scores.report()
            figures |= {f"{attribute} {name}": value for name, value in attribute_figures.items()}
            sections += [(f"{attribute}: {title}", values) for title, values in attribute_sections]
        return [("test", figures), *sections]


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
        values = self.compute()
        return LandmarkScores(
            nme=float(values["nme"]),
            failure_rate=float(values["failure_rate"]),
            auc=float(values["auc"]),
            num_faces=int(values["num_faces"]),
            num_excluded=int(values["num_excluded"]),
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
