"""`CopyPaste`: objects of other images, pasted into an image."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import torch

from lit_loader.errors import SettingError
from lit_loader.images.lazy_image import DecodedImage, LazyImage, Part
from lit_loader.mixing import MAX_PARTNERS, MixSample
from lit_loader.schedules import EpochSchedule, Schedule, Scheduled, current_value, value_at
from lit_loader.seeding import SampleRng
from lit_loader.transforms.image_mix import (
    ImageMix,
    check_fraction,
    check_scale,
    checked_setting,
    fields_of,
    is_number,
    pixel_rows,
)
from lit_loader.transforms.mix_objects import (
    Cover,
    Placement,
    covered_points,
    crowd_flags,
    cut,
    hide_covered,
    join,
    mask_array,
    mask_bounds,
    place,
    shrink_box,
    take_rows,
    xyxy_boxes,
)
from lit_loader.transforms.moving import wrap
from lit_loader.transforms.object_pool import ClassWeights, ObjectPool, pasted_by_image

if TYPE_CHECKING:
    from lit_loader.annotations import AnnotationTable

__all__ = ["CopyPaste"]

_NUM_PLACES: Final = 8


class CopyPaste(ImageMix):
    """Paste objects of other images into an image, one object of each partner.

    An object is pasted by its mask if targets have masks, otherwise as the rectangle of its box. It is resized by a
    factor drawn uniformly from ``scale``, and further shrunk if it does not fit into the image. Of 8 places that are
    drawn uniformly, all inside the image, it gets the one that covers the smallest sum of shares of the boxes there. Of
    the partner, only the pixels of the object are read.

    Objects under a pasted one lose the covered pixels of their masks, and their boxes shrink to the rest. Without masks
    a box shrinks to the box around its uncovered part. An object that stays visible with less than ``min_visible`` of
    its area is removed from every field of the target, unless it is a crowd. Covered points become hidden (visibility
    1), and so do points of the pasted object next to its mask. A rectangle also brings the other objects of its image,
    if it shows at least ``min_visible`` of them. Oriented boxes are refused.

    Without ``class_weights`` the partners are images in the order of the epoch's partners, and one of the objects is
    drawn uniformly; an image without objects pastes nothing. With ``class_weights`` a class is drawn in proportion to
    its weight, then one of its objects uniformly over the data set. Crowds are never drawn, nor objects
    without a mask in tables with masks. `expected_pasted` returns the expected shares of the classes; they are
    approximate for rectangles, since it does not count the neighbours that these bring.

    Determinism: draws from the sample's generator; the partners are drawn by (seed, epoch, position).

    Args:
        p: Probability that a sample is mixed; may be a schedule of epochs. So may all other numbers.
        num_objects: Number of partners, 0 to 15; values of a schedule are rounded.
        class_weights: Weight of each class by its name, at least 0; ``"balanced"`` for equal weights of all classes
            with objects; None to draw images.
        scale: Smallest and largest factor of an object's size, above 0.
        min_visible: Smallest visible share of an object that stays, in [0, 1].

    Raises:
        SettingError: An argument is outside of its range.

    Source:
        Ghiasi et al. 2021, Simple Copy-Paste is a Strong Data Augmentation Method for Instance Segmentation; by class
        as for the database samples of Yan et al. 2018, SECOND, section 3.4.
    """

    def __init__(
        self,
        *,
        p: Scheduled = 1.0,
        num_objects: Scheduled = 3,
        class_weights: ClassWeights | None = None,
        scale: Schedule | Sequence[Scheduled] = (0.8, 1.25),
        min_visible: Scheduled = 0.3,
    ) -> None:
        super().__init__(p=p)
        # Schedules pass through fractions, which are rounded.
        if isinstance(num_objects, float) and not num_objects.is_integer():
            raise SettingError("num_objects", num_objects, "is not a whole number")
        self.num_objects = checked_setting("num_objects", num_objects, _check_num_objects)
        if isinstance(self.num_objects, Schedule) and not isinstance(self.num_objects, EpochSchedule):
            rule = "depends on the batch; partners are planned by epoch"
            raise SettingError("num_objects", num_objects, rule, "give points or epochs")
        self.class_weights = _checked_weights(class_weights)
        self.scale = checked_setting("scale", scale, check_scale)
        self.min_visible = checked_setting("min_visible", min_visible, check_fraction)

    def num_partners(self, epoch: int) -> int:
        """Return the number of objects in an epoch."""
        num_objects: float = value_at(self.num_objects, epoch)
        return round(num_objects)

    def pool(self, tables: Sequence[AnnotationTable]) -> ObjectPool | None:
        """Return the objects by class weights, or None without them.

        Args:
            tables: The tables of the data set, one after the other.

        Raises:
            SettingError: ``class_weights`` do not fit the tables; see `ObjectPool`.
        """
        return None if self.class_weights is None else ObjectPool(tables, self.class_weights)

    def expected_pasted(
        self, tables: Sequence[AnnotationTable], visits: npt.ArrayLike | None = None
    ) -> dict[str, float]:
        """Return the expected share of each class among the pasted objects, without neighbours in rectangles.

        Args:
            tables: The tables of the data set, one after the other.
            visits: Expected visits of each image as a partner, ``(num_images,)``; None for equal visits. Without
                effect if there are ``class_weights``.

        Raises:
            SettingError: ``class_weights`` do not fit the tables.
        """
        pool = self.pool(tables)
        if pool is not None:
            return pool.shares
        totals = pasted_by_image(tables, visits)
        num_pasted = sum(totals.values())
        return {name: count / num_pasted if num_pasted else 0.0 for name, count in totals.items()}

    def mixed(self, samples: list[MixSample], rng: SampleRng) -> MixSample:
        """Return the first sample with an object of each other one; the sample itself if nothing can be pasted."""
        sample, *partners = samples
        height, width = sample.image.size
        min_visible = current_value(self.min_visible)
        size = (height, width)
        fields = fields_of(sample)
        targets = [place(sample.target, Placement((0, 0, width, height), size), size, min_visible=0, fields=fields)]
        covers: list[Cover] = []
        canvas = None
        for partner in partners:
            match = _draw_object(partner, rng, min_visible=min_visible)
            if match is None:
                continue
            row, part = match
            boxes = np.concatenate([target["boxes"] for target in targets])
            placement = self._draw_placement(part, boxes, size, rng)
            target, bitmap = _pasted_objects(partner, row, placement, size, min_visible=min_visible)
            # A thin mask may lose its last pixel when it shrinks.
            if not len(target["boxes"]):
                continue
            # The image is decoded only if something is pasted.
            canvas = sample.image.read() if canvas is None else canvas
            _paste_pixels(pixel_rows(canvas), partner.image, placement, bitmap)
            covers.append(Cover(placement.region, bitmap, first_row=len(boxes)))
            targets.append(target)
        if canvas is None:
            return sample
        joined_target = join(targets, size, fields=fields)
        target = hide_covered(joined_target, covers, min_visible=min_visible, fields=fields)
        return MixSample(DecodedImage(canvas), target, fields=sample.fields)

    def _draw_placement(
        self, part: Part, boxes: npt.NDArray[np.float32], canvas_size: tuple[int, int], rng: SampleRng
    ) -> Placement:
        """Draw the size and the place of an object.

        Args:
            part: Left, top, right and bottom of the object in its image.
            boxes: Boxes on the canvas.
            canvas_size: Height and width of the canvas.
            rng: Generators of the sample.
        """
        x0, y0, x1, y1 = part
        height, width = canvas_size
        scale_draw, *place_draws = rng.numpy.random(1 + 2 * _NUM_PLACES).tolist()
        low, high = current_value(self.scale)
        factor = min(low + (high - low) * scale_draw, height / (y1 - y0), width / (x1 - x0))
        size = (_scaled_side(y1 - y0, factor, height), _scaled_side(x1 - x0, factor, width))
        limits = np.array([width - size[1] + 1, height - size[0] + 1])
        corners = (np.reshape(place_draws, (_NUM_PLACES, 2)) * limits).astype(np.int64)
        x, y = corners[_covered_shares(boxes, corners, size).argmin()].tolist()
        return Placement(part, size, (x, y))


def _scaled_side(side: int, factor: float, limit: int) -> int:
    return min(limit, max(1, round(side * factor)))


def _draw_object(sample: MixSample, rng: SampleRng, *, min_visible: float) -> tuple[int, Part] | None:
    """Return the row of an object to paste and the pixels that contain it, or None if there is none."""
    height, width = sample.image.size
    boxes = xyxy_boxes(sample.target).astype(np.float64)
    sides = np.minimum(boxes[:, 2:], (width, height)) - np.maximum(boxes[:, :2], 0)
    visible_areas = np.where((sides > 0).all(axis=1), sides.prod(axis=1), 0)
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
    is_candidate = (
        (visible_areas > 0) & (visible_areas >= min_visible * areas) & ~crowd_flags(sample.target, len(boxes))
    )
    rows: npt.NDArray[Any] = np.flatnonzero(is_candidate)
    rows = rng.numpy.permutation(rows) if sample.object_row is None else rows[rows == sample.object_row]
    masks = mask_array(sample.target)
    for row in rows.tolist():
        part = _box_pixels(boxes[row], (height, width)) if masks is None else mask_bounds(masks[row])
        # An object without a mask has an empty one.
        if part is not None:
            return row, part
    return None


def _box_pixels(box: npt.NDArray[np.float64], image_size: tuple[int, int]) -> Part:
    """Return the pixels that a box touches, which has an area inside the image."""
    height, width = image_size
    x1, y1, x2, y2 = box.tolist()
    return max(0, math.floor(x1)), max(0, math.floor(y1)), min(width, math.ceil(x2)), min(height, math.ceil(y2))


def _covered_shares(
    boxes: npt.NDArray[np.float32], corners: npt.NDArray[np.int64], size: tuple[int, int]
) -> npt.NDArray[np.float64]:
    """Return the sum of the covered shares of all boxes for each place of an object.

    Args:
        boxes: XYXY ``(N, 4)``.
        corners: x and y of the left upper corner of the object at each place, ``(P, 2)``.
        size: Height and width of the object.
    """
    low = np.maximum(boxes[:, :2], corners[:, None])
    high = np.minimum(boxes[:, 2:], corners[:, None] + (size[1], size[0]))
    covered_areas = (high - low).clip(min=0).prod(axis=2)
    areas = (boxes[:, 2:] - boxes[:, :2]).astype(np.float64).prod(axis=1)
    # A box without area has no share.
    shares: npt.NDArray[np.float64] = (covered_areas[:, areas > 0] / areas[areas > 0]).sum(axis=1)
    return shares


def _pasted_objects(
    partner: MixSample, row: int, placement: Placement, canvas_size: tuple[int, int], *, min_visible: float
) -> tuple[dict[str, Any], npt.NDArray[np.bool_] | None]:
    """Return the objects that a paste brings, and its mask on the canvas, or None if it is a rectangle."""
    target = partner.target
    fields = fields_of(partner)
    if mask_array(target) is None:
        return place(target, placement, canvas_size, min_visible=min_visible, fields=fields), None
    boxes = target["boxes"]
    object_target = take_rows(target, np.array([row]), num_boxes=len(boxes), fields=fields)
    # The annotated box may be larger than the mask, and the pixels around the mask are not pasted.
    object_target["boxes"] = wrap(torch.tensor([placement.part], dtype=torch.float32), like=boxes)
    pasted_target = place(object_target, placement, canvas_size, min_visible=0, fields=fields)
    if not len(pasted_target["boxes"]):
        return pasted_target, None
    bitmap = pasted_target["masks"].bitmaps[0].astype(np.bool_)
    pasted_target["boxes"][0] = shrink_box(pasted_target["boxes"][0], bitmap, placement.corner)
    if "keypoints" in pasted_target:
        is_shown = covered_points(pasted_target["keypoints"], Cover(placement.region, bitmap, first_row=0))
        visibility = pasted_target["visibility"]
        pasted_target["visibility"] = torch.where(torch.from_numpy(is_shown), visibility, visibility.clamp(max=1))
    return pasted_target, bitmap


def _paste_pixels(
    canvas: npt.NDArray[np.uint8], image: LazyImage, placement: Placement, bitmap: npt.NDArray[np.bool_] | None
) -> None:
    """Write the pixels of an object to the canvas ``(H, W, 3)``; all of the rectangle if ``bitmap`` is None."""
    pixels = pixel_rows(image.part(placement.part, placement.size).read())
    np.copyto(cut(canvas, placement.region), pixels, where=True if bitmap is None else bitmap[:, :, None])


def _checked_weights(weights: Any) -> ClassWeights | None:
    if weights is None:
        return None
    if weights == "balanced":
        return "balanced"
    remedy = 'give a number of at least 0 for each class, such as {cat: 1, dog: 2}, or "balanced"'
    if not isinstance(weights, Mapping):
        raise SettingError("class_weights", weights, "does not give weights by class name", remedy)
    for name, weight in weights.items():
        if not isinstance(name, str) or not is_number(weight) or weight < 0:
            raise SettingError("class_weights", dict(weights), f"has {weight!r} for {name!r}", remedy)
    if not any(weights.values()):
        raise SettingError("class_weights", dict(weights), "has no positive weight", remedy)
    return {name: float(weight) for name, weight in weights.items()}


def _check_num_objects(name: str, value: Any) -> None:
    if not is_number(value) or not 0 <= round(value) <= MAX_PARTNERS:
        raise SettingError(name, value, f"is not a number of objects from 0 to {MAX_PARTNERS}")
