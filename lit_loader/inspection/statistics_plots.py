"""Plots of the statistics of a data set, readable with three and with hundreds of classes."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from lit_loader.foundation.escaping import printable
from lit_loader.foundation.extras import require
from lit_loader.inspection.statistics import AREA_LIMITS, MEASURES, DatasetStatistics, has_log_bins
from lit_loader.types import IndexArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lit_loader.inspection.statistics_sampling import SamplingStatistics

__all__ = ["ShownClasses", "draw_sampling", "draw_statistics", "figure_bytes"]

_MAX_COLUMNS: Final = 3
_PANEL_SIZE: Final = (4.8, 3.9)  # inches
_MAX_ROWS: Final = 24  # of bars in a panel, so that their names can be read
_MAX_ATTRIBUTES: Final = 6
_MAX_MATRIX_NUMBERS: Final = 8
_MARKERS: Final = "os^vDPX<>*"
_AREA_COLOURS: Final = ("#9ecae1", "#4292c6", "#08519c")
_STATE_COLOURS: Final = {"visible": "#2ca02c", "hidden": "#ff9f1c", "absent": "#cccccc"}

_BELOW: Final[dict[str, Any]] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.1), "ncols": 3}

_Panel = Callable[[Any], None]


def draw_statistics(statistics: DatasetStatistics, sampling: SamplingStatistics | None = None) -> Figure:
    """Return a figure with a panel for each measure that varies, the classes, positions, points and samplers.

    Of more than 24 classes, the most frequent and the rarest are shown.

    Args:
        statistics: Statistics of the sets.
        sampling: Statistics of samplers and batchings on the training set, or None to leave their panels out.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    return _figure([*_set_panels(statistics), *([] if sampling is None else _sampling_panels(sampling))])


