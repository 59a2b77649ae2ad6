"""Arithmetic of curves: precision and recall from COCO's tables and from histograms of scores, and errors of points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from lit_loader.inspection.curves import ErrorCurve, PrecisionRecall

__all__ = [
    "MAX_CONFUSION_CLASSES",
    "NUM_ERROR_BINS",
    "NUM_SCORE_BINS",
    "coco_curves",
    "error_curve",
    "error_histogram",
    "score_curve",
    "score_histogram",
]

MAX_CONFUSION_CLASSES: Final = 2000
"""Largest number of classes with a confusion matrix, which then takes 32 MB."""

_NUM_THRESHOLDS: Final = 201
_MAX_LOGIT: Final = 10.0
NUM_SCORE_BINS: Final = _NUM_THRESHOLDS + 1
"""Bins of scores between thresholds, the first below all of them and the last above."""

# Twice the failure threshold, where nearly all curves are flat.
_ERROR_RANGE: Final = 2.0
NUM_ERROR_BINS: Final = 201
"""Bins of errors up to twice the failure threshold, the last one of all larger errors."""


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


def score_histogram(logits: Tensor, target: Tensor, *, multi_label: bool) -> Tensor:
    """Return the number of negatives and positives of each class by score, int64 ``(C, NUM_SCORE_BINS, 2)``.

    The thresholds between bins are equally spaced logits, from -10 to 10 by 0.1: networks give many scores near 0 and
    near 1, where equally spaced probabilities would not separate them.

    Args:
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
        log_probabilities = logits.log_softmax(dim=1)
        # The logit of each class against all others: log p - log(1 - p).
        logits = log_probabilities - torch.log1p(-log_probabilities.exp())
        is_counted = (target >= 0)[:, None].expand_as(logits)
        is_positive = target[:, None] == torch.arange(num_classes, device=target.device)
    thresholds = torch.linspace(-_MAX_LOGIT, _MAX_LOGIT, _NUM_THRESHOLDS, device=logits.device)
    bins = torch.bucketize(logits, thresholds, right=True)
    columns = torch.arange(num_classes, device=logits.device) * NUM_SCORE_BINS
    cells = ((columns + bins) * 2 + is_positive)[is_counted]
    return torch.bincount(cells, minlength=num_classes * NUM_SCORE_BINS * 2).reshape(num_classes, NUM_SCORE_BINS, 2)


def score_curve(histogram: Tensor) -> PrecisionRecall:
    """Return the curves of a `score_histogram`.

    Average precision is the sum over thresholds of the gain in recall times precision, as torchmetrics and scikit-learn
    have it, at the thresholds of the histogram.
    """
    # From the highest threshold to the lowest, so that recall rises; the last threshold is below all scores.
    counts = histogram.cpu().numpy()[:, ::-1].cumsum(axis=1)
    num_true = counts[..., 1].astype(np.float64)
    num_predicted = counts.sum(axis=2).astype(np.float64)
    num_positives = num_true[:, -1:]
    undefined = np.full(num_true.shape, np.nan)
    recall = np.divide(num_true, num_positives, out=undefined.copy(), where=num_positives > 0)
    is_defined = (num_predicted > 0) & (num_positives > 0)
    precision = np.divide(num_true, num_predicted, out=undefined.copy(), where=is_defined)
    gains = np.diff(recall, axis=1, prepend=0.0)
    average_precision = (gains * np.nan_to_num(precision)).sum(axis=1)
    logits = np.linspace(_MAX_LOGIT, -_MAX_LOGIT, _NUM_THRESHOLDS)
    score = np.append(1 / (1 + np.exp(-logits)), 0.0)
    return PrecisionRecall(
        name="",
        recall=recall,
        precision=precision,
        score=np.broadcast_to(score, recall.shape),
        average_precision=average_precision,
    )


def error_histogram(errors: Tensor, limit: float) -> Tensor:
    """Return the number of errors in each of `NUM_ERROR_BINS` bins, int64; NaN counts as the largest.

    Args:
        errors: float ``(N,)``, 0 or larger.
        limit: Half of the largest error with a bin of its own.
    """
    num_inner_bins = NUM_ERROR_BINS - 1
    positions = errors.detach().float() * (num_inner_bins / (_ERROR_RANGE * limit))
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
    sums = point_sums.cpu().double().numpy()
    undefined = np.full(len(sums), np.nan)
    return ErrorCurve(
        errors=np.linspace(0, _ERROR_RANGE * limit, NUM_ERROR_BINS),
        shares=shares,
        limit=limit,
        area=area,
        mean=mean,
        normalizer=normalizer,
        point_names=tuple(point_names),
        point_errors=np.divide(sums[:, 0], sums[:, 1], out=undefined, where=sums[:, 1] > 0),
    )
