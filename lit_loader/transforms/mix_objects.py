"""Objects of mixed images: move the targets of several images to one canvas, join them, and hide covered objects.

NOTE [Fields of mixed targets]
    Boxes, masks, points, visibility and area change with the pixels. `PER_IMAGE_FIELDS` and fields without a first
    dimension (numbers, strings, mappings) are those of the first image, except ``unlabelled``, which is the union: the
    mixed image may show unlabelled objects of either image. Every other field has one row per object, such as the
    attributes of a `DetectionDataset`. A field with another number of rows is an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchvision import tv_tensors

from lit_loader.images.lazy_image import Part
from lit_loader.transforms.moving import as_array, wrap
from lit_loader.transforms.sanitize import PER_IMAGE_FIELDS, has_rows, num_rows
from lit_loader.transforms.visibility import target_points
from lit_loader.types import IndexArray

__all__ = [
    "Cover",
    "MaskPart",
    "Placement",
    "covered_points",
    "crowd_flags",
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

_MOVED_FIELDS: Final = ("boxes", "keypoints", "masks", "visibility")

_Floats: TypeAlias = npt.NDArray[np.float64]
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
        left, top = self.corner
        return left, top, left + self.size[1], top + self.size[0]

    def points(self, points: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Map points ``(..., 2)`` of the image to the canvas."""
        left, top, right, bottom = self.part
        scale = np.array([self.size[1] / (right - left), self.size[0] / (bottom - top)])
        moved: npt.NDArray[np.float32] = ((points - (left, top)) * scale + self.corner).astype(np.float32)
        return moved

    def boxes(self, boxes: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Map XYXY boxes ``(N, 4)`` of the image to the canvas, clipped to the region."""
        moved = self.points(boxes.reshape(-1, 2, 2)).reshape(-1, 4)
        left, top, right, bottom = np.array(self.region, dtype=np.float32)
        return moved.clip([left, top, left, top], [right, bottom, right, bottom])


class MaskPart(NamedTuple):
    """Masks of some objects in a region of the canvas; they are empty elsewhere.

    Attributes:
        region: Left, top, right and bottom on the canvas.
        bitmaps: For each object uint8 ``(height, width)`` of the region; may be views, so they must not be written to.
    """

    region: Part
    bitmaps: list[_Bitmap]


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
        TypeError: The target is no mapping with XYXY boxes on the CPU.
    """
    boxes = target.get("boxes") if isinstance(target, Mapping) else None
    array = as_array(boxes) if isinstance(boxes, tv_tensors.BoundingBoxes) else None
    if array is None:
        kind = f"boxes of type {type(boxes).__name__}" if isinstance(target, Mapping) else type(target).__name__
        expected = "a target with target['boxes'] as tv_tensors.BoundingBoxes, float32, format XYXY, on the CPU"
        raise TypeError(f"mixing needs {expected}, got {kind}; wrap or convert the boxes in the data set.")
    return array


def place(target: Mapping[str, Any], placement: Placement, *, min_visible: float) -> dict[str, Any]:
    """Return the objects that a part of an image shows, in pixels of the canvas, for `join`.

    An object stays if the part shows at least ``min_visible`` of its area: of the pixels of its mask if it has one and
    the part cuts it, else of its box. A crowd stays if any part of it is shown, and a box without area if the part
    touches it. The box of an object that the part cuts ends at the edge of the part, and at the rest of its mask.

    Args:
        target: Target of the image.
        placement: The part of the image.
        min_visible: Share in [0, 1].

    Returns:
        The target with the rows that stay. Boxes are a float32 array ``(N, 4)``, points a float32 array ``(N, K, 2)``,
        masks a `MaskPart`; points outside of the region have visibility 0.

    Raises:
        TypeError: Boxes or points have another type; see `xyxy_boxes` and `target_points`.
        ValueError: A field does not have one row per box.
    """
    boxes = xyxy_boxes(target).astype(np.float64)
    part = np.array(placement.part, dtype=np.float64)
    clipped = np.concatenate([np.maximum(boxes[:, :2], part[:2]), np.minimum(boxes[:, 2:], part[2:])], axis=1)
    visible_sides = clipped[:, 2:] - clipped[:, :2]
    is_touched = (visible_sides >= 0).all(axis=1)
    visible_areas = np.where(is_touched, visible_sides.prod(axis=1), 0)
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
    crowd = crowd_flags(target, len(boxes))
    is_cut = (clipped != boxes).any(axis=1) & is_touched
    masks = mask_array(target)
    if masks is not None:
        for row in np.flatnonzero(is_cut & (visible_areas > 0)):
            # An object without a mask has an empty one, which has no share.
            if num_pixels := np.count_nonzero(masks[row]):
                areas[row] = num_pixels
                visible_areas[row] = np.count_nonzero(_cut(masks[row], placement.part))
    shows_share = (visible_areas > 0) & ((visible_areas >= min_visible * areas) | crowd)
    rows = np.flatnonzero(is_touched & (shows_share | (areas == 0)))
    other_fields = {name: value for name, value in target.items() if name not in _MOVED_FIELDS}
    # The fields stay in order.
    result = {**target, **take_rows(other_fields, rows, num_boxes=len(boxes))}
    result["boxes"] = placement.boxes(clipped[rows])
    if masks is not None:
        bitmaps = [resize_mask(_cut(masks[row], placement.part), placement.size) for row in rows]
        result["masks"] = MaskPart(placement.region, bitmaps)
        for number in np.flatnonzero(is_cut[rows]):
            result["boxes"][number] = shrink_box(result["boxes"][number], bitmaps[number], placement.corner)
    points_and_visibility = target_points(target)
    if points_and_visibility is not None:
        points, visibility = points_and_visibility
        moved_points = placement.points(points.as_subclass(Tensor).numpy()[rows])
        left, top, right, bottom = placement.region
        is_inside = ((moved_points >= (left, top)) & (moved_points <= (right, bottom))).all(axis=2)
        result["keypoints"] = moved_points
        result["visibility"] = torch.from_numpy(np.where(is_inside, visibility.numpy()[rows], np.uint8(0)))
    return result


def join(targets: Sequence[Mapping[str, Any]], canvas_size: tuple[int, int]) -> dict[str, Any]:
    """Join targets from `place`; see NOTE [Fields of mixed targets].

    Args:
        targets: The objects of each image, on the canvas.
        canvas_size: Height and width of the canvas, in pixels.

    Returns:
        A target in new memory, which may be written to.

    Raises:
        ValueError: The targets have different fields.
    """
    first = targets[0]
    result: dict[str, Any] = {}
    for name, value in first.items():
        values = [target[name] for target in targets if name in target]
        if not _is_per_object(name, value):
            result[name] = value
            continue
        if len(values) != len(targets):
            raise ValueError(f"the target field {name!r} is missing in an image to be mixed; all images need it.")
        if name == "boxes":
            boxes = torch.from_numpy(np.concatenate(values))
            result[name] = tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=canvas_size)
        elif name == "keypoints":
            if len({points.shape[1] for points in values}) > 1:
                counts = [points.shape[1] for points in values]
                raise ValueError(f"images to be mixed have {counts} keypoints an object; they need the same points.")
            result[name] = tv_tensors.KeyPoints(torch.from_numpy(np.concatenate(values)), canvas_size=canvas_size)
        elif name == "masks":
            result[name] = tv_tensors.Mask(torch.from_numpy(_drawn_masks(values, canvas_size)))
        else:
            result[name] = _joined_rows(values)
    if isinstance(result.get("area"), Tensor):
        result["area"] = _areas(result["boxes"]).to(result["area"].dtype)
    unlabelled = [target["unlabelled"] for target in targets if "unlabelled" in target]
    if unlabelled:
        result["unlabelled"] = torch.unique(torch.cat(unlabelled))
    return result


