"""Masks of objects as polygons or run lengths, and their rasterization.

NOTE [Which pixels a polygon covers]
    Coordinates are as for boxes: pixel (0, 0) covers [0, 1) x [0, 1). A pixel belongs to a polygon if its centre
    is inside by the even-odd rule; a centre on the left or upper outline is inside, one on the right or lower is not.
    Polygons that share an edge therefore share no pixel and leave none out, and the area has no bias. pycocotools and
    Pillow also fill the outline, which makes an object of 16 pixels 16 % larger. The mask of an object is the union of
    its polygons.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from lit_loader.annotations.columns import RaggedColumn, check_offsets, frozen_array, offsets_of
from lit_loader.types import IndexArray

__all__ = [
    "MAX_MASK_PIXELS",
    "MAX_ROW_CROSSINGS",
    "Masks",
    "RunLengths",
    "decode_counts",
    "encode_counts",
    "row_crossings",
    "run_lengths",
]

MAX_MASK_PIXELS: Final = 2**31 - 1
"""Maximum number of pixels of a run-length mask."""

MAX_ROW_CROSSINGS: Final = 2**22
"""Maximum number of crossings of an object's outlines with rows of pixels; drawing that many takes about 1 s."""

_CROSSINGS_AT_ONCE: Final = 2**20
_MAX_HEIGHT_RATIO: Final = 16  # of run lengths and their canvas
_MAX_CHARS: Final = 7  # per number in COCO's text; 7 * 5 bits hold any difference of two counts

Polygon: TypeAlias = npt.ArrayLike
Bitmap: TypeAlias = npt.NDArray[np.uint8]
Counts: TypeAlias = npt.NDArray[np.uint32]


class RunLengths(NamedTuple):
    """Mask in COCO's uncompressed RLE.

    Attributes:
        counts: Numbers of pixels outside, inside, outside, ..., column by column from the left; their sum is
            ``height * width``.
        height: Height of the image.
        width: Width of the image.
    """

    counts: Sequence[int] | Counts
    height: int
    width: int


