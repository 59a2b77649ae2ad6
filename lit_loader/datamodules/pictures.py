"""Pictures: a batch of images with their boxes, drawn with matplotlib without a display."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

__all__ = ["draw_boxes"]

_COLOURS = ("#e6194b", "#3cb44b", "#4363d8", "#f58231", "#911eb4", "#008080", "#9a6324", "#800000")


def draw_boxes(
    images: Sequence[torch.Tensor],
    targets: Sequence[Mapping[str, Any]],
    *,
    class_names: Sequence[str],
    first_label: int = 1,
    min_score: float = 0.0,
    max_images: int = 16,
    title: str = "",
) -> Figure:
    """Return a figure of images with their boxes.

    Args:
        images: ``(3, H, W)`` each, uint8 or float in [0, 1].
        targets: ``boxes`` (N, 4) xyxy in pixels and ``labels`` (N,); with ``scores`` (N,) detections.
        class_names: Names of the classes.
        first_label: The label of the first class.
        min_score: Detections below it are left out.
        max_images: Images drawn at most.
        title: The figure's title.
    """
    count = min(len(images), max_images)
    columns = max(1, math.ceil(math.sqrt(count)))
    rows = max(1, math.ceil(count / columns))
    figure = Figure(figsize=(3 * columns, 3 * rows + 0.4), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for axis in axes:
        axis.axis("off")
    for axis, image, target in zip(axes, images[:count], targets[:count], strict=False):
        pixels = image.float() / 255 if image.dtype == torch.uint8 else image
        axis.imshow(pixels.clamp(0, 1).permute(1, 2, 0).cpu().numpy())
        scores = target.get("scores")
        for row, (box, label) in enumerate(
            zip(target["boxes"].tolist(), target["labels"].tolist(), strict=True)
        ):
            if scores is not None and float(scores[row]) < min_score:
                continue
            class_id = label - first_label
            colour = _COLOURS[class_id % len(_COLOURS)]
            left, top, right, bottom = box
            axis.add_patch(
                Rectangle(
                    (left, top), right - left, bottom - top, fill=False, edgecolor=colour, linewidth=1.2
                )
            )
            known = 0 <= class_id < len(class_names)
            text = class_names[class_id] if known else f"label {label}"
            if scores is not None:
                text = f"{text} {float(scores[row]):.2f}"
            label_box = {"facecolor": colour, "edgecolor": "none", "pad": 1.0, "alpha": 0.85}
            axis.text(left, top, text, color="white", fontsize=7, va="bottom", clip_on=True, bbox=label_box)
    if title:
        figure.suptitle(title)
    return figure
