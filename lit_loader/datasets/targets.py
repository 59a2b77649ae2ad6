"""Build the target dict of a sample from the rows of its image in a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torchvision import tv_tensors

from lit_loader.annotations.quadrangles import clockwise, smallest_rectangles, visible_parts
from lit_loader.errors import SettingError
from lit_loader.seeding import is_duplicate
from lit_loader.transforms.sanitize import PER_IMAGE_FIELDS, PER_OBJECT_FIELDS, num_rows

if TYPE_CHECKING:
    from lit_loader.annotations import AnnotationTable

__all__ = [
    "OBJECT_FIELDS",
    "ORIENTED_FORMATS",
    "Oriented",
    "attribute_names",
    "check_keypoints",
    "check_masks",
    "check_oriented",
    "check_rows",
    "object_target",
    "unlabelled_labels",
]

OBJECT_FIELDS: Final = ("difficult", "occluded", "truncated")
"""Optional columns of the table that can be added to a target."""

Oriented: TypeAlias = Literal["corners", "rotated"]
"""Form of oriented boxes in a target: four corners, or a rectangle with an angle."""

ORIENTED_FORMATS: Final[Mapping[str, tv_tensors.BoundingBoxFormat]] = {
    "corners": tv_tensors.BoundingBoxFormat.XYXYXYXY,
    "rotated": tv_tensors.BoundingBoxFormat.CXCYWHR,
}
"""torchvision's format of each form."""

# Names that already have a meaning in a target, a transform or a torchvision model.
_RESERVED_NAMES: Final = frozenset((*PER_OBJECT_FIELDS, *PER_IMAGE_FIELDS, "boxes", "is_duplicate"))


def attribute_names(table: AnnotationTable, attributes: Sequence[str] | Literal["all"]) -> tuple[str, ...]:
    """Return the names of the requested attributes, checked against the table.

    Args:
        table: The annotations.
        attributes: Names, or ``"all"`` for all names of the table.

    Raises:
        ValueError: The table has no such attribute, a name is repeated, or a name is reserved for another field.
    """
    if isinstance(attributes, str) and attributes != "all":
        raise ValueError(f'attributes={attributes!r} is neither a list of names nor "all".')
    names = tuple(table.attributes) if isinstance(attributes, str) else tuple(attributes)
    unknown_names = [name for name in names if name not in table.attributes]
    if unknown_names:
        raise ValueError(f"attributes contains {unknown_names}; the table has {sorted(table.attributes)}.")
    reserved_names = sorted(_RESERVED_NAMES.intersection(names))
    if reserved_names:
        remedy = f"leave them out, attributes={[name for name in names if name not in reserved_names]}, or rename them"
        raise ValueError(f"attributes {reserved_names} have the names of other target fields; {remedy}.")
    if len(set(names)) != len(names):
        raise ValueError(f"attributes={list(names)} contains a name twice; give each name once.")
    return names


def check_keypoints(table: AnnotationTable) -> None:
    """Raise ValueError if a table has no points."""
    if table.keypoints is None:
        rule = f"but no object of {table!r} has points"
        remedy = "read the points (read_annotations(..., schema=...))"
        raise SettingError("keypoints", True, rule, remedy, settings={"keypoints": False})


def check_masks(table: AnnotationTable) -> None:
    """Raise ValueError if a table has no masks."""
    if table.masks is None:
        rule = f"but no object of {table!r} has a mask"
        remedy = "read annotations with polygons or run lengths (COCO's segmentation, YOLO's or LabelMe's polygons)"
        raise SettingError("masks", True, rule, remedy, settings={"masks": False})


