"""Collation of classification samples: images of one size with one label, or several, each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lit_loader.collate.duplicates import duplicate_column
from lit_loader.collate.images import plain_images, stack_images
from lit_loader.collate.samples import transpose_samples

__all__ = ["ClassificationBatch", "ClassificationCollate"]


class ClassificationBatch(NamedTuple):
    """A batch of B images with their labels.

    Attributes:
        images: ``(B, 3, H, W)``.
        labels: int64 ``(B,)``, from 0, -1 where a sample of prediction has none; or multi-hot, float32
            ``(B, num_labels)`` of 0 and 1.
        image_ids: int64 ``(B,)``, positions in the table of samples.
        is_duplicate: bool ``(B,)``, True on samples that only fill up the last batches of several ranks.
    """

    images: Tensor
    labels: Tensor
    image_ids: Tensor
    is_duplicate: Tensor


@dataclass(frozen=True, kw_only=True)
class ClassificationCollate:
    """A collate function from ``(image, label, image_id, is_duplicate)`` samples to a `ClassificationBatch`.

    Runs in: workers and the main process. Determinism: no randomness.

    Args:
        multi_label: Labels are multi-hot vectors and not ids.
    """

    multi_label: bool = False

    def __call__(self, batch: Sequence[Any]) -> ClassificationBatch:
        """Collate one batch.

        Args:
            batch: Samples ``(image, label, image_id, is_duplicate)``; a label is a whole number, or a vector
                ``(num_labels,)`` of 0 and 1; the last is a bool, what `lit_loader.is_duplicate` says.

        Raises:
            TypeError: A sample is no tuple, an image no tensor, or a label not what ``multi_label`` says.
            ValueError: The batch is empty, or its images or labels do not go together.
        """
        pixels, labels, image_ids, marks = transpose_samples(batch, num_elements=4)
        sizes = [tuple(image.shape[1:]) for image in plain_images(pixels)]
        if len(set(sizes)) > 1:
            raise ValueError(
                f"images of different sizes (H, W) {sizes} make no batch; let the transforms end with one size, "
                "as lit_loader.transforms.classification_transforms(size=...) does."
            )
        return ClassificationBatch(
            images=stack_images(pixels),
            labels=_multi_hot(labels) if self.multi_label else _ids(labels),
            image_ids=torch.tensor([int(image_id) for image_id in image_ids], dtype=torch.int64),
            is_duplicate=duplicate_column(marks),
        )


def _ids(labels: Sequence[Any]) -> Tensor:
    ids = [torch.as_tensor(label) for label in labels]
    for label in ids:
        if label.ndim != 0 or label.is_floating_point():
            raise TypeError(
                f"a label is {label.dtype} of shape {tuple(label.shape)}; the rule is one whole number, or "
                "multi_label=True with a vector of 0 and 1."
            )
    return torch.stack([label.to(torch.int64) for label in ids])


def _multi_hot(labels: Sequence[Any]) -> Tensor:
    rows = [torch.as_tensor(label) for label in labels]
    for row in rows:
        if row.ndim != 1:
            raise TypeError(
                f"a label is {row.dtype} of shape {tuple(row.shape)}; with multi_label=True the rule is a vector "
                "of 0 and 1, one number a class."
            )
    lengths = sorted({len(row) for row in rows})
    if len(lengths) > 1:
        raise ValueError(
            f"multi-hot labels of a batch have lengths {lengths}; the rule is one for each class."
        )
    return torch.stack([row.to(torch.float32) for row in rows])
