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

from lit_loader.foundation.escaping import escape_formula
from lit_loader.foundation.files import new_file

__all__ = [
    "CURVE_FILES",
    "ConfusionMatrix",
    "CurveTask",
    "ErrorCurve",
    "EvaluationCurves",
    "PrecisionRecall",
    "ThresholdCounts",
    "best_threshold",
    "write_curves",
]

Floats: TypeAlias = npt.NDArray[np.float64]

CURVE_FILES: Final = ("curves.csv", "classes.csv", "confusion.csv")
"""Names of the files of `write_curves`."""


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
        total = self.precision + self.recall
        return np.divide(2 * self.precision * self.recall, total, out=np.zeros_like(total), where=total != 0)


@dataclass(frozen=True, kw_only=True, eq=False)
class ThresholdCounts:
    """Numbers of predictions of C classes whose scores are at or above each of T thresholds.

    Attributes:
        thresholds: Ascending, ``(T,)``.
        num_correct: int64 ``(C, T)``.
        num_predicted: int64 ``(C, T)``.
        support: Number of annotated occurrences of each class, int64 ``(C,)``.
    """

    thresholds: Floats
    num_correct: npt.NDArray[np.int64]
    num_predicted: npt.NDArray[np.int64]
    support: npt.NDArray[np.int64]

    @property
    def precision(self) -> Floats:
        """Share of the predictions that are correct, ``(C, T)``; NaN without predictions."""
        return _ratio(self.num_correct, self.num_predicted)

    @property
    def recall(self) -> Floats:
        """Share of the occurrences that are predicted, ``(C, T)``; NaN of a class that does not occur."""
        return _ratio(self.num_correct, self.support[:, None])

    @property
    def f1(self) -> Floats:
        """Harmonic mean of precision and recall, ``(C, T)``; NaN of a class that does not occur."""
        f1 = _ratio(2 * self.num_correct, self.num_predicted + self.support[:, None])
        f1[self.support == 0] = np.nan
        return f1

    def means(self) -> dict[str, Floats]:
        """Return ``precision``, ``recall`` and ``F1``, ``(T,)`` each, means over the classes that occur.

        The mean precision is over the classes that are predicted, and NaN where one of them has no predictions left: a
        mean over fewer classes would jump. Empty without a class that occurs.
        """
        occurs = self.support > 0
        if not occurs.any():
            return {}
        is_predicted = (self.num_predicted > 0).any(axis=1)
        precision = self.precision[occurs & is_predicted]
        return {
            "precision": precision.mean(axis=0) if len(precision) else np.full(len(self.thresholds), np.nan),
            "recall": self.recall[occurs].mean(axis=0),
            "F1": self.f1[occurs].mean(axis=0),
        }


def _ratio(numerator: npt.NDArray[Any], denominator: npt.NDArray[Any]) -> Floats:
    """Return the quotient, NaN where the denominator is 0."""
    quotient = np.full(np.broadcast_shapes(numerator.shape, denominator.shape), np.nan)
    np.divide(numerator, denominator, out=quotient, where=denominator != 0)
    return quotient


