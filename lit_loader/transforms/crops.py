"""Crops around an object: chosen from its box or points, shown by one cut, one shrink and at most one warp."""

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
from lit_loader.transforms.visibility import target_points

__all__ = ["Around", "CropToObjects", "Fit"]

Around: TypeAlias = Literal["box", "points", "image"]
Fit: TypeAlias = Literal["crop", "stretch", "letterbox"]


class CropToObjects(v2.Transform):  # type: ignore[misc] # torchvision is untyped
    """Crop a sample of one object to that object, moving its box, points and masks exactly.

    The region is the object's box (or that of its points), grown by ``margin``, given the shape of the result
    by ``fit``, moved by ``shift``, sized by ``scale`` and turned by ``rotation``. Turned pixels come from the
    image, so there are no black corners where the image goes on; beyond the image is ``fill``. Without
    rotation the region is moved to whole pixels, and nothing is resampled but by one resize.

    The new target has ``boxes`` (enclosing the turned box; not clipped, since errors are measured by them),
    ``keypoints``, ``visibility`` (0 for points off the crop), ``area`` and masks in pixels of the crop, and
    ``crop``, float32 ``(N, 4)``: the region of the image shown, before it is turned. Other fields stay.

    Called as ``transform(image, target)`` or ``transform((image, target))``; further elements pass through.

    Determinism: draws from torch's global generator alone, equally often for every sample; what is switched
    off draws nothing.

    Args:
        size: (height, width) of the result, in pixels, or one number for both; ``None`` keeps the region's.
        margin: Share of width and height added on each side, >= 0.
        around: ``"box"``; ``"points"``, the box of the present points, or the object's box where fewer than two
            are present; ``"image"``, the whole image with any number of objects and any target.
        fit: How the region gets the shape of ``size`` (a square for ``None``): ``"letterbox"`` grows it,
            ``"crop"`` cuts it, ``"stretch"`` leaves it and stretches the pixels.
        shift: Largest move along x and y, as a share of the region's width and height.
        scale: Smallest and largest factor for the region's sides; above 1 shows more around the object.
        rotation: Largest turn about the region's centre to either side, in degrees.
        fill: Value of pixels beyond the image, in the image's own units; masks get 0.

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
        for name, word, known in (("around", around, get_args(Around)), ("fit", fit, get_args(Fit))):
            if word not in known:
                raise ValueError(f"{name}={word!r} is not one of {', '.join(map(repr, known))}.")
        for name, value, most in (
            ("margin", margin, math.inf),
            ("shift", shift, math.inf),
            ("rotation", rotation, 180),
        ):
            if not 0 <= value <= most or value == math.inf:
                raise ValueError(f"{name}={value} must be from 0 to {most}.")
        if len(scale) != 2 or not 0 < scale[0] <= scale[1] < math.inf:
            raise ValueError(f"scale={list(scale)} is not (smallest, largest) with 0 < smallest <= largest.")
        sides = [size, size] if isinstance(size, int) else [1, 1] if size is None else list(size)
        if len(sides) != 2 or any(type(side) is not int or side < 1 for side in sides):
            raise ValueError(f"size={size} is not (height, width) in whole pixels, at least 1.")
        self.size = None if size is None else (sides[0], sides[1])
        self.margin, self.shift = float(margin), float(shift)
        self.around, self.fit = around, fit
        self.scale = (float(scale[0]), float(scale[1]))
        self.rotation = float(rotation)
        self.fill = fill

    def forward(self, *inputs: Any) -> Any:
        """Crop one sample.

        Returns:
            The sample with a new image and target; those given are not changed.

        Raises:
            TypeError: The image is not a tensor, the target has no ``tv_tensors.BoundingBoxes``, or its points
                are no ``tv_tensors.KeyPoints``.
            ValueError: The target does not have exactly one object, or its points have no visibility.
        """
        sample = inputs if len(inputs) > 1 else inputs[0]
        image, *others = sample if isinstance(sample, tuple | list) else (sample,)
        if not isinstance(image, LazyImage) and (not isinstance(image, Tensor) or image.ndim < 3):
            raise TypeError(f"CropToObjects crops image tensors (C, H, W), not a {type(image).__name__}.")
        target = others[0] if others else None
        view, shown = self._view(self._region(image, target))
        show = partial(image.shown, view) if isinstance(image, LazyImage) else partial(view.pixels, image)
        pixels = show(fill=self.fill)
        if not others:
            return (pixels,) if isinstance(sample, tuple | list) else pixels
        moved = self._target(target, view=view, shown=shown) if isinstance(target, Mapping) else target
        return (pixels, moved, *others[1:])

    def _region(self, image: Tensor | LazyImage, target: Any) -> tuple[float, float, float, float]:
        """Return (x1, y1, x2, y2) of what the crop is made around."""
        if self.around == "image":
            height, width = image.size if isinstance(image, LazyImage) else image.shape[-2:]
            return (0.0, 0.0, float(width), float(height))
        boxes = target.get("boxes") if isinstance(target, Mapping) else None
        if not isinstance(boxes, tv_tensors.BoundingBoxes):
            raise TypeError(
                f"CropToObjects(around={self.around!r}) needs target['boxes'] as tv_tensors.BoundingBoxes, "
                f"got {type(boxes).__name__}."
            )
        if len(boxes) != 1:
            raise ValueError(
                f"the target has {len(boxes)} objects, and a crop is made around 1; give the data set one "
                "object a sample with table.per_object()."
            )
        found = target_points(target) if self.around == "points" else None
        if found is not None and int((found[1] > 0).sum()) > 1:  # one point has no extent
            present = found[0].as_subclass(Tensor)[found[1] > 0]
            region = torch.cat([present.amin(dim=0), present.amax(dim=0)])
        else:
            region = _xyxy(boxes)[0]
        x1, y1, x2, y2 = region.tolist()
        return x1, y1, x2, y2

    def _view(self, region: Sequence[float]) -> tuple[View, tuple[float, float, float, float]]:
        """Draw the view, and return it with the region (x1, y1, x2, y2) it shows before it is turned."""
        x1, y1, x2, y2 = region
        grown = 1 + 2 * self.margin
        width, height = max(1.0, (x2 - x1) * grown), max(1.0, (y2 - y1) * grown)
        if self.fit != "stretch":
            shape = 1.0 if self.size is None else self.size[1] / self.size[0]
            pick = max if self.fit == "letterbox" else min
            width, height = pick(width, height * shape), pick(height, width / shape)
        x, y = (x1 + x2) / 2, (y1 + y2) / 2
        if self.shift:
            x += width * self.shift * _draw()
            y += height * self.shift * _draw()
        low, high = self.scale
        factor = low + (high - low) * float(rand()) if low < high else low
        width, height = width * factor, height * factor
        if not self.rotation:
            view = upright_view((x, y, width, height), self.size)
            (left, top), (right, bottom) = view.corners[[0, 2]].tolist()
            return view, (left, top, right, bottom)
        offsets = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * 0.5
        angle = math.radians(self.rotation * _draw())
        turn = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
        corners = (offsets * (width, height)) @ turn + (x, y)
        size = self.size or (max(1, round(height)), max(1, round(width)))
        shown = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
        return View(corners=corners, size=size), shown

    def _target(self, target: Mapping[str, Any], *, view: View, shown: Sequence[float]) -> dict[str, Any]:
        result = dict(target)
        for name, value in target.items():
            if isinstance(value, tv_tensors.BoundingBoxes):
                result[name] = _moved_boxes(value, view)
            elif isinstance(value, tv_tensors.Mask):
                result[name] = view.pixels(value, fill=0)
        found = target_points(target)
        if found is not None:
            points, visibility = found
            moved, on_canvas = view.points(points)
            result["keypoints"] = tv_tensors.KeyPoints(moved, canvas_size=view.size)
            result["visibility"] = torch.where(on_canvas, visibility, torch.zeros_like(visibility))
        if isinstance(target.get("boxes"), tv_tensors.BoundingBoxes):
            boxes = _xyxy(result["boxes"])
            result["crop"] = torch.tensor([list(shown)], dtype=torch.float32).expand(len(boxes), 4).clone()
            if isinstance(target.get("area"), Tensor):
                result["area"] = (boxes[:, 2:] - boxes[:, :2]).prod(dim=1).to(target["area"])
        return result


def _draw() -> float:
    """Return a uniform draw from [-1, 1)."""
    return 2 * float(rand()) - 1


def _xyxy(boxes: tv_tensors.BoundingBoxes) -> Tensor:
    if tv_tensors.is_rotated_bounding_format(boxes.format):
        raise ValueError(f"boxes are {boxes.format.value}; give boxes along the axes, such as XYXY.")
    plain: Tensor = functional.convert_bounding_box_format(boxes, new_format="XYXY").as_subclass(Tensor)
    return plain


def _moved_boxes(boxes: tv_tensors.BoundingBoxes, view: View) -> tv_tensors.BoundingBoxes:
    moved = tv_tensors.BoundingBoxes(view.boxes(_xyxy(boxes)), format="XYXY", canvas_size=view.size)
    return functional.convert_bounding_box_format(moved, new_format=boxes.format)
