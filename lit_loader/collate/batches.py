"""Contents of a batch of any kind: images without padding, targets, labels, duplicate masks."""

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
    """Return which samples of a batch of any kind are duplicates, bool ``(B,)``.

    If the size of a set is not divisible by the number of ranks, the last batches are filled up, so that all ranks have
    equally many samples. The samples that are not marked are, over all ranks, the set: metrics and predictions of these
    are exact.

    Args:
        batch: The result of one of lit_loader's collate functions.

    Returns:
        The mark of each sample, on the device of a batch that has it as a field; on the CPU where targets have it.

    Raises:
        TypeError: If targets are not dicts, or a mark is not a bool.
        ValueError: If targets have no field ``is_duplicate``.
    """
    if isinstance(batch, MultiTaskBatch | LandmarkBatch | ClassificationBatch):
        return batch.is_duplicate
    return duplicate_mask(batch[1])


def batch_images(batch: Any) -> list[Tensor]:
    """Return the images of a batch of any kind one by one, ``(C, H, W)`` each, without padding.

    Args:
        batch: The result of one of lit_loader's collate functions; images of a tensor come as views of it.
    """
    if isinstance(batch, MultiTaskBatch):
        return batch.image_list()
    if isinstance(batch, PaddedBatch):
        sizes = batch.sizes.tolist()
        return [image[:, :height, :width] for image, (height, width) in zip(batch.images, sizes, strict=True)]
    images, *_ = batch
    return list(images)


def batch_targets(batch: Any) -> Sequence[Mapping[str, Any]]:
    """Return the targets of a batch of detection or of several tasks, one dict per image.

    Raises:
        TypeError: If the targets are columns over the batch, or the batch is one of landmarks or of classification,
            whose fields stand in the batch itself.
    """
    if isinstance(batch, MultiTaskBatch):
        return batch.target_list()
    if isinstance(batch, LandmarkBatch | ClassificationBatch):
        raise TypeError(
            f"a {type(batch).__name__} has no target per image; read its fields by name, such as batch.labels."
        )
    targets: Any = batch[1]
    if isinstance(targets, Mapping):
        raise TypeError(f"targets come as columns {sorted(targets)}; collate them to one dict per image.")
    found: Sequence[Mapping[str, Any]] = targets
    return found


def batch_labels(batch: Any, *, label: str | None = None, first_label: int = FIRST_LABEL) -> Tensor:
    """Return the labels of a batch of any kind, counted from 0, one per object or crop.

    Args:
        batch: The result of one of lit_loader's collate functions.
        label: An attribute, or None for the class (of a `ClassificationBatch` for whatever its labels are).
        first_label: Label of the first class in batches of detection and of several tasks; the others, and
            attributes, always count from 0.

    Returns:
        int64 ``(M,)``; objects without the attribute are left out, and a multi-hot image gives every class
        that it has.

    Raises:
        TypeError: If the batch holds no attributes, or targets come as columns.
        ValueError: If there is no such attribute, or a class lies below ``first_label``.
    """
    labels, mask = masked_labels(batch, label=label, first_label=first_label)
    labels = labels if mask is None else labels[mask]
    has_first_label = label is None and not isinstance(batch, ClassificationBatch | LandmarkBatch)
    if has_first_label and labels.numel() and int(labels.min()) < 0:
        raise ValueError(
            f"a batch holds label {int(labels.min()) + first_label}, below first_label={first_label}."
        )
    return labels


def masked_labels(
    batch: Any, *, label: str | None = None, first_label: int = FIRST_LABEL
) -> tuple[Tensor, Tensor | None]:
    """Return the labels of a batch as `batch_labels` does, without waiting for the device that the batch is on.

    Args:
        batch: The result of one of lit_loader's collate functions.
        label: See `batch_labels`.
        first_label: See `batch_labels`.

    Returns:
        int64 labels, and a bool mask of the same shape of those that count, or None if all do. Labels below
        ``first_label`` are negative.

    Raises:
        TypeError: If the batch holds no attributes, or targets come as columns.
        ValueError: If the attribute is missing.
    """
    if isinstance(batch, ClassificationBatch):
        if label is not None:
            raise TypeError(f"label={label!r}: a ClassificationBatch has one kind of label; leave label out.")
        if not batch.labels.is_floating_point():
            return batch.labels, None
        classes = torch.arange(batch.labels.shape[1], device=batch.labels.device)
        return classes.expand(batch.labels.shape), batch.labels != 0
    if isinstance(batch, LandmarkBatch):
        if label is None:
            return batch.labels, None
        labels = _attribute(batch.attributes, label)
        return labels, labels >= 0
    if isinstance(batch, MultiTaskBatch):
        if label is None:
            return batch.labels - first_label, batch.object_mask
        labels = _attribute(batch.attributes, label)
        return labels, batch.object_mask & (labels >= 0)
    targets = batch_targets(batch)
    rows = [target["labels"] if label is None else _attribute(target, label) for target in targets]
    labels = torch.cat(rows) if rows else torch.zeros(0, dtype=torch.int64)
    return (labels - first_label, None) if label is None else (labels, labels >= 0)


def _attribute(fields: Mapping[str, Any], label: str) -> Tensor:
    if label not in fields:
        raise ValueError(
            f"label={label!r} should be an attribute of the batch, which has {sorted(fields)}; add it with "
            f"attributes=[{label!r}] in the data module."
        )
    ids: Tensor = fields[label]
    return ids
