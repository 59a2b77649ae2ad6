"""From coordinates in the image that a model saw back to those of the image file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torchvision import tv_tensors

from lit_loader.annotations import AnnotationTable
from lit_loader.annotations.formats.image_sizes import read_image_sizes

__all__ = ["Placement", "Placements"]

_Size = tuple[int, int]  # height and width
_TINY_SIDE = 4  # pixels


@dataclass(frozen=True)
class Placement:
    """Where an image file's pixels are in the image that a model saw: ``seen = original * scale + offset``.

    Attributes:
        size: Height and width of the original, upright image.
        scale: Along x and y.
        offset: Along x and y, in pixels of the image seen.
    """

    size: _Size
    scale: tuple[float, float] = (1.0, 1.0)
    offset: tuple[float, float] = (0.0, 0.0)

    def points(self, seen: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Return points ``(..., 2)``, x and y, in pixels of the original."""
        return ((seen.astype(np.float64) - self.offset) / self.scale).astype(np.float32)

    def boxes(self, seen: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Return boxes ``(N, 4)``, xyxy, in pixels of the original, clipped to it."""
        height, width = self.size
        corners = self.points(seen.reshape(-1, 2, 2)).reshape(-1, 4)
        return corners.clip(0, np.array([width, height, width, height], dtype=np.float32))

    def mask(self, seen: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return a mask ``(H, W)`` at the size of the original: each pixel has the value of the nearest one seen."""
        height, width = self.size
        if seen.shape == self.size and self.scale == (1.0, 1.0) and self.offset == (0.0, 0.0):
            return seen
        columns = np.floor((np.arange(width) + 0.5) * self.scale[0] + self.offset[0]).astype(np.int64)
        rows = np.floor((np.arange(height) + 0.5) * self.scale[1] + self.offset[1]).astype(np.int64)
        inside = np.ix_((rows >= 0) & (rows < seen.shape[0]), (columns >= 0) & (columns < seen.shape[1]))
        found = np.zeros(self.size, dtype=np.bool_)
        found[inside] = seen[np.ix_(rows[inside[0][:, 0]], columns[inside[1][0]])]
        return found


class Placements:
    """Finds where images are placed by the transforms of a data set, which are not random.

    A blank image of the same size goes through the transforms with a box, which shows where they move it; once for
    each size.

    Args:
        dataset: With ``transforms`` of ``(image, target)``, and ``cache`` and ``reading`` as `DetectionDataset` has
            them; each may be missing.
        table: Its samples.
    """

    def __init__(self, dataset: Any, table: AnnotationTable) -> None:
        self._dataset, self._table = dataset, table
        self._moved: dict[_Size, tuple[_Size, tuple[float, float], tuple[float, float]]] = {}

    def find(self, row: int, seen: _Size) -> Placement:
        """Return where an image is.

        Args:
            row: Of the sample.
            seen: Height and width of the image that the model saw.

        Raises:
            ValueError: If the transforms do not give the size seen to a blank image of the original's size.
        """
        known = (int(self._table.heights[row]), int(self._table.widths[row]))
        if known == seen and self._is_plain(seen):
            return Placement(seen)
        true, kept = self.sizes(row)
        shown, scale, offset = self._move(kept)
        if shown != seen:
            raise ValueError(
                f"{self._table.image_path(row)}: predictions cannot be brought back to the image's own pixels: the "
                f"model saw {seen[1]}x{seen[0]} pixels, and the transforms of prediction give {shown[1]}x{shown[0]} "
                f"for a blank image of {kept[1]}x{kept[0]}; give predict_transforms without randomness that keep, "
                "resize or letterbox the image"
            )
        (x, y), (height, width) = scale, kept
        return Placement(true, (x * width / true[1], y * height / true[0]), offset)

    def sizes(self, row: int) -> tuple[_Size, _Size]:
        """Return height and width of the original, and of the image that transforms get."""
        path, cache = self._table.image_path(row), getattr(self._dataset, "cache", None)
        if cache is not None:
            image, true_size = cache.open(row)
            return true_size[::-1], image.size
        reading = getattr(self._dataset, "reading", None)
        if reading is not None and not reading.exif_orientation:  # as it is stored
            size = reading.open(path).size
            return size, size
        sizes, reasons = read_image_sizes(path.parent, [path.name], num_workers=0, progress=False)
        if reasons:
            raise ValueError(f"{path}: the size of the image cannot be read: {reasons[0]}")
        width, height = sizes[0].tolist()
        return (height, width), (height, width)

    def _is_plain(self, size: _Size) -> bool:
        return self._move(size) == (size, (1.0, 1.0), (0.0, 0.0))

    def _move(self, size: _Size) -> tuple[_Size, tuple[float, float], tuple[float, float]]:
        """Return the size that transforms give to an image of a size, and scale and offset of its pixels."""
        transforms = getattr(self._dataset, "transforms", None)
        if transforms is None:
            return size, (1.0, 1.0), (0.0, 0.0)
        if size not in self._moved:
            height, width = size
            # not the whole image: a box at its rim would be clipped where the transforms crop
            corners = torch.tensor([[width / 4, height / 4, width * 3 / 4, height * 3 / 4]])
            if min(size) < _TINY_SIDE:  # the middle may be less than `min_box_size`
                corners = torch.tensor([[0.0, 0.0, width, height]])
            names = (*getattr(self._dataset, "extra_fields", ()), *getattr(self._dataset, "attributes", ()))
            target: dict[str, Any] = {
                "boxes": tv_tensors.BoundingBoxes(corners, format="XYXY", canvas_size=size),
                "labels": torch.ones(1, dtype=torch.int64),
                "area": (corners[:, 2:] - corners[:, :2]).prod(dim=1),
                "iscrowd": torch.zeros(1, dtype=torch.int64),
                "image_id": 0,
                "is_duplicate": False,
                **{name: torch.zeros(1, dtype=torch.int64) for name in names},
            }
            with torch.random.fork_rng(devices=[]):
                image, moved = transforms(tv_tensors.Image(torch.zeros(3, *size, dtype=torch.uint8)), target)
            shown = (int(image.shape[-2]), int(image.shape[-1]))
            before = corners[0].double().tolist()
            after = torch.as_tensor(moved["boxes"]).as_subclass(torch.Tensor).double()
            if after.shape != (1, 4):
                raise ValueError(
                    f"the transforms of prediction dropped a box in the middle of a blank image of {width}x{height}; "
                    "give predict_transforms that keep, resize or letterbox the image"
                )
            left, top, right, bottom = after[0].tolist()
            scale = (right - left) / (before[2] - before[0]), (bottom - top) / (before[3] - before[1])
            self._moved[size] = shown, scale, (left - before[0] * scale[0], top - before[1] * scale[1])
        return self._moved[size]
