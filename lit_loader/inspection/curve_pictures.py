"""One picture of the curves of an evaluation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import torch

from lit_loader.datamodules.pictures import class_colours
from lit_loader.datamodules.text_drawing import figure_text
from lit_loader.foundation.extras import require
from lit_loader.inspection.curves import (
    ConfusionMatrix,
    ErrorCurve,
    EvaluationCurves,
    PrecisionRecall,
    ThresholdCounts,
    best_threshold,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["check_max_classes", "draw_curves"]

# Colours of lines and bars other than classes; no class has one of these.
_COLOURS: Final = ("#1b3a5c", "#8fa3b8", "#000000")
# Classes with the same colour differ by the style of their lines.
_LINE_STYLES: Final = ("-", "--", ":", "-.")
# Limits of coloured lines, and of rows whose cells have numbers.
_MAX_COLOURED: Final = 10
_MAX_NUMBERED: Final = 16
# The time of matplotlib's layout grows with the square of the number of charts, and a canvas has at most 65,535 pixels.
_MAX_OUTPUTS: Final = 8
_MAX_DRAWN_CLASSES: Final = 100
# Names of more columns are written upwards.
_MAX_LEVEL_NAMES: Final = 5
_MEAN_COLOUR: Final = "black"


def draw_curves(curves: Sequence[EvaluationCurves], *, max_classes: int = 30, title: str = "test") -> Figure:
    """Return a figure with the curves of each output of a model.

    Classes have precision-recall curves, bars of average precision, means of precision, recall and F1 by the threshold
    of scores, and a confusion matrix whose colours are shares of each row; points have the cumulative distribution of
    errors, and bars of the mean error of each point. Of more than 8 outputs the first are drawn, and the title says so.

    Args:
        curves: The curves of each output.
        max_classes: Largest number of classes to draw of an output; if there are more, these are the most frequent half
            and the rarest half, and the confusion matrix has a row and a column for all others. Of more points, those
            with the largest errors are drawn.
        title: Title of the figure.

    Raises:
        ValueError: If ``curves`` is empty or ``max_classes`` is not 2 to 100.
        ImportError: If matplotlib is not installed.
    """
    if not curves:
        raise ValueError("expected curves of at least 1 output, got none")
    check_max_classes(max_classes)
    if len(curves) > _MAX_OUTPUTS:
        title = f"{title}: the first {_MAX_OUTPUTS} of {len(curves)} outputs; the CSV files have all"
    rows = [row for part in curves[:_MAX_OUTPUTS] for row in _rows(part, max_classes)]
    heights = [height for height, _ in rows]
    figure: Figure = require("matplotlib.figure", "plot").Figure(figsize=(13, sum(heights) + 0.5), layout="constrained")
    # A part of its own for each row, so that long names in one row do not narrow the charts of others.
    parts = figure.subfigures(len(rows), 1, squeeze=False, height_ratios=heights)
    for part, (_, draw) in zip(parts[:, 0], rows, strict=True):
        draw(*part.subplots(1, 2))
    figure.suptitle(figure_text(title, 100))
    return figure


def check_max_classes(max_classes: int) -> None:
    """Raise ValueError for a number of classes that one picture cannot have."""
    if not 2 <= max_classes <= _MAX_DRAWN_CLASSES:
        raise ValueError(f"max_classes={max_classes} must be 2 to {_MAX_DRAWN_CLASSES}")


def _rows(curves: EvaluationCurves, max_classes: int) -> list[tuple[float, Any]]:
    """Return the height in inches of each row of two charts of an output, and a function that draws both."""
    rows: list[tuple[float, Any]] = []
    order = _frequent_first(curves.support, max_classes)
    label = figure_text(curves.label)
    if curves.precision_recall:
        kind = curves.precision_recall[0]

        def draw_lines(curve_axis: Any, threshold_axis: Any) -> None:
            curve_axis.set_title(
                f"{label}: precision by recall{', ' + kind.name if kind.name else ''}", fontsize=10, loc="left"
            )
            _draw_precision_recall(curve_axis, kind, curves.class_names, order)
            if curves.by_threshold is None:
                threshold_axis.axis("off")
                return
            threshold_axis.set_title(f"{label}: mean over classes by threshold of scores", fontsize=10, loc="left")
            _draw_thresholds(threshold_axis, curves.by_threshold)

        rows.append((4.2, draw_lines))
    if curves.precision_recall or curves.confusion is not None:

        def draw_classes(bar_axis: Any, confusion_axis: Any) -> None:
            _draw_bars(bar_axis, curves, order)
            _draw_confusion(confusion_axis, curves, order)

        num_bars = len(order) * max(1, len(curves.precision_recall))
        rows.append((max(3.6, 0.2 * num_bars + 1.2, 0.3 * len(order) + 2.2), draw_classes))
    errors = curves.errors
    if errors is not None:

        def draw_errors(share_axis: Any, point_axis: Any) -> None:
            share_axis.set_title(f"{label}: share of objects by largest error", fontsize=10, loc="left")
            _draw_error_curve(share_axis, errors)
            point_axis.set_title(f"{label}: mean error of each point", fontsize=10, loc="left")
            _draw_point_errors(point_axis, errors, max_classes)

        num_points = min(len(errors.point_names), max_classes)
        rows.append((max(4.2, 0.2 * num_points + 1.2), draw_errors))
    return rows


def _frequent_first(support: npt.NDArray[np.int64], max_classes: int) -> list[int]:
    """Return indices of the classes by descending frequency, without the middle if there are too many."""
    order = np.argsort(-support, kind="stable").tolist()
    num_rare = max_classes // 2
    return order if len(order) <= max_classes else [*order[: max_classes - num_rare], *order[-num_rare:]]


def _draw_precision_recall(axis: Any, kind: PrecisionRecall, class_names: Sequence[str], order: Sequence[int]) -> None:
    """Draw a line for each class, in colour the most frequent and the rarest ones, and the mean over classes."""
    measured = [index for index in order if not math.isnan(kind.average_precision[index])]
    num_rare = _MAX_COLOURED // 2
    coloured = measured
    if len(measured) > _MAX_COLOURED:
        coloured = [*measured[: _MAX_COLOURED - num_rare], *measured[-num_rare:]]
    style = {"drawstyle": "steps-pre", "lw": 1.4}
    for index in measured:
        if index not in coloured:
            axis.plot(kind.recall[index], kind.precision[index], **style | {"lw": 0.6}, color="#bbbbbb")
    # The colours that the classes have in pictures of objects.
    colours = class_colours(torch.tensor(coloured, dtype=torch.int64))
    for position, (colour, index) in enumerate(zip(colours, coloured, strict=True)):
        label = f"{figure_text(class_names[index])} {kind.average_precision[index]:.3f}"
        line = _LINE_STYLES[colours[:position].count(colour) % len(_LINE_STYLES)]
        axis.plot(kind.recall[index], kind.precision[index], **style, color=colour, ls=line, label=label)
    all_measured = np.flatnonzero(~np.isnan(kind.average_precision)).tolist()
    if len(all_measured) > 1:
        grid = np.linspace(0, 1, 101)
        lines = [_interpolate(grid, kind.recall[index], kind.precision[index]) for index in all_measured]
        mean = np.nanmean(kind.average_precision)
        label = f"mean of {len(all_measured)} classes {mean:.3f}"
        axis.plot(grid, np.mean(lines, axis=0), color=_MEAN_COLOUR, lw=2.4, label=label)
    axis.set(xlabel="recall", ylabel="precision", xlim=(0, 1.01), ylim=(0, 1.03))
    _finish(axis, has_lines=bool(measured))


def _interpolate(grid: npt.NDArray[np.float64], recall: Any, precision: Any) -> npt.NDArray[np.float64]:
    """Return the precision at the first point that reaches each recall of a grid, 0 where none does."""
    is_defined = ~np.isnan(precision)
    positions = np.searchsorted(recall[is_defined], grid, side="left")
    values: npt.NDArray[np.float64] = np.append(precision[is_defined], 0.0)[positions]
    return values


def _draw_thresholds(axis: Any, counts: ThresholdCounts) -> None:
    means = counts.means()
    for colour, (name, values) in zip(_COLOURS, means.items(), strict=False):
        label = "precision, while each\nclass has predictions" if np.isnan(values).any() else name
        axis.plot(counts.thresholds, values, color=colour, lw=2.4 if name == "F1" else 1.4, label=label)
    if means:
        threshold = best_threshold(counts)
        text = f"best F1 {means['F1'].max():.3f} at {threshold:.3f}"
        axis.axvline(threshold, color="#888888", ls=":", label=text)
    axis.set(xlabel="threshold of scores", xlim=(0, 1.01), ylim=(0, 1.03))
    _finish(axis, has_lines=bool(means))


def _finish(axis: Any, *, has_lines: bool) -> None:
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(labelsize=8)
    axis.grid(alpha=0.25)
    if has_lines:
        # Next to the chart, where no line can be below it.
        axis.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    else:
        axis.text(0.5, 0.5, "nothing was measured", transform=axis.transAxes, ha="center", fontsize=9)


def _draw_bars(axis: Any, curves: EvaluationCurves, order: Sequence[int]) -> None:
    """Draw the average precision of classes, the most frequent at the top."""
    if not curves.precision_recall:
        axis.axis("off")
        return
    axis.set_title(f"{figure_text(curves.label)}: average precision", fontsize=10, loc="left")
    height = 0.8 / len(curves.precision_recall)
    for number, kind in enumerate(curves.precision_recall):
        values = kind.average_precision[order]
        places = np.arange(len(order)) + (number - (len(curves.precision_recall) - 1) / 2) * height
        bars = axis.barh(places, np.nan_to_num(values), height * 0.92, color=_COLOURS[number], label=kind.name)
        texts = ["n/a" if math.isnan(value) else f"{value:.3f}" for value in values.tolist()]
        axis.bar_label(bars, texts, padding=2, fontsize=7)
    names = [f"{figure_text(curves.class_names[index])} ({curves.support[index]})" for index in order]
    axis.set_yticks(range(len(order)), names, fontsize=8)
    axis.set(xlim=(0, 1.12), ylim=(len(order) - 0.4, -0.6))
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(axis="x", labelsize=8)
    num_left_out = len(curves.class_names) - len(order)
    if num_left_out:
        note = f"{num_left_out} of {len(curves.class_names)} classes, of medium frequency, are left out"
        axis.set_xlabel(note, fontsize=8)
    if len(curves.precision_recall) > 1:
        axis.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)


def _draw_confusion(axis: Any, curves: EvaluationCurves, order: Sequence[int]) -> None:
    """Draw a confusion matrix; classes that are not drawn are added up in a row and a column."""
    matrix = curves.confusion
    if matrix is None:
        axis.axis("off")
        return
    matrix = _reduced(matrix, len(curves.class_names), order)
    totals = matrix.counts.sum(axis=1, keepdims=True)
    shares = matrix.counts / np.maximum(totals, 1)
    axis.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    num_rows, num_columns = shares.shape
    if max(num_rows, num_columns) <= _MAX_NUMBERED:
        for row, column in np.argwhere(matrix.counts).tolist():
            colour = "white" if shares[row, column] > 0.6 else "black"
            text = str(matrix.counts[row, column])
            axis.text(column, row, text, ha="center", va="center", fontsize=7, color=colour)
    small = 8 if num_rows <= _MAX_NUMBERED else 6
    axis.set_xticks(
        range(num_columns),
        map(_cell_name, matrix.column_names),
        rotation=0 if num_columns <= _MAX_LEVEL_NAMES else 90,
        fontsize=small,
    )
    axis.set_yticks(range(num_rows), map(_cell_name, matrix.row_names), fontsize=small)
    axis.set_ylabel("true", fontsize=8)
    axis.set_xlabel("predicted", fontsize=8)
    note = f", {matrix.note}" if matrix.note else ""
    title = f"{figure_text(curves.label)}: confusion{note}\nshade: share of the row"
    axis.set_title(title, fontsize=10, loc="left")


def _cell_name(name: str | None) -> str:
    return "background" if name is None else figure_text(name)


def _reduced(matrix: ConfusionMatrix, num_classes: int, order: Sequence[int]) -> ConfusionMatrix:
    """Return a confusion matrix of some classes, in their order, with all others added up."""
    omitted = sorted(set(range(num_classes)) - set(order))

    def groups(size: int) -> list[list[int]]:
        background = [[index] for index in range(num_classes, size)]
        return [*([index] for index in order), *([omitted] if omitted else []), *background]

    def names(all_names: Sequence[str | None], parts: Sequence[Sequence[int]]) -> list[str | None]:
        return [all_names[part[0]] if len(part) == 1 else f"{len(part)} others" for part in parts]

    row_groups = groups(len(matrix.row_names))
    column_groups = [[index] for index in range(len(matrix.column_names))]
    # Columns of several labels an image are outcomes, not classes.
    if list(matrix.column_names) == list(matrix.row_names):
        column_groups = row_groups
    rows = np.stack([matrix.counts[part].sum(axis=0) for part in row_groups])
    return ConfusionMatrix(
        row_names=names(matrix.row_names, row_groups),
        column_names=names(matrix.column_names, column_groups),
        counts=np.stack([rows[:, part].sum(axis=1) for part in column_groups], axis=1),
        note=matrix.note,
    )


def _draw_error_curve(axis: Any, errors: ErrorCurve) -> None:
    is_measured = not math.isnan(errors.mean)
    if is_measured:
        label = f"mean {errors.mean:.4f}, area up to {errors.limit:g}: {errors.area:.3f}"
        axis.plot(errors.errors, errors.shares, color=_COLOURS[0], lw=2, label=label)
        axis.axvline(errors.limit, color="#888888", ls=":", label=f"failure above {errors.limit:g}")
    axis.set(xlim=(0, float(errors.errors[-1])), ylim=(0, 1.03), ylabel="share of objects")
    axis.set_xlabel(f"error over {errors.normalizer}")
    _finish(axis, has_lines=is_measured)


def _draw_point_errors(axis: Any, errors: ErrorCurve, max_points: int) -> None:
    """Draw the mean error of each point, in their order; of too many, the largest errors in descending order."""
    order = list(range(len(errors.point_names)))
    if len(order) > max_points:
        order = np.argsort(-np.nan_to_num(errors.point_errors, nan=-1.0), kind="stable")[:max_points].tolist()
        axis.set_xlabel(f"the {max_points} of {len(errors.point_names)} points with the largest errors", fontsize=8)
    values = errors.point_errors[order]
    bars = axis.barh(range(len(order)), np.nan_to_num(values), 0.8, color=_COLOURS[0])
    texts = ["n/a" if math.isnan(value) else f"{value:.4f}" for value in values.tolist()]
    axis.bar_label(bars, texts, padding=2, fontsize=7)
    axis.set_yticks(range(len(order)), [figure_text(errors.point_names[index]) for index in order], fontsize=8)
    axis.set_ylim(len(order) - 0.4, -0.6)
    axis.margins(x=0.15)
    axis.set_xlim(left=0)
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(axis="x", labelsize=8)
