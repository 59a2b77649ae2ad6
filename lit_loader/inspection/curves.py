"""Curves of an evaluation: precision and recall of classes, confusion matrices and errors of points, with CSV files."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from lit_loader.foundation.escaping import printable
from lit_loader.foundation.files import new_file

__all__ = ["ConfusionMatrix", "ErrorCurve", "EvaluationCurves", "PrecisionRecall", "best_threshold", "write_curves"]

Floats: TypeAlias = npt.NDArray[np.float64]

_NUM_THRESHOLDS: Final = 1001
"""Thresholds of scores at which classes are compared: 0, 0.001, ... 1."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PrecisionRecall:
    """Precision and recall of C classes at R operating points each.

    Attributes:
        name: Kind of the curves, such as ``"IoU 0.50"``; empty if there is only one kind.
        recall: ``(C, R)``, ascending in each row.
        precision: ``(C, R)``; NaN where it is undefined, as for a class without occurrences.
        score: ``(C, R)``, the score of the last prediction counted at the point; NaN where no score leads to it.
        average_precision: ``(C,)``, area under each curve; NaN for a class without occurrences.
    """

    name: str
    recall: Floats
    precision: Floats
    score: Floats
    average_precision: Floats

    @property
    def f1(self) -> Floats:
        """F1 at each point, ``(C, R)``; 0 where precision and recall are both 0."""
        return _f1(self.precision, self.recall)

    def by_threshold(self) -> tuple[Floats, Floats, Floats]:
        """Return thresholds ``(T,)``, and each class's precision and recall, ``(T, C)``, of scores at or above them.

        Above the highest score of a class nothing is predicted: recall is 0 and precision NaN. Below the score of the
        last point, the values of that point are repeated. A class without occurrences is NaN.
        """
        thresholds = np.linspace(0, 1, _NUM_THRESHOLDS)
        precision = np.full((_NUM_THRESHOLDS, len(self.recall)), np.nan)
        recall = precision.copy()
        for column in np.flatnonzero(~np.isnan(self.average_precision)).tolist():
            is_point = ~np.isnan(self.score[column]) & ~np.isnan(self.precision[column])
            # Scores fall as recall rises, so the last point with a score at or above a threshold counts.
            counts = np.searchsorted(-self.score[column][is_point], -thresholds, side="right")
            precision[:, column] = np.concatenate([[np.nan], self.precision[column][is_point]])[counts]
            recall[:, column] = np.concatenate([[0.0], self.recall[column][is_point]])[counts]
        return thresholds, precision, recall

    def means_by_threshold(self) -> dict[str, Floats]:
        """Return ``threshold``, ``precision``, ``recall`` and ``F1``, ``(T,)`` each, means over the classes that occur.

        The mean precision is over the classes that are predicted, NaN without one. Thresholds begin at the lowest score
        of any point, since below it nothing was measured. Empty without a class that occurs.
        """
        thresholds, precision, recall = self.by_threshold()
        is_measured = ~np.isnan(self.average_precision)
        if not is_measured.any():
            return {}
        precision = precision[:, is_measured]
        recall = recall[:, is_measured]
        scores = self.score[is_measured]
        lowest = 1.0 if np.isnan(scores).all() else float(np.nanmin(scores))
        start = max(0, int(np.searchsorted(thresholds, lowest, side="right")) - 1)
        num_predicted = (~np.isnan(precision)).sum(axis=1)
        sums = np.nansum(precision, axis=1)
        undefined = np.full(len(sums), np.nan)
        means = {
            "threshold": thresholds,
            "precision": np.divide(sums, num_predicted, out=undefined, where=num_predicted > 0),
            "recall": recall.mean(axis=1),
            "F1": np.nan_to_num(_f1(precision, recall)).mean(axis=1),
        }
        return {name: values[start:] for name, values in means.items()}


def _f1(precision: Floats, recall: Floats) -> Floats:
    """Return the harmonic mean, 0 where both are 0, NaN where one is."""
    total = precision + recall
    return np.divide(2 * precision * recall, total, out=np.zeros_like(total), where=total != 0)


@dataclass(frozen=True, kw_only=True, eq=False)
class ConfusionMatrix:
    """Counts of true classes (rows) by answers (columns).

    Attributes:
        row_names: Names of the rows.
        column_names: Names of the columns.
        counts: int64 ``(rows, columns)``.
        note: How the counts were made, such as the thresholds of detections; may be empty.
    """

    row_names: Sequence[str]
    column_names: Sequence[str]
    counts: npt.NDArray[np.int64]
    note: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class ErrorCurve:
    """Cumulative distribution of the errors of objects, and the mean error of each of K points.

    Attributes:
        errors: Normalised errors, ascending from 0, ``(E,)``.
        shares: Share of the objects whose error is at most each of ``errors``, ``(E,)``; NaN without objects.
        limit: Error above which an object fails; ``area`` ends there.
        area: Area under the curve up to ``limit``, divided by it.
        mean: Mean error of the objects.
        normalizer: Name of the length that errors are divided by.
        point_names: Names of the K points.
        point_errors: Mean normalised error of each point where it is present, ``(K,)``; NaN if it never is.
    """

    errors: Floats
    shares: Floats
    limit: float
    area: float
    mean: float
    normalizer: str
    point_names: Sequence[str]
    point_errors: Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class EvaluationCurves:
    """The curves of one output of a model: boxes, masks, a class, an attribute or points.

    Attributes:
        label: Name of the output, such as ``"boxes"``.
        class_names: Names of the C classes; empty for points.
        support: Number of annotated occurrences of each class, int64 ``(C,)``.
        precision_recall: Kinds of precision-recall curves; the first one has scores.
        confusion: Confusion matrix, or None without one.
        errors: Distribution of errors, or None of outputs other than points.
    """

    label: str
    class_names: Sequence[str]
    support: npt.NDArray[np.int64]
    precision_recall: Sequence[PrecisionRecall] = ()
    confusion: ConfusionMatrix | None = None
    errors: ErrorCurve | None = None


