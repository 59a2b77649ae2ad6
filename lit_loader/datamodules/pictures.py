"""Pictures: images with boxes, masks, points and labels, and charts of classes, as matplotlib figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchvision.transforms.v2 import InterpolationMode, functional
from torchvision.tv_tensors import BoundingBoxFormat
from torchvision.utils import draw_bounding_boxes, draw_keypoints, draw_segmentation_masks

from lit_loader.datamodules.text_drawing import draw_texts, figure_text
from lit_loader.foundation.extras import require
from lit_loader.types import FIRST_LABEL

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "ClassReport",
    "LONGER_SIDE",
    "class_colours",
    "draw_boxes",
    "draw_canvases",
    "draw_class_report",
    "draw_fitted_objects",
    "draw_labels",
    "draw_objects",
    "draw_points",
    "fit_canvas",
    "label_texts",
]

_COLOURS = (
    *("#e6194b", "#3cb44b", "#4363d8", "#f58231", "#911eb4"),
    *("#008080", "#9a6324", "#800000", "#808000", "#f032e6"),
)
# Keys are visibilities: 1 hidden, 2 visible.
_POINT_COLOURS = {1: "orange", 2: "lime"}
_POINT_LEGEND = {"true point": "lime", "true point, hidden": "orange", "prediction": "red"}
LONGER_SIDE: Final = 448
"""Longer side of a drawn image in pixels; its texts and points have a fixed size."""
_WRONG_COLOUR, _CORRECT_COLOUR = _COLOURS[:2]
_ERROR_LEGEND = {"correct": _CORRECT_COLOUR, "missed or false": _WRONG_COLOUR}
# Texts of objects in an image of errors; more would cover the objects.
_MAX_ERROR_TEXTS = 10
# Distance of neighbouring points in radii of their dots.
_SPACING = 5
# Pixels between an image with true objects and one with predicted objects.
_PAIR_GAP = 6
# Figures are sized so that a pixel of a drawn image is a pixel of the file.
_DPI = 120
# Pixels around a drawn image.
_MARGIN = 8


@dataclass(frozen=True, kw_only=True, eq=False)
class ClassReport:
    """Shares and metrics of the classes, or of an attribute's values, in a run.

    Attributes:
        label: ``"class"``, or the name of the attribute.
        class_names: Names of the classes or values.
        natural: Share of each class in the training set ``(num_classes,)``, or None if unknown.
        expected: Expected share under the sampler, or None.
        arrived: Share among the labels of the training batches, or None.
        metrics: For each metric its values by class name, such as ``{"AP@50": {"cat": 0.5}}``; NaN for a class without
            a measurement.
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
    truths: Sequence[Mapping[str, Any]] | None = None,
    captions: Sequence[str] = (),
    min_score: float = 0.0,
    skeleton: Sequence[tuple[int, int]] = (),
    max_images: int = 16,
    title: str = "",
) -> Figure:
    """Return a figure of images with their boxes and, where targets have them, masks, points and attributes.

    Args:
        images: ``(3, H, W)`` each, a list or one tensor, uint8 or float in [0, 1].
        targets: ``boxes`` in pixels, (N, 4) xyxy, (N, 8) corners or (N, 5) torchvision's CXCYWHR, whose first side is
            dashed, and ``labels`` (N,); detections also have ``scores`` (N,). Optional
            ``keypoints`` (N, K, 2) with ``visibility`` (N, K) are drawn, and so are ``masks`` (N, H, W) or
            (N, 1, H, W): pixels that are not 0, or above 0.5 in float masks. Objects with ``is_wrong``, bool (N,), are
            red if it is true and green if not, and at most 10 of an image have a text, the wrong ones first; the figure
            then has a legend.
        class_names: Names of the classes.
        first_label: The label of the first class.
        attributes: For each attribute to write next to the class the names of its values; the targets have the
            attribute's ids (N,) under its name, -1 for none.
        truths: The true targets if ``targets`` are detections; they are drawn on a copy of the image to the left.
        captions: A line to write above each image, or empty.
        min_score: Detections with a lower score are left out.
        skeleton: Positions of points that lines join, if neither is absent.
        max_images: Maximum number of images.
        title: Title of the figure.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    draw = partial(
        draw_objects,
        class_names=class_names,
        first_label=first_label,
        attributes=attributes,
        min_score=min_score,
        skeleton=skeleton,
    )
    canvases = []
    for row, (image, target) in enumerate(zip(list(images)[:max_images], targets, strict=False)):
        canvas = draw(image, target)
        if truths:
            gap = torch.full((3, canvas.shape[1], _PAIR_GAP), 255, dtype=torch.uint8)
            canvas = torch.cat([draw(image, truths[row]), gap, canvas], dim=2)
        canvases.append(canvas)
    halves = ("ground truth", "predictions") if truths else ()
    legend = _ERROR_LEGEND if any("is_wrong" in target for target in targets) else {}
    return _figure(canvases, title, halves=halves, captions=captions, legend=legend)


def draw_objects(
    image: Tensor,
    target: Mapping[str, Any],
    *,
    class_names: Sequence[str],
    first_label: int = FIRST_LABEL,
    attributes: Mapping[str, Sequence[str]] | None = None,
    min_score: float = 0.0,
    skeleton: Sequence[tuple[int, int]] = (),
    longer_side: int = LONGER_SIDE,
) -> Tensor:
    """Return an image with its objects drawn, uint8 ``(3, h, w)``.

    Labels do not cover each other. Labels without room are left out, and a note counts them.

    Args:
        image: ``(3, H, W)``, uint8 or float in [0, 1].
        target: A target, as in `draw_boxes`. Without ``boxes`` the labels describe the whole image.
        class_names: Names of the classes.
        first_label: The label of the first class.
        attributes: Names of the values of each attribute, as in `draw_boxes`.
        min_score: Detections with a lower score are left out.
        skeleton: Positions of points that lines join, if neither is absent.
        longer_side: Larger of height and width of the result in pixels.
    """
    canvas, zoom = fit_canvas(image, longer_side)
    names = attributes or {}
    keep = target["scores"] >= min_score if "scores" in target else slice(None)
    # All per-object fields are filtered by the score.
    fields = ("boxes", "labels", "scores", "keypoints", "visibility", "masks", "is_wrong", *names)
    objects = {name: target[name][keep].detach().cpu() for name in fields if name in target}
    labels = objects["labels"] - first_label
    values = {name: (objects[name], texts) for name, texts in names.items() if name in objects}
    texts = label_texts(labels, class_names, attributes=values)
    if "scores" in objects:
        scores = objects["scores"].tolist()
        texts = [f"{text} {score:.2f}" for text, score in zip(texts, scores, strict=True)]
    if texts and "masks" in objects:
        masks = objects["masks"].reshape(-1, *objects["masks"].shape[-2:])
        # uint8, because resize() takes no bool masks.
        inside = (masks > (0.5 if masks.is_floating_point() else 0)).to(torch.uint8)
        objects["masks"] = functional.resize(inside, list(canvas.shape[-2:]), InterpolationMode.NEAREST).bool()
    if "boxes" in objects:
        objects["boxes"] = _without_angles(objects["boxes"].float()) * zoom
    if "keypoints" in objects:
        objects["keypoints"] = objects["keypoints"].float() * zoom
    colours = class_colours(labels)
    if "is_wrong" in objects:
        is_wrong = objects["is_wrong"].tolist()
        colours = [_WRONG_COLOUR if wrong else _CORRECT_COLOUR for wrong in is_wrong]
        scores = objects["scores"].tolist() if "scores" in objects else [0.0] * len(texts)
        order = sorted(range(len(texts)), key=lambda row: (not is_wrong[row], -scores[row]))
        named = set(order[:_MAX_ERROR_TEXTS])
        texts = [text if row in named else "" for row, text in enumerate(texts)]
    return draw_fitted_objects(canvas, objects, texts=texts, colours=colours, lines=skeleton)


def draw_fitted_objects(
    canvas: Tensor,
    objects: Mapping[str, Tensor],
    *,
    texts: Sequence[str],
    colours: Sequence[str],
    lines: Sequence[tuple[int, int]] = (),
) -> Tensor:
    """Return a canvas with objects in its own pixels drawn, uint8 ``(3, h, w)``.

    Args:
        canvas: uint8 ``(3, h, w)``, as from `fit_canvas`.
        objects: Optional ``boxes`` (N, 4) xyxy or (N, 8) corners, ``masks`` bool (N, h, w), ``keypoints`` (N, K, 2) and
            ``visibility`` (N, K). Without ``boxes`` the texts are below each other.
        texts: A text for each object, or ``""`` for none. Earlier texts get their place first.
        colours: Colour of each object's mask, box and text, ``#rrggbb``.
        lines: Positions of points that white lines join, if neither is absent.
    """
    line_width = 2 + max(canvas.shape[-2:]) // 340
    # Masks come first, so that boxes, points and texts stay readable on top. torchvision warns if there are none.
    if texts and "masks" in objects:
        canvas = draw_segmentation_masks(canvas, objects["masks"], alpha=0.4, colors=list(colours))
    boxes = objects.get("boxes") if texts else None
    if boxes is not None and boxes.shape[1] == 8:
        boxes = _near_canvas(boxes, canvas)
    if boxes is not None:
        canvas = draw_bounding_boxes(canvas, boxes, colors=list(colours), width=line_width)
        boxes = _bounds(boxes)
    if "keypoints" in objects:
        points = objects["keypoints"]
        states = objects.get("visibility")
        # Below the dots, whose colours tell visible from hidden points.
        canvas = _with_lines(canvas, points, states, lines)
        canvas = _with_dots(canvas, points, states, max_radius=line_width)
    named = [i for i, text in enumerate(texts) if text]
    places = None if boxes is None else boxes[named]
    return draw_texts(canvas, places, [texts[i] for i in named], [colours[i] for i in named])


def _without_angles(boxes: Tensor) -> Tensor:
    """Return boxes ``(N, 5)`` with an angle as their corners ``(N, 8)``, and others unchanged."""
    if boxes.shape[-1] != 5:
        return boxes.as_subclass(Tensor)
    corners: Tensor = functional.convert_bounding_box_format(
        boxes.as_subclass(Tensor), old_format=BoundingBoxFormat.CXCYWHR, new_format=BoundingBoxFormat.XYXYXYXY
    )
    return corners


def _near_canvas(corners: Tensor, canvas: Tensor) -> Tensor:
    """Return corners ``(N, 8)`` at most a canvas away from the canvas.

    torchvision draws the dashes of a side one by one, so a corner far away would take hours.
    """
    height, width = canvas.shape[-2:]
    points = corners.reshape(-1, 2).nan_to_num(0)
    sides = torch.tensor([width, height], dtype=points.dtype)
    return torch.minimum(torch.maximum(points, -sides), 2 * sides).reshape(-1, 8)


def _bounds(boxes: Tensor) -> Tensor:
    """Return the boxes along the axes around boxes ``(N, 4)`` or corners ``(N, 8)``."""
    points = boxes.reshape(len(boxes), -1, 2)
    return torch.cat([points.amin(dim=1), points.amax(dim=1)], dim=1)


def _with_lines(canvas: Tensor, points: Tensor, states: Tensor | None, lines: Sequence[tuple[int, int]]) -> Tensor:
    """Return a canvas with white lines between the points ``(N, K, 2)`` that are not absent."""
    if not lines or not len(points):
        return canvas
    is_present = None if states is None else states > 0
    width = 1 + max(canvas.shape[-2:]) // 340
    drawn: Tensor = draw_keypoints(canvas, points, list(lines), radius=0, width=width, visibility=is_present)
    return drawn


def class_colours(labels: Tensor) -> list[str]:
    """Return the colour ``#rrggbb`` of each class id ``(N,)``, of ten; an object's box, mask and text share it."""
    return [_COLOURS[label % len(_COLOURS)] for label in labels.tolist()]


