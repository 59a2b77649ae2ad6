"""Curves of evaluations as CSV files and as a picture, with names that files may contain."""

from __future__ import annotations

import csv
import io
import math

import numpy as np
import pytest
import torch

from lit_loader.datamodules.pictures import class_colours
from lit_loader.inspection.curve_pictures import draw_curves
from lit_loader.inspection.curves import (
    ConfusionMatrix,
    ErrorCurve,
    EvaluationCurves,
    PrecisionRecall,
    ThresholdCounts,
    best_threshold,
    write_curves,
)

HOSTILE = ('a,"b"', "$\\frac{", "=cmd|' /C calc'!A0", "<b>\x1b[31mred", "two\nlines", "\udcff", "plain")


def curves_of(names, *, label="class", num_points=5):
    """Return curves of classes whose precision falls from 1 to 0.5; the first class does not occur."""
    shape = (len(names), num_points)
    precision = np.broadcast_to(np.linspace(1, 0.5, num_points), shape).copy()
    precision[0] = np.nan
    kind = PrecisionRecall(
        name="IoU 0.50",
        recall=np.broadcast_to(np.linspace(0, 1, num_points), shape),
        precision=precision,
        score=np.broadcast_to(np.linspace(0.9, 0.1, num_points), shape),
        average_precision=precision.mean(axis=1),
    )
    counts = np.diag(np.arange(1, len(names) + 1))
    counts[0, -1] = 7
    confusion = ConfusionMatrix(row_names=names, column_names=names, counts=counts)
    support = np.arange(len(names), 0, -1)
    return EvaluationCurves(
        label=label, class_names=names, support=support, precision_recall=[kind], confusion=confusion
    )


def points(num_points=2):
    errors = ErrorCurve(
        errors=np.linspace(0, 0.2, 5),
        shares=np.array([0, 0.25, 0.5, 0.75, 1.0]),
        limit=0.1,
        area=0.25,
        mean=0.1,
        normalizer="root of box area",
        point_names=[f"point {i}" for i in range(num_points)],
        point_errors=np.array([math.nan, *np.linspace(0.1, 0.2, num_points - 1)]),
    )
    return EvaluationCurves(label="points", class_names=(), support=np.zeros(0, dtype=np.int64), errors=errors)


