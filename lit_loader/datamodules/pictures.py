"""Pictures: images with boxes, masks, points and labels, and charts of classes, as matplotlib figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchvision.utils import draw_bounding_boxes, draw_keypoints, draw_segmentation_masks

from lit_loader.extras import require
from lit_loader.types import FIRST_LABEL

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ClassReport", "draw_boxes", "draw_class_report", "draw_labels", "draw_points", "label_texts"]

_COLOURS = ("#e6194b", "#3cb44b", "#4363d8", "#f58231", "#911eb4", "#008080", "#9a6324", "#800000")
_POINT_COLOURS = {1: "orange", 2: "lime"}  # by visibility: hidden, visible
_LONGER_SIDE = 320  # of a drawn image in pixels: texts and points have a fixed size


@dataclass(frozen=True, kw_only=True, eq=False)
class ClassReport:
    """What became of the classes, or of an attribute's values, in a run.

    Attributes:
        label: What they are, such as ``"class"``.
        class_names: Their names.
        natural: Share of each in the training set ``(num_classes,)``, or None if it is not known.
        expected: Share that the sampler delivers in the mean, or None.
        arrived: Share among the labels of the training batches, or None.
        metrics: Values by class name, under the metric's name, such as ``{"AP@50": {"cat": 0.5}}``; NaN for a class
            that was not measured.
    """

    label: str
    class_names: Sequence[str]
    natural: npt.NDArray[np.float64] | None = None
    expected: npt.NDArray[np.float64] | None = None
    arrived: npt.NDArray[np.float64] | None = None
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def draw_boxes(
    images: Sequence[Tensor] | Tensor,
    targets: Sequence[Mapping[str, Any]],
    *,
    class_names: Sequence[str],
    first_label: int = FIRST_LABEL,
    attributes: Mapping[str, Sequence[str]] | None = None,
    min_score: float = 0.0,
    max_images: int = 16,
    title: str = "",
) -> Figure:
    """Return a figure of images with their boxes and, where targets have them, masks, points and attributes.

    Args:
        images: ``(3, H, W)`` each, a list or one tensor, uint8 or float in [0, 1].
        targets: ``boxes`` (N, 4) xyxy in pixels and ``labels`` (N,); with ``scores`` (N,) detections. With
            ``keypoints`` (N, K, 2) the points are drawn, of which ``visibility`` (N, K) says what is there, and with
            ``masks`` (N, H, W) or (N, 1, H, W) what is not 0 in them, or above 0.5 if they are float.
        class_names: Names of the classes.
        first_label: The label of the first class.
        attributes: Names of the values of each attribute to write beside the class; the targets hold its ids
            (N,) by its name, -1 for none.
        min_score: Detections below it are left out.
        max_images: Images drawn at most.
        title: The figure's title.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    drawn, names = [], attributes or {}
    for image, found in zip(list(images)[:max_images], targets, strict=False):
        canvas, zoom = _canvas(image)
        keep = found["scores"] >= min_score if "scores" in found else slice(None)
        fields = ("boxes", "labels", "scores", "keypoints", "visibility", "masks", *names)
        target = {name: found[name][keep].detach().cpu() for name in fields if name in found}
        labels = target["labels"] - first_label
        known = {name: (target[name], values) for name, values in names.items() if name in target}
        texts = label_texts(labels, class_names, attributes=known)
        if "scores" in target:
            scores = target["scores"].tolist()
            texts = [f"{text} {score:.2f}" for text, score in zip(texts, scores, strict=True)]
        colours = [_COLOURS[label % len(_COLOURS)] for label in labels.tolist()]
        if texts and "masks" in target:
            masks = target["masks"].reshape(-1, *target["masks"].shape[-2:])
            inside = masks > (0.5 if masks.is_floating_point() else 0)
            canvas = draw_segmentation_masks(canvas, _enlarged(inside, zoom), alpha=0.4, colors=colours)
        if texts:
            canvas = draw_bounding_boxes(canvas, target["boxes"] * zoom, texts, colors=colours, width=2)
        if "keypoints" in target:
            canvas = _with_points(canvas, target["keypoints"] * zoom, target.get("visibility"))
        drawn.append(canvas)
    return _figure(drawn, title)


