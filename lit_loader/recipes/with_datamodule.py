"""Recipes and data modules together: a model's arguments that follow from the data, and pictures of predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from lit_loader.collate import ClassificationBatch, LandmarkBatch, batch_images
from lit_loader.datamodules import (
    ClassificationDataModule,
    LandmarkDataModule,
    MultiTaskDataModule,
    TableDataModule,
    draw_boxes,
    draw_labels,
    draw_points,
    label_texts,
)

if TYPE_CHECKING:  # matplotlib is an extra
    from matplotlib.figure import Figure

__all__ = ["draw_predictions", "model_kwargs_from_datamodule"]


def model_kwargs_from_datamodule(datamodule: TableDataModule) -> dict[str, Any]:
    """Return the keywords of the task's recipe that follow from the data.

    A landmark recipe gets a head for the class where the data has more than one.

    Args:
        datamodule: One whose data is prepared.

    Returns:
        For `DetectionModule` ``class_names``; for `ClassificationModule` ``multi_label`` too; for
        `LandmarkModule` and `MultiTaskModule` also ``keypoint_names`` and ``normalization_pair``, for the latter
        ``attributes``. Plain lists, so that a checkpoint can keep them.

    Raises:
        ValueError: If the data has no classes, or a landmark set no points.
    """
    classes = list(datamodule.class_names)
    if not classes:
        raise ValueError(
            f"expected a source with classes, got one without for {type(datamodule).__name__}; give it a split with "
            "labels, or class_names=[...]"
        )
    if isinstance(datamodule, ClassificationDataModule):
        return {"class_names": classes, "multi_label": datamodule.multi_label}
    if not isinstance(datamodule, LandmarkDataModule | MultiTaskDataModule):
        return {"class_names": classes}
    schema = datamodule.keypoint_schema
    points: dict[str, Any] = {"keypoint_names": [], "normalization_pair": None}
    if schema is not None:
        pair = None if schema.normalization_pair is None else list(schema.normalization_pair)
        points = {"keypoint_names": list(schema.names), "normalization_pair": pair}
    if isinstance(datamodule, MultiTaskDataModule):
        values = {name: list(names) for name, names in datamodule.attributes.items()}
        return {"class_names": classes, **points, "attributes": values}
    if schema is None:
        raise ValueError("the data has no points; read it with a keypoint schema, or train another task")
    return {**points, "class_names": classes if len(classes) > 1 else None}


def draw_predictions(
    model: LightningModule,
    datamodule: TableDataModule,
    batch: Any,
    *,
    min_score: float = 0.5,
    max_images: int = 16,
) -> Figure:
    """Return a picture of a batch with a recipe's predictions.

    Boxes are the predicted ones, with their points and attributes. Of a batch of crops, points are drawn as
    crosses, joined to the true ones where there are some; of it, and of a classified batch, a wrong label is red,
    with the true one in brackets where that is known.

    Args:
        model: A recipe; put into evaluation mode.
        datamodule: The data module that gave the batch.
        batch: A batch as the model gets it.
        min_score: Detections below it are left out.
        max_images: Images drawn at most.
    """
    with torch.inference_mode():
        found = model.eval().predict_step(batch, 0)
    drawing: dict[str, Any] = {"max_images": max_images, "title": "predictions"}
    names = datamodule.class_names
    if isinstance(batch, LandmarkBatch):
        if "class_logits" in found:
            drawing["texts"] = label_texts(found["class_logits"].argmax(dim=1), names)
            drawing["truths"] = _truths(batch.labels, names)
        points, seen = found["keypoints"], batch.visibility
        if batch.keypoints.shape[1] == points.shape[1]:
            return draw_points(batch.images, batch.keypoints, seen, predicted=points, **drawing)
        nowhere = torch.zeros(points.shape[:2], dtype=torch.uint8)  # a set to predict on may have no points
        return draw_points(batch.images, points, nowhere, predicted=points, **drawing)
    if isinstance(batch, ClassificationBatch):
        labels = found > 0.5 if batch.labels.ndim == 2 else found.argmax(dim=1)
        return draw_labels(
            batch.images, label_texts(labels, names), truths=_truths(batch.labels, names), **drawing
        )
    held = found[0] if found else {}
    return draw_boxes(
        batch_images(batch),
        found,
        class_names=names,
        attributes={name: values for name, values in datamodule.attributes.items() if name in held},
        min_score=min_score,
        **drawing,
    )


def _truths(labels: Tensor, names: Sequence[str]) -> list[str | None]:
    """Return the true labels' texts, None where a label is -1: not known."""
    known = [True] * len(labels) if labels.ndim == 2 else (labels >= 0).tolist()
    return [
        text if is_known else None for text, is_known in zip(label_texts(labels, names), known, strict=True)
    ]
