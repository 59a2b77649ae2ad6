"""Collation of landmark samples: object crops of one size, each with K keypoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lit_loader.collate.samples import (
    check_attribute_names,
    duplicate_mask,
    field_rows,
    stack_images,
    transpose_samples,
)

_ONE_SIZE = "let the transforms end with one size, as transforms.landmark_transforms(size=...) does"


class LandmarkBatch(NamedTuple):
    """A batch of B object crops with K keypoints each; one object per sample.

    Attributes:
        images: ``(B, 3, H, W)``.
        keypoints: float32 ``(B, K, 2)``, x and y in pixels of the crop; undefined for absent points.
        visibility: uint8 ``(B, K)``: 0 absent or outside the crop, 1 hidden, 2 visible.
        mask: bool ``(B, K)``, True for points that count: ``visibility > 0``.
        boxes: float32 ``(B, 4)``, xyxy in pixels of the crop.
        labels: int64 ``(B,)``, class ids from 0.
        attributes: int64 ``(B,)`` per attribute name, ids from 0; -1 if the object has none.
        crops: float32 ``(B, 4)``, xyxy in pixels of the original image: the region that was cropped.
        image_ids: int64 ``(B,)``, see `AnnotationTable.image_numbers`.
        is_duplicate: bool ``(B,)``, True for duplicates that fill up the last batches of several ranks.
    """

    images: Tensor
    keypoints: Tensor
    visibility: Tensor
    mask: Tensor
    boxes: Tensor
    labels: Tensor
    attributes: dict[str, Tensor]
    crops: Tensor
    image_ids: Tensor
    is_duplicate: Tensor


@dataclass(frozen=True, kw_only=True)
class LandmarkCollate:
    """A collate function from ``(image, target)`` samples of one object each to a `LandmarkBatch`.

    Runs in: workers and the main process. Determinism: no randomness.

    Args:
        keypoints: Whether targets have ``keypoints`` and ``visibility``. If False, K is 0.
        attributes: Names of the attributes to collate.
    """

    keypoints: bool = True
    attributes: Sequence[str] = ()

    def __post_init__(self) -> None:
        # The dataclass is frozen.
        object.__setattr__(self, "attributes", check_attribute_names(self.attributes))

    def __call__(self, batch: Sequence[Any]) -> LandmarkBatch:
        """Collate one batch.

        Args:
            batch: Samples ``(image, target)``. In a target, ``boxes``, ``labels``, ``keypoints``, ``visibility``,
                ``crop`` and every attribute have one row, ``image_id`` is an int and ``is_duplicate`` a bool.

        Raises:
            TypeError: If a sample is not a tuple, an image not a tensor or a target not a mapping.
            ValueError: If the batch is empty, images differ in size, a field is missing or does not have one row.
        """
        images, targets = transpose_samples(batch, elements=("image", "target"))
        if self.keypoints:
            keypoints = _column(targets, "keypoints", dtype=torch.float32)
            visibility = _column(targets, "visibility", dtype=torch.uint8)
        else:
            # The fields exist in every batch, so code for a batch needs no case for models without points.
            keypoints = torch.zeros((len(targets), 0, 2))
            visibility = torch.zeros((len(targets), 0), dtype=torch.uint8)
        return LandmarkBatch(
            images=stack_images(images, remedy=_ONE_SIZE),
            keypoints=keypoints,
            visibility=visibility,
            mask=visibility > 0,
            boxes=_column(targets, "boxes", dtype=torch.float32),
            labels=_column(targets, "labels", dtype=torch.int64),
            attributes={name: _column(targets, name, dtype=torch.int64) for name in self.attributes},
            crops=_column(targets, "crop", dtype=torch.float32),
            # int() also accepts 0-d tensors and numpy integers.
            image_ids=torch.tensor([int(target["image_id"]) for target in targets], dtype=torch.int64),
            is_duplicate=duplicate_mask(targets),
        )


def _column(targets: Sequence[Any], name: str, *, dtype: torch.dtype) -> Tensor:
    rows = [field_rows(target, name) for target in targets]
    # Checked for all samples at once, because the message of torch.cat names neither the field nor the remedy.
    shapes = sorted({tuple(row.shape) for row in rows})
    if len(shapes) > 1 or shapes[0][0] != 1:
        raise ValueError(
            f"expected field {name!r} to have one row per sample, all of one shape, got shapes {shapes}; use a dataset "
            "with one object per sample (LandmarkDataset), and no transform that drops objects."
        )
    return torch.cat([row.to(dtype) for row in rows])