def hide_covered(target: dict[str, Any], covers: Sequence[Cover], *, min_visible: float) -> dict[str, Any]:
    """Update the objects that covers hide.

    Masks lose the covered pixels, and boxes shrink to the rest of the mask. Without masks a box shrinks to the box
    around its uncovered rest. An object with less than ``min_visible`` of its area left is removed from every field,
    unless it is a crowd. Covered points that were visible become hidden (1).

    Args:
        target: The result of `join`, which is written to.
        covers: The covers; later ones may hide objects of earlier ones.
        min_visible: Share in [0, 1].

    Returns:
        The target; a new one if objects were removed.
    """
    boxes = xyxy_boxes(target)
    masks = mask_array(target)
    rests = _uncovered_boxes(boxes, covers) if masks is None else _uncovered_masks(boxes, masks, covers)
    is_gone = np.zeros(len(boxes), dtype=np.bool_)
    for row, (share, rest) in rests.items():
        is_gone[row] = share == 0 or share < min_visible
        # A crowd that is hidden as a whole keeps its row, with a box without area.
        boxes[row] = rest
    if "keypoints" in target:
        _hide_points(target, covers)
    if isinstance(target.get("area"), Tensor):
        target["area"] = _areas(target["boxes"]).to(target["area"].dtype)
    is_gone &= ~crowd_flags(target, len(boxes))
    return take_rows(target, np.flatnonzero(~is_gone), num_boxes=len(boxes)) if is_gone.any() else target


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
    resized: _Bitmap = bitmap[rows[:, None], columns]
    return resized


def _is_per_object(name: str, value: Any) -> bool:
    return name not in PER_IMAGE_FIELDS and (isinstance(value, MaskPart) or has_rows(value))


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
        raise TypeError(
            f"mixing needs target['masks'] as tv_tensors.Mask, uint8 (N, H, W), got {type(masks).__name__}."
        )
    array: npt.NDArray[np.uint8] = masks.as_subclass(Tensor).numpy().view(np.uint8)
    return array


def _cut(bitmap: _Bitmap, part: Part) -> _Bitmap:
    left, top, right, bottom = part
    return bitmap[top:bottom, left:right]


