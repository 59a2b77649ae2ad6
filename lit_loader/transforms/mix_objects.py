"""Objects of mixed images: move the targets of several images to one canvas, join them, and hide covered objects.

NOTE [Fields of mixed targets]
    Boxes, masks, points, visibility and area change with the pixels. The first image provides per-image fields and
    fields without a first dimension (numbers, strings, mappings), except for ``unlabelled``, which is the union. Fields
    are declared as for `SanitizeObjects`. The union may contain classes with objects in the target; data modules refuse
    to mix training sets with different unlabelled classes, so there all images have the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchvision import tv_tensors

from lit_loader.annotations.quadrangles import enclosing_boxes, rotated_corners, signed_areas, visible_parts
from lit_loader.images.lazy_image import Part
from lit_loader.transforms.moving import as_array, wrap
from lit_loader.transforms.oriented import boxes_of_corners, corners_of_boxes, is_oriented
from lit_loader.transforms.sanitize import DeclaredFields, check_rows
from lit_loader.transforms.visibility import target_points
from lit_loader.types import IndexArray

__all__ = [
    "Cover",
    "MaskPart",
    "Placement",
    "check_boxes",
    "check_target",
    "covered_points",
    "crowd_flags",
    "cut",
    "hide_covered",
    "join",
    "mask_array",
    "mask_bounds",
    "place",
    "resize_mask",
    "shrink_box",
    "take_rows",
    "xyxy_boxes",
]

_MOVED_FIELDS: Final = ("boxes", "keypoints", "masks")

_Bitmap: TypeAlias = npt.NDArray[np.uint8]
_Flags: TypeAlias = npt.NDArray[np.bool_]


class Placement(NamedTuple):
    """A part of an image, resized and put onto the canvas.

    Attributes:
        part: Left, top, right and bottom, in whole pixels of the image.
        size: Height and width of the part on the canvas, in pixels.
        corner: x and y of its left upper corner on the canvas.
    """

    part: Part
    size: tuple[int, int]
    corner: tuple[int, int] = (0, 0)

    @property
    def region(self) -> Part:
        """Left, top, right and bottom on the canvas."""
        x, y = self.corner
        return x, y, x + self.size[1], y + self.size[0]

    def points(self, points: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Map points ``(..., 2)`` of the image to the canvas."""
        x0, y0, x1, y1 = self.part
        scale = np.array([self.size[1] / (x1 - x0), self.size[0] / (y1 - y0)])
        moved: npt.NDArray[np.float32] = ((points - (x0, y0)) * scale + self.corner).astype(np.float32)
        return moved

    def boxes(self, boxes: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Map XYXY boxes ``(N, 4)`` of the image to the canvas, clipped to the region."""
        moved = self.points(boxes.reshape(-1, 2, 2)).reshape(-1, 4)
        region = np.array(self.region, dtype=np.float32)
        return moved.clip(region[[0, 1, 0, 1]], region[[2, 3, 2, 3]])


class MaskPart(NamedTuple):
    """Masks of some objects in a region of the canvas; they are empty elsewhere.

    Attributes:
        region: Left, top, right and bottom on the canvas.
        bitmaps: For each object uint8 ``(height, width)`` of the region; may be views, so they must not be written to.
        dtype: uint8 or bool, of the masks in the target.
    """

    region: Part
    bitmaps: list[_Bitmap]
    dtype: torch.dtype


class Cover(NamedTuple):
    """Pixels of the canvas that were replaced, and so hide objects.

    Attributes:
        region: Left, top, right and bottom on the canvas.
        bitmap: bool ``(height, width)`` of the region, True where pixels were replaced; None for the whole region.
        first_row: The objects before this row of the joined target are under the cover.
    """

    region: Part
    bitmap: _Flags | None
    first_row: int


def xyxy_boxes(target: Any) -> npt.NDArray[np.float32]:
    """Return a view of the boxes of a target, float32 ``(N, 4)``.

    Raises:
        TypeError: The target is not a mapping, or its boxes are not XYXY boxes on the CPU.
    """
    boxes = target.get("boxes") if isinstance(target, Mapping) else None
    array = as_array(boxes) if isinstance(boxes, tv_tensors.BoundingBoxes) else None
    if array is None:
        if isinstance(boxes, tv_tensors.BoundingBoxes):
            kind = f"{boxes.dtype}, format {boxes.format.name}, on {boxes.device}"
        else:
            kind = f"boxes of type {type(boxes).__name__}" if isinstance(target, Mapping) else type(target).__name__
        expected = "a target with target['boxes'] as tv_tensors.BoundingBoxes, float32, format XYXY, on the CPU"
        raise TypeError(f"mixing needs {expected}, got {kind}; wrap or convert the boxes in the data set.")
    return array


def check_boxes(target: Any) -> int:
    """Return the number of boxes of a target, which are XYXY or oriented boxes.

    Raises:
        TypeError: The target is not a mapping, or its boxes have another format, or are not on the CPU.
    """
    boxes = target.get("boxes") if isinstance(target, Mapping) else None
    return len(boxes) if boxes is not None and is_oriented(boxes) and boxes.is_cpu else len(xyxy_boxes(target))


def check_target(target: Any, fields: DeclaredFields) -> None:
    """Check that a target can be mixed.

    Args:
        target: Target of an image.
        fields: Names of its fields.

    Raises:
        TypeError: Boxes, points or masks have another type.
        ValueError: A field is not declared, or does not have one row per box.
    """
    num_boxes = check_boxes(target)
    mask_array(target)
    target_points(target)
    for name, value in target.items():
        if _is_per_object(name, value, fields):
            check_rows(name, value, num_boxes=num_boxes)


def place(
    target: Mapping[str, Any],
    placement: Placement,
    canvas_size: tuple[int, int],
    *,
    min_visible: float,
    fields: DeclaredFields,
) -> dict[str, Any]:
    """Return the objects that a part of an image shows, in pixels of the canvas, for `join`.

    An object stays if the part shows at least ``min_visible`` of its area: of the pixels of its mask if it has one and
    the part cuts it, else of its box. A crowd stays if any part of it is shown, and a box without area if the part
    touches it. An object whose mask loses its last pixel when it shrinks is removed. The box of an object that the part
    cuts ends at the edge of the part, and at the rest of its mask. An oriented one becomes the smallest rectangle with
    its angle around the polygon that is shown.

    Args:
        target: Target of the image.
        placement: The part of the image.
        canvas_size: Height and width of the canvas, in pixels.
        min_visible: Share in [0, 1].
        fields: Names of the fields of the target.

    Returns:
        The target with the rows that stay. Boxes are a float32 array ``(N, 4)`` or oriented boxes, points a float32
        array ``(N, K, 2)``, masks a `MaskPart`; points outside of the region have visibility 0, and so do points on its
        right or lower edge inside of the canvas.

    Raises:
        TypeError: Boxes or points have another type; see `xyxy_boxes` and `target_points`.
        ValueError: A field is not declared, or does not have one row per box.
    """
    rows, boxes, is_cut = _shown_objects(target, placement.part, min_visible=min_visible)
    masks = mask_array(target)
    bitmaps: list[_Bitmap] = []
    if masks is not None:
        bitmaps, has_vanished = _shown_masks([masks[row] for row in rows], placement)
        rows = rows[~has_vanished]
        boxes = boxes[~has_vanished]
        is_cut = is_cut[~has_vanished]
    other_fields = {name: value for name, value in target.items() if name not in _MOVED_FIELDS}
    # The fields stay in order.
    result = {**target, **take_rows(other_fields, rows, num_boxes=len(target["boxes"]), fields=fields)}
    oriented = is_oriented(target["boxes"])
    if oriented:
        corners = placement.points(boxes)
        result["boxes"] = boxes_of_corners(corners, like=target["boxes"], canvas_size=canvas_size)
    else:
        result["boxes"] = placement.boxes(boxes)
    if masks is not None:
        result["masks"] = MaskPart(placement.region, bitmaps, target["masks"].dtype)
        for number in () if oriented else np.flatnonzero(is_cut):
            result["boxes"][number] = shrink_box(result["boxes"][number], bitmaps[number], placement.corner)
    points_and_visibility = target_points(target)
    if points_and_visibility is not None:
        points, visibility = points_and_visibility
        moved_points = placement.points(points.as_subclass(Tensor).numpy()[rows])
        is_inside = _are_inside(moved_points, placement.region, canvas_size)
        result["keypoints"] = moved_points
        result["visibility"] = torch.from_numpy(np.where(is_inside, visibility.numpy()[rows], np.uint8(0)))
    return result


def _are_inside(points: npt.NDArray[Any], region: Sequence[int], canvas_size: tuple[int, int]) -> npt.NDArray[np.bool_]:
    """Return which points ``(N, K, 2)`` a region of the canvas has."""
    low = np.array(region[:2])
    high = np.array(region[2:])
    # Another image may have the pixel at the right or lower edge, except at the edge of the canvas.
    is_below = (points < high) | ((points == high) & (high == (canvas_size[1], canvas_size[0])))
    are_inside: npt.NDArray[np.bool_] = ((points >= low) & is_below).all(axis=2)
    return are_inside


def _shown_objects(
    target: Mapping[str, Any], part: Part, *, min_visible: float
) -> tuple[IndexArray, npt.NDArray[np.float64], _Flags]:
    """Return the rows of the objects that `place` keeps by their area, their clipped boxes, and True for cut ones.

    The boxes are XYXY ``(N, 4)``, or the corners ``(N, 4, 2)`` of oriented ones.
    """
    if is_oriented(target["boxes"]):
        corners = corners_of_boxes(target["boxes"])
        boxes = enclosing_boxes(corners)
    else:
        corners = None
        boxes = xyxy_boxes(target).astype(np.float64)
    clipped = np.concatenate([np.maximum(boxes[:, :2], part[:2]), np.minimum(boxes[:, 2:], part[2:])], axis=1)
    visible_sides = clipped[:, 2:] - clipped[:, :2]
    is_touched = (visible_sides >= 0).all(axis=1)
    visible_areas = np.where(is_touched, visible_sides.prod(axis=1), 0)
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
    is_cut = (clipped != boxes).any(axis=1) & is_touched
    if corners is not None:
        visible_areas, visible_boxes = visible_parts(corners, part)
        areas = np.abs(signed_areas(corners))
        corners[is_cut] = rotated_corners(visible_boxes[is_cut])
    masks = mask_array(target)
    if masks is not None:
        for row in np.flatnonzero(is_cut & (visible_areas > 0)):
            # An object without a mask has an empty one, which has no share.
            if num_pixels := np.count_nonzero(masks[row]):
                areas[row] = num_pixels
                visible_areas[row] = np.count_nonzero(cut(masks[row], part))
    has_share = (visible_areas >= min_visible * areas) | crowd_flags(target, len(boxes))
    rows = np.flatnonzero(is_touched & (((visible_areas > 0) & has_share) | (areas == 0)))
    return rows, (clipped if corners is None else corners)[rows], is_cut[rows]


def _shown_masks(masks: Sequence[_Bitmap], placement: Placement) -> tuple[list[_Bitmap], _Flags]:
    """Return the masks on the canvas, and for each object True if its mask lost its last pixel, and is left out."""
    shown_masks = [cut(mask, placement.part) for mask in masks]
    bitmaps = [resize_mask(mask, placement.size) for mask in shown_masks]
    # An object without a mask has an empty one, which loses nothing.
    has_vanished = [
        bitmap is not mask and not bitmap.any() and mask.any()
        for bitmap, mask in zip(bitmaps, shown_masks, strict=True)
    ]
    visible_bitmaps = [bitmap for bitmap, vanished in zip(bitmaps, has_vanished, strict=True) if not vanished]
    return visible_bitmaps, np.array(has_vanished, dtype=np.bool_)


def join(
    targets: Sequence[Mapping[str, Any]], canvas_size: tuple[int, int], *, fields: DeclaredFields
) -> dict[str, Any]:
    """Join targets from `place`; see NOTE [Fields of mixed targets].

    Args:
        targets: The objects of each image, on the canvas.
        canvas_size: Height and width of the canvas, in pixels.
        fields: Names of the fields of the targets.

    Returns:
        A target in new memory, which may be written to.

    Raises:
        ValueError: The targets have different fields, or one that is not declared.
    """
    first = targets[0]
    result: dict[str, Any] = {}
    # In the order of the first image. A per-object field that only another image has is an error.
    for name in dict.fromkeys(name for target in targets for name in target):
        values = [target[name] for target in targets if name in target]
        if not any(_is_per_object(name, value, fields) for value in values):
            if name in first:
                result[name] = first[name]
            continue
        if len(values) != len(targets):
            raise ValueError(f"the target field {name!r} is missing in an image to be mixed; all images need it.")
        if name == "boxes":
            result[name] = _joined_boxes(values, canvas_size)
        elif name == "keypoints":
            if len({points.shape[1] for points in values}) > 1:
                counts = [points.shape[1] for points in values]
                raise ValueError(f"images to be mixed have {counts} keypoints an object; they need the same points.")
            result[name] = tv_tensors.KeyPoints(torch.from_numpy(np.concatenate(values)), canvas_size=canvas_size)
        elif name == "masks":
            result[name] = tv_tensors.Mask(torch.from_numpy(_drawn_masks(values, canvas_size)).to(values[0].dtype))
        else:
            result[name] = _joined_rows(values)
    if isinstance(result.get("area"), Tensor):
        result["area"] = _areas(result["boxes"]).to(result["area"].dtype)
    unlabelled = [target["unlabelled"] for target in targets if "unlabelled" in target]
    if unlabelled:
        result["unlabelled"] = torch.unique(torch.cat(unlabelled))
    return result


def hide_covered(
    target: dict[str, Any], covers: Sequence[Cover], *, min_visible: float, fields: DeclaredFields
) -> dict[str, Any]:
    """Update the objects that covers hide.

    Masks lose the covered pixels, and boxes shrink to the rest of the mask. Without masks a box shrinks to the box
    around its uncovered rest. An object with less than ``min_visible`` of its area left is removed from every field,
    unless it is a crowd. Covered points that were visible become hidden (1).

    Args:
        target: The result of `join`, which is written to.
        covers: The covers; later ones may hide objects of earlier ones.
        min_visible: Share in [0, 1].
        fields: Names of the fields of the target.

    Returns:
        The target; a new one if objects were removed.
    """
    boxes = xyxy_boxes(target)
    masks = mask_array(target)
    changes = _uncovered_boxes(boxes, covers) if masks is None else _uncovered_masks(boxes, masks, covers)
    is_hidden = np.zeros(len(boxes), dtype=np.bool_)
    for row, (share, box) in changes.items():
        is_hidden[row] = share == 0 or share < min_visible
        # A crowd that is hidden as a whole keeps its row, with a box without area.
        boxes[row] = box
    _hide_points(target, covers)
    if isinstance(target.get("area"), Tensor):
        target["area"] = _areas(target["boxes"]).to(target["area"].dtype)
    is_hidden &= ~crowd_flags(target, len(boxes))
    if not is_hidden.any():
        return target
    return take_rows(target, np.flatnonzero(~is_hidden), num_boxes=len(boxes), fields=fields)


def resize_mask(bitmap: _Bitmap, size: tuple[int, int]) -> _Bitmap:
    """Resize a mask ``(height, width)``: a pixel has the value at its centre, as `Masks.rasterize` draws it.

    Args:
        bitmap: The mask.
        size: Height and width of the result.
    """
    height, width = bitmap.shape
    if (height, width) == size:
        return bitmap
    rows = ((np.arange(size[0]) + 0.5) * (height / size[0])).astype(np.int64)
    columns = ((np.arange(size[1]) + 0.5) * (width / size[1])).astype(np.int64)
    # One axis after the other takes a fifth of the time of both at once.
    resized: _Bitmap = bitmap[rows].take(columns, axis=1)
    return resized


def _is_per_object(name: str, value: Any, fields: DeclaredFields) -> bool:
    return name == "boxes" or fields.is_per_object(name, value)


def crowd_flags(target: Mapping[str, Any], num_boxes: int) -> _Flags:
    """Return True for each object that is a crowd, bool ``(N,)``."""
    crowd = target.get("iscrowd")
    return np.zeros(num_boxes, dtype=np.bool_) if crowd is None else np.asarray(crowd).astype(np.bool_)


def mask_array(target: Mapping[str, Any]) -> npt.NDArray[np.uint8] | None:
    """Return a view of the masks, uint8 ``(N, H, W)``, or None if the target has none."""
    masks = target.get("masks")
    if masks is None:
        return None
    if not isinstance(masks, Tensor) or masks.dtype not in (torch.uint8, torch.bool) or masks.ndim != 3:
        kind = f"{masks.dtype} {tuple(masks.shape)}" if isinstance(masks, Tensor) else type(masks).__name__
        raise TypeError(f"mixing needs target['masks'] as tv_tensors.Mask, uint8 (N, H, W), got {kind}; convert it.")
    array: npt.NDArray[np.uint8] = masks.as_subclass(Tensor).numpy().view(np.uint8)
    return array


def cut(pixels: npt.NDArray[np.uint8], part: Part) -> npt.NDArray[np.uint8]:
    """Return a view of a part (left, top, right, bottom) of pixels ``(height, width, ...)``."""
    x0, y0, x1, y1 = part
    return pixels[y0:y1, x0:x1]


def take_rows(target: Mapping[str, Any], rows: IndexArray, *, num_boxes: int, fields: DeclaredFields) -> dict[str, Any]:
    """Return a target with some rows of its per-object fields; fields are not copied if all rows stay.

    Args:
        target: The target, or some fields of it.
        rows: int64 ``(M,)``, in ascending order.
        num_boxes: Number of rows of every per-object field.
        fields: Names of the fields of the target.

    Raises:
        ValueError: A field is not declared, or has another number of rows.
    """
    result: dict[str, Any] = {}
    for name, value in target.items():
        if not _is_per_object(name, value, fields):
            result[name] = value
            continue
        check_rows(name, value, num_boxes=num_boxes)
        result[name] = value if len(rows) == num_boxes else _rows_of(value, rows)
    return result


def _rows_of(value: Any, rows: IndexArray) -> Any:
    if type(value) is Tensor:
        return value[torch.from_numpy(rows)]
    if isinstance(value, Tensor):
        return wrap(value.as_subclass(Tensor)[torch.from_numpy(rows)], like=value)
    return value[rows] if isinstance(value, np.ndarray) else type(value)(value[row] for row in rows)


def _joined_rows(values: Sequence[Any]) -> Any:
    """Concatenate a per-object field of several images."""
    if isinstance(values[0], Tensor):
        return torch.cat([value.as_subclass(Tensor) for value in values])
    if isinstance(values[0], np.ndarray):
        return np.concatenate(values)
    return type(values[0])(row for value in values for row in value)


def _joined_boxes(values: Sequence[Any], canvas_size: tuple[int, int]) -> tv_tensors.BoundingBoxes:
    """Join arrays of XYXY boxes, or oriented boxes of one format."""
    formats = {value.format.name if is_oriented(value) else "XYXY" for value in values}
    if len(formats) > 1:
        raise ValueError(f"images to be mixed have boxes of the formats {sorted(formats)}; they need the same one.")
    if is_oriented(values[0]):
        plain = torch.cat([value.as_subclass(Tensor) for value in values])
        joined: tv_tensors.BoundingBoxes = wrap(plain, like=values[0], canvas_size=canvas_size)
        return joined
    boxes = torch.from_numpy(np.concatenate(values))
    return tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=canvas_size)


def _drawn_masks(parts: Sequence[MaskPart], canvas_size: tuple[int, int]) -> npt.NDArray[np.uint8]:
    masks = np.zeros((sum(len(part.bitmaps) for part in parts), *canvas_size), dtype=np.uint8)
    number = 0
    for part in parts:
        for bitmap in part.bitmaps:
            cut(masks[number], part.region)[:] = bitmap
            number += 1
    return masks


def _areas(boxes: Tensor) -> Tensor:
    if is_oriented(boxes):
        height, width = boxes.canvas_size
        return torch.from_numpy(visible_parts(corners_of_boxes(boxes), (0, 0, width, height)).areas)
    corners = boxes.as_subclass(Tensor)
    sides = corners[:, 2:] - corners[:, :2]
    return sides[:, 0] * sides[:, 1]


def mask_bounds(bitmap: npt.NDArray[Any]) -> Part | None:
    """Return left, top, right and bottom of the box around a mask ``(height, width)``, or None if it is empty."""
    rows = np.flatnonzero(bitmap.any(axis=1))
    columns = np.flatnonzero(bitmap.any(axis=0))
    return (int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1) if len(rows) else None


def shrink_box(
    box: npt.NDArray[np.float32], bitmap: npt.NDArray[Any], corner: tuple[int, int] = (0, 0)
) -> npt.NDArray[np.float32]:
    """Return the intersection of a box with the box around a mask; the box itself if they do not meet.

    Args:
        box: XYXY, on the canvas.
        bitmap: The mask.
        corner: x and y of its left upper corner on the canvas.
    """
    bounds = mask_bounds(bitmap)
    if bounds is None:
        return box
    low = np.add(bounds[:2], corner)
    high = np.add(bounds[2:], corner)
    shrunk = np.concatenate([np.maximum(box[:2], low), np.minimum(box[2:], high)])
    return shrunk.astype(np.float32) if (shrunk[:2] < shrunk[2:]).all() else box


def _uncovered_boxes(
    boxes: npt.NDArray[np.float32], covers: Sequence[Cover]
) -> dict[int, tuple[float, npt.NDArray[np.float32]]]:
    """Return the uncovered share of each box that rectangles cover in part, and the box around the rest."""
    regions = np.array([cover.region for cover in covers], dtype=np.float64).reshape(-1, 1, 4)
    first_rows = np.array([cover.first_row for cover in covers])
    sides = np.minimum(boxes[:, 2:], regions[..., 2:]) - np.maximum(boxes[:, :2], regions[..., :2])
    is_covered = (sides > 0).all(axis=2) & (np.arange(len(boxes)) < first_rows[:, None])
    return {
        int(row): _uncovered_rest(boxes[row].tolist(), regions[is_covered[:, row], 0].tolist())
        for row in np.flatnonzero(is_covered.any(axis=0))
    }


def _uncovered_rest(
    box: Sequence[float], rectangles: Sequence[Sequence[float]]
) -> tuple[float, npt.NDArray[np.float32]]:
    """Return the share of a box outside of rectangles, and the box around it; without area if the share is 0."""
    x1, y1, x2, y2 = box
    sides = {min(max(y, y1), y2) for rectangle in rectangles for y in rectangle[1::2]}
    area = 0.0
    spans: list[tuple[float, float]] = []
    free_bands: list[float] = []
    # No rectangle begins or ends inside of a band, so its uncovered part is a row of spans.
    for top, bottom in pairwise(sorted({y1, y2} | sides)):
        x = x1
        num_spans = len(spans)
        for x_low, x_high in sorted((r[0], r[2]) for r in rectangles if r[1] <= top and bottom <= r[3]):
            if x < x_low:
                spans.append((x, x_low))
            x = max(x, x_high)
        if x < x2:
            spans.append((x, x2))
        if len(spans) > num_spans:
            area += (bottom - top) * sum(high - low for low, high in spans[num_spans:])
            free_bands += (top, bottom)
    if not spans:
        return 0.0, np.array([x1, y1, x1, y1], dtype=np.float32)
    uncovered_box = (min(spans)[0], free_bands[0], max(high for _, high in spans), free_bands[-1])
    return area / ((x2 - x1) * (y2 - y1)), np.array(uncovered_box, dtype=np.float32)


def _uncovered_masks(
    boxes: npt.NDArray[np.float32], masks: npt.NDArray[np.uint8], covers: Sequence[Cover]
) -> dict[int, tuple[float, npt.NDArray[np.float32]]]:
    """Remove covered pixels from masks, and return the rest of each changed object as `_uncovered_boxes` does."""
    num_pixels: dict[int, int] = {}
    for cover in covers:
        x0, y0, x1, y1 = cover.region
        covered = masks[: cover.first_row, y0:y1, x0:x1]
        bitmap = np.ones(covered.shape[1:], dtype=np.bool_) if cover.bitmap is None else cover.bitmap
        for row in range(len(covered)):
            if (covered[row] & bitmap).any():
                # The share refers to the mask before the first cover.
                num_pixels.setdefault(row, int(np.count_nonzero(masks[row])))
                covered[row][bitmap] = 0
    changes = {}
    for row, count in num_pixels.items():
        visible_count = int(np.count_nonzero(masks[row]))
        box = shrink_box(boxes[row], masks[row]) if visible_count else boxes[row][[0, 1, 0, 1]]
        changes[row] = (visible_count / count, box)
    return changes


def _hide_points(target: dict[str, Any], covers: Sequence[Cover]) -> None:
    """Set the visibility of covered points from 2 to 1, in place."""
    points_and_visibility = target_points(target)
    if points_and_visibility is None:
        return
    points, visibility = (value.as_subclass(Tensor).numpy() for value in points_and_visibility)
    for cover in covers:
        is_covered = covered_points(points[: cover.first_row], cover)
        below = visibility[: cover.first_row]
        below[is_covered & (below == 2)] = 1


def covered_points(points: npt.NDArray[np.float32], cover: Cover) -> _Flags:
    """Return which points ``(..., 2)`` are on replaced pixels."""
    region = cover.region
    is_covered: _Flags = np.all((points >= region[:2]) & (points < region[2:]), axis=-1)
    if cover.bitmap is not None:
        # Points outside have no pixel, and may be too large for an integer.
        pixels = np.floor(points[is_covered]).astype(np.int64) - region[:2]
        is_covered[is_covered] = cover.bitmap[pixels[:, 1], pixels[:, 0]]
    return is_covered
