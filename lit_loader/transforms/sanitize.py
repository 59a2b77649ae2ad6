"""Remove degenerate objects from every per-object field of a target at once."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional

from lit_loader.annotations.quadrangles import visible_parts
from lit_loader.transforms.moving import as_array, wrap
from lit_loader.transforms.oriented import corners_of_boxes, is_oriented

__all__ = [
    "DeclaredFields",
    "PER_IMAGE_FIELDS",
    "PER_OBJECT_FIELDS",
    "SanitizeObjects",
    "check_rows",
    "has_rows",
    "num_rows",
]

PER_OBJECT_FIELDS: Final = (
    "area",
    "crop",
    "difficult",
    "iscrowd",
    "keypoints",
    "labels",
    "masks",
    "occluded",
    "scores",
    "truncated",
    "visibility",
)
"""Fields that always have one row per box."""

PER_IMAGE_FIELDS: Final = ("image_id", "orig_size", "size", "unlabelled")
"""Fields that never have one row per box."""

# NOTE [Fields are declared]
# The length of a field does not show whether it has one row per box: a per-image vector of 5 numbers looks per-object
# in an image that happens to have 5 boxes, and would lose rows only there. So the name decides. A field with a first
# dimension and an undeclared name is refused in every image, not only if the lengths match by chance.


class DeclaredFields:
    """Names of the per-object and per-image fields of targets; see NOTE [Fields are declared].

    Args:
        per_object: Names of per-object fields in addition to ``PER_OBJECT_FIELDS``.
        per_image: Names of per-image fields in addition to ``PER_IMAGE_FIELDS``.

    Raises:
        ValueError: A name is declared as both.
    """

    def __init__(self, per_object: Sequence[str] = (), per_image: Sequence[str] = ()) -> None:
        # Arguments override the defaults.
        self.per_object = (frozenset(PER_OBJECT_FIELDS) - frozenset(per_image)) | frozenset(per_object)
        self.per_image = (frozenset(PER_IMAGE_FIELDS) - frozenset(per_object)) | frozenset(per_image)
        contradictory = sorted(self.per_object & self.per_image)
        if contradictory:
            raise ValueError(f"{contradictory} are in per_object and in per_image; keep each name in one of them.")

    def is_per_object(self, name: str, value: Any) -> bool:
        """Return True if a field has one row per box.

        Raises:
            ValueError: The field has a first dimension, but its name is not declared.
        """
        if name in self.per_object:
            return True
        if name in self.per_image or not has_rows(value):
            return False
        remedy = f"add it to per_object=[{name!r}] or to per_image=[{name!r}]"
        raise ValueError(f"target field {name!r} has a first dimension, but is not declared; {remedy}.")


class SanitizeObjects(nn.Module):
    """Clamp boxes to the canvas, and remove objects that are too small or lost their mask from all fields.

    torchvision's ``SanitizeBoundingBoxes`` filters the boxes and the labels that its ``labels_getter`` returns, but no
    other field. Here each field is either per object and filtered (tensor, array, list or tuple), or per image and
    unchanged; see NOTE [Fields are declared]. Numbers, strings, mappings and 0-d tensors are always per image. ``area``
    is recomputed from the boxes, because crops and resizes change it. An object whose mask has no pixels, for example
    after a crop, is removed with its box.

    Oriented boxes are not clamped: a box that the canvas shows in part keeps its shape. The limits and ``area`` apply
    to the part on the canvas, and ``min_size`` to its extent along the sides of the box.

    Called as ``transform(image, target)`` or ``transform((image, target))``; further elements pass through.

    Determinism: no randomness.

    Args:
        min_size: Smallest allowed width and height, in pixels of the clamped box.
        min_area: Smallest allowed area, in square pixels of the clamped box.
        per_object: Names of per-object fields in addition to ``PER_OBJECT_FIELDS``.
        per_image: Names of per-image fields in addition to ``PER_IMAGE_FIELDS``.

    Raises:
        ValueError: ``min_size`` or ``min_area`` is negative, or a name is declared as both.
    """

    def __init__(
        self,
        *,
        min_size: float = 1.0,
        min_area: float = 1.0,
        per_object: Sequence[str] = (),
        per_image: Sequence[str] = (),
    ) -> None:
        super().__init__()
        if min_size < 0 or min_area < 0:
            raise ValueError(f"min_size={min_size} and min_area={min_area} must not be negative.")
        self.fields = DeclaredFields(per_object, per_image)
        self.min_size = min_size
        self.min_area = min_area

    def forward(self, *inputs: Any) -> Any:
        """Sanitise one sample.

        Args:
            inputs: ``image, target`` (and more), or one tuple of them. The target needs ``boxes``, a
                ``tv_tensors.BoundingBoxes`` of any format.

        Returns:
            The sample with a new target; the input is not modified.

        Raises:
            TypeError: The sample is not ``(image, target, ...)`` with such boxes.
            ValueError: A field is undeclared, or a per-object field does not have N rows.
        """
        image, target, *extras = inputs if len(inputs) > 1 else inputs[0]
        return (image, self._sanitize(target), *extras)

    def _sanitize(self, target: Any) -> dict[str, Any]:
        if not isinstance(target, Mapping) or not isinstance(target.get("boxes"), tv_tensors.BoundingBoxes):
            expected = "(image, target) with target['boxes'] a tv_tensors.BoundingBoxes with their canvas_size"
            raise TypeError(f"SanitizeObjects needs {expected}, got a {type(target).__name__}.")
        boxes = target["boxes"]
        if is_oriented(boxes):
            height, width = boxes.canvas_size
            areas, visible_boxes = visible_parts(corners_of_boxes(boxes), (0, 0, width, height))
            sides = visible_boxes[:, 2:4]
        else:
            boxes = _clamped(boxes)
            sides = _sides(boxes)
            areas = sides[:, 0] * sides[:, 1]
        valid = (sides >= self.min_size).all(axis=1) & (areas >= self.min_area)
        # A mask that a crop emptied removes its object; a wrong number of masks is refused below.
        masks = target.get("masks")
        if "masks" in self.fields.per_object and isinstance(masks, Tensor) and masks.shape[:1] == valid.shape:
            valid &= (masks.as_subclass(Tensor).flatten(1).amax(dim=1) > 0).cpu().numpy()
        # None if all objects are valid, which is common and saves a copy of each field.
        keep = None if valid.all() else torch.from_numpy(valid)
        result: dict[str, Any] = {}
        for name, value in target.items():
            if name == "boxes":
                result[name] = boxes if keep is None else wrap(boxes.as_subclass(Tensor)[keep], like=boxes)
            elif self.fields.is_per_object(name, value):
                result[name] = _take(name, value, keep, num_boxes=len(valid))
            else:
                result[name] = value
        if "area" in result:
            # Crops, resizes and clamping change the area; keep the dtype of the old one.
            dtype = result["area"].dtype if isinstance(result["area"], Tensor) else torch.float32
            result["area"] = torch.from_numpy(areas if keep is None else areas[valid]).to(dtype)
        return result


def _clamped(boxes: tv_tensors.BoundingBoxes) -> tv_tensors.BoundingBoxes:
    """Clamp boxes to their canvas, with torchvision's results."""
    xyxy = as_array(boxes)
    if xyxy is None or boxes.clamping_mode is None:
        return functional.clamp_bounding_boxes(boxes)
    height, width = boxes.canvas_size
    limits = np.array([width, height, width, height], dtype=np.float32)
    return wrap(torch.from_numpy(np.minimum(np.maximum(xyxy, np.float32(0)), limits)), like=boxes)