def draw_points(
    images: Sequence[Tensor] | Tensor,
    keypoints: Sequence[Tensor] | Tensor,
    visibility: Sequence[Tensor] | Tensor | None = None,
    *,
    predicted: Sequence[Tensor] | Tensor | None = None,
    texts: Sequence[str] = (),
    truths: Sequence[str | None] | None = None,
    max_images: int = 16,
    title: str = "",
) -> Figure:
    """Return a figure of object crops with their points.

    A visible point is green, a hidden one orange, an absent one is not drawn; a predicted one is red, joined to the
    true one by a white line where there is one.

    Args:
        images: ``(3, H, W)`` each, a list or one tensor, uint8 or float in [0, 1].
        keypoints: ``(K, 2)`` each, x and y in pixels.
        visibility: ``(K,)`` each, 0 absent, 1 hidden, 2 visible, or None if all are visible.
        predicted: ``(K, 2)`` each.
        texts: One for each image, written above it; may be left out.
        truths: As for `draw_labels`.
        max_images: Images drawn at most.
        title: The figure's title.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    drawn = []
    for i, image in enumerate(list(images)[:max_images]):
        canvas, zoom = _canvas(image)
        points = keypoints[i].detach().cpu() * zoom
        seen = torch.full(points.shape[:1], 2) if visibility is None else visibility[i].cpu()
        if predicted is not None and len(points):
            found = predicted[i].detach().cpu() * zoom
            both = (seen > 0)[:, None].expand(-1, 2)
            pairs = torch.stack([points, found], 1)
            canvas = draw_keypoints(canvas, pairs, [(0, 1)], width=1, visibility=both)
            canvas = draw_keypoints(canvas, found[None], colors="red")
        drawn.append(_with_points(canvas, points[None], seen[None]))
    return _figure(drawn, title, texts, truths)


def draw_labels(
    images: Sequence[Tensor] | Tensor,
    texts: Sequence[str],
    *,
    truths: Sequence[str | None] | None = None,
    max_images: int = 16,
    title: str = "",
) -> Figure:
    """Return a figure of images with a text above each.

    Args:
        images: ``(3, H, W)`` each, a list or one tensor, uint8 or float in [0, 1].
        texts: The label of each image, true or predicted.
        truths: The true one where ``texts`` are predicted, None where it is not known; where they differ, both are
            written in red.
        max_images: Images drawn at most.
        title: The figure's title.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    return _figure([_canvas(image)[0] for image in list(images)[:max_images]], title, texts, truths)


def draw_class_report(
    reports: Sequence[ClassReport], *, max_classes: int = 100, title: str = "classes"
) -> Figure:
    """Return a figure of how classes came and were scored: for each report a row of three charts side by side.

    The share of each class in the set, the share that was expected and that arrived, and its metrics; as horizontal
    bars with the value beside, from the most frequent class to the rarest.

    Args:
        reports: One for the class, and one for each attribute.
        max_classes: Classes drawn of a report at most: of more, the most frequent half and the rarest half.
        title: The figure's title.

    Raises:
        ValueError: If there is no report, or ``max_classes`` is below 2.
        ImportError: If matplotlib is not installed.
    """
    if not reports or max_classes < 2:
        raise ValueError(
            f"{len(reports)} reports and max_classes={max_classes}; give at least one report and 2 classes"
        )
    orders = [_frequent_first(report, max_classes) for report in reports]
    heights = [
        0.24 * max(3, len(order)) * max(1.0, len(report.metrics) * 0.75) + 0.9
        for report, order in zip(reports, orders, strict=True)
    ]
    figure: Figure = require("matplotlib.figure", "plot").Figure(
        figsize=(12, sum(heights)), layout="constrained"
    )
    axes = figure.subplots(len(reports), 3, squeeze=False, sharey="row", height_ratios=heights)
    for row, report, order in zip(axes, reports, orders, strict=True):
        names = [report.class_names[i] for i in order]
        charts: list[tuple[str, dict[str, npt.NDArray[np.float64] | None], str]] = [
            ("share in the set", {"share in the set": report.natural}, "{:.1%}"),
            (
                "share in training",
                {"expected share": report.expected, "arrived share": report.arrived},
                "{:.1%}",
            ),
        ]
        metrics = {
            name: np.array([values.get(c, math.nan) for c in report.class_names])
            for name, values in report.metrics.items()
        }
        charts.append(("metrics", dict(metrics), "{:.3f}"))
        for axis, (name, bars, form) in zip(row, charts, strict=True):
            held = {key: values[order] for key, values in bars.items() if values is not None}
            axis.set_title(name if len(held) != 1 else next(iter(held)), fontsize=9, loc="left")
            _draw_bars(axis, held, form)
        left_out = len(report.class_names) - len(order)
        note = (
            f"\n{left_out} of {len(report.class_names)}, between these in frequency, are left out"
            if left_out
            else ""
        )
        row[0].set_yticks(range(len(order)), [_short(name) for name in names], fontsize=8)
        row[0].set_ylim(len(order) - 0.4, -0.6)  # the most frequent at the top
        row[0].set_ylabel(report.label + note, fontsize=9)
    if title:
        figure.suptitle(title)
    return figure


