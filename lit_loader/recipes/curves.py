"""Arithmetic of curves: precision and recall from COCO's tables and from histograms of scores, and errors of points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from lit_loader.inspection.curves import ErrorCurve, PrecisionRecall, ThresholdCounts

__all__ = [
    "MAX_CONFUSION_CLASSES",
    "NUM_ERROR_BINS",
    "NUM_LOGIT_BINS",
    "NUM_SCORE_BINS",
    "add_logits",
    "class_curve",
    "class_thresholds",
    "coco_curves",
    "error_curve",
    "error_histogram",
    "score_thresholds",
    "threshold_counts",
]

MAX_CONFUSION_CLASSES: Final = 2000
"""Largest number of classes with a confusion matrix, which then takes 32 MB, and with histograms, of 64 MB."""

_NUM_LOGITS: Final = 2001
_MAX_LOGIT: Final = 1000.0
_CURVE_STEP: Final = 10
NUM_LOGIT_BINS: Final = _NUM_LOGITS + 1
"""Bins of logits between thresholds, the first below all of them."""
NUM_SCORE_BINS: Final = 1001
"""Bins of the scores of detections, which begin at 0, 0.001, ... 1."""

# A hundredth of the failure threshold.
_NUM_BINS_BELOW_LIMIT: Final = 100
_ERROR_RANGE: Final = 20
NUM_ERROR_BINS: Final = _ERROR_RANGE * _NUM_BINS_BELOW_LIMIT + 1
"""Bins of errors up to 20 times the failure threshold, the last one of all larger errors."""
# Curves end at twice the failure threshold, or where nearly all errors of a poor model are smaller.
_SHORTEST_CURVE: Final = 2 * _NUM_BINS_BELOW_LIMIT + 1
_DRAWN_SHARE: Final = 0.95


def coco_curves(precision: Tensor, scores: Tensor, labels: Sequence[int], num_classes: int) -> list[PrecisionRecall]:
    """Return the curves at IoU 0.50, and their means over IoU 0.50 to 0.95.

    Args:
        precision: Precision of each class at COCO's 101 thresholds of recall, ``(10, 101, K)``: the highest one at
            this recall or a larger one, 0 where it is not reached and -1 in a class without objects.
        scores: Score of the detection that reaches the recall, in the same shape; 0 where it is not reached.
        labels: Class index, from 0, of each of the K columns.
        num_classes: Number of all classes.

    Source:
        Lin et al. 2014, "Microsoft COCO", evaluation: AP is the mean precision over the 101 thresholds of recall.
    """
    table = precision.cpu().double().numpy()
    score_table = scores.cpu().double().numpy()
    recall = np.broadcast_to(np.linspace(0, 1, table.shape[1]), (num_classes, table.shape[1]))
    curves = []
    for name, values in (("IoU 0.50", table[0]), ("IoU 0.50:0.95", table.mean(axis=0))):
        # Axes: class, recall.
        by_class = np.full(recall.shape, np.nan)
        by_class[list(labels)] = np.where(values >= 0, values, np.nan).T
        score_by_class = np.full(recall.shape, np.nan)
        if name == "IoU 0.50":
            score_by_class[list(labels)] = np.where(score_table[0] > 0, score_table[0], np.nan).T
        curves.append(
            PrecisionRecall(
                name=name,
                recall=recall,
                precision=by_class,
                score=score_by_class,
                average_precision=by_class.mean(axis=1),
            )
        )
    return curves


def threshold_counts(histogram: Tensor, thresholds: Tensor, support: Tensor) -> ThresholdCounts:
    """Return the predictions at or above each threshold.

    Args:
        histogram: Wrong and correct predictions of each class by score, int64 ``(C, T, 2)``; bin t begins at
            threshold t.
        thresholds: Lower ends of the bins, ascending, float64 ``(T,)``.
        support: Number of annotated occurrences of each class, ``(C,)``.
    """
    counts = histogram.cpu().numpy()[:, ::-1].cumsum(axis=1)[:, ::-1]
    return ThresholdCounts(
        thresholds=thresholds.numpy(),
        num_correct=counts[..., 1],
        num_predicted=counts.sum(axis=2),
        support=support.cpu().numpy(),
    )


def score_thresholds() -> Tensor:
    """Return the thresholds of the scores of detections, float64 ``(NUM_SCORE_BINS,)``."""
    return torch.arange(NUM_SCORE_BINS, dtype=torch.float64) / (NUM_SCORE_BINS - 1)


def class_thresholds() -> Tensor:
    """Return the thresholds of the probabilities of classes, ascending from 0, float64 ``(NUM_LOGIT_BINS,)``."""
    return torch.cat([torch.zeros(1, dtype=torch.float64), _logit_thresholds().sigmoid()])


def _logit_thresholds() -> Tensor:
    """Return ascending logits, float64 ``(_NUM_LOGITS,)``: 0.0076 apart near 0, and 0.8 % apart if they are large."""
    # Networks give many scores near 0 and near 1, where equally spaced probabilities would not separate them. Logits of
    # confident networks differ by hundreds.
    largest = math.asinh(_MAX_LOGIT)
    return torch.linspace(-largest, largest, _NUM_LOGITS, dtype=torch.float64).sinh()


def add_logits(histogram: Tensor, logits: Tensor, target: Tensor, *, multi_label: bool) -> None:
    """Add samples to the numbers of wrong and correct predictions of each class by logit, in place.

    Args:
        histogram: int64 ``(C, NUM_LOGIT_BINS, 2)``.
        logits: float ``(N, C)``; scores are their softmax, with ``multi_label`` their sigmoid.
        target: Class ids int64 ``(N,)``, with ``multi_label`` ``(N, C)`` of 0 and 1; -1 is not counted.
        multi_label: Whether a sample has any number of classes.
    """
    num_classes = logits.shape[1]
    logits = logits.detach().float()
    if multi_label:
        is_positive = target == 1
        is_counted = target >= 0
    else:
        logits = _logits_against_others(logits)
        is_counted = (target >= 0)[:, None].expand_as(logits)
        is_positive = target[:, None] == torch.arange(num_classes, device=target.device)
    bins = torch.bucketize(logits, _logit_thresholds().float().to(logits.device), right=True)
    columns = torch.arange(num_classes, device=logits.device) * NUM_LOGIT_BINS
    cells = (columns + bins) * 2 + is_positive
    # In place: a histogram of the batch would be as large as the whole one. Weights instead of a selection, whose size
    # the device would have to tell.
    histogram.view(-1).scatter_add_(0, cells.reshape(-1), is_counted.reshape(-1).long())


def _logits_against_others(logits: Tensor) -> Tensor:
    """Return log p - log(1 - p) of the softmax p of logits ``(N, C)``."""
    log_probabilities = logits.log_softmax(dim=1)
    values = log_probabilities - torch.log1p(-log_probabilities.exp())
    # 1 - p is rounded to 0 for the largest logit of a confident network.
    largest, index = logits.max(dim=1, keepdim=True)
    denominator = logits.scatter(1, index, -math.inf).logsumexp(dim=1, keepdim=True)
    return values.scatter(1, index, largest - denominator)


def class_curve(counts: ThresholdCounts) -> PrecisionRecall:
    """Return the curves of classes, with about 200 points.

    Average precision is the sum over all thresholds of the gain in recall times precision, as torchmetrics and
    scikit-learn have it at all scores.
    """
    # From the highest threshold to the lowest, so that recall rises; all predictions are at or above the last one.
    recall = counts.recall[:, ::-1]
    precision = np.where(counts.support[:, None] > 0, counts.precision, np.nan)[:, ::-1]
    gains = np.diff(recall, axis=1, prepend=0.0)
    points = np.append(np.arange(0, recall.shape[1] - 1, _CURVE_STEP), recall.shape[1] - 1)
    return PrecisionRecall(
        name="",
        recall=recall[:, points],
        precision=precision[:, points],
        score=np.broadcast_to(counts.thresholds[::-1][points], (len(recall), len(points))),
        average_precision=(gains * np.nan_to_num(precision)).sum(axis=1),
    )


def error_histogram(errors: Tensor, limit: float) -> Tensor:
    """Return the number of errors in each of `NUM_ERROR_BINS` bins, int64; NaN counts as the largest.

    Args:
        errors: float ``(N,)``, 0 or larger.
        limit: A twentieth of the largest error with a bin of its own.
    """
    num_inner_bins = NUM_ERROR_BINS - 1
    positions = errors.detach().float() * (_NUM_BINS_BELOW_LIMIT / limit)
    # Rounded up: an error at the upper end of a bin is in it, as a share of errors "at most" this one has it.
    bins = positions.nan_to_num(nan=NUM_ERROR_BINS).clamp(max=NUM_ERROR_BINS).ceil().long() - 1
    return torch.bincount(bins.clamp(0, num_inner_bins), minlength=NUM_ERROR_BINS)


def error_curve(
    histogram: Tensor,
    point_sums: Tensor,
    *,
    limit: float,
    area: float,
    mean: float,
    normalizer: str,
    point_names: Sequence[str],
) -> ErrorCurve:
    """Return the curve of an `error_histogram`.

    Args:
        histogram: int64 ``(NUM_ERROR_BINS,)``.
        point_sums: Sum of the errors of each point, and number of objects where it is present, ``(K, 2)``.
        limit: As for the histogram.
        area: Area under the curve up to ``limit``, divided by it.
        mean: Mean error.
        normalizer: Name of the length that errors are divided by.
        point_names: Names of the points.
    """
    counts = histogram.cpu().numpy()
    total = counts.sum()
    shares = np.concatenate([[0], counts[:-1].cumsum()]) / total if total else np.full(NUM_ERROR_BINS, np.nan)
    end = max(_SHORTEST_CURVE, int(np.searchsorted(shares, _DRAWN_SHARE)) + 1 if total else 0)
    sums = point_sums.cpu().double().numpy()
    undefined = np.full(len(sums), np.nan)
    return ErrorCurve(
        errors=np.linspace(0, _ERROR_RANGE * limit, NUM_ERROR_BINS)[:end],
        shares=shares[:end],
        limit=limit,
        area=area,
        mean=mean,
        normalizer=normalizer,
        point_names=tuple(point_names),
        point_errors=np.divide(sums[:, 0], sums[:, 1], out=undefined, where=sums[:, 1] > 0),
    )