def rows_of(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_csv_files_are_read_back_with_hostile_names(tmp_path):
    paths = write_curves(tmp_path / "new", [curves_of(HOSTILE), points()])
    assert [path.name for path in paths] == ["curves.csv", "classes.csv", "confusion.csv"]
    rows = rows_of(paths[0])
    names = list(dict.fromkeys(row["class"] for row in rows if row["label"] == "class"))
    # The first class does not occur; control characters and broken bytes are escaped, a formula becomes text.
    assert names == [HOSTILE[1], f"'{HOSTILE[2]}", "<b>\\x1b[31mred", "two\nlines", "\\udcff", "plain"]
    last = [row for row in rows if row["class"] == "plain"]
    assert [float(row["recall"]) for row in last] == [0, 0.25, 0.5, 0.75, 1]
    assert [float(row["precision"]) for row in last] == [1, 0.875, 0.75, 0.625, 0.5]
    assert float(last[2]["f1"]) == pytest.approx(0.6)
    shares = [row["share"] for row in rows if row["label"] == "points"]
    assert shares == ["0", "0.25", "0.5", "0.75", "1"]
    classes = rows_of(paths[1])
    assert (classes[0]["class"], classes[0]["average_precision"], classes[0]["occurrences"]) == (HOSTILE[0], "", "7")
    assert classes[-1]["mean_error"] == "0.1"
    cells = {(row["true"], row["predicted"]): int(row["count"]) for row in rows_of(paths[2])}
    assert cells[HOSTILE[0], "plain"] == 7
    assert sum(cells.values()) == 7 + sum(range(1, 8))


def test_outputs_without_a_table_write_no_file_for_it(tmp_path):
    paths = write_curves(tmp_path, [points()])
    assert [path.name for path in paths] == ["curves.csv", "classes.csv"]


def test_many_classes_and_hostile_names_stay_readable():
    names = [*HOSTILE[:-1], *(f"class {i}" for i in range(294))]
    figure = draw_curves([curves_of(names), points(98)], max_classes=10)
    figure.savefig(io.BytesIO(), dpi=30)
    texts = [text.get_text() for axis in figure.axes for text in (*axis.get_yticklabels(), axis.xaxis.label)]
    labels = [text for text in texts if text.endswith(")")]
    assert labels[-1] == "class 293 (1)"
    assert len(labels) == 10
    assert "290 of 300 classes, of medium frequency, are left out" in texts
    assert "290 others" in texts
    assert "the 10 of 98 points with the largest errors" in texts
    assert [text for text in texts if text.startswith("point ")] == [f"point {i}" for i in range(97, 87, -1)]
    # matplotlib takes text between plain dollar signs for a formula.
    assert "\\$\\frac{" in texts


def test_drawing_without_curves_is_refused():
    with pytest.raises(ValueError, match="at least 1 output, got none"):
        draw_curves([])
    with pytest.raises(ValueError, match="max_classes=1 must be 2 to 100"):
        draw_curves([points()], max_classes=1)


def test_best_threshold_is_the_highest_score_with_the_best_mean_f1():
    # Two objects with scores of 0.8 and 0.6, then three false answers at 0.2; the second class does not occur.
    counts = ThresholdCounts(
        thresholds=np.array([0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        num_correct=np.array([[2, 2, 2, 2, 1, 0], [0] * 6]),
        num_predicted=np.array([[5, 5, 2, 2, 1, 0], [9] * 6]),
        support=np.array([2, 0]),
    )
    assert best_threshold(counts) == 0.6
    means = counts.means()
    assert means["precision"] == pytest.approx([0.4, 0.4, 1, 1, 1, math.nan], nan_ok=True)
    assert means["recall"].tolist() == [1, 1, 1, 1, 0.5, 0]
    assert means["F1"] == pytest.approx([4 / 7, 4 / 7, 1, 1, 2 / 3, 0])
    assert np.isnan(counts.f1[1]).all()
    never = ThresholdCounts(
        thresholds=counts.thresholds,
        num_correct=counts.num_correct[1:],
        num_predicted=counts.num_predicted[1:],
        support=np.zeros(1, dtype=np.int64),
    )
    assert best_threshold(never) == 0.5


def test_mean_precision_ends_with_the_predictions_of_a_class():
    # The second class has no predictions from 0.5 on; the third one never has any.
    counts = ThresholdCounts(
        thresholds=np.array([0.0, 0.5, 0.9]),
        num_correct=np.array([[4, 4, 4], [1, 0, 0], [0, 0, 0]]),
        num_predicted=np.array([[4, 4, 4], [4, 0, 0], [0, 0, 0]]),
        support=np.array([4, 4, 4]),
    )
    assert counts.means()["precision"] == pytest.approx([0.625, math.nan, math.nan], nan_ok=True)


def test_lines_of_classes_have_the_colours_of_their_boxes():
    names = [f"class {i}" for i in range(13)]
    axis = draw_curves([curves_of(names)]).axes[0]
    colours = {line.get_label().partition(" 0.")[0]: line.get_color() for line in axis.get_lines()}
    coloured = [1, 2, 3, 4, 5, 8, 9, 10, 11, 12]
    expected = class_colours(torch.tensor(coloured))
    assert [colours[f"class {index}"] for index in coloured] == expected
    lines = {(line.get_color(), line.get_linestyle()) for line in axis.get_lines() if line.get_color() in expected}
    assert len(lines) == 10


def test_background_is_told_apart_from_a_class_of_that_name(tmp_path):
    names = ("background", "cat", None)
    confusion = ConfusionMatrix(row_names=names, column_names=names, counts=np.arange(9).reshape(3, 3))
    curves = EvaluationCurves(label="boxes", class_names=names[:2], support=np.array([3, 12]), confusion=confusion)
    (path,) = write_curves(tmp_path, [curves])
    cells = {(row["true"], row["predicted"]): int(row["count"]) for row in rows_of(path)}
    assert (cells["cat", "background"], cells["cat", ""], cells["", "background"]) == (3, 5, 6)
    figure = draw_curves([curves])
    texts = [text.get_text() for axis in figure.axes for text in axis.get_yticklabels()]
    assert texts[-3:] == ["cat", "background", "background"]  # the most frequent class first


def test_pictures_of_many_outputs_are_limited_with_a_note():
    figure = draw_curves([curves_of(HOSTILE[-2:], label=f"attribute {i}") for i in range(71)])
    assert len(figure.axes) == 8 * 4
    assert figure.get_suptitle() == "test: the first 8 of 71 outputs; the CSV files have all"
    assert figure.get_figheight() < 80