def draw_points(
    images: Sequence[Tensor] | Tensor,
    keypoints: Sequence[Tensor] | Tensor,
    visibility: Sequence[Tensor] | Tensor | None = None,
    *,
    predicted: Sequence[Tensor] | Tensor | None = None,
    texts: Sequence[str] = (),
    truths: Sequence[str | None] | None = None,
    captions: Sequence[str] = (),
    skeleton: Sequence[tuple[int, int]] = (),
    max_images: int = 16,
    title: str = "",
) -> Figure:
    """Return a figure of object crops with their points.

    Visible points are green, hidden points orange, and absent points are not drawn. Predicted points are red, and white
    lines join them to the true points. With predictions the figure has a legend.

    Args:
        images: ``(3, H, W)`` each, a list or one tensor, uint8 or float in [0, 1].
        keypoints: ``(K, 2)`` each, x and y in pixels.
        visibility: ``(K,)`` each, 0 absent, 1 hidden, 2 visible, or None if all are visible.
        predicted: Predicted points, ``(K, 2)`` each, or None.
        texts: A text to write above each image, or empty.
        truths: True texts, as in `draw_labels`.
        captions: A line to write above each image, or empty.
        skeleton: Positions of points that lines join, if neither is absent; the predicted points if there are some.
        max_images: Maximum number of images.
        title: Title of the figure.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    canvases = []
    for i, image in enumerate(list(images)[:max_images]):
        canvas, zoom = fit_canvas(image, LONGER_SIDE)
        points = keypoints[i].detach().cpu() * zoom
        states = torch.full(points.shape[:1], 2) if visibility is None else visibility[i].cpu()
        if predicted is not None and len(points):
            predicted_points = predicted[i].detach().cpu() * zoom
            pairs = torch.stack([points, predicted_points], 1)
            # An absent point has no line.
            is_present = (states > 0)[:, None].expand(-1, 2)
            canvas = draw_keypoints(canvas, pairs, [(0, 1)], width=1, visibility=is_present)
            canvas = _with_lines(canvas, predicted_points[None], None, skeleton)
            canvas = draw_keypoints(canvas, predicted_points[None], colors="red")
        else:
            canvas = _with_lines(canvas, points[None], states[None], skeleton)
        canvases.append(_with_points(canvas, points[None], states[None]))
    legend = _POINT_LEGEND if predicted is not None else {}
    return _figure(canvases, title, texts, truths, captions=captions, legend=legend)


def draw_labels(
    images: Sequence[Tensor] | Tensor,
    texts: Sequence[str],
    *,
    truths: Sequence[str | None] | None = None,
    captions: Sequence[str] = (),
    max_images: int = 16,
    title: str = "",
) -> Figure:
    """Return a figure of images with a text above each.

    Args:
        images: ``(3, H, W)`` each, a list or one tensor, uint8 or float in [0, 1].
        texts: The label of each image, true or predicted.
        truths: True labels if ``texts`` are predicted, None where a label is unknown. If prediction and truth differ,
            both are written in red.
        captions: A line to write above each image, or empty.
        max_images: Maximum number of images.
        title: Title of the figure.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    canvases = [fit_canvas(image, LONGER_SIDE)[0] for image in list(images)[:max_images]]
    return _figure(canvases, title, texts, truths, captions=captions)