def take_rows(target: Mapping[str, Any], rows: IndexArray, *, num_boxes: int) -> dict[str, Any]:
    """Return a target with some rows of its per-object fields; fields are not copied if all rows stay.

    Args:
        target: The target, or some fields of it.
        rows: int64 ``(M,)``, in ascending order.
        num_boxes: Number of rows of every per-object field.

    Raises:
        ValueError: A field has another number of rows.
    """
    result: dict[str, Any] = {}
    for name, value in target.items():
        if not _is_per_object(name, value):
            result[name] = value
            continue
        if num_rows(value) != num_boxes:
            rows_text = f"{num_rows(value)} rows for {num_boxes} boxes"
            rule = "fields of mixed images have one row per box"
            remedy = "put a value of the whole image into a mapping, which is not divided among the objects"
            raise ValueError(f"target field {name!r} has {rows_text}, but {rule}; {remedy}.")
        result[name] = value if len(rows) == num_boxes else _rows_of(value, rows)
    return result


def _rows_of(value: Any, rows: IndexArray) -> Any:
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


def _drawn_masks(parts: Sequence[MaskPart], canvas_size: tuple[int, int]) -> npt.NDArray[np.uint8]:
    masks = np.zeros((sum(len(part.bitmaps) for part in parts), *canvas_size), dtype=np.uint8)
    number = 0
    for part in parts:
        for bitmap in part.bitmaps:
            _cut(masks[number], part.region)[:] = bitmap
            number += 1
    return masks


def _areas(boxes: Tensor) -> Tensor:
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
        int(row): _uncovered_rest(boxes[row].astype(np.float64), regions[is_covered[:, row], 0])
        for row in np.flatnonzero(is_covered.any(axis=0))
    }


def _uncovered_rest(box: _Floats, rectangles: _Floats) -> tuple[float, npt.NDArray[np.float32]]:
    """Return the share of a box outside of rectangles, and the box around it; a box without area if the share is 0."""
    # The edges of the rectangles divide the box into cells, each of which is covered as a whole or not at all.
    x = np.unique(np.append(rectangles[:, [0, 2]], box[[0, 2]]).clip(box[0], box[2]))
    y = np.unique(np.append(rectangles[:, [1, 3]], box[[1, 3]]).clip(box[1], box[3]))
    is_free = np.ones((len(y) - 1, len(x) - 1), dtype=np.bool_)
    for left, top, right, bottom in rectangles:
        columns = (x[:-1] >= left) & (x[1:] <= right)
        rows = (y[:-1] >= top) & (y[1:] <= bottom)
        is_free[np.ix_(rows, columns)] = False
    area = float((is_free * np.diff(y)[:, None] * np.diff(x)).sum())
    free_rows = np.flatnonzero(is_free.any(axis=1))
    free_columns = np.flatnonzero(is_free.any(axis=0))
    if not len(free_rows):
        return 0.0, box[[0, 1, 0, 1]].astype(np.float32)
    rest = np.array([x[free_columns[0]], y[free_rows[0]], x[free_columns[-1] + 1], y[free_rows[-1] + 1]])
    return area / float((box[2] - box[0]) * (box[3] - box[1])), rest.astype(np.float32)


def _uncovered_masks(
    boxes: npt.NDArray[np.float32], masks: npt.NDArray[np.uint8], covers: Sequence[Cover]
) -> dict[int, tuple[float, npt.NDArray[np.float32]]]:
    """Remove covered pixels from masks, and return the rest of each changed object as `_uncovered_boxes` does."""
    num_pixels: dict[int, int] = {}
    for cover in covers:
        left, top, right, bottom = cover.region
        covered = masks[: cover.first_row, top:bottom, left:right]
        bitmap = np.ones(covered.shape[1:], dtype=np.bool_) if cover.bitmap is None else cover.bitmap
        for row in range(len(covered)):
            if (covered[row] & bitmap).any():
                # The share refers to the mask before the first cover.
                num_pixels.setdefault(row, int(np.count_nonzero(masks[row])))
                covered[row][bitmap] = 0
    rests = {}
    for row, count in num_pixels.items():
        rest_count = int(np.count_nonzero(masks[row]))
        rest = shrink_box(boxes[row], masks[row]) if rest_count else boxes[row][[0, 1, 0, 1]]
        rests[row] = (rest_count / count, rest)
    return rests


def _hide_points(target: dict[str, Any], covers: Sequence[Cover]) -> None:
    """Set the visibility of covered points from 2 to 1, in place."""
    points = target["keypoints"].as_subclass(Tensor).numpy()
    visibility = target["visibility"].numpy()
    for cover in covers:
        is_covered = covered_points(points[: cover.first_row], cover)
        below = visibility[: cover.first_row]
        below[is_covered & (below == 2)] = 1


def covered_points(points: npt.NDArray[np.float32], cover: Cover) -> _Flags:
    """Return which points ``(..., 2)`` are on replaced pixels."""
    left, top, right, bottom = cover.region
    is_inside = ((points >= (left, top)) & (points < (right, bottom))).all(axis=-1)
    if cover.bitmap is not None:
        # Points outside have no pixel, and may be too large for an integer.
        pixels = np.floor(points[is_inside]).astype(np.int64) - (left, top)
        is_inside[is_inside] = cover.bitmap[pixels[:, 1], pixels[:, 0]]
    return is_inside
