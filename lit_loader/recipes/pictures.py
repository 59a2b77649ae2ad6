"""Pictures of what a recipe finds in a batch, beside what is true."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningModule
from matplotlib.figure import Figure

from lit_loader.collate import ClassificationBatch, LandmarkBatch, batch_images
from lit_loader.datamodules import TableDataModule, draw_boxes, draw_labels, draw_points, label_texts

__all__ = ["draw_predictions"]


def draw_predictions(
    model: LightningModule,
    datamodule: TableDataModule,
    batch: Any,
    *,
    min_score: float = 0.5,
    max_images: int = 16,
) -> Figure:
    """Return a picture of a batch with a recipe's predictions.

    Boxes are the predicted ones; points are drawn as crosses, joined to the true ones; a wrong label is red,
    with the true one in brackets.

    Args:
        model: A recipe; put into evaluation mode.
        datamodule: The data module that gave the batch.
        batch: A batch as the model gets it.
        min_score: Detections below it are left out.
        max_images: Images drawn at most.
    """
    with torch.inference_mode():
        found = model.eval().predict_step(batch, 0)
    if isinstance(batch, LandmarkBatch):
        texts = []
        if "class_logits" in found:
            texts = label_texts(found["class_logits"].argmax(dim=1), datamodule.class_names)
        return draw_points(
            batch.images,
            batch.keypoints,
            batch.visibility,
            predicted=found["keypoints"],
            texts=texts,
            max_images=max_images,
            title="predictions",
        )
    if isinstance(batch, ClassificationBatch):
        labels = found > 0.5 if batch.labels.ndim == 2 else found.argmax(dim=1)
        return draw_labels(
            batch.images,
            label_texts(labels, datamodule.class_names),
            truths=label_texts(batch.labels, datamodule.class_names),
            max_images=max_images,
            title="predictions",
        )
    return draw_boxes(
        batch_images(batch),
        found,
        class_names=datamodule.class_names,
        attributes=datamodule.attributes,
        min_score=min_score,
        max_images=max_images,
        title="predictions",
    )
