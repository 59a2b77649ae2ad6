"""Views: a rotated rectangle of an image shown upright, with one map for pixels, masks, boxes and points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional

__all__ = ["View", "cut_pixels", "points_on_canvas", "upright_view"]

Matrix = npt.NDArray[np.float64]

# NOTE [Views far larger than their image]
# A square around a strip of 20000 x 60 pixels has 400 million pixels, and nearly all of them are fill. A region with
# more pixels than this limit, and more than 4 times the image's own, is never allocated. Instead, its part inside the
# image is cut out, shrunk, padded with a few pixels of fill, and warped to its place in the result. The result differs
# only at the image's edges, where image and fill are no longer mixed before shrinking, and an image thinner than a
# pixel of the result may not be visible.
_MAX_CUT_PIXELS = 1 << 24
_PADDING = 2


@dataclass(frozen=True, kw_only=True, eq=False)
class View:
    """A rectangle of an image, rotated by any angle, and the size to show it at.

    Pixels are first cut out, then shrunk once with antialiasing if the result is smaller, and then, unless the view is
    upright, warped once bilinearly at about scale 1. Pixels beyond the image are ``fill``; memory is bounded by a few
    times the image's size, see NOTE [Views far larger than their image].

    Attributes:
        corners: float64 ``(4, 2)`` in pixels of the image: the corners of the rectangle that become the top left, top
            right, bottom right and bottom left of the result.
        size: (height, width) of the result, in pixels.
        upright: True if the corners are a rectangle of whole pixels along the axes.
    """

    corners: Matrix
    size: tuple[int, int]
    upright: bool = False

    def points(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Map points ``(..., 2)``.

        Returns:
            float32 points of the same shape, in pixels of the result, and a bool mask of those on its canvas.
        """
        inverse = torch.from_numpy(np.linalg.inv(self._matrix()))
        mapped = points.as_subclass(Tensor).double() @ inverse[:2, :2].T + inverse[:2, 2]
        return mapped.float(), points_on_canvas(mapped.float(), self.size)

    def boxes(self, boxes: Tensor) -> Tensor:
        """Map XYXY boxes ``(N, 4)`` to the boxes around their mapped corners, without clipping."""
        corners = boxes.as_subclass(Tensor)[:, [[0, 1], [2, 1], [2, 3], [0, 3]]]
        mapped, _ = self.points(corners)
        return torch.cat([mapped.amin(dim=1), mapped.amax(dim=1)], dim=1) if len(boxes) else boxes.float()

    def pixels(self, image: Any, *, fill: float) -> Any:
        """Return an image or mask ``(..., H, W)`` as the view shows it, in its type and dtype, with ``fill`` beyond."""
        low, high = self._bounds()
        height, width = image.shape[-2:]
        if self.exceeds_cut_limit((height, width)):
            # One pixel of the result more on each side, so that pixels at the view's edge get all they interpolate.
            margin = np.ceil(1 / self.scale()).astype(int)
            low, high = (np.clip(corner, 0, [width, height]) for corner in (low - margin, high + margin))
            return self._warp_cut(image, low, high, padding=_PADDING, fill=fill)
        if self.upright:
            return _resize(cut_pixels(image, (*low.tolist(), *high.tolist()), fill=fill), self.size)
        return self._warp_cut(image, low, high, padding=0, fill=fill)

    def exceeds_cut_limit(self, image_size: tuple[int, int]) -> bool:
        """Return True if the view is too large to cut out; see NOTE [Views far larger than their image].

        Args:
            image_size: Height and width of the image, in pixels.
        """
        low, high = self._bounds()
        height, width = image_size
        return float(np.prod((high - low).astype(np.float64))) > max(_MAX_CUT_PIXELS, 4 * height * width)

    def part(self) -> tuple[tuple[int, int, int, int], tuple[int, int]]:
        """Return the part (left, top, right, bottom) to cut out, and the (height, width) to resize it to."""
        low, high = self._bounds()
        size = self.size if self.upright else self._shrunk_size(low, high)
        return (*low.tolist(), *high.tolist()), size

    def warped(self, source: Any) -> Any:
        """Return the pixels of a view that is not upright, given the pixels of `part` at its size."""
        return self._warp(source, *self._bounds(), padding=0, fill=None)

    def _bounds(self) -> tuple[npt.NDArray[np.int_], npt.NDArray[np.int_]]:
        """Return the (x, y) of the upper left and the lower right corner of the part to cut out."""
        # A warp interpolates: without one more pixel on each side, it would read beyond the cut at its edges.
        margin = 0 if self.upright else 1
        low = np.floor(self.corners.min(axis=0)).astype(int) - margin
        high = np.ceil(self.corners.max(axis=0)).astype(int) + margin
        return low, high

    def _warp_cut(
        self, image: Any, low: npt.NDArray[np.int_], high: npt.NDArray[np.int_], *, padding: int, fill: float
    ) -> Any:
        """Cut the pixels between two corners out of an image, shrink them, and warp them to the result.

        Args:
            image: Image or mask.
            low: (x, y) of the upper left corner, in pixels of the image.
            high: (x, y) of the lower right corner.
            padding: Pixels of ``fill`` to add around the shrunk cut; if 0, the cut must contain the whole view.
            fill: Value beyond the image.
        """
        if (high <= low).any():
            return _filled(image, self.size, fill=fill)
        cut = cut_pixels(image, (*low.tolist(), *high.tolist()), fill=fill)
        source = _resize(cut, self._shrunk_size(low, high))
        if not padding:
            return self._warp(source, low, high, padding=0, fill=None)
        return self._warp(functional.pad(source, [padding] * 4, fill=fill), low, high, padding=padding, fill=fill)

    def _shrunk_size(self, low: npt.NDArray[np.int_], high: npt.NDArray[np.int_]) -> tuple[int, int]:
        """Return the (height, width) to shrink the pixels between two corners to before the warp."""
        # At least 2 pixels: torch 2.15 fails an internal assertion when it shrinks an image to a single pixel.
        sides = np.maximum(2, np.round((high - low) * np.minimum(1.0, self.scale())))
        return int(sides[1]), int(sides[0])

    def _warp(
        self, source: Any, low: npt.NDArray[np.int_], high: npt.NDArray[np.int_], *, padding: int, fill: float | None
    ) -> Any:
        """Warp a shrunk cut to the result, bilinearly; see `_warp_cut` for the arguments.

        With a ``fill`` of None, the result must not show pixels beyond the source.
        """
        sides = np.array([source.shape[-1], source.shape[-2]]) - 2 * padding
        zoom = sides / (high - low)
        shift = padding - low * zoom
        to_source = np.array([[zoom[0], 0, shift[0]], [0, zoom[1], shift[1]], [0, 0, 1.0]])
        coefficients = (to_source @ self._matrix()).ravel()[:8].tolist()
        height, width = self.size
        # torchvision's perspective keeps the size of its input, so the input is padded to at least the result's.
        margins = [0, 0, max(0, width - source.shape[-1]), max(0, height - source.shape[-2])]
        canvas = functional.pad(source, margins, fill=fill or 0) if any(margins) else source
        warped = functional.perspective(canvas, None, None, fill=fill, coefficients=coefficients)
        return functional.crop(warped, 0, 0, height, width)

    def scale(self) -> Matrix:
        """Return the size of the result relative to the image, along x and y."""
        edges = np.linalg.norm(np.roll(self.corners, -1, axis=0) - self.corners, axis=1)
        height, width = self.size
        scale: Matrix = 2 * np.array([width, height]) / (edges[:2] + edges[2:])
        return scale

    def _matrix(self) -> Matrix:
        """Return the ``(3, 3)`` map from pixels of the result to pixels of the image."""
        top_left, top_right, _, bottom_left = self.corners
        height, width = self.size
        matrix = np.eye(3)
        matrix[:2] = np.stack([(top_right - top_left) / width, (bottom_left - top_left) / height, top_left], axis=1)
        return matrix