def draw_sampling(sampling: SamplingStatistics) -> Figure:
    """Return a figure with the class mix, the unseen images and the padding of samplers and batchings.

    Args:
        sampling: Statistics of samplers and batchings on a training set.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    return _figure(_sampling_panels(sampling))


def _figure(panels: Sequence[_Panel]) -> Figure:
    num_columns = max(1, min(_MAX_COLUMNS, len(panels)))
    num_rows = max(1, math.ceil(len(panels) / num_columns))
    size = (num_columns * _PANEL_SIZE[0], num_rows * _PANEL_SIZE[1])
    figure: Figure = require("matplotlib.figure", "plot").Figure(figsize=size, layout="constrained")
    all_axes = figure.subplots(num_rows, num_columns, squeeze=False).ravel()
    for axes, panel in zip(all_axes, panels, strict=False):
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
        panel(axes)
    for axes in all_axes[len(panels) :]:
        axes.set_axis_off()
    return figure


def figure_bytes(figure: Figure, file_format: str) -> bytes:
    """Return a figure as a file of a format, such as ``"png"``."""
    file = io.BytesIO()
    with warnings.catch_warnings():
        # A character that the font lacks is drawn as a box.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(file, format=file_format, dpi=100)
    return file.getvalue()


class ShownClasses(NamedTuple):
    """Classes that fit into a panel or a table, the most frequent first.

    Attributes:
        ids: Positions of the classes.
        num_frequent: Number of ``ids`` that are the most frequent classes; the others are the rarest.
        num_hidden: Number of classes between them.
        num_absent: Number of classes without objects, which are not shown.
    """

    ids: list[int]
    num_frequent: int
    num_hidden: int
    num_absent: int

    @classmethod
    def of(cls, counts: npt.NDArray[Any], max_classes: int) -> ShownClasses:
        """Choose classes.

        Args:
            counts: ``(num_classes,)`` counts or shares.
            max_classes: Maximum number of classes to show: half of them the most frequent, half the rarest.
        """
        ids: list[int] = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)].tolist()
        num_absent = len(counts) - len(ids)
        if len(ids) <= max_classes:
            return cls(ids, len(ids), 0, num_absent)
        num_rarest = max_classes // 2
        num_frequent = max_classes - num_rarest
        return cls(ids[:num_frequent] + ids[-num_rarest:], num_frequent, len(ids) - max_classes, num_absent)

    @property
    def note(self) -> str:
        """Numbers of classes that are not shown, or an empty text."""
        notes = [f"{self.num_hidden} more between them"] if self.num_hidden else []
        notes += [f"{self.num_absent} without objects"] if self.num_absent else []
        return ", ".join(notes)


# -- panels of the sets ------------------------------------------------------------------------------------


def _set_panels(statistics: DatasetStatistics) -> list[_Panel]:
    sets = statistics.sets.values()
    figures = next(iter(sets)).figures
    panels: list[_Panel] = []
    if len(figures["classes"]) > 1 and any(part.figures["objects"] for part in sets):
        panels.append(partial(_draw_classes, statistics=statistics))
    for name in MEASURES:
        distributions = [part.distributions[name] for part in sets if name in part.distributions]
        # A single value, such as one size of all images, needs no picture.
        if distributions and min(d.quantiles[0] for d in distributions) < max(d.quantiles[-1] for d in distributions):
            panels.append(partial(_draw_measure, statistics=statistics, name=name))
    if any(part.area_counts.any() for part in sets):
        panels.append(partial(_draw_areas, statistics=statistics))
        panels.append(partial(_draw_centres, statistics=statistics))
    images = statistics.co_occurrence.images
    if (images - np.diag(np.diag(images))).any():
        panels.append(partial(_draw_co_occurrence, statistics=statistics))
    states = [states for part in sets for states in part.figures["keypoints"].values()]
    if any(point["hidden"] or point["absent"] for point in states):
        panels.append(partial(_draw_points, statistics=statistics))
    panels += [
        partial(_draw_attribute, statistics=statistics, name=name)
        for name in [*figures["attributes"]][:_MAX_ATTRIBUTES]
    ]
    return panels


def _draw_classes(axes: Any, *, statistics: DatasetStatistics) -> None:
    names = [*next(iter(statistics.sets.values())).figures["classes"]]
    counts = {
        name: np.array([row["objects"] for row in part.figures["classes"].values()])
        for name, part in statistics.sets.items()
    }
    classes = ShownClasses.of(np.sum([*counts.values()], axis=0), _MAX_ROWS)
    _draw_bars(axes, [names[c] for c in classes.ids], {name: part[classes.ids] for name, part in counts.items()})
    _add_title(axes, "objects of each class", classes)


def _draw_attribute(axes: Any, *, statistics: DatasetStatistics, name: str) -> None:
    parts = {set_name: part.figures["attributes"].get(name, {}) for set_name, part in statistics.sets.items()}
    names = [*dict.fromkeys(value for part in parts.values() for value in part.get("values", {}))]
    counts = {
        set_name: np.array([part.get("values", {}).get(value, 0) for value in names], dtype=np.int64)
        for set_name, part in parts.items()
    }
    values = ShownClasses.of(np.sum([*counts.values()], axis=0), _MAX_ROWS)
    _draw_bars(axes, [names[v] for v in values.ids], {set_name: part[values.ids] for set_name, part in counts.items()})
    _add_title(axes, f"objects of each value of {_label(name)}", values)


def _draw_bars(axes: Any, names: Sequence[str], counts: dict[str, IndexArray]) -> None:
    """Draw horizontal bars of each name, one for each set."""
    positions = np.arange(len(names))
    height = 0.8 / len(counts)
    for number, (set_name, values) in enumerate(counts.items()):
        axes.barh(positions + number * height, values, height, label=_label(set_name), align="edge")
    largest = max((int(values.max(initial=0)) for values in counts.values()), default=0)
    positive = [int(value) for values in counts.values() for value in values if value > 0]
    # Bars of rare classes would be invisible next to frequent ones.
    if positive and largest > 50 * min(positive):
        axes.set_xlim(0.8, 1.2 * largest)
        _use_log_scale(axes)
    _name_rows(axes, list(map(_label, names)), positions + 0.4)
    axes.set_xlabel("objects", fontsize=8)
    _add_legend(axes, len(counts))


def _draw_measure(axes: Any, *, statistics: DatasetStatistics, name: str) -> None:
    measure = MEASURES[name]
    sets = [part for part in statistics.sets.values() if name in part.distributions]
    for set_name, part in statistics.sets.items():
        if name in part.distributions:
            distribution = part.distributions[name]
            # Shares, because a validation set is much smaller than a training set.
            shares = distribution.counts / distribution.num_values
            axes.stairs(shares, distribution.edges, label=_label(set_name), fill=len(statistics.sets) == 1)
    low = min(part.distributions[name].quantiles[0] for part in sets)
    high = max(part.distributions[name].quantiles[-1] for part in sets)
    if has_log_bins(measure, low, high):
        _use_log_scale(axes)
    # The limits of small, medium and large objects in COCO's evaluation.
    limits = [math.sqrt(limit) for limit, _ in AREA_LIMITS.values() if low < math.sqrt(limit) < high]
    if name == "box_side" and limits:
        for limit in limits:
            axes.axvline(limit, color="0.4", linewidth=0.8, linestyle="dashed")
        axes.set_xlabel("dashed: limits of small, medium and large in COCO", fontsize=8)
    axes.set_title(measure.label, fontsize=10)
    axes.set_ylabel(f"share of {measure.rows}", fontsize=8)
    _in_percent(axes.yaxis)
    _add_legend(axes, len(statistics.sets))


def _use_log_scale(axes: Any) -> None:
    """Scale the x axis by its logarithm, with plain numbers as labels."""
    ticker = require("matplotlib.ticker", "plot")
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    # Narrow ranges contain no power of ten, and wide ones would have too many labels.
    steps: tuple[float, ...] = (1, 2, 5) if high / low > 8 else (1, 1.5, 2, 3, 4, 5, 6, 8)
    if high / low > 3000:
        steps = (1,)
    axes.xaxis.set_major_locator(ticker.LogLocator(subs=steps, numticks=12))
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(ticker.NullFormatter())


def _draw_areas(axes: Any, *, statistics: DatasetStatistics) -> None:
    names = [*next(iter(statistics.sets.values())).figures["classes"]]
    counts = np.sum([part.area_counts for part in statistics.sets.values()], axis=0)
    classes = ShownClasses.of(counts.sum(axis=1), _MAX_ROWS)
    shares = counts[classes.ids] / counts[classes.ids].sum(axis=1, keepdims=True)
    starts = np.cumsum(shares, axis=1) - shares
    positions = np.arange(len(shares))
    for size, colour, part, start in zip(AREA_LIMITS, _AREA_COLOURS, shares.T, starts.T, strict=True):
        axes.barh(positions, part, 0.8, left=start, color=colour, label=size, align="edge")
    _name_rows(axes, [_label(names[c]) for c in classes.ids], positions + 0.4)
    axes.set_xlim(0, 1)
    _in_percent(axes.xaxis)
    _add_title(axes, "small, medium and large objects\n(limits 32\u00b2 and 96\u00b2 px, as in COCO)", classes)
    _add_legend(axes, len(AREA_LIMITS), **_BELOW)


def _draw_centres(axes: Any, *, statistics: DatasetStatistics) -> None:
    counts = np.sum([part.centres for part in statistics.sets.values()], axis=0)
    image = axes.imshow(counts, extent=(0, 1, 1, 0), cmap="viridis", aspect="auto", interpolation="nearest")
    axes.figure.colorbar(image, ax=axes, shrink=0.8).ax.tick_params(labelsize=7)
    axes.set_title("positions of box centres", fontsize=10)
    axes.set_xlabel("x / image width", fontsize=8)
    axes.set_ylabel("y / image height", fontsize=8)


def _draw_co_occurrence(axes: Any, *, statistics: DatasetStatistics) -> None:
    matrix = statistics.co_occurrence
    names = list(map(_label, matrix.class_names))
    shares = matrix.images / np.diag(matrix.images)[:, None]
    # The diagonal is 1 in any set, and would only hide the differences.
    np.fill_diagonal(shares, np.nan)
    image = axes.imshow(shares, cmap="Blues", vmin=0, aspect="auto", interpolation="nearest")
    axes.figure.colorbar(image, ax=axes, shrink=0.8).ax.tick_params(labelsize=7)
    axes.set_xticks(range(len(names)), names, rotation=45 if len(names) <= _MAX_MATRIX_NUMBERS else 90, fontsize=7)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    if len(names) <= _MAX_MATRIX_NUMBERS:
        for (row, column), share in np.ndenumerate(shares):
            if row != column:
                colour = "white" if share > 0.6 * np.nanmax(shares) else "black"
                axes.text(column, row, f"{share:.2f}", ha="center", va="center", fontsize=7, color=colour)
    axes.set_title("share of the row's images\nthat also contain the column's class", fontsize=10)


def _draw_points(axes: Any, *, statistics: DatasetStatistics) -> None:
    # Sets may have points of different schemas.
    points = [point for part in statistics.sets.values() for point in part.figures["keypoints"].items()]
    names = [*dict.fromkeys(name for name, _ in points)]
    row_by_name = {name: row for row, name in enumerate(names)}
    counts = {state: np.zeros(len(names), dtype=np.int64) for state in _STATE_COLOURS}
    for name, states in points:
        for state, count in states.items():
            counts[state][row_by_name[name]] += count
    totals = np.maximum(np.sum([*counts.values()], axis=0), 1)
    start = np.zeros(len(names))
    positions = np.arange(len(names))
    has_names = len(names) <= _MAX_ROWS
    for state, colour in _STATE_COLOURS.items():
        shares = counts[state] / totals
        if has_names:
            axes.barh(positions, shares, 0.8, left=start, color=colour, label=state, align="edge")
        else:
            # The outlines of hundreds of bars would cover their colours.
            axes.stairs(start + shares, np.arange(len(names) + 1), baseline=start, fill=True, color=colour, label=state)
        start = start + shares
    if has_names:
        _name_rows(axes, list(map(_label, names)), positions + 0.4)
        axes.set_xlim(0, 1)
    else:
        axes.set_xlabel("position of the point", fontsize=8)
        axes.set_ylim(0, 1)
        axes.set_xlim(0, len(names))
    axes.set_title("visibility of points, share of objects", fontsize=10)
    _add_legend(axes, len(_STATE_COLOURS), **_BELOW)


# -- panels of samplers ------------------------------------------------------------------------------------


def _sampling_panels(sampling: SamplingStatistics) -> list[_Panel]:
    panels: list[_Panel] = []
    samplers = sampling.samplers.values()
    if sampling.changed_mixes:
        panels.append(partial(_draw_mixes, sampling=sampling))
    if samplers and sampling.num_images:
        panels.append(partial(_draw_unseen, sampling=sampling))
    if any(sampler.shuffle is not None for sampler in samplers):
        panels.append(partial(_draw_shuffles, sampling=sampling))
    if any(share for sampler in samplers for share in sampler.padding.values()):
        panels.append(partial(_draw_padding, sampling=sampling))
    return panels


def _draw_mixes(axes: Any, *, sampling: SamplingStatistics) -> None:
    classes = ShownClasses.of(sampling.class_mix, _MAX_ROWS)
    positions = np.arange(len(classes.ids)) + 0.4
    shares = sampling.class_mix[classes.ids]
    axes.barh(positions, shares, 0.8, color="0.85", label="annotated")
    for number, (override, mix) in enumerate(sampling.changed_mixes.items()):
        marker = _MARKERS[number % len(_MARKERS)]
        axes.plot(mix[classes.ids], positions, marker, markersize=4, alpha=0.8, label=_override_label(override))
    if shares.max() > 50 * shares.min():
        axes.set_xlim(shares.min() / 2, 1)
        _use_log_scale(axes)
    _in_percent(axes.xaxis)
    _name_rows(axes, [_label(sampling.class_names[c]) for c in classes.ids], positions)
    _add_title(axes, "expected share of each class in an epoch", classes)
    _add_legend(axes, len(sampling.changed_mixes) + 1, **_BELOW)


def _draw_unseen(axes: Any, *, sampling: SamplingStatistics) -> None:
    positions = np.arange(len(sampling.samplers))
    shares = [part.num_unseen / sampling.num_images for part in sampling.samplers.values()]
    bars = axes.barh(positions, shares, 0.8, align="edge", color="#d98880")
    numbers = [part.max_repeats for part in sampling.samplers.values()]
    repeats = [f"an image up to {number} times" if number > 1 else "each image at most once" for number in numbers]
    axes.bar_label(bars, repeats, fontsize=7, padding=4)
    axes.set_xlim(0, max(0.1, 1.8 * max(shares)))
    _in_percent(axes.xaxis)
    _name_rows(axes, list(map(_override_label, sampling.samplers)), positions + 0.4)
    axes.set_title("images that an epoch does not contain", fontsize=10)


def _draw_shuffles(axes: Any, *, sampling: SamplingStatistics) -> None:
    shuffles = {name: part for name, part in sampling.samplers.items() if part.shuffle is not None}
    positions = np.arange(len(shuffles))
    scores = [part.shuffle.score for part in shuffles.values() if part.shuffle is not None]
    bars = axes.barh(positions, scores, 0.8, align="edge", color="#7fb3d5")
    requests = [part.requests for part in shuffles.values()]
    labels = [f"{score:.3f}" for score in scores]
    if None not in requests:
        labels = [f"{label}, {number:.2g} requests" for label, number in zip(labels, requests, strict=True)]
    axes.bar_label(bars, labels, fontsize=7, padding=4)
    # Room for the labels.
    axes.set_xlim(0, 1.7)
    axes.set_xticks([0, 0.5, 1])
    _name_rows(axes, list(map(_override_label, shuffles)), positions + 0.4)
    axes.set_title(f"score of the shuffle, 1 = full shuffle,\nbatches of {sampling.batch.batch_size}", fontsize=10)


def _draw_padding(axes: Any, *, sampling: SamplingStatistics) -> None:
    batchings = [*next(iter(sampling.samplers.values())).padding]
    positions = np.arange(len(sampling.samplers))
    height = 0.8 / len(batchings)
    for number, batching in enumerate(batchings):
        shares = [part.padding[batching] or 0.0 for part in sampling.samplers.values()]
        axes.barh(positions + number * height, shares, height, align="edge", label=_override_label(batching))
    _name_rows(axes, list(map(_override_label, sampling.samplers)), positions + 0.4)
    axes.set_xlim(left=0, right=max(0.1, axes.get_xlim()[1]))
    _in_percent(axes.xaxis)
    axes.set_title(f"padded pixels, batches of {sampling.batch.batch_size}", fontsize=10)
    _add_legend(axes, len(batchings), **_BELOW)


def _override_label(override: str) -> str:
    """Return an override without the name of its group, such as ``class_balanced exponent=0.5``."""
    group, _, setting = override.partition("=")
    return _label(setting.replace(f" {group}.", " "), max_length=40)


# -- parts of panels ---------------------------------------------------------------------------------------


def _name_rows(axes: Any, names: Sequence[str], positions: Any) -> None:
    axes.set_yticks(positions, names, fontsize=7 if len(names) > 12 else 8)
    # The first row at the top.
    axes.set_ylim(len(names), -0.2)


def _add_title(axes: Any, title: str, classes: ShownClasses) -> None:
    """Add a title with the number of classes that are not shown, and a line above the rarest classes."""
    axes.set_title(f"{title}\n({classes.note})" if classes.note else title, fontsize=10)
    if classes.num_hidden:
        axes.axhline(classes.num_frequent - 0.1, color="0.5", linewidth=0.8, linestyle="dashed")


def _in_percent(axis: Any) -> None:
    # PercentFormatter writes the small shares of a logarithmic axis as 0 %.
    axis.set_major_formatter(require("matplotlib.ticker", "plot").FuncFormatter(lambda share, _: f"{100 * share:g} %"))


def _add_legend(axes: Any, num_entries: int, **place: Any) -> None:
    if num_entries > 1:
        axes.legend(fontsize=7, frameon=False, **place)


def _label(text: str, max_length: int = 20) -> str:
    """Return a name from a file as a text that matplotlib draws literally, shortened."""
    text = printable(text).replace("\n", "\\n")
    text = text if len(text) <= max_length else f"{text[: max_length - 1]}\u2026"
    # Matplotlib leaves entries that begin with an underscore out of a legend, and reads $...$ as mathematics.
    return f" {text}".replace("$", r"\$") if text.startswith("_") else text.replace("$", r"\$")