class Masks(RaggedColumn):
    """Column with one mask per object: polygons, run lengths, or none.

    Args:
        part_offsets: int64 ``(N + 1,)``; object i has the polygons ``part_offsets[i]:part_offsets[i + 1]``.
        value_offsets: int64 ``(P + 1,)``; polygon p has ``values[value_offsets[p]:value_offsets[p + 1]]``.
        values: float32, x, y, x, y, ... of each polygon in pixels; see NOTE [Which pixels a polygon covers].
        run_offsets: int64 ``(N + 1,)``; object i has ``runs[run_offsets[i]:run_offsets[i + 1]]``.
        runs: uint32, the counts of `RunLengths`.
        heights: int32 ``(N,)``, image heights of run-length masks, 0 for other rows.
        widths: As ``heights``.

    Raises:
        ValueError: If the arrays are inconsistent, a coordinate is not finite, or the run lengths of a mask do not add
            up to the number of its pixels or exceed `MAX_MASK_PIXELS`.
    """

    ARRAYS = {  # noqa: RUF012 # never changed
        "part_offsets": np.int64,
        "value_offsets": np.int64,
        "values": np.float32,
        "run_offsets": np.int64,
        "runs": np.uint32,
        "heights": np.int32,
        "widths": np.int32,
    }
    part_offsets: IndexArray
    value_offsets: IndexArray
    values: npt.NDArray[np.float32]
    run_offsets: IndexArray
    runs: Counts
    heights: npt.NDArray[np.int32]
    widths: npt.NDArray[np.int32]

    def _check(self) -> None:
        rows = len(self.heights)
        if not len(self.widths) == len(self.part_offsets) - 1 == len(self.run_offsets) - 1 == rows:
            raise ValueError(f"part_offsets, run_offsets, heights and widths of masks must have {rows} rows")
        check_offsets(self.part_offsets, total=len(self.value_offsets) - 1, name="part_offsets of masks")
        check_offsets(self.value_offsets, total=len(self.values), name="value_offsets of masks")
        check_offsets(self.run_offsets, total=len(self.runs), name="run_offsets of masks")
        if (self.value_offsets % 2).any():
            raise ValueError("a polygon has an odd number of values; expected x, y, x, y, ...")
        if not np.isfinite(self.values).all():
            raise ValueError("polygons have coordinates that are not finite")
        has_both = (np.diff(self.part_offsets) > 0) & (np.diff(self.run_offsets) > 0)
        if has_both.any():
            raise ValueError(f"mask {np.flatnonzero(has_both)[0]} has polygons and run lengths; pass one of them")
        # Sums are taken in int64, because uint32 counts from a file may overflow.
        sums = np.diff(offsets_of(self.runs)[self.run_offsets])
        pixels = self.heights.astype(np.int64) * self.widths
        wrong = (sums != pixels) | (sums > MAX_MASK_PIXELS) | (np.minimum(self.heights, self.widths) < 0)
        for row in np.flatnonzero(wrong)[:1]:
            size = f"{self.heights[row]} x {self.widths[row]} pixels (at most {MAX_MASK_PIXELS})"
            raise ValueError(f"the counts of mask {row} add up to {sums[row]}, but it has {size}")

    @classmethod
    def from_rows(cls, rows: Iterable[Sequence[Polygon] | RunLengths | None]) -> Self:
        """Build the masks of objects.

        Args:
            rows: Per object its polygons, each ``(n, 2)`` or x, y, x, y, ...; its `RunLengths`; or None.

        Raises:
            ValueError: As for the class.
        """
        polygons: list[Sequence[Polygon]] = []
        encoded: list[RunLengths] = []
        for row in rows:
            if isinstance(row, RunLengths):
                polygons.append(())
                encoded.append(row)
            else:
                polygons.append(() if row is None else row)
                encoded.append(RunLengths((), 0, 0))
        flat = [frozen_array(polygon, np.float32, "a polygon").ravel() for parts in polygons for polygon in parts]
        counts = [frozen_array(mask.counts, np.uint32, "counts") for mask in encoded]
        return cls(
            offsets_of([*map(len, polygons)]),
            offsets_of([*map(len, flat)]),
            np.concatenate([np.zeros(0, np.float32), *flat]),
            offsets_of([*map(len, counts)]),
            np.concatenate([np.zeros(0, np.uint32), *counts]),
            frozen_array([mask.height for mask in encoded], np.int32, "heights"),
            frozen_array([mask.width for mask in encoded], np.int32, "widths"),
        )

    def polygons(self, row: int) -> list[npt.NDArray[np.float32]]:
        """Return the polygons of an object, each ``(n, 2)``; an empty list if it has run lengths or no mask."""
        bounds = self.value_offsets[self.part_offsets[row] : self.part_offsets[row + 1] + 1].tolist()
        return [self.values[a:b].reshape(-1, 2) for a, b in pairwise(bounds)]

    def run_lengths(self, row: int) -> RunLengths | None:
        """Return the run lengths of an object, or None if it has polygons or no mask."""
        counts = self.runs[self.run_offsets[row] : self.run_offsets[row + 1]]
        return RunLengths(counts, int(self.heights[row]), int(self.widths[row])) if len(counts) else None

    def rasterize(
        self,
        row: int,
        height: int,
        width: int,
        *,
        scale: tuple[float, float] = (1.0, 1.0),
        corner: tuple[int, int] = (0, 0),
    ) -> Bitmap:
        """Return the bitmap of an object, uint8 ``(height, width)``, 1 inside.

        The mask is clipped to the canvas; it is empty for an object without one. Memory is bounded by the canvas,
        whatever the annotation contains. Time grows with the canvas and with the rows of pixels that the outlines
        cross; readers refuse objects with more than `MAX_ROW_CROSSINGS`.

        Args:
            row: Row of the object.
            height: Height of the canvas in pixels.
            width: Width of the canvas in pixels.
            scale: Canvas pixels per pixel of the annotated image, along x and y.
            corner: x and y of the canvas's left upper corner, in pixels of the annotated image.
        """
        runs = self.run_lengths(row)
        if runs is not None:
            return _draw_runs(runs, height, width, scale, corner)
        bitmap = np.zeros((height, width), dtype=np.uint8)
        starts = self.value_offsets[self.part_offsets[row] : self.part_offsets[row + 1] + 1]
        points = (self.values[starts[0] : starts[-1]].reshape(-1, 2).astype(np.float64) - corner) * scale
        _draw_polygons(bitmap, points, (starts - starts[0]) // 2)
        return bitmap


def row_crossings(points: npt.NDArray[np.float64], starts: IndexArray, height: int) -> int:
    """Return how often the outlines of polygons cross rows of pixels; the drawing time is proportional to it.

    Args:
        points: Points of all polygons, ``(n, 2)``.
        starts: int64 ``(P + 1,)``; polygon p has ``points[starts[p]:starts[p + 1]]``.
        height: Height of the canvas in pixels; rows outside it do not count.
    """
    # A row of pixels is crossed at its centre, y + 0.5.
    rows = np.ceil(np.clip(points[:, 1], 0, height) - 0.5)
    return int(np.abs(rows[_next_points(starts)] - rows).sum())


def _next_points(starts: IndexArray) -> IndexArray:
    """Return the position of the next point on the outline for each point."""
    next_points = np.arange(1, starts[-1] + 1)
    # The last point of each polygon that has points leads back to its first one.
    polygons = np.flatnonzero(np.diff(starts))
    next_points[starts[polygons + 1] - 1] = starts[polygons]
    return next_points


class _Edges(NamedTuple):
    """Edges of outlines that cross rows of pixels, directed downwards.

    Attributes:
        upper: x and y of the upper ends, ``(E, 2)``.
        slopes: Change of x per row.
        first: First row that the edge crosses.
        last: Row after the last one that the edge crosses.
        polygons: Number of the edge's polygon.
    """

    upper: npt.NDArray[np.float64]
    slopes: npt.NDArray[np.float64]
    first: IndexArray
    last: IndexArray
    polygons: IndexArray


def _draw_polygons(bitmap: Bitmap, points: npt.NDArray[np.float64], starts: IndexArray) -> None:
    """Draw polygons; see NOTE [Which pixels a polygon covers]."""
    if not len(points):
        return
    height, width = bitmap.shape
    left, top = (int(side) for side in np.clip(np.floor(points.min(axis=0)), 0, (width, height)))
    right, bottom = (int(side) for side in np.clip(np.ceil(points.max(axis=0)), 0, (width, height)))
    # Outside the canvas.
    if left >= right or top >= bottom:
        return
    # Every edge is computed from its upper to its lower end. Rounding then gives the two polygons at a common edge the
    # same crossings, although one of them lists the edge upwards.
    next_points = points[_next_points(starts)]
    is_down = (points[:, 1] <= next_points[:, 1])[:, None]
    upper = np.where(is_down, points, next_points)
    lower = np.where(is_down, next_points, points)
    first = np.clip(np.ceil(upper[:, 1] - 0.5), top, bottom).astype(np.int64)
    last = np.clip(np.ceil(lower[:, 1] - 0.5), top, bottom).astype(np.int64)
    # Edges that cross no row would divide by a height of 0.
    crossing = np.flatnonzero(last > first)
    upper = upper[crossing]
    slopes = (lower[crossing, 0] - upper[:, 0]) / (lower[crossing, 1] - upper[:, 1])
    polygons = np.repeat(np.arange(len(starts) - 1), np.diff(starts))[crossing]
    edges = _Edges(upper, slopes, first[crossing], last[crossing], polygons)
    for start, end in _bands(edges, top, bottom):
        bitmap[start:end, left:right] |= _inside(edges, start, end, left, right)


def _bands(edges: _Edges, top: int, bottom: int) -> Iterator[tuple[int, int]]:
    """Yield bands of rows with few crossings each, as the first row and the row after the last one."""
    if int((edges.last - edges.first).sum()) <= _CROSSINGS_AT_ONCE:
        yield top, bottom
        return
    # The crossings of many long edges do not fit into memory at once.
    begins = np.bincount(edges.first - top, minlength=bottom - top + 1)
    ends = np.bincount(edges.last - top, minlength=bottom - top + 1)
    num_crossings = offsets_of(np.cumsum(begins - ends)[:-1])
    start = 0
    while start < bottom - top:
        # At least one row per band, even if it alone exceeds the limit.
        limit = num_crossings[start] + _CROSSINGS_AT_ONCE
        end = max(start + 1, int(np.searchsorted(num_crossings, limit, side="right")) - 1)
        yield top + start, top + end
        start = end


def _inside(edges: _Edges, top: int, bottom: int, x_min: int, x_max: int) -> Bitmap:
    """Return the bitmap of a band of rows, ``(bottom - top, x_max - x_min)``, 1 inside a polygon."""
    active = np.flatnonzero((edges.first < bottom) & (edges.last > top))
    start = np.maximum(edges.first[active], top)
    counts = np.minimum(edges.last[active], bottom) - start
    edge = np.repeat(active, counts)
    y = np.arange(len(edge)) + np.repeat(start - offsets_of(counts)[:-1], counts)
    x = edges.upper[edge, 0] + (y + 0.5 - edges.upper[edge, 1]) * edges.slopes[edge]
    columns = np.clip(np.ceil(x - 0.5), x_min, x_max).astype(np.int64) - x_min
    shape = (bottom - top, x_max - x_min + 1)
    # The extra column at the right collects crossings behind the last pixel.
    cells = (y - top) * shape[1] + columns
    # A pixel is inside a single polygon if the number of crossings to its left is odd.
    if not len(cells) or edges.polygons[0] == edges.polygons[-1]:
        changes = np.zeros(shape, dtype=np.uint8)
        np.add.at(changes.reshape(-1), cells, np.uint8(1))  # overflow is harmless: 256 is even
        return np.cumsum(changes[:, :-1], axis=1, dtype=np.uint8) & np.uint8(1)
    # Several polygons: sorted by polygon and row, the crossings alternate between entering and leaving a polygon. A
    # pixel is inside if more polygons were entered than left before it. One pass over the pixels draws all polygons.
    num_cells = shape[0] * shape[1]
    order = np.sort(edges.polygons[edge] * num_cells + cells) % num_cells
    depth = np.zeros(shape, dtype=np.int32)
    np.add.at(depth.reshape(-1), order[::2], 1)
    np.add.at(depth.reshape(-1), order[1::2], -1)
    inside = np.cumsum(depth[:, :-1], axis=1, dtype=np.int32) > 0
    return inside.view(np.uint8)


def _draw_runs(
    runs: RunLengths, height: int, width: int, scale: tuple[float, float], corner: tuple[int, int]
) -> Bitmap:
    counts = np.asarray(runs.counts)
    ends = np.cumsum(counts, dtype=np.int64)
    x_min, y_min = corner
    covers_canvas = x_min + width <= runs.width and y_min + height <= runs.height
    # Whole columns of the mask are drawn, and their height is not bounded by the canvas.
    if covers_canvas and scale == (1.0, 1.0) and runs.height <= _MAX_HEIGHT_RATIO * height:
        # Runs alternate between outside (even) and inside (odd), and go column by column. Draw only the columns of the
        # canvas.
        bounds = x_min * runs.height, (x_min + width) * runs.height
        first, last = np.searchsorted(ends, bounds).tolist()
        stops = np.clip(ends[first : last + 1], *bounds)
        lengths = np.diff(stops, prepend=bounds[0])
        pixels = np.repeat((np.arange(first, first + len(lengths)) & 1).astype(np.uint8), lengths)
        return np.ascontiguousarray(pixels.reshape(width, runs.height)[:, y_min : y_min + height].T)
    # The canvas differs from the annotated image: look up the run of each canvas pixel's centre.
    xs = x_min + np.floor((np.arange(width) + 0.5) / scale[0]).astype(np.int64)
    ys = y_min + np.floor((np.arange(height) + 0.5) / scale[1]).astype(np.int64)
    run_of_pixel = np.searchsorted(ends, xs[None] * runs.height + ys[:, None], side="right")
    bitmap: Bitmap = run_of_pixel.astype(np.uint8) & 1
    # Beyond the annotated image the search gives the run of another column.
    bitmap[ys >= runs.height] = 0
    bitmap[:, xs >= runs.width] = 0
    return bitmap


def run_lengths(bitmap: npt.ArrayLike, *, first_column: int = 0, width: int | None = None) -> RunLengths:
    """Return the run lengths of a mask ``(height, width)``; nonzero pixels are inside.

    Args:
        bitmap: The mask, or some neighbouring columns of it if it is empty elsewhere.
        first_column: First of these columns.
        width: Width of the mask; default: the bitmap's.
    """
    mask = np.asarray(bitmap) != 0
    height, num_columns = mask.shape
    # Outside before the first pixel and after the last one, so that every run has two edges.
    flat = np.pad(mask.T.reshape(-1), 1)
    edges = np.flatnonzero(flat[1:] != flat[:-1]) + first_column * height
    width = num_columns if width is None else width
    counts = np.diff(np.concatenate([[0], edges, [height * width]]))
    # A mask that reaches the last pixel has no run after it.
    counts = counts[:-1] if len(counts) > 1 and counts[-1] == 0 else counts
    return RunLengths(counts.astype(np.uint32), height, width)


def decode_counts(text: str | bytes) -> npt.NDArray[np.int64]:
    """Decode the counts in COCO's compressed RLE string.

    The string is not trusted: each number has at most 7 characters, and `Masks` checks that the counts add up.

    Raises:
        ValueError: If the string is invalid, or a count is negative.

    Source:
        pycocotools, ``rleFrString``: each character has 5 bits, lowest bits first, and a sixth bit if more characters
        follow; the highest of the 5 bits of the last one is the sign. From the fourth number on, it is the difference
        to the count two positions before.
    """
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else bytes(text)
    chars = np.frombuffer(data, dtype=np.uint8).astype(np.int64) - 48
    if not chars.size:
        return chars
    is_last = chars & 32 == 0
    if chars.min() < 0 or chars.max() > 63 or not is_last[-1]:
        raise ValueError(
            "invalid COCO RLE string in counts: expected characters '0' to 'o', the last one ending a number"
        )
    ends = np.flatnonzero(is_last)
    starts = np.concatenate([[0], ends[:-1] + 1])
    lengths = ends - starts + 1
    if lengths.max() > _MAX_CHARS:
        raise ValueError(f"counts has a number of {lengths.max()} characters; at most {_MAX_CHARS} are allowed")
    shift = 5 * (np.arange(len(chars)) - np.repeat(starts, lengths))
    counts = np.add.reduceat((chars & 31) << shift, starts)
    is_negative = chars[ends] & 16 != 0
    counts[is_negative] -= np.int64(1) << (shift[ends[is_negative]] + 5)
    # Counts 0, 1 and 2 are absolute; each later one is the difference to the count two places before. So the odd counts
    # and the even counts from 2 on add up separately.
    counts[1::2] = np.cumsum(counts[1::2])
    counts[2::2] = np.cumsum(counts[2::2])
    if counts.min() < 0:
        raise ValueError(f"counts has {counts.min()}; a run has at least 0 pixels")
    return counts


def encode_counts(counts: Sequence[int] | npt.NDArray[Any]) -> str:
    """Encode counts as COCO's compressed RLE string; see `decode_counts`."""
    values = np.asarray(counts, dtype=np.int64).copy()
    values[3:] -= np.asarray(counts, dtype=np.int64)[1:-2]
    shifted = values[:, None] >> 5 * np.arange(_MAX_CHARS)
    chars = shifted & 31
    remainder = shifted >> 5
    # A number ends where all remaining bits repeat the sign bit of the character.
    has_next = np.where(chars & 16, remainder != -1, remainder != 0)
    is_used = np.insert(np.logical_and.accumulate(has_next[:, :-1], axis=1), 0, True, axis=1)
    return bytes(((chars | np.where(has_next, 32, 0)) + 48)[is_used].tolist()).decode()