def check_oriented(table: AnnotationTable, *, form: Oriented) -> None:
    """Raise SettingError if a table has objects, but no oriented box."""
    if table.num_objects and not table.has_orientation().any():
        rule = f"but no object of {table!r} has an oriented box"
        remedy = "read annotations with oriented boxes (DOTA, YOLO-OBB)"
        raise SettingError("oriented", form, rule, remedy, settings={"oriented": None})


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
    unlabelled: Sequence[int] = (),
    oriented: Oriented | None = None,
) -> dict[str, Any]:
    """Create the target of one image, see `DetectionDataset`; its tensors share no memory with the table.

    Args:
        table: The annotations.
        position: Row of the image.
        canvas_size: Height and width of the decoded image.
        first_label: Label of class id 0.
        extra_fields: Some of ``OBJECT_FIELDS``.
        keypoints: Add points.
        attributes: Names of the table's attributes to add.
        mask_size: Height and width of the masks to add, which a cached image may have shrunk; None for no masks.
        unlabelled: Labels of the field ``unlabelled``, see `unlabelled_labels`; empty for no such field.
        oriented: Form of oriented boxes, or None for boxes along the axes.
    """
    rows = table.objects(position)
    height, width = canvas_size
    # Every operation below copies, because the table's arrays are read-only views of a mapped file.
    boxes, areas = _boxes_and_areas(table, rows, form=oriented, canvas_size=canvas_size)
    target: dict[str, Any] = {
        "boxes": boxes,
        "labels": torch.from_numpy(table.labels[rows] + np.int64(first_label)),
        "image_id": int(table.image_numbers[position]),
        "is_duplicate": is_duplicate(),
        "area": torch.from_numpy(areas),
        "iscrowd": torch.from_numpy(table.crowd[rows].astype(np.int64)),
    }
    for name in extra_fields:
        target[name] = torch.from_numpy(np.array(getattr(table, name)[rows], dtype=np.bool_))
    if keypoints and table.keypoints is not None and table.visibility is not None:
        # Points outside the image keep their coordinates; only their visibility changes.
        points = np.array(table.keypoints[rows])
        inside = ((points >= 0) & (points <= np.array([width, height], dtype=np.float32))).all(axis=2)
        target["keypoints"] = tv_tensors.KeyPoints(torch.from_numpy(points), canvas_size=canvas_size)
        target["visibility"] = torch.from_numpy(np.where(inside, table.visibility[rows], np.uint8(0)))
    if mask_size is not None and table.masks is not None:
        scale = (mask_size[1] / width, mask_size[0] / height)
        # Drawn at the size of a cached image, so masks need no resize.
        masks = np.empty((rows.stop - rows.start, *mask_size), dtype=np.uint8)
        corner = (0, 0) if table.regions is None else (int(table.regions[position, 0]), int(table.regions[position, 1]))
        for i, row in enumerate(range(rows.start, rows.stop)):
            masks[i] = table.masks.rasterize(row, *mask_size, scale=scale, corner=corner)
        target["masks"] = tv_tensors.Mask(torch.from_numpy(masks))
    for name in attributes:
        target[name] = torch.from_numpy(np.array(table.attributes[name].ids[rows]))
    if unlabelled:
        target["unlabelled"] = torch.tensor(unlabelled, dtype=torch.int64)
    return target


def _boxes_and_areas(
    table: AnnotationTable, rows: slice, *, form: Oriented | None, canvas_size: tuple[int, int]
) -> tuple[tv_tensors.BoundingBoxes, npt.NDArray[np.float32]]:
    """Return the boxes of some objects, clipped to the canvas unless they are oriented, and their areas on it."""
    if form is not None:
        return _oriented_boxes(table, rows, form=form, canvas_size=canvas_size)
    height, width = canvas_size
    # float32 limits keep the boxes float32.
    limits = np.array([width, height, width, height], dtype=np.float32)
    corners = np.minimum(np.maximum(table.boxes[rows], np.float32(0)), limits)
    sides = corners[:, 2:] - corners[:, :2]
    boxes = tv_tensors.BoundingBoxes(torch.from_numpy(corners), format="XYXY", canvas_size=canvas_size)
    return boxes, sides[:, 0] * sides[:, 1]


def _oriented_boxes(
    table: AnnotationTable, rows: slice, *, form: Oriented, canvas_size: tuple[int, int]
) -> tuple[tv_tensors.BoundingBoxes, npt.NDArray[np.float32]]:
    """Return the oriented boxes of some objects, which are not clipped, and the areas of their parts on the canvas."""
    corners = table.oriented_corners(rows)
    # None, because soft clamping changes the shape of a box at the border.
    kind = {"format": ORIENTED_FORMATS[form], "canvas_size": canvas_size, "clamping_mode": None}
    height, width = canvas_size
    areas = visible_parts(corners, (0, 0, width, height)).areas.astype(np.float32)
    if form == "corners":
        return tv_tensors.BoundingBoxes(torch.from_numpy(clockwise(corners).reshape(-1, 8)).float(), **kind), areas
    rotated = smallest_rectangles(corners).astype(np.float32)
    if table.rotated_boxes is not None:
        # Corners in float32 would round them.
        annotated = table.rotated_boxes[rows]
        rotated = np.where(np.isnan(annotated[:, :1]), rotated, annotated)
    return tv_tensors.BoundingBoxes(torch.from_numpy(rotated), **kind), areas


def unlabelled_labels(table: AnnotationTable, first_label: int) -> tuple[int, ...]:
    """Return the labels of the classes that the images of a table do not label, in ascending order."""
    return tuple(sorted(table.class_names.index(name) + first_label for name in table.unlabelled_classes))


def check_rows(sample: Any, *, fields: Sequence[str]) -> None:
    """Check that a transform removed the same rows from all per-object fields.

    Args:
        sample: The sample that the transform returned.
        fields: Per-object fields to check in addition to the standard ones.

    Raises:
        ValueError: A field and ``boxes`` have different numbers of rows.
    """
    target = sample[1] if isinstance(sample, tuple | list) and len(sample) > 1 else None
    boxes = target.get("boxes") if isinstance(target, Mapping) else None
    # Transforms may return anything; only a target with boxes can be checked.
    if target is None or not isinstance(boxes, torch.Tensor):
        return
    num_boxes = num_rows(boxes)
    for name in (*PER_OBJECT_FIELDS, *fields):
        if name in target and num_rows(target[name]) != num_boxes:
            problem = f"after the transforms, {name!r} has {num_rows(target[name])} rows for {num_boxes} boxes"
            remedy = "remove objects with lit_loader.transforms.SanitizeObjects() instead of SanitizeBoundingBoxes()"
            raise ValueError(f"{problem}; {remedy}.")
