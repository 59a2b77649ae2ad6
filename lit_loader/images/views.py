"""A turned rectangle of an image shown upright: one map for pixels, masks, boxes and points."""

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

__all__ = ["View", "cut_pixels", "needs_care", "points_on_canvas", "upright_view"]

Matrix = npt.NDArray[np.float64]

# NOTE [A view may be far larger than its image]
# A square around a strip of 20000 x 60 pixels has 400 million pixels, nearly all of them fill. A region of more
# than this many, and of more than 4 times the image's own, is not made: what lies in the image is cut, shrunk by
# itself with a rim of fill, and warped to its place in the result. The pixels then differ from those of the
# other way at the image's rim alone, where the other way mixes image and fill before it shrinks them; an image
# that is thinner than a pixel of the result may not show.
_MOST_CUT_PIXELS = 1 << 24
_RIM = 2


@dataclass(frozen=True, kw_only=True, eq=False)
class View:
    """What of an image is shown, and how large.

    Pixels are cut out first, shrunk once with antialiasing where the result is smaller, and then, unless the
    view is upright, warped once bilinearly at about scale 1. What lies beyond the image is ``fill``, which takes
    no memory beyond a few times the image's own: see NOTE [A view may be far larger than its image].

    Attributes:
        corners: float64 ``(4, 2)``, the corners shown at top left, top right, bottom right and bottom left,
            in pixels of the image: a rectangle, turned by any angle.
        size: (height, width) of the result, in pixels.
        upright: Whether the corners are a rectangle of whole pixels along the axes.
    """

    corners: Matrix
    size: tuple[int, int]
    upright: bool = False

    def points(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Map points ``(..., 2)``.

        Returns:
            Points of the same shape in pixels of the result, float32, and which of them are shown: those on
            its canvas.
        """
        inverse = torch.from_numpy(np.linalg.inv(self._matrix()))
        moved = points.as_subclass(Tensor).double() @ inverse[:2, :2].T + inverse[:2, 2]
        return moved.float(), points_on_canvas(moved.float(), self.size)

    def boxes(self, boxes: Tensor) -> Tensor:
        """Map XYXY boxes ``(N, 4)`` to the boxes that enclose their mapped corners; nothing is clipped."""
        corners = boxes.as_subclass(Tensor)[:, [[0, 1], [2, 1], [2, 3], [0, 3]]]
        mapped, _ = self.points(corners)
        return torch.cat([mapped.amin(dim=1), mapped.amax(dim=1)], dim=1) if len(boxes) else boxes.float()

    def pixels(self, image: Any, *, fill: float) -> Any:
        """Return the pixels shown of an image or mask ``(..., H, W)``, of its own type and dtype; ``fill`` beyond."""
        low, high = self._bounds()
        height, width = image.shape[-2:]
        if needs_care(self, (height, width)):
            more = np.ceil(1 / self.scale()).astype(int)  # a pixel of the result
            low, high = (np.clip(side, 0, [width, height]) for side in (low - more, high + more))
            return self._pixels_between(image, low, high, rim=_RIM, fill=fill)
        if self.upright:
            return _resize(cut_pixels(image, (*low.tolist(), *high.tolist()), fill=fill), self.size)
        return self._pixels_between(image, low, high, rim=0, fill=fill)

    def part(self) -> tuple[tuple[int, int, int, int], tuple[int, int]]:
        """Return the part (left, top, right, bottom) that is cut out, and the (height, width) it is resized to."""
        low, high = self._bounds()
        size = self.size if self.upright else self._shrunk_size(low, high)
        return (int(low[0]), int(low[1]), int(high[0]), int(high[1])), size

    def warped(self, source: Any) -> Any:
        """Return the pixels shown, from those of `part` at its size."""
        if self.upright:
            return source
        low, high = self._bounds()
        return self._warped(source, low, high, rim=0, fill=None)

    def _bounds(self) -> tuple[npt.NDArray[np.int_], npt.NDArray[np.int_]]:
        """Return x and y of the upper left and lower right corner of what is cut out."""
        # One pixel more on each side, so that no sample at the rim reads beyond what was cut.
        rim = 0 if self.upright else 1
        low = np.floor(self.corners.min(axis=0)).astype(int) - rim
        high = np.ceil(self.corners.max(axis=0)).astype(int) + rim
        return low, high

    def _pixels_between(
        self,
        image: Any,
        low: npt.NDArray[np.int_],
        high: npt.NDArray[np.int_],
        *,
        rim: int,
        fill: float,
    ) -> Any:
        """Return the pixels shown, of which those from corner ``low`` to ``high`` are read.

        Args:
            image: Image or mask.
            low: x and y of the upper left corner, in pixels of the image.
            high: The lower right one; what lies beyond it is ``fill`` where ``rim`` is above 0.
            rim: Pixels of ``fill`` put around what is read, once it is shrunk.
            fill: Value beyond the image.
        """
        if (high <= low).any():
            return _filled(image, self.size, fill=fill)
        cut = cut_pixels(image, (*low.tolist(), *high.tolist()), fill=fill)
        source = _resize(cut, self._shrunk_size(low, high))
        if rim:
            source = functional.pad(source, [rim] * 4, fill=fill)
        return self._warped(source, low, high, rim=rim, fill=fill if rim else None)

    def _shrunk_size(self, low: npt.NDArray[np.int_], high: npt.NDArray[np.int_]) -> tuple[int, int]:
        """Return the (height, width) that pixels between two corners are shrunk to before the warp."""
        # At least 2 pixels: torch 2.15 fails an assertion of its own where it shrinks an image to a single one.
        sides = np.maximum(2, np.round((high - low) * np.minimum(1.0, self.scale())))
        return int(sides[1]), int(sides[0])

    def _warped(
        self,
        source: Any,
        low: npt.NDArray[np.int_],
        high: npt.NDArray[np.int_],
        *,
        rim: int,
        fill: float | None,
    ) -> Any:
        """Return the pixels shown, from shrunk ones; arguments as for `_pixels_between`."""
        sides = np.array([source.shape[-1], source.shape[-2]]) - 2 * rim
        zoom = sides / (high - low)
        shift = rim - low * zoom
        to_source = np.array([[zoom[0], 0, shift[0]], [0, zoom[1], shift[1]], [0, 0, 1.0]])
        return _warp(source, to_source @ self._matrix(), self.size, fill=fill)

    def scale(self) -> Matrix:
        """Return the result's pixels for one of the image, along x and y."""
        edges = np.linalg.norm(np.roll(self.corners, -1, axis=0) - self.corners, axis=1)
        height, width = self.size
        scale: Matrix = 2 * np.array([width, height]) / (edges[:2] + edges[2:])
        return scale

    def _matrix(self) -> Matrix:
        """Return the map from the result's pixels to those of the image, ``(3, 3)``."""
        corner, right, _, below = self.corners
        height, width = self.size
        matrix = np.eye(3)
        matrix[:2] = np.stack([(right - corner) / width, (below - corner) / height, corner], axis=1)
        return matrix


def upright_view(region: Sequence[float], size: tuple[int, int] | None) -> View:
    """Return the view of a region, moved to whole pixels.

    Args:
        region: (centre x, centre y, width, height), in pixels.
        size: (height, width) of the result; ``None`` keeps the region's.
    """
    x, y, *sides = region
    width, height = (max(1, round(side)) for side in sides)
    left, top = round(x - width / 2), round(y - height / 2)
    right, bottom = left + width, top + height
    corners = np.array([[left, top], [right, top], [right, bottom], [left, bottom]], dtype=np.float64)
    return View(corners=corners, size=size or (height, width), upright=True)


def needs_care(view: View, image_size: tuple[int, int]) -> bool:
    """Return whether a view is too large to be cut out; see NOTE [A view may be far larger than its image].

    Args:
        view: What is shown.
        image_size: Height and width of the image, in pixels.
    """
    low, high = view._bounds()
    height, width = image_size
    return float(np.prod((high - low).astype(np.float64))) > max(_MOST_CUT_PIXELS, 4 * height * width)


def cut_pixels(image: Any, region: tuple[int, ...], *, fill: float) -> Any:
    """Cut (left, top, right, bottom) out of an image; beyond the image there is ``fill``."""
    left, top, right, bottom = region
    height, width = image.shape[-2:]
    x0, x1 = (min(max(x, 0), width) for x in (left, right))
    y0, y1 = (min(max(y, 0), height) for y in (top, bottom))
    if x0 >= x1 or y0 >= y1:
        return _filled(image, (bottom - top, right - left), fill=fill)
    cut = functional.crop(image, y0, x0, y1 - y0, x1 - x0)
    missing = [x0 - left, y0 - top, right - x1, bottom - y1]
    return functional.pad(cut, missing, fill=fill) if any(missing) else cut


def _filled(image: Any, size: tuple[int, int], *, fill: float) -> Any:
    plain = image.as_subclass(Tensor).new_full((*image.shape[:-2], *size), fill)
    return tv_tensors.wrap(plain, like=image) if isinstance(image, tv_tensors.TVTensor) else plain


def _resize(image: Any, size: tuple[int, int]) -> Any:
    return image if tuple(image.shape[-2:]) == size else functional.resize(image, list(size), antialias=True)


def _warp(image: Any, matrix: Matrix, size: tuple[int, int], *, fill: float | None) -> Any:
    """Return pixels at ``matrix`` times the result's coordinates; torchvision warps within one canvas.

    What lies beyond the image is ``fill``, or is not shown if ``fill`` is None.
    """
    height, width = size
    missing = [0, 0, max(0, width - image.shape[-1]), max(0, height - image.shape[-2])]
    canvas = functional.pad(image, missing, fill=fill or 0) if any(missing) else image
    coefficients = (matrix / matrix[2, 2]).ravel()[:8].tolist()
    warped = functional.perspective(canvas, None, None, fill=fill, coefficients=coefficients)
    return functional.crop(warped, 0, 0, height, width)


def points_on_canvas(points: Tensor, size: tuple[int, int]) -> Tensor:
    """Return where points ``(..., 2)`` lie on a canvas of ``size`` (height, width), its edges included."""
    height, width = size
    x, y = points.as_subclass(Tensor).unbind(-1)
    return (x >= 0) & (x <= width) & (y >= 0) & (y <= height)
