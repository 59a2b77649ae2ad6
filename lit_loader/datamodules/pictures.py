"""Pictures: a batch of images with boxes, points and labels, drawn with matplotlib without a display."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke
from torch import Tensor

from lit_loader.types import FIRST_LABEL

__all__ = ["draw_boxes", "draw_labels", "draw_points", "label_texts"]

_COLOURS = ("#e6194b", "#3cb44b", "#4363d8", "#f58231", "#911eb4", "#008080", "#9a6324", "#800000")
_HIDDEN = 1  # visibility of a point that is there and not to be seen


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
    """Return a figure of images with their boxes and, where targets have them, points and attributes.

    Args:
        images: ``(3, H, W)`` each, a list or one tensor, uint8 or float in [0, 1].
        targets: ``boxes`` (N, 4) xyxy in pixels and ``labels`` (N,); with ``scores`` (N,) detections. With
            ``keypoints`` (N, K, 2) the points are drawn, of which ``visibility`` (N, K) says what is there.
        class_names: Names of the classes.
        first_label: The label of the first class.
        attributes: Names of the values of each attribute to write beside the class; the targets hold its ids
            (N,) by its name, -1 for none.
        min_score: Detections below it are left out.
        max_images: Images drawn at most.
        title: The figure's title.
    """
    figure, axes = _grid(images, max_images=max_images, title=title)
    for axis, target in zip(axes, targets, strict=False):
        scores = target.get("scores")
        keep = [scores is None or float(scores[row]) >= min_score for row in range(len(target["labels"]))]
        texts = label_texts(
            target["labels"] - first_label,
            class_names,
            attributes={name: (target[name], names) for name, names in (attributes or {}).items()},
        )
        for row, (box, label) in enumerate(
            zip(target["boxes"].tolist(), target["labels"].tolist(), strict=True)
        ):
            if not keep[row]:
                continue
            colour = _COLOURS[(label - first_label) % len(_COLOURS)]
            left, top, right, bottom = box
            axis.add_patch(
                Rectangle(
                    (left, top), right - left, bottom - top, fill=False, edgecolor=colour, linewidth=1.2
                )
            )
            text = texts[row] if scores is None else f"{texts[row]} {float(scores[row]):.2f}"
            label_box = {"facecolor": colour, "edgecolor": "none", "pad": 1.0, "alpha": 0.85}
            axis.text(left, top, text, color="white", fontsize=7, va="bottom", clip_on=True, bbox=label_box)
            if "keypoints" in target:
                seen = target["visibility"][row] if "visibility" in target else None
                _scatter(axis, target["keypoints"][row], seen)
    return figure


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
    """Return a figure of object crops with their points, each position in a colour of its own.

    A visible point is a full dot, a hidden one a ring, an absent one is not drawn; a predicted one is a cross,
    joined to the true one where there is one.

    Args:
        images: ``(3, H, W)`` each, a list or one tensor, uint8 or float in [0, 1].
        keypoints: ``(K, 2)`` each, x and y in pixels.
        visibility: ``(K,)`` each, 0 absent, 1 hidden, 2 visible; None: all are visible.
        predicted: ``(K, 2)`` each.
        texts: One for each image, written above it; may be left out.
        truths: As for `draw_labels`.
        max_images: Images drawn at most.
        title: The figure's title.
    """
    figure, axes = _grid(images, max_images=max_images, title=title)
    for i, axis in enumerate(axes):
        seen = None if visibility is None else visibility[i]
        _scatter(axis, keypoints[i], seen)
        if predicted is not None:
            _scatter(axis, predicted[i], None, marker="x")
            _join(axis, keypoints[i], predicted[i], seen)
        if texts:
            _write_title(axis, texts[i], None if truths is None else truths[i])
    return figure


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
    """
    figure, axes = _grid(images, max_images=max_images, title=title)
    for i, axis in enumerate(axes):
        _write_title(axis, texts[i], None if truths is None else truths[i])
    return figure


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
        return [
            ", ".join(class_names[c] for c in row.nonzero().flatten().tolist()) or "none" for row in labels
        ]
    texts = [class_names[c] if 0 <= c < len(class_names) else f"label {c}" for c in labels.tolist()]
    for ids, names in (attributes or {}).values():
        texts = [
            f"{text}, {names[i]}" if i >= 0 else text for text, i in zip(texts, ids.tolist(), strict=True)
        ]
    return texts


def _grid(images: Sequence[Tensor] | Tensor, *, max_images: int, title: str) -> tuple[Figure, list[Axes]]:
    """Return a figure and the axes of its first images, in their pixels' coordinates: (0, 0) is a corner."""
    count = min(len(images), max_images)
    columns = max(1, math.ceil(math.sqrt(count)))
    rows = max(1, math.ceil(count / columns))
    figure = Figure(figsize=(3 * columns, 3 * rows + 0.4), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flatten())
    for axis in axes:
        axis.axis("off")
    for axis, image in zip(axes, list(images[:count]), strict=False):
        pixels = image.float() / 255 if image.dtype == torch.uint8 else image
        height, width = image.shape[-2:]
        axis.imshow(pixels.clamp(0, 1).permute(1, 2, 0).cpu().numpy(), extent=(0, width, height, 0))
        axis.autoscale(False)  # a point outside must not shrink the image
    if title:
        figure.suptitle(title)
    return figure, axes[:count]


def _write_title(axis: Axes, text: str, truth: str | None) -> None:
    wrong = truth is not None and truth != text
    axis.set_title(
        f"{text} ({truth})" if wrong else text, fontsize=7, color=_COLOURS[0] if wrong else "black"
    )


def _scatter(axis: Axes, points: Tensor, visibility: Tensor | None, *, marker: str = "o") -> None:
    seen = [2] * len(points) if visibility is None else visibility.tolist()
    for k, ((x, y), state) in enumerate(zip(points.tolist(), seen, strict=True)):
        if state == 0:
            continue
        colour = _COLOURS[k % len(_COLOURS)]
        face = "none" if state == _HIDDEN and marker == "o" else colour
        axis.plot(
            x,
            y,
            marker,
            markersize=5,
            markeredgecolor=colour,
            markerfacecolor=face,
            path_effects=[withStroke(linewidth=2.5, foreground="white")],  # seen on any background
        )


def _join(axis: Axes, true: Tensor, predicted: Tensor, visibility: Tensor | None) -> None:
    for k, ((x, y), (found_x, found_y)) in enumerate(zip(true.tolist(), predicted.tolist(), strict=True)):
        if visibility is None or int(visibility[k]) > 0:
            axis.plot([x, found_x], [y, found_y], linewidth=0.8, color=_COLOURS[k % len(_COLOURS)])
