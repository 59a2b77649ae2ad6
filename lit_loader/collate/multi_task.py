"""Collation of multi-task samples: images with boxes, classes, keypoints and attributes, and their masks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lit_loader.collate.samples import check_attribute_names, duplicate_mask, field_rows, pad_images, transpose_samples


class MultiTaskBatch(NamedTuple):
    """A batch of B images with up to N objects of K keypoints each.

    The first rows of an image are its objects, the others are padding. Each image is at the top left of its padded
    one, so coordinates of boxes and points stay the same. `batch_images` and `batch_targets` return the images and
    objects one by one, without padding.

    Attributes:
        images: ``(B, 3, H, W)``, padded right and below if sizes differ.
        sizes: int64 ``(B, 2)``, height and width of each image in pixels.
        boxes: float32 ``(B, N, 4)``, xyxy in pixels; padding 0.
        labels: int64 ``(B, N)``, class id + ``first_label`` of the dataset; padding 0.
        keypoints: float32 ``(B, N, K, 2)``, x and y in pixels; padding 0, undefined for absent points.
        visibility: uint8 ``(B, N, K)``: 0 absent or outside the image, 1 hidden, 2 visible; padding 0.
        attributes: int64 ``(B, N)`` per attribute name, ids from 0; -1 if the object has none, and as padding.
        object_mask: bool ``(B, N)``, True for objects, False for padding.
        keypoint_mask: bool ``(B, N, K)``, True for points that count: ``visibility > 0``.
        attribute_masks: bool ``(B, N)`` per attribute name, True for ids that count: id >= 0.
        iscrowd: int64 ``(B, N)``, 1 for a crowd; padding 0.
        image_ids: int64 ``(B,)``, see `AnnotationTable.image_numbers`.
        is_duplicate: bool ``(B,)``, True for duplicates that fill up the last batches of several ranks.
        unlabelled: int64 ``(B, U)``, labels of the classes that an image does not label, see `DetectionDataset`;
            padding -1. U is 0, or the field None, if every image labels all classes.
    """

    images: Tensor
    sizes: Tensor
    boxes: Tensor
    labels: Tensor
    keypoints: Tensor
    visibility: Tensor
    attributes: dict[str, Tensor]
    object_mask: Tensor
    keypoint_mask: Tensor
    attribute_masks: dict[str, Tensor]
    iscrowd: Tensor
    image_ids: Tensor
    is_duplicate: Tensor
    unlabelled: Tensor | None = None

    def target_list(self) -> list[dict[str, Any]]:
        """Return one dict per image with views of its objects' rows.

        With N objects: ``boxes`` (N, 4), ``labels`` (N,), ``keypoints`` (N, K, 2), ``visibility`` (N, K), every
        attribute under its name (N,), ``iscrowd`` (N,), ``area`` (N,) of the boxes, the int ``image_id`` and the bool
        ``is_duplicate``; ``unlabelled`` (U,) only of an image that does not label all classes.
        """
        names = "boxes", "labels", "keypoints", "visibility", "iscrowd"
        columns = {name: getattr(self, name) for name in names} | self.attributes
        columns["area"] = (self.boxes[..., 2:] - self.boxes[..., :2]).prod(dim=-1)
        # One transfer per column instead of one per image, if the batch is on a device.
        num_objects = self.object_mask.sum(dim=1).tolist()
        image_ids = self.image_ids.tolist()
        is_duplicate = self.is_duplicate.tolist()
        num_unlabelled = [0] * len(num_objects)
        if self.unlabelled is not None and self.unlabelled.shape[1]:
            num_unlabelled = (self.unlabelled >= 0).sum(dim=1).tolist()
        targets = []
        for i, count in enumerate(num_objects):
            # The objects of an image are its first rows; the others are padding.
            target: dict[str, Any] = {name: rows[i, :count] for name, rows in columns.items()}
            if self.unlabelled is not None and num_unlabelled[i]:
                target["unlabelled"] = self.unlabelled[i, : num_unlabelled[i]]
            targets.append(target | {"image_id": image_ids[i], "is_duplicate": is_duplicate[i]})
        return targets


@dataclass(frozen=True, kw_only=True)
class MultiTaskCollate:
    """A collate function from ``(image, target)`` samples to a `MultiTaskBatch`.

    Fields and their number of dimensions depend only on the arguments, not on the contents of a batch.

    Runs in: workers and the main process. Determinism: no randomness.

    Args:
        keypoints: Whether targets have ``keypoints`` and ``visibility``. If False, K is 0.
        attributes: Names of the attributes to collate.
        size_divisor: Round the batch's height and width up to a multiple.
        pad_value: Value of padded pixels, in the images' own units.

    Raises:
        ValueError: If ``size_divisor`` is below 1.
    """

    keypoints: bool = True
    attributes: Sequence[str] = ()
    size_divisor: int = 1
    pad_value: float = 0

    def __post_init__(self) -> None:
        if self.size_divisor < 1:
            raise ValueError(f"expected size_divisor >= 1, got size_divisor={self.size_divisor}.")
        # The dataclass is frozen.
        object.__setattr__(self, "attributes", check_attribute_names(self.attributes))

    def __call__(self, batch: Sequence[Any]) -> MultiTaskBatch:
        """Collate one batch.

        Args:
            batch: Samples ``(image, target)``. In a target, ``boxes``, ``labels``, ``iscrowd``, every attribute and,
                with ``keypoints=True``, ``keypoints`` and ``visibility`` have one row per object, ``image_id`` is an
                int and ``is_duplicate`` a bool. ``unlabelled``, int64 ``(U,)``, may be absent.

        Raises:
            TypeError: If a sample is not a tuple, an image not a tensor or a target not a mapping.
            ValueError: If the batch is empty, a field is missing, or fields differ in number or shape of their rows.
        """
        images, targets = transpose_samples(batch, elements=("image", "target"))
        padded, _, sizes = pad_images(images, size_divisor=self.size_divisor, pad_value=self.pad_value)
        # Boxes decide the number of objects; every other field must have as many rows.
        counts = [len(field_rows(target, "boxes")) for target in targets]
        mask = torch.arange(max(counts)) < torch.tensor(counts)[:, None]
        attributes = {name: _padded(targets, name, counts, torch.int64, value=-1) for name in self.attributes}
        if self.keypoints:
            keypoints = _padded(targets, "keypoints", counts, torch.float32)
            visibility = _padded(targets, "visibility", counts, torch.uint8)
        else:
            # The fields exist in every batch, so code for a batch needs no case for models without points.
            keypoints = torch.zeros((*mask.shape, 0, 2))
            visibility = torch.zeros((*mask.shape, 0), dtype=torch.uint8)
        return MultiTaskBatch(
            images=padded,
            sizes=sizes,
            boxes=_padded(targets, "boxes", counts, torch.float32),
            labels=_padded(targets, "labels", counts, torch.int64),
            keypoints=keypoints,
            visibility=visibility,
            attributes=attributes,
            object_mask=mask,
            keypoint_mask=visibility > 0,
            attribute_masks={name: ids >= 0 for name, ids in attributes.items()},
            iscrowd=_padded(targets, "iscrowd", counts, torch.int64),
            # int() also accepts 0-d tensors and numpy integers.
            image_ids=torch.tensor([int(target["image_id"]) for target in targets], dtype=torch.int64),
            is_duplicate=duplicate_mask(targets),
            unlabelled=_unlabelled(targets),
        )


def _unlabelled(targets: Sequence[Any]) -> Tensor:
    """Return the labels of unlabelled classes of each image, int64 ``(B, U)``, padded with -1."""
    if not any("unlabelled" in target for target in targets):
        return torch.zeros(len(targets), 0, dtype=torch.int64)
    none = torch.zeros(0, dtype=torch.int64)
    rows = [target.get("unlabelled", none) for target in targets]
    return pad_sequence(rows, batch_first=True, padding_value=-1)


def _padded(
    targets: Sequence[Any], name: str, counts: Sequence[int], dtype: torch.dtype, *, value: float = 0
) -> Tensor:
    rows = [field_rows(target, name) for target in targets]
    # A transform that drops boxes may have forgotten this field; padding would silently shift its rows.
    if [len(row) for row in rows] != list(counts):
        raise ValueError(
            f"expected one row per box: field {name!r} has {[len(row) for row in rows]} rows for {list(counts)} boxes; "
            "drop objects with lit_loader.transforms.SanitizeObjects, which keeps every field row-aligned."
        )
    shapes = sorted({tuple(row.shape[1:]) for row in rows})
    if len(shapes) > 1:
        raise ValueError(f"expected rows of field {name!r} to have one shape, got {shapes}; check the transforms.")
    return pad_sequence([row.to(dtype) for row in rows], batch_first=True, padding_value=value)
