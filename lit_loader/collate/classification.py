"""Collation of classification samples: images of one size, each with one label or several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._pytree import register_dataclass

from lit_loader.collate.batch_mixing import BatchMixing
from lit_loader.collate.samples import flag_tensor, stack_images, transpose_samples
from lit_loader.errors import SettingError

_ELEMENTS = ("image", "label", "image_id", "is_duplicate")
_ONE_SIZE = "let the transforms end with one size, as lit_loader.transforms.classification_transforms(size=...) does"


@dataclass(eq=False)  # not frozen: Lightning moves a dataclass to a device by setting its fields
class ClassificationBatch:
    """A batch of B images with their labels, unpacked as ``images, labels = batch``.

    Attributes:
        images: ``(B, 3, H, W)``.
        labels: int64 ``(B,)`` class ids from 0, -1 for a prediction sample without a label; or float32
            ``(B, num_labels)``: multi-hot, of 0 and 1; or with mixing the proportion of each class, from 0 to 1.
        image_ids: int64 ``(B,)``, see `AnnotationTable.image_numbers`.
        is_duplicate: bool ``(B,)``, True for duplicates that fill up the last batches of several ranks.
    """

    images: Tensor
    labels: Tensor
    image_ids: Tensor
    is_duplicate: Tensor

    def __iter__(self) -> Iterator[Tensor]:
        """Iterate over images and labels, which training loops unpack; other fields are read by name."""
        return iter((self.images, self.labels))

    def pin_memory(self) -> ClassificationBatch:
        """Return the batch in page-locked memory; called by torch's loader and lit_loader's."""
        return ClassificationBatch(**{name: value.pin_memory() for name, value in vars(self).items()})


# torchvision's v2 transforms (MixUp, CutMix) unpack a batch by pytree, which knows only tuples, lists and dicts.
register_dataclass(ClassificationBatch)


@dataclass(frozen=True, kw_only=True)
class ClassificationCollate:
    """A collate function from ``(image, label, image_id, is_duplicate)`` samples to a `ClassificationBatch`.

    Runs in: workers and the main process.
    Determinism: no randomness without ``mixing``.

    Args:
        multi_label: Whether labels are multi-hot vectors instead of class ids.
        mixing: Mixes the images of a batch and their labels, which are then float32 ``(B, num_classes)`` in every
            batch: one-hot where a batch is not mixed. It needs a loader with a seed.
        num_classes: Number of classes, needed to mix class ids.

    Raises:
        SettingError: ``num_classes`` is missing, or has no effect.
    """

    multi_label: bool = False
    mixing: BatchMixing | None = None
    num_classes: int | None = None

    def __post_init__(self) -> None:
        mixes_ids = self.mixing is not None and not self.multi_label
        if mixes_ids and (self.num_classes is None or self.num_classes < 1):
            raise SettingError("num_classes", self.num_classes, "must be the number of classes, to mix their ids")
        if not mixes_ids and self.num_classes is not None:
            raise SettingError("num_classes", self.num_classes, "has an effect only where mixing has class ids to mix")

    def __call__(self, batch: Sequence[Any]) -> ClassificationBatch:
        """Collate one batch.

        Args:
            batch: Samples ``(image, label, image_id, is_duplicate)``; a label is an integer, or a vector
                ``(num_labels,)`` of 0 and 1; ``is_duplicate`` is the bool of `lit_loader.is_duplicate`.

        Raises:
            TypeError: If a sample is not a tuple, an image not a tensor, a label not of the kind that ``multi_label``
                says, or ``is_duplicate`` not a bool.
            ValueError: If the batch is empty, its images differ in size, or a label that is to be mixed is not a class.
            RuntimeError: If multi-hot vectors differ in length; with mixing, if the loader has no seed.
        """
        image_list, label_list, image_ids, duplicate_flags = transpose_samples(batch, elements=_ELEMENTS)
        images = stack_images(image_list, remedy=_ONE_SIZE)
        labels = _stack_labels(label_list, multi_label=self.multi_label)
        if self.mixing is not None:
            vectors = labels if self.num_classes is None else _one_hot(labels, self.num_classes)
            images, labels = self.mixing(images, vectors)
        return ClassificationBatch(
            images=images,
            labels=labels,
            image_ids=torch.tensor([int(image_id) for image_id in image_ids], dtype=torch.int64),
            is_duplicate=flag_tensor(duplicate_flags),
        )


def _stack_labels(labels: Sequence[Any], *, multi_label: bool) -> Tensor:
    # Class ids from lit_loader's datasets are plain ints, which need no tensor for each label.
    if not multi_label and all(type(label) is int for label in labels):
        return torch.tensor(labels, dtype=torch.int64)
    tensors = [torch.as_tensor(label) for label in labels]
    for label in tensors:
        # A class id has no dimension, a multi-hot vector has one.
        if label.ndim != multi_label or (label.is_floating_point() and not multi_label):
            expected = "a vector of 0 and 1, one number per class" if multi_label else "one integer"
            raise TypeError(
                f"expected a label to be {expected} (multi_label={multi_label}), got {label.dtype} of shape "
                f"{tuple(label.shape)}."
            )
    # float32, because binary cross entropy takes targets of the dtype of the logits.
    return torch.stack([label.to(torch.float32 if multi_label else torch.int64) for label in tensors])


def _one_hot(labels: Tensor, num_classes: int) -> Tensor:
    """Return class ids ``(B,)`` as float32 ``(B, num_classes)``."""
    for label in labels.tolist():
        if not 0 <= label < num_classes:
            raise ValueError(
                f"expected labels from 0 to {num_classes - 1} to mix, got label {label}; leave samples without a label "
                "out (unlabelled='drop'), or raise num_classes."
            )
    return functional.one_hot(labels, num_classes).float()