def _frequent_first(report: ClassReport, max_classes: int) -> list[int]:
    known = [shares for shares in (report.natural, report.arrived) if shares is not None]
    order = list(range(len(report.class_names)))
    if known:
        order.sort(key=lambda i: -known[0][i])
    rare = max_classes // 2
    return order if len(order) <= max_classes else order[: max_classes - rare] + order[-rare:]


def _draw_bars(axis: Any, bars: Mapping[str, npt.NDArray[np.float64]], form: str) -> None:
    """Draw a bar for each value of each series, or that nothing is known."""
    axis.tick_params(labelsize=7)
    axis.spines[["top", "right"]].set_visible(False)
    if not bars:
        axis.text(0.5, 0.5, "not known", transform=axis.transAxes, ha="center", fontsize=8)
        axis.set_xticks([])
        return
    height = 0.8 / len(bars)
    for number, (name, values) in enumerate(bars.items()):
        places = np.arange(len(values)) + (number - (len(bars) - 1) / 2) * height
        drawn = axis.barh(places, np.nan_to_num(values), height, label=name, color=_COLOURS[2 - number])
        texts = ["n/a" if math.isnan(value) else form.format(value) for value in values.tolist()]
        axis.bar_label(drawn, texts, padding=2, fontsize=7 if len(bars) == 1 else 6)
    axis.margins(x=0.2)
    axis.set_xlim(left=0)
    if len(bars) > 1:
        place = {"loc": "lower right", "bbox_to_anchor": (1, 1), "borderaxespad": 0.2}
        axis.legend(fontsize=7, ncols=len(bars), frameon=False, **place)


def _short(name: str, most: int = 28) -> str:
    return name if len(name) <= most else name[: most - 1] + "\u2026"


def label_texts(
    labels: Tensor,
    class_names: Sequence[str],
    *,
    attributes: Mapping[str, tuple[Tensor, Sequence[str]]] | None = None,
) -> list[str]:
    """Return a text for each label, with the attributes' values behind it.

    Args:
        labels: int64 ``(N,)`` from 0, or multi-hot ``(N, num_classes)``.
        class_names: Names of the classes.
        attributes: For each attribute ids ``(N,)``, -1 for none, and the names of its values.
    """
    if labels.ndim == 2:
        held = [row.nonzero().flatten().tolist() for row in labels]
        return [", ".join(class_names[c] for c in row) or "none" for row in held]
    texts = [class_names[c] if 0 <= c < len(class_names) else f"label {c}" for c in labels.tolist()]
    for ids, names in (attributes or {}).values():
        values = [f", {names[i]}" if i >= 0 else "" for i in ids.tolist()]
        texts = [text + value for text, value in zip(texts, values, strict=True)]
    return texts


def _canvas(image: Tensor) -> tuple[Tensor, int]:
    """Return an image as uint8, enlarged a whole number of times, and this number.

    Values far outside [0, 1] are those of a normalised image: they are stretched from the lowest to the highest.
    """
    pixels = image.detach().cpu()
    if pixels.dtype != torch.uint8:
        pixels = pixels.float()
        low, high = pixels.aminmax()
        if low < -0.1 or high > 1.1:
            pixels = (pixels - low) / (high - low)
        pixels = (pixels.clamp(0, 1) * 255).round().to(torch.uint8)
    zoom = max(1, _LONGER_SIDE // max(pixels.shape[-2:]))
    return _enlarged(pixels, zoom), zoom


def _enlarged(pixels: Tensor, zoom: int) -> Tensor:
    return torch.as_tensor(pixels.repeat_interleave(zoom, -2).repeat_interleave(zoom, -1))


def _with_points(canvas: Tensor, points: Tensor, visibility: Tensor | None) -> Tensor:
    seen = torch.full(points.shape[:2], 2) if visibility is None else visibility
    for state, colour in _POINT_COLOURS.items():
        if (seen == state).any():
            canvas = draw_keypoints(canvas, points, colors=colour, radius=3, visibility=seen == state)
    return canvas


def _figure(
    canvases: list[Tensor],
    title: str,
    texts: Sequence[str] = (),
    truths: Sequence[str | None] | None = None,
) -> Figure:
    columns = max(1, math.ceil(math.sqrt(len(canvases))))
    rows = max(1, math.ceil(len(canvases) / columns))
    size = (3 * columns, 3 * rows + 0.4)
    figure: Figure = require("matplotlib.figure", "plot").Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for axis in axes:
        axis.axis("off")
    for i, (axis, canvas) in enumerate(zip(axes, canvases, strict=False)):
        axis.imshow(canvas.permute(1, 2, 0).numpy())
        if texts:
            truth = None if truths is None else truths[i]
            wrong = truth not in (None, texts[i])
            text = f"{texts[i]} ({truth})" if wrong else texts[i]
            axis.set_title(text, fontsize=7, color=_COLOURS[0] if wrong else "black")
    if title:
        figure.suptitle(title)
    return figure
