"""Pictures of predictions, beside what is true, for every kind of batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from lit_loader.collate import ClassificationBatch, LandmarkBatch, batch_images, batch_targets
from lit_loader.datamodules.pictures import draw_boxes, draw_labels, draw_points, label_texts
from lit_loader.datamodules.table_module import TableDataModule
from lit_loader.types import FIRST_LABEL

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_found"]


def draw_found(
    datamodule: TableDataModule,
    batch: Any,
    found: Any,
    *,
    min_score: float = 0.5,
    max_images: int = 16,
    title: str = "predictions",
) -> Figure:
    """Return a picture of a batch with what a task found in it.

    Boxes are the predicted ones, with their masks, points and attributes, and to the left of them the true ones where
    the batch has some. Of a batch of crops, points are drawn in red,
    joined to the true ones where there are some; of it, and of a classified batch, a wrong label is red, with the true
    one in brackets where that is known.

    Args:
        datamodule: The data module that gave the batch.
        batch: A batch as the model gets it.
        found: What ``predict_step`` of a task of `lit_loader.recipes` returns for it.
        min_score: Detections below it are left out.
        max_images: Images drawn at most.
        title: The figure's title.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    drawing: dict[str, Any] = {"max_images": max_images, "title": title}
    names = datamodule.class_names
    if isinstance(batch, LandmarkBatch):
        if "class_logits" in found:
            drawing["texts"] = label_texts(found["class_logits"].argmax(dim=1), names)
            drawing["truths"] = _truths(batch.labels, names)
        points, seen = found["keypoints"], batch.visibility
        if batch.keypoints.shape[1] == points.shape[1]:
            return draw_points(batch.images, batch.keypoints, seen, predicted=points, **drawing)
        nowhere = seen.new_zeros(points.shape[:2])  # a set to predict on may have no points
        return draw_points(batch.images, points, nowhere, predicted=points, **drawing)
    if isinstance(batch, ClassificationBatch):
        labels = found > 0.5 if batch.labels.ndim == 2 else found.argmax(dim=1)
        return draw_labels(
            batch.images, label_texts(labels, names), truths=_truths(batch.labels, names), **drawing
        )
    return draw_boxes(
        batch_images(batch),
        found,
        class_names=names,
        first_label=getattr(datamodule, "first_label", FIRST_LABEL),
        attributes=datamodule.attributes,
        truths=_true_targets(batch),
        min_score=min_score,
        **drawing,
    )


def _true_targets(batch: Any) -> Sequence[Mapping[str, Any]] | None:
    """Return the targets of a batch, None where there are none, or they come as columns."""
    try:
        targets = batch_targets(batch)
    except TypeError:
        # A collate function of the user's may give columns, of which the predictions alone are drawn.
        return None
    return targets if any(len(target.get("boxes", ())) for target in targets) else None


def _truths(labels: Tensor, names: Sequence[str]) -> list[str | None]:
    """Return the true labels' texts, None where a label is -1: not known."""
    known = [True] * len(labels) if labels.ndim == 2 else (labels >= 0).tolist()
    return [
        text if is_known else None for text, is_known in zip(label_texts(labels, names), known, strict=True)
    ]
