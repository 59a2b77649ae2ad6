"""The target dict of a sample, from the rows that a table holds for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import torch
from torchvision import tv_tensors

from lit_loader.errors import SettingError
from lit_loader.seeding import is_duplicate
from lit_loader.transforms.sanitize import PER_IMAGE_FIELDS, PER_OBJECT_FIELDS, num_rows

if TYPE_CHECKING:
    from lit_loader.annotations import AnnotationTable

__all__ = [
    "OBJECT_FIELDS",
    "attribute_names",
    "check_keypoints",
    "check_masks",
    "check_rows",
    "object_target",
]

OBJECT_FIELDS: Final = ("difficult", "occluded", "truncated")
"""Columns of the table that may be added to a target."""

# Names that a target, a transform or a model of torchvision gives a meaning of its own.
_RESERVED: Final = frozenset((*PER_OBJECT_FIELDS, *PER_IMAGE_FIELDS, "boxes", "is_duplicate"))


def attribute_names(table: AnnotationTable, attributes: Sequence[str] | Literal["all"]) -> tuple[str, ...]:
    """Return the names of the attributes wanted, checked against the table.

    Args:
        table: The annotations.
        attributes: Names, or ``"all"`` that the table has.

    Raises:
        ValueError: The table has no such attribute, a name stands twice, or it is one that targets need.
    """
    if isinstance(attributes, str) and attributes != "all":
        raise ValueError(f'attributes={attributes!r} is neither a list of names nor "all".')
    names = tuple(table.attributes) if isinstance(attributes, str) else tuple(attributes)
    unknown = [name for name in names if name not in table.attributes]
    if unknown:
        raise ValueError(f"attributes holds {unknown}; the table has {sorted(table.attributes)}.")
    taken = sorted(_RESERVED.intersection(names))
    if taken:
        others = [name for name in names if name not in taken]
        raise ValueError(
            f"the table has attributes {taken}, and a target keeps fields of that name for itself; name the "
            f"others, attributes={others}, or rename them in the annotations."
        )
    if len(set(names)) != len(names):
        raise ValueError(f"attributes={list(names)} holds a name twice; name each once.")
    return names


def check_keypoints(table: AnnotationTable) -> None:
    """Refuse a table without points.

    Raises:
        ValueError: It has none.
    """
    if table.keypoints is None:
        rule = f"but no object of {table!r} has points"
        remedy = "read the points (read_annotations(..., schema=...))"
        raise SettingError("keypoints", True, rule, remedy, settings={"keypoints": False})


def check_masks(table: AnnotationTable) -> None:
    """Refuse a table without masks.

    Raises:
        ValueError: It has none.
    """
    if table.masks is None:
        rule = f"but no object of {table!r} has a mask"
        remedy = "read annotations with polygons or run lengths (COCO's segmentation, YOLO's or LabelMe's polygons)"
        raise SettingError("masks", True, rule, remedy, settings={"masks": False})


def object_target(
    table: AnnotationTable,
    position: int,
    *,
    canvas_size: tuple[int, int],
    first_label: int,
    extra_fields: Sequence[str],
    keypoints: bool,
    attributes: Sequence[str],
    mask_size: tuple[int, int] | None = None,
) -> dict[str, Any]:
    """Return the target of one image, see `DetectionDataset`; every tensor has memory of its own.

    Args:
        table: The annotations.
        position: The image's row.
        canvas_size: Height and width of the decoded image.
        first_label: Label of class id 0.
        extra_fields: Some of ``OBJECT_FIELDS``.
        keypoints: Whether to add points.
        attributes: Names of the table's attributes to add.
        mask_size: Height and width of the masks to add, those of the image as it is kept; None for no masks.
    """
    rows = table.objects(position)
    height, width = canvas_size
    # Each of these copies: the table's arrays are read-only views of a mapped file.
    limits = np.array([width, height, width, height], dtype=np.float32)
    boxes = np.minimum(np.maximum(table.boxes[rows], np.float32(0)), limits)
    sides = boxes[:, 2:] - boxes[:, :2]
    target: dict[str, Any] = {
        "boxes": tv_tensors.BoundingBoxes(torch.from_numpy(boxes), format="XYXY", canvas_size=canvas_size),
        "labels": torch.from_numpy(table.labels[rows] + np.int64(first_label)),
        "image_id": int(table.image_numbers[position]),
        "is_duplicate": is_duplicate(),
        "area": torch.from_numpy(sides[:, 0] * sides[:, 1]),
        "iscrowd": torch.from_numpy(table.crowd[rows].astype(np.int64)),
    }
    for name in extra_fields:
        target[name] = torch.from_numpy(np.array(getattr(table, name)[rows], dtype=np.bool_))
    if keypoints and table.keypoints is not None and table.visibility is not None:
        points = np.array(table.keypoints[rows])
        inside = ((points >= 0) & (points <= limits[2:])).all(axis=2)
        target["keypoints"] = tv_tensors.KeyPoints(torch.from_numpy(points), canvas_size=canvas_size)
        target["visibility"] = torch.from_numpy(np.where(inside, table.visibility[rows], np.uint8(0)))
    if mask_size is not None and table.masks is not None:
        scale = (mask_size[1] / width, mask_size[0] / height)
        masks = np.empty((rows.stop - rows.start, *mask_size), dtype=np.uint8)
        for i, row in enumerate(range(rows.start, rows.stop)):
            masks[i] = table.masks.rasterize(row, *mask_size, scale=scale)
        target["masks"] = tv_tensors.Mask(torch.from_numpy(masks))
    for name in attributes:
        target[name] = torch.from_numpy(np.array(table.attributes[name].ids[rows]))
    return target


def check_rows(sample: Any, *, fields: Sequence[str]) -> None:
    """Refuse a sample that a transform left with rows of boxes that no longer exist.

    Args:
        sample: What a transform gave.
        fields: Per-object fields to look at beside the standard ones.

    Raises:
        ValueError: A field has another number of rows than ``boxes``.
    """
    target = sample[1] if isinstance(sample, tuple | list) and len(sample) > 1 else None
    boxes = target.get("boxes") if isinstance(target, Mapping) else None
    if target is None or not isinstance(boxes, torch.Tensor):
        return
    rows = num_rows(boxes)
    for name in (*PER_OBJECT_FIELDS, *fields):
        if name in target and num_rows(target[name]) != rows:
            raise ValueError(
                f"after the transforms, {name!r} has {num_rows(target[name])} rows for {rows} boxes; drop "
                "objects with lit_loader.transforms.SanitizeObjects() in the place of SanitizeBoundingBoxes()."
            )