def _sides(boxes: tv_tensors.BoundingBoxes) -> npt.NDArray[Any]:
    """Return widths and heights, ``(N, 2)``."""
    if boxes.format is not tv_tensors.BoundingBoxFormat.XYXY:
        boxes = functional.convert_bounding_box_format(boxes, new_format="XYXY")
    xyxy = as_array(boxes)
    if xyxy is None:
        xyxy = boxes.as_subclass(Tensor).detach().float().cpu().numpy()
    return xyxy[:, 2:] - xyxy[:, :2]


def num_rows(value: Any) -> int:
    """Return ``len(value)``; for a tensor in a fifth of the time."""
    return int(value.shape[0]) if isinstance(value, Tensor) and value.ndim else len(value)


def check_rows(name: str, value: Any, *, num_boxes: int) -> None:
    """Check that a per-object field has one row per box.

    Raises:
        ValueError: It has no rows, or another number of them.
    """
    count = num_rows(value) if has_rows(value) else "no"
    if count != num_boxes:
        reason = "an earlier transform changed only the boxes, or the field is per image and belongs in per_image"
        raise ValueError(f"per-object field {name!r} has {count} rows for {num_boxes} boxes; {reason}.")


def has_rows(value: Any) -> bool:
    """Return True if a field has a first dimension, so it may have one row per box."""
    return value.ndim > 0 if isinstance(value, Tensor | np.ndarray) else isinstance(value, list | tuple)


def _take(name: str, value: Any, keep: Tensor | None, *, num_boxes: int) -> Any:
    """Return the rows of ``value`` where ``keep`` is True, or all rows if it is None, in the same type."""
    check_rows(name, value, num_boxes=num_boxes)
    if keep is None:
        return value
    if isinstance(value, Tensor):
        return wrap(value.as_subclass(Tensor)[keep], like=value)
    if isinstance(value, np.ndarray):
        return value[keep.numpy()]
    return type(value)(itertools.compress(value, keep.tolist()))
