"""Geometric transforms that torchvision's v2 lacks: a letterbox, and an IoU crop for images without objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from lit_loader.annotations.quadrangles import enclosing_boxes
from lit_loader.images.lazy_image import LazyImage
from lit_loader.seeding import rand
from lit_loader.transforms.moving import moved_targets, resized
from lit_loader.transforms.oriented import apply_transform, box_points, boxes_of_points, corners_of_boxes, is_oriented
from lit_loader.transforms.preset_checks import check_chances

__all__ = ["Letterbox", "RandomObjectCrop", "letterbox_geometry"]

# torchvision's RandomIoUCrop cuts windows of at least 0.3 of a side and divides by their size in whole pixels, which
# can be 0 for sides shorter than this.
_MIN_CROP_SIDE = 4


def letterbox_geometry(
    image_size: tuple[int, int], canvas_size: tuple[int, int]
) -> tuple[tuple[int, int], tuple[int, int, int, int]]:
    """Compute the size and padding that fit an image into a canvas with its aspect ratio.

    Args:
        image_size: Height and width of the image, in pixels.
        canvas_size: Height and width of the canvas, in pixels.

    Returns:
        The scaled (height, width), and the padding (left, top, right, bottom) that centres it; an odd pixel is added
        at the right or at the bottom.
    """
    height, width = image_size
    canvas_height, canvas_width = canvas_size
    # The side that needs more shrinking touches the canvas on both ends; the other one is padded.
    scale = min(canvas_height / height, canvas_width / width)
    # Rounding must neither exceed the canvas nor make a thin image vanish.
    new_height = min(canvas_height, max(1, round(height * scale)))
    new_width = min(canvas_width, max(1, round(width * scale)))
    left = (canvas_width - new_width) // 2
    top = (canvas_height - new_height) // 2
    return (new_height, new_width), (left, top, canvas_width - new_width - left, canvas_height - new_height - top)


class Letterbox(v2.Transform):  # type: ignore[misc] # torchvision is untyped
    """Resize to a fixed canvas, keeping the aspect ratio, and pad the rest on both sides.

    Boxes, masks and keypoints move with the pixels; masks are padded with 0.

    Determinism: no randomness.

    Args:
        size: Height and width of the result, in pixels.
        fill: Value of the padding, in the image's own units (0..255 for uint8).

    Raises:
        ValueError: ``size`` is not two positive numbers.
    """

    def __init__(self, size: Sequence[int], *, fill: float = 0) -> None:
        super().__init__()
        if len(size) != 2 or min(size) < 1:
            raise ValueError(f"size={list(size)} is not (height, width) in pixels.")
        self.size = (int(size[0]), int(size[1]))
        self.fill = fill

    def forward(self, *inputs: Any) -> Any:
        """Transform ``image, target`` or one tuple of them, as torchvision's v2 transforms do."""
        sample = inputs if len(inputs) > 1 else inputs[0]
        image = sample[0] if isinstance(sample, tuple) else sample
        height, width = image.size if isinstance(image, LazyImage) else functional.get_size(image)
        new_size, padding = letterbox_geometry((height, width), self.size)
        if isinstance(image, LazyImage):
            targets = moved_targets(sample[1:], partial(resized, size=new_size))
            # Padding needs pixels, so the resize is then the last step that can be decoded on demand.
            resized_image = image.resized(new_size)
            sample = (resized_image.image() if any(padding) else resized_image, *targets)
        else:
            sample = apply_transform(v2.Resize(list(new_size)), sample)
        # torchvision would copy the image and all masks.
        if not any(padding):
            return sample
        return apply_transform(v2.Pad(list(padding), fill={tv_tensors.Mask: 0, "others": self.fill}), sample)


class RandomObjectCrop(v2.Transform):  # type: ignore[misc] # torchvision is untyped
    """torchvision's ``RandomIoUCrop``, applied with a probability and only to images that it can crop.

    ``RandomIoUCrop`` searches for a window around a box. It never finds one in an image without boxes, and divides by
    zero if a side has only a few pixels; such images are unchanged here. Boxes whose centre is outside of the window
    get zero size but keep their row, so ``SanitizeObjects`` must follow. For oriented boxes, the search uses the
    boxes around them.

    Determinism: draws only from torch's global generator.

    Args:
        p: Probability of trying a crop.

    Raises:
        ValueError: ``p`` is outside [0, 1].

    Source:
        Liu et al. 2016, SSD, section 2.2 (data augmentation).
    """

    def __init__(self, *, p: float = 0.5) -> None:
        super().__init__()
        check_chances(p=p)
        self.p = p
        self._crop = v2.RandomIoUCrop()

    def forward(self, *inputs: Any) -> Any:
        """Transform ``image, target`` or one tuple of them; the target must hold ``boxes``."""
        sample = inputs if len(inputs) > 1 else inputs[0]
        image, target = sample[:2]
        if not isinstance(target, Mapping) or "boxes" not in target:
            raise TypeError(f"RandomObjectCrop needs a target with boxes, got a {type(target).__name__}.")
        # Draw for every image, so that later draws do not depend on whether it has boxes.
        apply = float(rand()) < self.p
        possible = len(target["boxes"]) > 0 and min(functional.get_size(image)) >= _MIN_CROP_SIDE
        if not apply or not possible:
            return sample
        return self._crop_oriented(*sample) if is_oriented(target["boxes"]) else self._crop(sample)

    def _crop_oriented(self, image: Any, target: Mapping[str, Any], *extras: Any) -> Any:
        """Crop a sample with oriented boxes, which torchvision's crop does not take."""
        boxes = target["boxes"]
        bounds = torch.from_numpy(enclosing_boxes(corners_of_boxes(boxes))).to(boxes.dtype)
        outer_boxes = tv_tensors.BoundingBoxes(bounds, format="XYXY", canvas_size=boxes.canvas_size)
        crop = self._crop(image, {**target, "boxes": outer_boxes}, box_points(boxes), *extras)
        new_image, new_target, points, *new_extras = crop
        # torchvision sets boxes whose centre is outside of the window to 0.
        is_outside = (new_target["boxes"].as_subclass(Tensor) == 0).all(dim=1)
        inside_points = points.as_subclass(Tensor).masked_fill(is_outside[:, None, None], 0)
        new_boxes = boxes_of_points(tv_tensors.wrap(inside_points, like=points), like=boxes)
        return (new_image, {**new_target, "boxes": new_boxes}, *new_extras)
