"""Crop to one object, chosen by its box or its points: one cut, one resize, and at most one warp."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from lit_loader.images.lazy_image import LazyImage
from lit_loader.images.views import View, upright_view
from lit_loader.seeding import rand
from lit_loader.transforms.preset_checks import check_rotation
from lit_loader.transforms.visibility import target_points

__all__ = ["Around", "CropToObjects", "Fit"]

Around: TypeAlias = Literal["box", "points", "image"]
Fit: TypeAlias = Literal["crop", "stretch", "letterbox"]


class CropToObjects(v2.Transform):  # type: ignore[misc] # torchvision is untyped
    """Crop a sample with one object to that object, and transform its box, points and masks exactly.

    The region is the box of the object or of its points. It is enlarged by ``margin``, adapted to the aspect ratio of
    the result by ``fit``, and then randomly shifted, scaled and rotated. A rotated region shows the pixels around it
    instead of black corners; only pixels beyond the image are ``fill``. Without rotation the region is rounded to whole
    pixels, and one resize is the only resampling.

    The new target contains ``boxes`` (the box around the rotated box; not clipped, because errors are normalised by
    it), ``keypoints``, ``visibility`` (0 for points outside the crop), ``area`` and masks in pixels of the crop, and
    ``crop``, float32 ``(N, 4)``: the region of the image before rotation. Other fields are unchanged.

    Called as ``transform(image, target)`` or ``transform((image, target))``; further elements pass through.

    Determinism: draws only from torch's global generator, the same number of times for every sample. A disabled
    augmentation draws nothing.

    Args:
        size: (height, width) of the result, in pixels, or one number for both; ``None`` for the region's size.
        margin: Fraction of width and height to add on each side, >= 0.
        around: ``"box"``; ``"points"`` for the box of the present points, or the object's box if fewer than two are
            present; ``"image"`` for the whole image, with any number of objects and any target.
        fit: How to adapt the region to the aspect ratio of ``size`` (square for ``None``): ``"letterbox"`` enlarges it,
            ``"crop"`` cuts it, ``"stretch"`` stretches the pixels.
        shift: Largest shift along x and y, as a fraction of the region's width and height.
        scale: Smallest and largest factor for the region's sides; above 1 shows more around the object.
        rotation: Largest rotation about the region's centre in either direction, in degrees.
        fill: Value of pixels beyond the image, in the image's units; masks get 0.

    Raises:
        ValueError: An argument is outside its range.
    """

    def __init__(
        self,
        *,
        size: int | Sequence[int] | None = None,
        margin: float = 0.25,
        around: Around = "box",
        fit: Fit = "letterbox",
        shift: float = 0.0,
        scale: Sequence[float] = (1.0, 1.0),
        rotation: float = 0.0,
        fill: float = 0,
    ) -> None:
        super().__init__()
        for name, choice, choices in (("around", around, get_args(Around)), ("fit", fit, get_args(Fit))):
            if choice not in choices:
                raise ValueError(f"{name}={choice!r} is not one of {', '.join(map(repr, choices))}.")
        for name, value in (("margin", margin), ("shift", shift)):
            if not 0 <= value < math.inf:
                raise ValueError(f"{name}={value} must be a finite number, at least 0.")
        check_rotation(rotation)
        if len(scale) != 2 or not 0 < scale[0] <= scale[1] < math.inf:
            raise ValueError(f"scale={list(scale)} is not (smallest, largest) with 0 < smallest <= largest.")
        sides = [size, size] if isinstance(size, int) else [1, 1] if size is None else list(size)
        if len(sides) != 2 or any(type(side) is not int or side < 1 for side in sides):
            raise ValueError(f"size={size} is not (height, width) in whole pixels, at least 1.")
        self.size = None if size is None else (sides[0], sides[1])
        self.margin = float(margin)
        self.around = around
        self.fit = fit
        self.shift = float(shift)
        self.scale = (float(scale[0]), float(scale[1]))
        self.rotation = float(rotation)
        self.fill = fill

    def forward(self, *inputs: Any) -> Any:
        """Crop one sample.

        Returns:
            The sample with a new image and target; the inputs are not modified.

        Raises:
            TypeError: The image is not a tensor, the target has no ``tv_tensors.BoundingBoxes``, or its points are not
                ``tv_tensors.KeyPoints``.
            ValueError: The target does not have exactly one object, or its points have no visibility.
        """
        sample = inputs if len(inputs) > 1 else inputs[0]
        image, *targets = sample if isinstance(sample, tuple | list) else (sample,)
        if not isinstance(image, LazyImage) and (not isinstance(image, Tensor) or image.ndim < 3):
            raise TypeError(f"CropToObjects crops image tensors (C, H, W), got a {type(image).__name__}.")
        target = targets[0] if targets else None
        view, region = self._draw_view(self._object_region(image, target))
        show = partial(image.shown, view) if isinstance(image, LazyImage) else partial(view.pixels, image)
        crop = show(fill=self.fill)
        if not targets:
            return (crop,) if isinstance(sample, tuple | list) else crop
        if isinstance(target, Mapping):
            target = _transform_target(target, view=view, region=region)
        return (crop, target, *targets[1:])

    def _object_region(self, image: Tensor | LazyImage, target: Any) -> tuple[float, float, float, float]:
        """Return the box (x1, y1, x2, y2) to crop around."""
        if self.around == "image":
            height, width = image.size if isinstance(image, LazyImage) else image.shape[-2:]
            return (0.0, 0.0, float(width), float(height))
        boxes = target.get("boxes") if isinstance(target, Mapping) else None
        if not isinstance(boxes, tv_tensors.BoundingBoxes):
            expected = "target['boxes'] as tv_tensors.BoundingBoxes"
            raise TypeError(f"CropToObjects(around={self.around!r}) needs {expected}, got {type(boxes).__name__}.")
        if len(boxes) != 1:
            remedy = "make samples of single objects with table.per_object()"
            raise ValueError(f"the target has {len(boxes)} objects, but CropToObjects needs exactly 1; {remedy}.")
        points_and_visibility = target_points(target) if self.around == "points" else None
        if points_and_visibility is not None:
            points, visibility = points_and_visibility
            present_points = points.as_subclass(Tensor)[visibility > 0]
            # A single point has no extent.
            if len(present_points) > 1:
                x1, y1 = present_points.amin(dim=0).tolist()
                x2, y2 = present_points.amax(dim=0).tolist()
                return x1, y1, x2, y2
        box: tuple[float, float, float, float] = tuple(_xyxy(boxes)[0].tolist())
        return box

    def _draw_view(self, box: Sequence[float]) -> tuple[View, tuple[float, float, float, float]]:
        """Draw a view around a box; return it with the region (x1, y1, x2, y2) that it shows before rotation."""
        x1, y1, x2, y2 = box
        # At least one pixel: a box without area would have no pixels to show.
        growth = 1 + 2 * self.margin
        width = max(1.0, (x2 - x1) * growth)
        height = max(1.0, (y2 - y1) * growth)
        if self.fit != "stretch":
            # One of the sides already fits: letterbox enlarges the other to the aspect ratio, crop reduces it.
            aspect_ratio = 1.0 if self.size is None else self.size[1] / self.size[0]
            pick = max if self.fit == "letterbox" else min
            fitting_width = height * aspect_ratio
            height = pick(height, width / aspect_ratio)
            width = pick(width, fitting_width)
        x = (x1 + x2) / 2
        y = (y1 + y2) / 2
        if self.shift:
            x += width * self.shift * _draw()
            y += height * self.shift * _draw()
        low, high = self.scale
        # Fixed factors draw nothing, like every disabled augmentation.
        factor = low + (high - low) * float(rand()) if low < high else low
        width *= factor
        height *= factor
        if not self.rotation:
            # Whole pixels need no warp; the region is the rectangle after rounding.
            view = upright_view((x, y, width, height), self.size)
            (left, top), (right, bottom) = view.corners[[0, 2]].tolist()
            return view, (left, top, right, bottom)
        # Clockwise from the top left, as `View.corners` expects them.
        corner_offsets = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * 0.5
        angle = math.radians(self.rotation * _draw())
        rotation = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
        corners = (corner_offsets * (width, height)) @ rotation + (x, y)
        size = self.size or (max(1, round(height)), max(1, round(width)))
        region = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
        return View(corners=corners, size=size), region


def _transform_target(target: Mapping[str, Any], *, view: View, region: Sequence[float]) -> dict[str, Any]:
    """Return a new target with boxes, masks and points in pixels of the view."""
    result = dict(target)
    for name, value in target.items():
        if isinstance(value, tv_tensors.BoundingBoxes):
            boxes = tv_tensors.BoundingBoxes(view.boxes(_xyxy(value)), format="XYXY", canvas_size=view.size)
            result[name] = functional.convert_bounding_box_format(boxes, new_format=value.format)
        elif isinstance(value, tv_tensors.Mask):
            result[name] = view.pixels(value, fill=0)
    points_and_visibility = target_points(target)
    if points_and_visibility is not None:
        points, visibility = points_and_visibility
        mapped_points, on_canvas = view.points(points)
        result["keypoints"] = tv_tensors.KeyPoints(mapped_points, canvas_size=view.size)
        result["visibility"] = torch.where(on_canvas, visibility, torch.zeros_like(visibility))
    if isinstance(target.get("boxes"), tv_tensors.BoundingBoxes):
        corners = _xyxy(result["boxes"])
        result["crop"] = torch.tensor([list(region)], dtype=torch.float32).expand(len(corners), 4).clone()
        # The area of the mask or box in the annotation no longer applies.
        if isinstance(target.get("area"), Tensor):
            result["area"] = (corners[:, 2:] - corners[:, :2]).prod(dim=1).to(target["area"])
    return result


def _draw() -> float:
    """Draw a number from the uniform distribution on [-1, 1)."""
    return 2 * float(rand()) - 1


def _xyxy(boxes: tv_tensors.BoundingBoxes) -> Tensor:
    if tv_tensors.is_rotated_bounding_format(boxes.format):
        raise ValueError(f"boxes are {boxes.format.value}; give boxes along the axes, such as XYXY.")
    corners: Tensor = functional.convert_bounding_box_format(boxes, new_format="XYXY").as_subclass(Tensor)
    return corners