@dataclass(frozen=True, kw_only=True, eq=False)
class ConfusionMatrix:
    """Counts of true classes (rows) by answers (columns).

    Attributes:
        row_names: Names of the rows; None of the background, which no class can have as its name.
        column_names: Names of the columns; None of the background.
        counts: int64 ``(rows, columns)``.
        note: How the counts were made, such as the thresholds of detections; may be empty.
    """

    row_names: Sequence[str | None]
    column_names: Sequence[str | None]
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
        by_threshold: Predictions by threshold of scores, correct as for the first kind, or None without them.
        confusion: Confusion matrix, or None without one.
        errors: Distribution of errors, or None of outputs other than points.
    """

    label: str
    class_names: Sequence[str]
    support: npt.NDArray[np.int64]
    precision_recall: Sequence[PrecisionRecall] = ()
    by_threshold: ThresholdCounts | None = None
    confusion: ConfusionMatrix | None = None
    errors: ErrorCurve | None = None


class CurveTask:
    """Base of modules whose tests have curves and errors of samples, see `lit_loader.callbacks.EvaluationCurves`.

    Attributes:
        test_curves: The curves of the last test, over all of its sets and ranks; empty unless they were recorded.
        batch_errors: Error of each sample of the last test batch, and a text that says it; empty unless recorded, or if
            the task has none. A larger error is worse; a sample that cannot be measured has NaN.
    """

    test_curves: list[EvaluationCurves]
    batch_errors: list[tuple[float, str]]

    def record_curves(
        self, *, min_score: float | None = None, min_iou: float = 0.5, error_min_score: float | None = None
    ) -> None:
        """Record `test_curves` and `batch_errors` in the following tests.

        Args:
            min_score: Detections with lower scores are not in the confusion matrix; None for the threshold with the
                highest mean F1 over classes.
            min_iou: Smallest IoU of an object and its detection in the confusion matrix.
            error_min_score: Detections with lower scores do not count for `batch_errors`; None for no errors.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a method record_curves")

    def mark_errors(self, batch: Any, predictions: Any, *, min_score: float) -> list[tuple[Any, Any]]:
        """Mark the false detections and the missed objects of a batch.

        Args:
            batch: A batch with annotations on the CPU.
            predictions: Result of ``predict_step`` for the batch.
            min_score: Detections with lower scores do not count.

        Returns:
            The detections and the objects of each image, as `draw_boxes` takes them, both with ``is_wrong``: bool
            ``(N,)``, true for false detections and missed objects. An empty list of a task without boxes.
        """
        return []


def best_threshold(counts: ThresholdCounts) -> float:
    """Return the threshold of scores with the highest mean F1 over classes, 0.5 if there is nothing to compare.

    Of equal ones, the highest is returned.
    """
    f1 = counts.means().get("F1", np.zeros(1))
    if not f1.any():
        return 0.5
    # The maximum is often a plateau; at its upper end no prediction between two scores is let in.
    is_best = f1 >= f1.max() - 1e-12
    return float(counts.thresholds[is_best].max())


def write_curves(folder: Path, curves: Sequence[EvaluationCurves]) -> list[Path]:
    """Write curves as CSV files, UTF-8 with a header, and return their paths.

    ``curves.csv`` has a row for each point of a curve, ``classes.csv`` one for each class, and ``confusion.csv`` one
    for each cell of a confusion matrix that is not 0; a file without rows is not written. Missed objects have an
    empty ``predicted``, false detections an empty ``true``. Control characters in names are escaped, and a name that
    begins with ``=``, ``+``, ``-``, ``@`` or an apostrophe follows an apostrophe, as spreadsheets would take it for a
    formula.

    Args:
        folder: Folder of the files, created if missing.
        curves: The curves of each output.

    Raises:
        OSError: If a file cannot be written.
    """
    curve_name, class_name, confusion_name = CURVE_FILES
    tables = {
        curve_name: (
            ("label", "class", "curve", "recall", "precision", "f1", "score", "error", "share"),
            (row for part in curves for row in _curve_rows(part)),
        ),
        class_name: (
            ("label", "class", "curve", "occurrences", "average_precision", "best_f1", "best_score", "mean_error"),
            (row for part in curves for row in _class_rows(part)),
        ),
        confusion_name: (
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
    for number, kind in enumerate(curves.precision_recall):
        best = _best_f1(curves.by_threshold) if number == 0 and curves.by_threshold is not None else {}
        for index, name in enumerate(curves.class_names):
            best_f1, best_score = best.get(index, (None, None))
            average_precision = float(kind.average_precision[index])
            support = int(curves.support[index])
            yield (curves.label, name, kind.name, support, average_precision, best_f1, best_score, None)
    if curves.errors is not None:
        for name, error in zip(curves.errors.point_names, curves.errors.point_errors.tolist(), strict=True):
            yield (curves.label, name, "point", None, None, None, None, error)


def _best_f1(counts: ThresholdCounts) -> dict[int, tuple[float, float]]:
    """Return the highest F1 of each class that occurs, and the highest threshold where it is reached."""
    f1 = counts.f1[:, ::-1]
    thresholds = counts.thresholds[::-1]
    return {
        index: (float(f1[index].max()), float(thresholds[f1[index].argmax()]))
        for index in np.flatnonzero(counts.support).tolist()
    }


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
    return escape_formula(value) if isinstance(value, str) else value
