"""Accessors that work for every kind of batch: images without padding, targets, labels, duplicate masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lit_loader.collate.classification import ClassificationBatch
from lit_loader.collate.detection import PaddedBatch
from lit_loader.collate.landmarks import LandmarkBatch
from lit_loader.collate.multi_task import MultiTaskBatch
from lit_loader.collate.samples import duplicate_mask
from lit_loader.types import FIRST_LABEL


def batch_duplicates(batch: Any) -> Tensor:
    """Return a mask of the samples of a batch that are duplicates, bool ``(B,)``.

    If the number of samples is not divisible by the number of ranks, duplicates fill up the last batches, so that all
    ranks have equally many. Over all ranks, the other samples are the dataset, each of them once: metrics and
    predictions restricted to them are exact.

    Args:
        batch: The result of one of lit_loader's collate functions.

    Returns:
        True for each duplicate; on the batch's device if the mask is a field of the batch, on the CPU if it is
        assembled from the targets.

    Raises:
        TypeError: If targets are not dicts, or ``is_duplicate`` is not a bool.
        ValueError: If targets have no field ``is_duplicate``.
    """
    if isinstance(batch, MultiTaskBatch | LandmarkBatch | ClassificationBatch):
        return batch.is_duplicate
    # Detection batches begin with images and targets in every mode, and each target has the flag.
    return duplicate_mask(batch[1])


def batch_images(batch: Any) -> list[Tensor]:
    """Return the images of a batch as a list of ``(C, H, W)`` tensors, without padding.

    Args:
        batch: The result of one of lit_loader's collate functions. Images in one tensor are returned as views of it.
    """
    if isinstance(batch, MultiTaskBatch | PaddedBatch):
        # One transfer for all sizes: reading them one by one would wait for the device every time.
        sizes = batch.sizes.tolist()
        return [image[:, :height, :width] for image, (height, width) in zip(batch.images, sizes, strict=True)]
    images, *_ = batch
    return list(images)


def batch_targets(batch: Any) -> Sequence[Mapping[str, Any]]:
    """Return the targets of a detection or multi-task batch, one dict per image.

    Raises:
        TypeError: If default collation has merged the targets into columns, or it is a `LandmarkBatch` or
            `ClassificationBatch`, which have fields of their own instead of targets.
    """
    if isinstance(batch, MultiTaskBatch):
        return batch.target_list()
    if isinstance(batch, LandmarkBatch | ClassificationBatch):
        raise TypeError(
            f"a {type(batch).__name__} has no target per image; read its fields by name, such as batch.labels."
        )
    targets: Any = batch[1]
    # Default collation merges dicts with the same keys into one dict of columns.
    if isinstance(targets, Mapping):
        raise TypeError(
            f"expected a list of targets, got a dict of columns {sorted(targets)}; collate them to one dict per image."
        )
    dicts: Sequence[Mapping[str, Any]] = targets
    return dicts


def batch_labels(batch: Any, *, label: str | None = None, first_label: int = FIRST_LABEL) -> Tensor:
    """Return the labels of a batch, counted from 0, one per object or crop.

    Args:
        batch: The result of one of lit_loader's collate functions.
        label: Name of an attribute, or None for the class (for a `ClassificationBatch`, its labels).
        first_label: Label of the first class in detection and multi-task batches. In other batches, classes start at
            0, as attributes always do.

    Returns:
        int64 ``(M,)``. Objects without the attribute are left out. A multi-hot image contributes each of its classes.

    Raises:
        TypeError: If the batch has no attributes, or its targets are columns.
        ValueError: If the batch lacks the attribute, or a label is below ``first_label``.
    """
    labels, mask = masked_labels(batch, label=label, first_label=first_label)
    labels = labels if mask is None else labels[mask]
    # Attributes, and labels of crops and of classification, are ids without an offset.
    has_first_label = label is None and not isinstance(batch, ClassificationBatch | LandmarkBatch)
    if has_first_label and labels.numel() and int(labels.min()) < 0:
        raise ValueError(
            f"expected labels of at least first_label={first_label}, got label {int(labels.min()) + first_label}, "
            f"below first_label={first_label}."
        )
    return labels


def masked_labels(
    batch: Any, *, label: str | None = None, first_label: int = FIRST_LABEL
) -> tuple[Tensor, Tensor | None]:
    """Return the labels of a batch and a mask, without waiting for the batch's device as `batch_labels` does.

    Args:
        batch: The result of one of lit_loader's collate functions.
        label: See `batch_labels`.
        first_label: See `batch_labels`.

    Returns:
        int64 labels, and a bool mask of the same shape that is True for labels that count, or None if all do. Labels
        below ``first_label`` are negative.

    Raises:
        TypeError: If the batch has no attributes, or its targets are columns.
        ValueError: If the batch lacks the attribute.
    """
    if isinstance(batch, ClassificationBatch):
        if label is not None:
            raise TypeError(f"label={label!r}: a ClassificationBatch has one kind of label; leave label out.")
        if not batch.labels.is_floating_point():
            return batch.labels, None
        # The number of selected labels decides a shape, so selecting them here would wait for the device.
        # Multi-hot: every image gets all class ids, and the mask selects those that it has.
        classes = torch.arange(batch.labels.shape[1], device=batch.labels.device)
        # -1 is a class that the image does not label.
        return classes.expand(batch.labels.shape), batch.labels > 0
    if isinstance(batch, LandmarkBatch):
        if label is None:
            return batch.labels, None
        labels = _attribute(batch.attributes, label)
        # Objects without the attribute have the id -1.
        return labels, labels >= 0
    if isinstance(batch, MultiTaskBatch):
        if label is None:
            return batch.labels - first_label, batch.object_mask
        labels = _attribute(batch.attributes, label)
        return labels, batch.object_mask & (labels >= 0)
    targets = batch_targets(batch)
    rows = [target["labels"] if label is None else _attribute(target, label) for target in targets]
    # torch.cat refuses an empty list.
    labels = torch.cat(rows) if rows else torch.zeros(0, dtype=torch.int64)
    return (labels - first_label, None) if label is None else (labels, labels >= 0)


def counted_labels(
    batch: Any, *, label: str | None = None, first_label: int = FIRST_LABEL
) -> tuple[Tensor, Tensor | None]:
    """Return the labels of a batch and how often each counts, without waiting for the batch's device.

    Of vectors of classes, multi-hot or mixed, a class counts as often as the proportions in the batch add up to,
    rounded. Mixing with the images of the same batch, as `BatchMixing` does, keeps these sums whole numbers, except for
    classes that some images do not label.

    Args:
        batch: The result of one of lit_loader's collate functions.
        label: See `batch_labels`.
        first_label: See `batch_labels`.

    Returns:
        int64 labels, and int64 counts or a bool mask of the same shape, or None if each label counts once.

    Raises:
        TypeError, ValueError: As `masked_labels`.
    """
    if label is None and isinstance(batch, ClassificationBatch) and batch.labels.is_floating_point():
        # -1 is a class that the image does not label.
        counts = batch.labels.float().clamp(min=0).sum(dim=0).round().long()
        return torch.arange(len(counts), device=counts.device), counts
    return masked_labels(batch, label=label, first_label=first_label)


def _attribute(fields: Mapping[str, Any], label: str) -> Tensor:
    if label not in fields:
        raise ValueError(
            f"label={label!r} should be an attribute of the batch, which has {sorted(fields)}; add it with "
            f"attributes=[{label!r}] in the data module."
        )
    ids: Tensor = fields[label]
    return ids