def draw_canvases(canvases: Sequence[Tensor], *, captions: Sequence[str] = (), title: str = "") -> Figure:
    """Return a figure of drawn images, each shown pixel by pixel.

    Args:
        canvases: uint8 ``(3, h, w)`` each.
        captions: A line to write above each image, or empty.
        title: Title of the figure.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    return _figure(list(canvases), title, captions=captions)


def draw_class_report(reports: Sequence[ClassReport], *, max_classes: int = 100, title: str = "classes") -> Figure:
    """Return a figure with a row of three charts for each report.

    The charts show the share of each class in the set, its expected and arrived shares in training, and its metrics, as
    horizontal bars with their values, from the most frequent class to the rarest.

    Args:
        reports: One report for the class, and one for each attribute.
        max_classes: Maximum number of classes of a report. If there are more, the most frequent half and the rarest
            half are drawn.
        title: Title of the figure.

    Raises:
        ValueError: If ``reports`` is empty or ``max_classes`` is below 2.
        ImportError: If matplotlib is not installed.
    """
    if not reports or max_classes < 2:
        raise ValueError(
            f"expected at least 1 report and max_classes of at least 2, got {len(reports)} reports and "
            f"max_classes={max_classes}"
        )
    orders = [_frequent_first(report, max_classes) for report in reports]
    heights = [
        0.24 * max(3, len(order)) * max(1.0, len(report.metrics) * 0.75) + 0.9
        for report, order in zip(reports, orders, strict=True)
    ]
    figure: Figure = require("matplotlib.figure", "plot").Figure(figsize=(12, sum(heights)), layout="constrained")
    axes = figure.subplots(len(reports), 3, squeeze=False, sharey="row", height_ratios=heights)
    for row, report, order in zip(axes, reports, orders, strict=True):
        names = [report.class_names[i] for i in order]
        for axis, (name, bars, form) in zip(row, _charts(report), strict=True):
            known_bars = {key: values[order] for key, values in bars.items() if values is not None}
            axis.set_title(name if len(known_bars) != 1 else next(iter(known_bars)), fontsize=9, loc="left")
            _draw_bars(axis, known_bars, form)
        left_out = len(report.class_names) - len(order)
        note = f"\n{left_out} of {len(report.class_names)}, of medium frequency, are left out" if left_out else ""
        row[0].set_yticks(range(len(order)), [figure_text(name) for name in names], fontsize=8)
        # The most frequent at the top.
        row[0].set_ylim(len(order) - 0.4, -0.6)
        row[0].set_ylabel(report.label + note, fontsize=9)
    if title:
        figure.suptitle(title)
    return figure


def _charts(report: ClassReport) -> list[tuple[str, dict[str, npt.NDArray[np.float64] | None], str]]:
    """Return the title, the series and the number format of each chart of a report."""
    shares = {"expected share": report.expected, "arrived share": report.arrived}
    metrics: dict[str, npt.NDArray[np.float64] | None] = {
        name: np.array([values.get(class_name, math.nan) for class_name in report.class_names])
        for name, values in report.metrics.items()
    }
    return [
        ("share in the set", {"share in the set": report.natural}, "{:.1%}"),
        ("share in training", shares, "{:.1%}"),
        ("metrics", metrics, "{:.3f}"),
    ]


def _frequent_first(report: ClassReport, max_classes: int) -> list[int]:
    """Return indices of the classes by descending share, without the middle if there are too many."""
    shares = report.arrived if report.natural is None else report.natural
    order = list(range(len(report.class_names)))
    if shares is not None:
        order.sort(key=lambda i: -shares[i])
    num_rare = max_classes // 2
    return order if len(order) <= max_classes else order[: max_classes - num_rare] + order[-num_rare:]


def _draw_bars(axis: Any, bars: Mapping[str, npt.NDArray[np.float64]], form: str) -> None:
    """Draw a bar for each value of each series, or the text "not known" without series."""
    axis.tick_params(labelsize=7)
    axis.spines[["top", "right"]].set_visible(False)
    if not bars:
        axis.text(0.5, 0.5, "not known", transform=axis.transAxes, ha="center", fontsize=8)
        axis.set_xticks([])
        return
    height = 0.8 / len(bars)
    for number, (name, values) in enumerate(bars.items()):
        # The bars of one class are side by side, centred at its number.
        places = np.arange(len(values)) + (number - (len(bars) - 1) / 2) * height
        container = axis.barh(places, np.nan_to_num(values), height, label=name, color=_COLOURS[2 - number])
        texts = ["n/a" if math.isnan(value) else form.format(value) for value in values.tolist()]
        axis.bar_label(container, texts, padding=2, fontsize=7 if len(bars) == 1 else 6)
    # Room for the value next to the longest bar.
    axis.margins(x=0.2)
    axis.set_xlim(left=0)
    if len(bars) > 1:
        place = {"loc": "lower right", "bbox_to_anchor": (1, 1), "borderaxespad": 0.2}
        axis.legend(fontsize=7, ncols=len(bars), frameon=False, **place)


def label_texts(
    labels: Tensor, class_names: Sequence[str], *, attributes: Mapping[str, tuple[Tensor, Sequence[str]]] | None = None
) -> list[str]:
    """Return a text for each label, followed by the values of the attributes.

    Args:
        labels: int64 ``(N,)`` from 0, or -1 for unknown; or ``(N, num_classes)``: multi-hot, where -1 is unknown, or
            the proportion of each class, which becomes a text such as ``cat 0.7, dog 0.3``.
        class_names: Names of the classes.
        attributes: For each attribute its ids ``(N,)``, -1 for none, and the names of its values.
    """
    if labels.ndim == 2:
        return [_mixed_text(row, class_names) for row in labels.float()]
    text_by_id = {-1: "unknown"} | dict(enumerate(class_names))
    texts = [text_by_id.get(c, f"label {c}") for c in labels.tolist()]
    for ids, names in (attributes or {}).values():
        values = [f", {names[i]}" if i >= 0 else "" for i in ids.tolist()]
        texts = [text + value for text, value in zip(texts, values, strict=True)]
    return texts


def _mixed_text(label: Tensor, class_names: Sequence[str]) -> str:
    """Return the classes of a vector ``(num_classes,)`` of proportions, the largest first."""
    shares = [(round(share, 2), name) for share, name in zip(label.tolist(), class_names, strict=True)]
    # A class whose share is rounded to 0 cannot be seen in the image.
    visible = sorted((pair for pair in shares if pair[0] > 0), key=lambda pair: -pair[0])
    return ", ".join(name if share == 1 else f"{name} {share:g}" for share, name in visible) or "none"


def fit_canvas(image: Tensor, longer_side: int) -> tuple[Tensor, float]:
    """Return an image as uint8, resized so that its longer side is about ``longer_side``, and the scale factor."""
    pixels = image.detach().cpu()
    if pixels.dtype != torch.uint8:
        pixels = pixels.float()
        low, high = pixels.aminmax()
        # A normalised image, whose mean and deviation are unknown.
        if low < -0.1 or high > 1.1:
            pixels = (pixels - low) / (high - low)
        pixels = (pixels.clamp(0, 1) * 255).round().to(torch.uint8)
    height, width = pixels.shape[-2:]
    zoom = longer_side / max(height, width)
    mode = InterpolationMode.BILINEAR
    if zoom >= 3:
        # A whole factor shows the pixels of a small image as squares of one size.
        zoom = int(zoom)
        mode = InterpolationMode.NEAREST
    size = [max(1, round(height * zoom)), max(1, round(width * zoom))]
    return functional.resize(pixels, size, mode), zoom


def _with_points(canvas: Tensor, points: Tensor, visibility: Tensor | None, *, radius: int = 3) -> Tensor:
    states = torch.full(points.shape[:2], 2) if visibility is None else visibility
    for state, colour in _POINT_COLOURS.items():
        if (states == state).any():
            canvas = draw_keypoints(canvas, points, colors=colour, radius=radius, visibility=states == state)
    return canvas


def _with_dots(canvas: Tensor, points: Tensor, visibility: Tensor | None, *, max_radius: int) -> Tensor:
    """Draw the points of objects, with smaller dots where large ones would hide the object under them."""
    num_objects, num_points = points.shape[:2]
    if num_points == 0:
        return canvas
    states = torch.full((num_objects, num_points), 2) if visibility is None else visibility
    is_present = (states > 0)[..., None]
    low = points.masked_fill(~is_present, math.inf).amin(dim=1)
    high = points.masked_fill(~is_present, -math.inf).amax(dim=1)
    # Side of the square that a point of the object has for itself; negative or NaN without points, and then unused.
    spacing = ((high - low).clamp(min=1).prod(dim=1) / num_points).sqrt()
    radii = (spacing / _SPACING).nan_to_num(1).clamp(1, max_radius).long()
    for radius in sorted(set(radii.tolist())):
        objects = radii == radius
        canvas = _with_points(canvas, points[objects], states[objects], radius=radius)
    return canvas


def _figure(
    canvases: list[Tensor],
    title: str,
    texts: Sequence[str] = (),
    truths: Sequence[str | None] | None = None,
    *,
    halves: Sequence[str] = (),
    captions: Sequence[str] = (),
    legend: Mapping[str, str] | None = None,
) -> Figure:
    """Return a figure of canvases in rows, each shown pixel by pixel.

    Args:
        canvases: uint8 ``(3, h, w)`` each.
        title: Title of the figure.
        texts: A text to write above each canvas, or empty.
        truths: True texts, as in `draw_labels`.
        halves: Captions of the left and the right half of each canvas, or empty.
        captions: A line above the text of each canvas, or empty.
        legend: Colours of the points by meaning.
    """
    cell_height, cell_width = (max((canvas.shape[side] for canvas in canvases), default=LONGER_SIDE) for side in (1, 2))
    # As many columns as make the figure about square.
    columns = max(1, round(math.sqrt(len(canvases) * cell_height / cell_width)))
    rows = max(1, math.ceil(len(canvases) / columns))
    caption_height = 18 if captions else 0
    text_height = caption_height + (24 if texts or halves else 0)
    # Pixels above the canvases for the title and the legend.
    head = 40 * (bool(title) + bool(legend))
    width = columns * (cell_width + _MARGIN) + _MARGIN
    height = rows * (cell_height + text_height + _MARGIN) + _MARGIN + head
    size = (width / _DPI, height / _DPI)
    figure: Figure = require("matplotlib.figure", "plot").Figure(figsize=size, dpi=_DPI)
    for i, canvas in enumerate(canvases):
        row, column = divmod(i, columns)
        x = _MARGIN + column * (cell_width + _MARGIN)
        top = head + _MARGIN + row * (cell_height + text_height + _MARGIN) + text_height
        bottom = height - top - canvas.shape[1]
        place = (x / width, bottom / height, canvas.shape[2] / width, canvas.shape[1] / height)
        # Subplots would resample the canvas and blur its texts.
        axis = figure.add_axes(place)
        axis.axis("off")
        axis.imshow(canvas.permute(1, 2, 0).numpy(), aspect="auto")
        if texts:
            truth = None if truths is None else truths[i]
            wrong = truth not in (None, texts[i])
            text = f"{texts[i]} (true: {truth})" if wrong else texts[i]
            axis.set_title(figure_text(text, cell_width // 8), fontsize=9, color=_COLOURS[0] if wrong else "black")
        if captions:
            caption = figure_text(captions[i], cell_width // 7)
            axis.text(0, -5 - (text_height - caption_height), caption, fontsize=8, color="#555555")
        for number, half in enumerate(halves):
            axis.text(number * (canvas.shape[2] + _PAIR_GAP) / 2, -5, half, fontsize=8)
    if title:
        figure.suptitle(title, y=1 - 20 / height, va="center")
    if legend:
        line = require("matplotlib.lines", "plot").Line2D
        handles = [line([], [], marker="o", ls="", color=colour, label=name) for name, colour in legend.items()]
        anchor = (0.5, 1 - (60 if title else 20) / height)
        figure.legend(handles=handles, loc="center", ncols=3, fontsize=8, frameon=False, bbox_to_anchor=anchor)
    return figure
