"""Elastic transform whose points and boxes follow the pixels."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from lit_loader.transforms.moving import wrap
from lit_loader.transforms.oriented import box_points, boxes_of_points, is_oriented

__all__ = ["ElasticTransform"]

_NUM_ITERATIONS: Final = 8
# Points on each side of a box, so that the box around them encloses curved sides.
_POINTS_PER_SIDE: Final = 9


class ElasticTransform(v2.ElasticTransform):  # type: ignore[misc] # torchvision is untyped
    """torchvision's ``ElasticTransform`` with points and boxes at the place of their pixels.

    torchvision looks up the displacement of a point at a whole pixel and drops the fraction of its coordinates, so that
    a point is up to a pixel off even without any displacement. Here the displacement is interpolated, and inverted by
    fixed-point iteration. A box becomes the box around its moved sides; an oriented box moves by its corners. Images
    and masks have torchvision's bits.

    Determinism: draws only from torch's global generator, as torchvision does.
    """

    @classmethod
    def like(cls, transform: v2.ElasticTransform) -> ElasticTransform:
        """Return one with the arguments of torchvision's."""
        fill = transform.fill
        return cls(transform.alpha, transform.sigma, interpolation=transform.interpolation, fill=fill)

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """Transform one leaf of the sample."""
        displacement = params["displacement"]
        if isinstance(inpt, tv_tensors.KeyPoints):
            points = inpt.as_subclass(Tensor)
            return wrap(_moved(points.reshape(-1, 2), displacement).reshape(points.shape).to(points), like=inpt)
        if is_oriented(inpt):
            return boxes_of_points(self.transform(box_points(inpt), params), like=inpt)
        if isinstance(inpt, tv_tensors.BoundingBoxes):
            return _moved_boxes(inpt, displacement)
        return super().transform(inpt, params)


def _moved(points: Tensor, displacement: Tensor) -> Tensor:
    """Return float32 points ``(N, 2)`` at the place to which a displacement moves their pixels.

    The pixel at p of the result shows the image at p + d(p). A point q is therefore at the p with p = q - d(p), which
    the iteration approaches as long as neighbouring pixels keep their order.

    Args:
        points: Points ``(N, 2)``, x and y in pixels.
        displacement: Displacement d ``(1, H, W, 2)``, in halves of the image's width and height.
    """
    height, width = displacement.shape[1:3]
    half_size = torch.tensor([width, height], dtype=torch.float32) / 2
    field = displacement.to(torch.float32).permute(0, 3, 1, 2)
    original = points.to(torch.float32)
    moved = original
    for _ in range(_NUM_ITERATIONS if len(points) else 0):
        grid = (moved / half_size - 1)[None, None]
        shift = torch.nn.functional.grid_sample(field, grid, padding_mode="border", align_corners=False)
        moved = original - shift[0, :, 0].T * half_size
    return moved


def _moved_boxes(boxes: tv_tensors.BoundingBoxes, displacement: Tensor) -> Any:
    xyxy = functional.convert_bounding_box_format(boxes, new_format="XYXY").as_subclass(Tensor).to(torch.float32)
    share = torch.linspace(0, 1, _POINTS_PER_SIDE)[:, None]
    x1, y1, x2, y2 = xyxy.T[:, None]  # (1, N)
    x = x1 + (x2 - x1) * share
    y = y1 + (y2 - y1) * share
    x_of_sides = [x, x, x1.expand_as(y), x2.expand_as(y)]
    y_of_sides = [y1.expand_as(x), y2.expand_as(x), y, y]
    outline = torch.stack([torch.cat(x_of_sides), torch.cat(y_of_sides)], dim=-1)
    moved = _moved(outline.reshape(-1, 2), displacement).reshape(outline.shape)
    corners = torch.cat([moved.amin(dim=0), moved.amax(dim=0)], dim=1)
    new_boxes = tv_tensors.BoundingBoxes(corners.to(boxes.dtype), format="XYXY", canvas_size=boxes.canvas_size)
    clamped = functional.clamp_bounding_boxes(new_boxes)
    return functional.convert_bounding_box_format(clamped, new_format=boxes.format)
