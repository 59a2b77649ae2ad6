"""Sampling weights and labels of images, computed from table columns without opening images."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from lit_loader.annotations.columns import offsets_of, sorted_unique
from lit_loader.annotations.table import AnnotationTable
from lit_loader.types import IndexArray

__all__ = ["LabelSets", "class_weights", "image_labels", "image_weights", "label_counts"]


class LabelSets(NamedTuple):
    """Distinct labels of each image as one ragged list.

    Attributes:
        offsets: int64 ``(num_images + 1,)``; image ``i`` has ``classes[offsets[i]:offsets[i + 1]]``.
        classes: int64, ids of classes or of attribute values, ascending within an image.
    """

    offsets: IndexArray
    classes: IndexArray


def image_labels(table: AnnotationTable, by: str | None = None) -> LabelSets:
    """Return the distinct labels of each image.

    Args:
        table: The images.
        by: None for the classes, or the name of an attribute.

    Returns:
        The labels; none for an image without objects, or whose objects have no value.

    Raises:
        ValueError: If the table has no such attribute.
    """
    ids, names = table.labels_of(by)
    # A table without names has no labels, and must not divide by zero.
    stride = max(len(names), 1)
    # Unique (image, label) cells, sorted, so the labels of an image are consecutive and ascending.
    cells = sorted_unique((table.image_of_object() * stride + ids)[ids >= 0])
    counts = np.bincount(cells // stride, minlength=table.num_images)
    return LabelSets(offsets=offsets_of(counts), classes=cells % stride)


def label_counts(table: AnnotationTable, by: str | None = None) -> IndexArray:
    """Return the number of objects of each label, int64 ``(num_names,)``.

    Args:
        table: The objects.
        by: None for the classes, or the name of an attribute; objects without a value are not counted.

    Raises:
        ValueError: If the table has no such attribute.
    """
    ids, names = table.labels_of(by)
    return np.bincount(ids[ids >= 0], minlength=len(names)).astype(np.int64)


def class_weights(counts: npt.ArrayLike, *, exponent: float = 1.0) -> npt.NDArray[np.float64]:
    """Return a weight for each class that decreases with its count.

    ``w_c = (N / (C * n_c)) ** exponent`` with ``n_c`` the count of class ``c``, ``N`` the sum of all
    counts and ``C`` the number of classes with ``n_c > 0``; a class without objects gets 0. With exponent 1
    every class has the same total ``w_c * n_c``; with 0 all weights are 1.

    Args:
        counts: ``(num_classes,)`` counts, >= 0.
        exponent: Between 0 (classes stay unbalanced) and 1 (classes are balanced).

    Returns:
        float64 ``(num_classes,)``.

    Raises:
        ValueError: If a count is negative or not finite, or the exponent is outside [0, 1].
    """
    values = np.asarray(counts, dtype=np.float64)
    if values.ndim != 1 or not np.isfinite(values).all() or (values < 0).any():
        raise ValueError(f"counts={values.tolist()} must be a vector of finite numbers >= 0")
    if not 0.0 <= exponent <= 1.0:
        raise ValueError(f"exponent={exponent} must be in [0, 1]")
    present = values > 0
    weights = np.zeros_like(values)
    # Classes without objects keep weight 0, and do not count among the C classes.
    weights[present] = (values.sum() / (present.sum() * values[present])) ** exponent
    return weights


def image_weights(
    table: AnnotationTable,
    weights: npt.ArrayLike,
    *,
    by: str | None = None,
    reduce: Literal["mean", "max", "sum"] = "mean",
    empty_weight: float | None = None,
) -> npt.NDArray[np.float64]:
    """Return a sampling weight for each image, computed from the weights of its objects' labels.

    Args:
        table: The images.
        weights: ``(num_names,)`` weight of each label, e.g. from ``class_weights``; finite, >= 0.
        by: None for the classes, or the name of an attribute; objects without a value are ignored.
        reduce: ``"mean"``, ``"max"`` or ``"sum"`` of the weights of the image's objects. With ``"sum"``, images with
            many objects are drawn more often.
        empty_weight: Weight of an image without labelled objects, or None for the smallest weight of the other images
            (1 if there are none).

    Returns:
        float64 ``(num_images,)``.

    Raises:
        ValueError: If the weights do not fit the table's labels, or ``by`` or ``reduce`` is unknown.
    """
    # Objects without a value have the id -1.
    ids, names = table.labels_of(by)
    per_label = np.asarray(weights, dtype=np.float64)
    if per_label.shape != (len(names),):
        labels = "classes" if by is None else f"values of {by!r}"
        raise ValueError(f"expected one weight for each of {len(names)} {labels}, got shape {per_label.shape}")
    if not np.isfinite(per_label).all() or (per_label < 0).any():
        raise ValueError(f"weights={per_label.tolist()} must be finite and >= 0")
    if empty_weight is not None and not (np.isfinite(empty_weight) and empty_weight >= 0):
        raise ValueError(f"empty_weight={empty_weight} must be finite and >= 0")
    if reduce not in ("mean", "max", "sum"):
        raise ValueError(f"reduce={reduce!r} must be 'mean', 'max' or 'sum'")
    has_label = ids >= 0
    images = table.image_of_object()[has_label]
    object_weights = per_label[ids[has_label]]
    num_objects = np.bincount(images, minlength=table.num_images)
    is_filled = num_objects > 0
    result = np.bincount(images, weights=object_weights, minlength=table.num_images).astype(np.float64)
    if reduce == "max":
        result[:] = 0.0
        # `result[images] = ...` would keep the last object of an image, not the largest.
        np.maximum.at(result, images, object_weights)
    elif reduce == "mean":
        result[is_filled] /= num_objects[is_filled]
    # By default as rare as the rarest other image, because a weight of 0 would exclude these images.
    if not is_filled.all():
        smallest = float(result[is_filled].min()) if is_filled.any() else 1.0
        result[~is_filled] = smallest if empty_weight is None else empty_weight
    return result
