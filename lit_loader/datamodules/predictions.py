"""Pictures of predictions next to the ground truth, for every kind of batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lit_loader.collate import ClassificationBatch, LandmarkBatch, batch_images, batch_targets
from lit_loader.datamodules.pictures import draw_boxes, draw_labels, draw_points, label_texts
from lit_loader.datamodules.table_module import TableDataModule

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_found"]


def draw_found(
    datamodule: TableDataModule,
    batch: Any,
    predictions: Any,
    *,
    truths: Sequence[Mapping[str, Any]] | None = None,
    captions: Sequence[str] = (),
    min_score: float = 0.5,
    max_images: int = 16,
    title: str = "predictions",
) -> Figure:
    """Return a picture of a batch with a task's predictions.

    Of whole images, the predicted boxes are drawn with their masks, points and attributes, and to the left of them the
    true boxes, if the batch has any. Of object crops, predicted points are red and joined to the true points, if there
    are any. Of crops, with their attributes, and classified images, a wrong label is red, followed by the true label in
    brackets, if known.

    Args:
        datamodule: The data module that made the batch.
        batch: A batch as the model gets it.
        predictions: The result of ``predict_step`` of a task of `lit_loader.recipes` for the batch.
        truths: True targets of whole images, as in `draw_boxes`, or None for the targets of the batch.
        captions: A line to write above each image, such as its path, or empty.
        min_score: Detections with a lower score are left out.
        max_images: Maximum number of images.
        title: Title of the figure.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    drawing: dict[str, Any] = {"captions": captions, "max_images": max_images, "title": title}
    skeleton = _skeleton(datamodule, predictions)
    names = datamodule.class_names
    if isinstance(batch, LandmarkBatch):
        drawing |= _crop_texts(datamodule, batch, predictions)
        predicted = predictions["keypoints"]
        keypoints = batch.keypoints
        visibility = batch.visibility
        # A prediction set without points.
        if keypoints.shape[1] != predicted.shape[1]:
            keypoints = predicted
            visibility = visibility.new_zeros(predicted.shape[:2])
        return draw_points(batch.images, keypoints, visibility, predicted=predicted, skeleton=skeleton, **drawing)
    if isinstance(batch, ClassificationBatch):
        # Each class of a multi-label prediction has a probability of its own, from a sigmoid. Labels of mixed batches
        # also have two dimensions.
        is_multi_label = getattr(datamodule, "multi_label", batch.labels.ndim == 2)
        labels = predictions > 0.5 if is_multi_label else predictions.argmax(dim=1)
        return draw_labels(batch.images, label_texts(labels, names), truths=_truths(batch.labels, names), **drawing)
    return draw_boxes(
        batch_images(batch),
        predictions,
        class_names=names,
        first_label=datamodule.first_label,
        attributes=datamodule.attributes,
        truths=_true_targets(batch) if truths is None else truths,
        min_score=min_score,
        skeleton=skeleton,
        **drawing,
    )


def _crop_texts(datamodule: TableDataModule, batch: LandmarkBatch, predictions: Mapping[str, Any]) -> dict[str, Any]:
    """Return the predicted labels of crops as ``texts``, and the true ones as ``truths``; empty without predictions."""
    logits = predictions.get("attribute_logits", {})
    # The data of a prediction may have other attributes than the model.
    values = {name: names for name, names in datamodule.attributes.items() if name in logits}
    if "class_logits" not in predictions and not values:
        return {}
    names = datamodule.class_names
    # Without a class head, the annotated class precedes the attributes.
    labels = predictions["class_logits"].argmax(dim=1) if "class_logits" in predictions else batch.labels
    attributes = {name: (logits[name].argmax(dim=1), value_names) for name, value_names in values.items()}
    true_values = {name: (batch.attributes[name], value_names) for name, value_names in values.items()}
    predicted_ids = torch.stack([labels, *(ids for ids, _ in attributes.values())])
    true_ids = torch.stack([batch.labels, *(ids for ids, _ in true_values.values())])
    # Part by part, since an object with an unknown attribute may still have a wrong class.
    is_wrong = ((true_ids >= 0) & (true_ids != predicted_ids)).any(dim=0).tolist()
    true_texts = label_texts(batch.labels, names, attributes=true_values)
    truths = [text if wrong else None for text, wrong in zip(true_texts, is_wrong, strict=True)]
    return {"texts": label_texts(labels, names, attributes=attributes), "truths": truths}


def _skeleton(datamodule: TableDataModule, predictions: Any) -> Sequence[tuple[int, int]]:
    """Return the lines between the points of the data, or none if a model predicts another number of points."""
    schema = datamodule.keypoint_schema
    num_points = {item["keypoints"].shape[-2] for item in _mappings(predictions) if "keypoints" in item}
    return schema.skeleton if schema is not None and num_points <= {len(schema.names)} else ()


def _mappings(predictions: Any) -> list[Mapping[str, Any]]:
    """Return the predictions of a batch that have names: one mapping, or one per image."""
    items = [predictions] if isinstance(predictions, Mapping) else predictions
    return [] if isinstance(items, Tensor) else list(items)


def _true_targets(batch: Any) -> Sequence[Mapping[str, Any]] | None:
    """Return the targets of a batch, or None if it has none, or has columns instead of targets."""
    try:
        targets = batch_targets(batch)
    except TypeError:
        # A user's collate function may return columns; then only the predictions are drawn.
        return None
    return targets if any(len(target.get("boxes", ())) for target in targets) else None


def _truths(labels: Tensor, names: Sequence[str]) -> list[str | None]:
    """Return the texts of the true labels, or None where the label is -1, which means unknown."""
    known_rows = [True] * len(labels) if labels.ndim == 2 else (labels >= 0).tolist()
    texts = label_texts(labels, names)
    return [text if is_known else None for text, is_known in zip(texts, known_rows, strict=True)]
