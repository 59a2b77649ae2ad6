"""Sampling weights and labels of images, from the table's columns alone: no image is opened."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from lit_loader.annotations.columns import offsets_of
from lit_loader.annotations.table import AnnotationTable
from lit_loader.types import IndexArray

__all__ = ["LabelSets", "class_weights", "image_labels", "image_weights", "label_counts"]


class LabelSets(NamedTuple):
    """The distinct labels of each image as one ragged list.

    Attributes:
        offsets: int64 ``(num_images + 1,)``; image ``i`` has ``classes[offsets[i]:offsets[i + 1]]``.
        classes: int64, ids of classes or of an attribute's values, rising within an image.
    """

    offsets: IndexArray
    classes: IndexArray


def image_labels(table: AnnotationTable, by: str | None = None) -> LabelSets:
    """Return the distinct labels of each image.

    Args:
        table: The images.
        by: None for the classes, or the name of an attribute.

    Returns:
        The labels; an image without objects, or whose objects have no value, has none.

    Raises:
        ValueError: If the table has no such attribute.
    """
    ids, names = table.labels_of(by)
    stride = max(len(names), 1)
    cells = np.unique((table.image_of_object() * stride + ids)[ids >= 0])
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
    """Return a weight for each class that falls with its count.

    ``w_c = (N / (C * n_c)) ** exponent`` with ``n_c`` the count of class ``c``, ``N`` the sum of all
    counts and ``C`` the number of classes with ``n_c > 0``; a class without objects gets 0. With exponent 1
    every class has the same total ``w_c * n_c``; with 0 all weights are 1.

    Args:
        counts: ``(num_classes,)`` counts, >= 0.
        exponent: In [0, 1]: 0 leaves the classes as they are, 1 balances them.

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
    """Return a sampling weight for each image from the weights of its objects' labels.

    Args:
        table: The images.
        weights: ``(num_names,)`` weight of each label, e.g. from ``class_weights``; finite, >= 0.
        by: None for the classes, or the name of an attribute; objects without a value do not count.
        reduce: ``"mean"`` over the image's objects; ``"max"``: its heaviest label decides; ``"sum"``:
            images with many objects are drawn more often.
        empty_weight: Weight of an image without objects that count, or None for the smallest that any other
            image gets (1 when there is no other).

    Returns:
        float64 ``(num_images,)``.

    Raises:
        ValueError: If the weights do not fit the table's labels, or ``by`` or ``reduce`` is unknown.
    """
    ids, names = table.labels_of(by)
    per_label = np.asarray(weights, dtype=np.float64)
    if per_label.shape != (len(names),):
        what = "classes" if by is None else f"values of {by!r}"
        raise ValueError(f"weights of shape {per_label.shape} must be one for each of {len(names)} {what}")
    if not np.isfinite(per_label).all() or (per_label < 0).any():
        raise ValueError(f"weights={per_label.tolist()} must be finite and >= 0")
    if empty_weight is not None and not (np.isfinite(empty_weight) and empty_weight >= 0):
        raise ValueError(f"empty_weight={empty_weight} must be finite and >= 0")
    if reduce not in ("mean", "max", "sum"):
        raise ValueError(f"reduce={reduce!r} must be 'mean', 'max' or 'sum'")
    images, of_object = table.image_of_object()[ids >= 0], per_label[ids[ids >= 0]]
    num_objects = np.bincount(images, minlength=table.num_images)
    filled = num_objects > 0
    result = np.bincount(images, weights=of_object, minlength=table.num_images).astype(np.float64)
    if reduce == "max":
        result[:] = 0.0
        np.maximum.at(result, images, of_object)
    elif reduce == "mean":
        result[filled] /= num_objects[filled]
    if not filled.all():
        smallest = float(result[filled].min()) if filled.any() else 1.0
        result[~filled] = smallest if empty_weight is None else empty_weight
    return result
