"""What any batch holds, one by one: images without padding, targets, labels, marks of duplicates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lit_loader.collate.classification import ClassificationBatch
from lit_loader.collate.detection import PaddedBatch
from lit_loader.collate.duplicates import duplicate_column, duplicate_marks
from lit_loader.collate.landmarks import LandmarkBatch
from lit_loader.collate.multi_task import MultiTaskBatch

__all__ = ["batch_duplicates", "batch_images", "batch_labels", "batch_targets"]


def batch_duplicates(batch: Sequence[Any]) -> Tensor:
    """Return which samples of a batch of any kind are duplicates, bool ``(B,)``.

    Where ranks share a set whose size does not divide, the last batches are filled up, so that all ranks have equally
    many. The samples that are not marked are, over all ranks, the set: metrics and predictions of these are exact.

    Args:
        batch: What a collate function of ours gives.

    Returns:
        The mark of each sample, on the device of a batch that has it as a field; on the CPU where targets have it.

    Raises:
        TypeError: Targets are no dicts, or a mark is no bool.
        ValueError: Targets have no field ``is_duplicate``.
    """
    if isinstance(batch, MultiTaskBatch | LandmarkBatch | ClassificationBatch):
        return batch.is_duplicate
    targets: Any = batch[1]
    if isinstance(targets, Mapping):
        (marks,) = duplicate_marks([targets])
        return duplicate_column(marks)
    return duplicate_column(duplicate_marks(targets))


def batch_images(batch: Sequence[Any]) -> list[Tensor]:
    """Return the images of a batch of any kind one by one, ``(C, H, W)`` each, without padding.

    Args:
        batch: What a collate function of ours gives; images of a tensor come as views of it.
    """
    if isinstance(batch, MultiTaskBatch):
        return batch.image_list()
    if isinstance(batch, PaddedBatch):
        sizes = batch.sizes.tolist()
        return [image[:, :height, :width] for image, (height, width) in zip(batch.images, sizes, strict=True)]
    return list(batch[0])


def batch_targets(batch: Sequence[Any]) -> Sequence[Mapping[str, Any]]:
    """Return the targets of a batch of detection or of several tasks, one dict an image.

    Raises:
        TypeError: The targets are columns over the batch, as ``pad_fields`` makes them, or the batch is one
            of landmarks or of classification, whose fields stand in the batch itself.
    """
    if isinstance(batch, MultiTaskBatch):
        return batch.target_list()
    if isinstance(batch, LandmarkBatch | ClassificationBatch):
        raise TypeError(
            f"a {type(batch).__name__} has no target an image; its fields are {list(type(batch)._fields)}."
        )
    targets: Any = batch[1]
    if isinstance(targets, Mapping):
        raise TypeError(
            f"targets come as columns {sorted(targets)}, and one dict an image is needed here; "
            "collate without pad_fields."
        )
    found: Sequence[Mapping[str, Any]] = targets
    return found


def batch_labels(batch: Sequence[Any], *, label: str | None = None, first_label: int = 1) -> Tensor:
    """Return the labels that a batch of any kind brings, counted from 0, one an object or crop.

    Args:
        batch: What a collate function of ours gives.
        label: An attribute; None: the class (of a `ClassificationBatch` what it is labelled by).
        first_label: Label of the first class in batches of detection and of several tasks; the others, and
            attributes, always count from 0.

    Returns:
        int64 ``(M,)``; objects without the attribute are left out, and a multi-hot image gives every class
        that it has.

    Raises:
        TypeError: The batch holds no attributes, or targets come as columns.
        ValueError: There is no such attribute, or a class lies below ``first_label``.
    """
    if isinstance(batch, ClassificationBatch):
        if label is not None:
            raise TypeError(f"label={label!r}: a ClassificationBatch has one kind of label; leave label out.")
        return batch.labels.nonzero()[:, 1] if batch.labels.is_floating_point() else batch.labels
    if isinstance(batch, LandmarkBatch):
        return batch.labels if label is None else _present(_attribute(batch.attributes, label))
    if isinstance(batch, MultiTaskBatch):
        given = batch.labels if label is None else _attribute(batch.attributes, label)
        found = given[batch.object_mask]
    else:
        targets = batch_targets(batch)
        rows = [target["labels"] if label is None else _attribute(target, label) for target in targets]
        found = torch.cat(rows) if rows else torch.zeros(0, dtype=torch.int64)
    if label is not None:
        return _present(found)
    if found.numel() and int(found.min()) < first_label:
        raise ValueError(
            f"a batch holds label {int(found.min())}, below first_label={first_label}; give that."
        )
    return found - first_label


def _attribute(fields: Mapping[str, Any], label: str) -> Tensor:
    if label not in fields:
        raise ValueError(
            f"label={label!r} is no attribute of the batch, which has {sorted(fields)}; ask the data module for "
            f"it with attributes=[{label!r}]."
        )
    ids: Tensor = fields[label]
    return ids


def _present(labels: Tensor) -> Tensor:
    return labels[labels >= 0]