def upright_view(region: Sequence[float], size: tuple[int, int] | None) -> View:
    """Return the view of a region rounded to whole pixels.

    Args:
        region: (centre x, centre y, width, height), in pixels.
        size: (height, width) of the result; ``None`` for the region's size.
    """
    x, y, *sides = region
    width, height = (max(1, round(side)) for side in sides)
    left = round(x - width / 2)
    top = round(y - height / 2)
    right = left + width
    bottom = top + height
    corners = np.array([[left, top], [right, top], [right, bottom], [left, bottom]], dtype=np.float64)
    return View(corners=corners, size=size or (height, width), upright=True)


def cut_pixels(image: Any, region: tuple[int, ...], *, fill: float) -> Any:
    """Cut (left, top, right, bottom) out of an image, padded with ``fill`` beyond the image."""
    left, top, right, bottom = region
    height, width = image.shape[-2:]
    x0, x1 = (min(max(x, 0), width) for x in (left, right))
    y0, y1 = (min(max(y, 0), height) for y in (top, bottom))
    if x0 >= x1 or y0 >= y1:
        return _filled(image, (bottom - top, right - left), fill=fill)
    cut = functional.crop(image, y0, x0, y1 - y0, x1 - x0)
    padding = [x0 - left, y0 - top, right - x1, bottom - y1]
    return functional.pad(cut, padding, fill=fill) if any(padding) else cut


def _filled(image: Any, size: tuple[int, int], *, fill: float) -> Any:
    plain = image.as_subclass(Tensor).new_full((*image.shape[:-2], *size), fill)
    return tv_tensors.wrap(plain, like=image) if isinstance(image, tv_tensors.TVTensor) else plain


def _resize(image: Any, size: tuple[int, int]) -> Any:
    return image if tuple(image.shape[-2:]) == size else functional.resize(image, list(size), antialias=True)


def points_on_canvas(points: Tensor, size: tuple[int, int]) -> Tensor:
    """Return a bool mask of the points ``(..., 2)`` on a canvas of ``size`` (height, width), edges included."""
    height, width = size
    x, y = points.as_subclass(Tensor).unbind(-1)
    return (x >= 0) & (x <= width) & (y >= 0) & (y <= height)