def best_threshold(curves: PrecisionRecall) -> float:
    """Return the threshold of scores with the highest mean F1 over classes, 0.5 if there is nothing to compare.

    Of equal ones, the highest is returned.
    """
    means = curves.means_by_threshold()
    if not means or not means["F1"].any():
        return 0.5
    # The maximum is often a plateau; at its upper end no prediction between two scores is let in.
    is_best = means["F1"] >= means["F1"].max() - 1e-12
    return float(means["threshold"][is_best].max())


def write_curves(folder: Path, curves: Sequence[EvaluationCurves]) -> list[Path]:
    """Write curves as CSV files, UTF-8 with a header, and return their paths.

    ``curves.csv`` has a row for each point of a curve, ``classes.csv`` one for each class, and ``confusion.csv`` one
    for each cell of a confusion matrix that is not 0; a file without rows is not written. Control characters in names
    are escaped.

    Args:
        folder: Folder of the files, created if missing.
        curves: The curves of each output.

    Raises:
        OSError: If a file cannot be written.
    """
    tables = {
        "curves.csv": (
            ("label", "class", "curve", "recall", "precision", "f1", "score", "error", "share"),
            (row for part in curves for row in _curve_rows(part)),
        ),
        "classes.csv": (
            ("label", "class", "curve", "occurrences", "average_precision", "best_f1", "best_score", "mean_error"),
            (row for part in curves for row in _class_rows(part)),
        ),
        "confusion.csv": (
            ("label", "true", "predicted", "count"),
            (row for part in curves for row in _confusion_rows(part)),
        ),
    }
    paths = []
    for name, (header, rows) in tables.items():
        # Written row by row: a thousand classes have hundreds of thousands of points.
        first_row = next(rows, None)
        if first_row is not None:
            paths.append(_write_csv(folder / name, header, chain([first_row], rows)))
    return paths


def _curve_rows(curves: EvaluationCurves) -> Iterator[Sequence[Any]]:
    for kind in curves.precision_recall:
        columns = (kind.recall, kind.precision, kind.f1, kind.score)
        for index, name in enumerate(curves.class_names):
            if not math.isnan(kind.average_precision[index]):
                for values in zip(*(column[index].tolist() for column in columns), strict=True):
                    yield (curves.label, name, kind.name, *values, None, None)
    if curves.errors is not None:
        for error, share in zip(curves.errors.errors.tolist(), curves.errors.shares.tolist(), strict=True):
            yield (curves.label, "", "cumulative error", None, None, None, None, error, share)


def _class_rows(curves: EvaluationCurves) -> Iterator[Sequence[Any]]:
    for kind in curves.precision_recall:
        f1 = np.nan_to_num(kind.f1, nan=-1.0)
        best_points = f1.argmax(axis=1).tolist()
        for index, (name, best) in enumerate(zip(curves.class_names, best_points, strict=True)):
            is_defined = not math.isnan(kind.average_precision[index])
            values = (kind.average_precision[index], kind.f1[index, best], kind.score[index, best])
            numbers = [float(value) if is_defined else None for value in values]
            yield (curves.label, name, kind.name, int(curves.support[index]), *numbers, None)
    if curves.errors is not None:
        for name, error in zip(curves.errors.point_names, curves.errors.point_errors.tolist(), strict=True):
            yield (curves.label, name, "point", None, None, None, None, error)


def _confusion_rows(curves: EvaluationCurves) -> Iterator[Sequence[Any]]:
    if curves.confusion is None:
        return
    matrix = curves.confusion
    for row, column in np.argwhere(matrix.counts).tolist():
        count = int(matrix.counts[row, column])
        yield (curves.label, matrix.row_names[row], matrix.column_names[column], count)


def _write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> Path:
    # The umask applies, so that other users can read the files as they read the logs.
    with new_file(path, mode=0o666) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        writer = csv.writer(text)
        writer.writerow(header)
        writer.writerows([_cell(value) for value in row] for row in rows)
        # `new_file` closes the file itself.
        text.flush()
        text.detach()
    return path


def _cell(value: Any) -> Any:
    """Return a value as `csv` writes it: nothing for an undefined number, six digits of others, escaped text."""
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.6g}"
    return printable(value) if isinstance(value, str) else value
