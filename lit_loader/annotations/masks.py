"""Masks of objects as annotations write them, polygons or run lengths, and their pixels.

NOTE [Which pixels a polygon covers]
    Coordinates are those of boxes: pixel (0, 0) covers [0, 1) x [0, 1). A pixel belongs to a polygon if its centre lies
    inside, by the even-odd rule; of centres on the outline those at the left or upper side do. So polygons that share
    an edge share no pixel and leave none out, and the area has no bias: pycocotools' and Pillow's fill the outline too,
    which makes an object of 16 pixels 16 % larger. The mask of an object is the union of its polygons.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from lit_loader.annotations.columns import (
    RaggedColumn,
    check_offsets,
    frozen_array,
    offsets_of,
)
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
"""Most pixels of a mask given as run lengths."""

MAX_ROW_CROSSINGS: Final = 2**22
"""Most crossings of an object's outlines with rows of pixels that readers take: drawing them takes about 1 s."""

_CROSSINGS_AT_ONCE: Final = 2**20
_MAX_CHARS: Final = 7  # of a number in COCO's text: 7 times 5 bits hold any difference of two counts

Polygon: TypeAlias = npt.ArrayLike
Bitmap: TypeAlias = npt.NDArray[np.uint8]
Counts: TypeAlias = npt.NDArray[np.uint32]


class RunLengths(NamedTuple):
    """A mask as COCO's uncompressed RLE has it.

    Attributes:
        counts: Pixels outside, inside, outside, ..., column after column from the left; sum ``height * width``.
        height: Of the image.
        width: Of the image.
    """

    counts: Sequence[int] | Counts
    height: int
    width: int


class Masks(RaggedColumn):
    """One mask an object: polygons, run lengths, or none.

    Args:
        part_offsets: int64 ``(N + 1,)``; object i has the polygons ``part_offsets[i]:part_offsets[i + 1]``.
        value_offsets: int64 ``(P + 1,)``; polygon p has ``values[value_offsets[p]:value_offsets[p + 1]]``.
        values: float32, x, y, x, y, ... of each polygon in pixels; see NOTE [Which pixels a polygon covers].
        run_offsets: int64 ``(N + 1,)``; object i has ``runs[run_offsets[i]:run_offsets[i + 1]]``.
        runs: uint32, as `RunLengths` has them.
        heights: int32 ``(N,)``, of the images of run lengths, 0 without.
        widths: As ``heights``.

    Raises:
        ValueError: If the arrays do not belong together, a coordinate is not finite, or run lengths do not add up to
            their image's pixels or are more than `MAX_MASK_PIXELS`.
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
            raise ValueError("a polygon has an odd number of values; it is x, y, x, y, ...")
        if not np.isfinite(self.values).all():
            raise ValueError("polygons hold coordinates that are not finite")
        both = (np.diff(self.part_offsets) > 0) & (np.diff(self.run_offsets) > 0)
        if both.any():
            raise ValueError(f"mask {np.flatnonzero(both)[0]} has polygons and run lengths; give one of them")
        sums = np.diff(offsets_of(self.runs)[self.run_offsets])
        pixels = self.heights.astype(np.int64) * self.widths
        wrong = (sums != pixels) | (sums > MAX_MASK_PIXELS) | (np.minimum(self.heights, self.widths) < 0)
        for row in np.flatnonzero(wrong)[:1]:
            size = f"{self.heights[row]} x {self.widths[row]} pixels (at most {MAX_MASK_PIXELS})"
            raise ValueError(f"the counts of mask {row} add up to {sums[row]}, and it has {size}")

    @classmethod
    def from_rows(cls, rows: Iterable[Sequence[Polygon] | RunLengths | None]) -> Self:
        """Build the masks of objects.

        Args:
            rows: For each object its polygons, each ``(n, 2)`` or x, y, x, y, ...; its `RunLengths`; or None.

        Raises:
            ValueError: As the class.
        """
        given = [() if row is None else row for row in rows]
        encoded = [row if isinstance(row, RunLengths) else RunLengths((), 0, 0) for row in given]
        polygons = [() if isinstance(row, RunLengths) else row for row in given]
        flat = [frozen_array(each, np.float32, "a polygon").ravel() for parts in polygons for each in parts]
        counts = [frozen_array(row.counts, np.uint32, "counts") for row in encoded]
        return cls(
            offsets_of([*map(len, polygons)]),
            offsets_of([*map(len, flat)]),
            np.concatenate([np.zeros(0, np.float32), *flat]),
            offsets_of([*map(len, counts)]),
            np.concatenate([np.zeros(0, np.uint32), *counts]),
            frozen_array([row.height for row in encoded], np.int32, "heights"),
            frozen_array([row.width for row in encoded], np.int32, "widths"),
        )

    def polygons(self, row: int) -> list[npt.NDArray[np.float32]]:
        """Return the polygons of a row, each ``(n, 2)``; none if it has run lengths or no mask."""
        bounds = self.value_offsets[self.part_offsets[row] : self.part_offsets[row + 1] + 1].tolist()
        return [self.values[a:b].reshape(-1, 2) for a, b in pairwise(bounds)]

    def run_lengths(self, row: int) -> RunLengths | None:
        """Return the run lengths of a row, or None if it has polygons or no mask."""
        counts = self.runs[self.run_offsets[row] : self.run_offsets[row + 1]]
        return RunLengths(counts, int(self.heights[row]), int(self.widths[row])) if len(counts) else None

    def rasterize(
        self, row: int, height: int, width: int, *, scale: tuple[float, float] = (1.0, 1.0)
    ) -> Bitmap:
        """Return the pixels of a row, uint8 ``(height, width)``, 1 inside.

        What lies beyond the canvas is cut off, and an object without a mask covers nothing. Memory is bounded by the
        canvas, whatever the annotation says. Time grows with the canvas and with the rows of pixels that the outlines
        cross; readers refuse an object with more than `MAX_ROW_CROSSINGS`.

        Args:
            row: The object.
            height: Of the canvas, in pixels.
            width: Of the canvas.
            scale: Pixels of the canvas for one of the annotated image, along x and y.
        """
        found = self.run_lengths(row)
        if found is not None:
            return _of_runs(found, height, width, scale)
        bitmap = np.zeros((height, width), dtype=np.uint8)
        starts = self.value_offsets[self.part_offsets[row] : self.part_offsets[row + 1] + 1]
        points = self.values[starts[0] : starts[-1]].reshape(-1, 2).astype(np.float64) * scale
        _fill(bitmap, points, (starts - starts[0]) // 2)
        return bitmap


def row_crossings(points: npt.NDArray[np.float64], starts: IndexArray, height: int) -> int:
    """Return how often the outlines of polygons cross a row of pixels; drawing takes time in proportion to it.

    Args:
        points: The points of all polygons, ``(n, 2)``.
        starts: int64 ``(P + 1,)``; polygon p has ``points[starts[p]:starts[p + 1]]``.
        height: Of the canvas, in pixels; rows beyond it do not count.
    """
    rows = np.ceil(np.clip(points[:, 1], 0, height) - 0.5)
    return int(np.abs(rows[_next_points(starts)] - rows).sum())


def _next_points(starts: IndexArray) -> IndexArray:
    """Return the position of the point that follows each point on its polygon's outline."""
    following = np.arange(1, starts[-1] + 1)
    closed = np.flatnonzero(np.diff(starts))
    following[starts[closed + 1] - 1] = starts[closed]
    return following


class _Edges(NamedTuple):
    """Edges of outlines that cross rows of pixels, each from its upper end.

    Attributes:
        upper: x and y of the upper ends, ``(E, 2)``.
        slopes: Change of x for one row down.
        first: The first row that the edge crosses.
        last: The row after the last one.
        polygons: The number of the polygon.
    """

    upper: npt.NDArray[np.float64]
    slopes: npt.NDArray[np.float64]
    first: IndexArray
    last: IndexArray
    polygons: IndexArray


def _fill(bitmap: Bitmap, points: npt.NDArray[np.float64], starts: IndexArray) -> None:
    """Set the pixels of polygons; see NOTE [Which pixels a polygon covers]."""
    if not len(points):
        return
    height, width = bitmap.shape
    low, high = points.min(axis=0), points.max(axis=0)
    left, top = (int(side) for side in np.clip(np.floor(low), 0, (width, height)))
    right, bottom = (int(side) for side in np.clip(np.ceil(high), 0, (width, height)))
    if left >= right or top >= bottom:
        return
    # Edges from the upper to the lower end, so that an edge has the same crossings from either side.
    following = points[_next_points(starts)]
    down = points[:, 1] <= following[:, 1]
    upper, lower = np.where(down[:, None], points, following), np.where(down[:, None], following, points)
    first, last = (np.clip(np.ceil(end[:, 1] - 0.5), top, bottom).astype(np.int64) for end in (upper, lower))
    crossed = np.flatnonzero(last > first)
    upper = upper[crossed]
    slopes = (lower[crossed, 0] - upper[:, 0]) / (lower[crossed, 1] - upper[:, 1])
    polygons = np.repeat(np.arange(len(starts) - 1), np.diff(starts))[crossed]
    edges = _Edges(upper, slopes, first[crossed], last[crossed], polygons)
    for start, end in _bands(edges, top, bottom):
        bitmap[start:end, left:right] |= _inside(edges, start, end, left, right)


def _bands(edges: _Edges, top: int, bottom: int) -> Iterator[tuple[int, int]]:
    """Yield the first row, and the row after the last one, of bands with few crossings each."""
    if int((edges.last - edges.first).sum()) <= _CROSSINGS_AT_ONCE:
        yield top, bottom
        return
    # Outlines of many long edges have more crossings than fit into memory.
    begins = np.bincount(edges.first - top, minlength=bottom - top + 1)
    ends = np.bincount(edges.last - top, minlength=bottom - top + 1)
    num_crossings = offsets_of(np.cumsum(begins - ends)[:-1])
    start = 0
    while start < bottom - top:
        limit = num_crossings[start] + _CROSSINGS_AT_ONCE
        end = max(start + 1, int(np.searchsorted(num_crossings, limit, side="right")) - 1)
        yield top + start, top + end
        start = end


def _inside(edges: _Edges, top: int, bottom: int, x_min: int, x_max: int) -> Bitmap:
    """Return 1 for the pixels of some rows that lie inside of a polygon, ``(bottom - top, x_max - x_min)``."""
    active = np.flatnonzero((edges.first < bottom) & (edges.last > top))
    start = np.maximum(edges.first[active], top)
    counts = np.minimum(edges.last[active], bottom) - start
    edge = np.repeat(active, counts)
    y = np.arange(len(edge)) + np.repeat(start - offsets_of(counts)[:-1], counts)
    x = edges.upper[edge, 0] + (y + 0.5 - edges.upper[edge, 1]) * edges.slopes[edge]
    columns = np.clip(np.ceil(x - 0.5), x_min, x_max).astype(np.int64) - x_min
    shape = (bottom - top, x_max - x_min + 1)
    cells = (y - top) * shape[1] + columns
    # The outline changes sides at each crossing: the parity of the crossings to the left is inside or outside.
    if not len(cells) or edges.polygons[0] == edges.polygons[-1]:
        changes = np.zeros(shape, dtype=np.uint8)
        np.add.at(changes.reshape(-1), cells, np.uint8(1))  # wraps at 256, which is even
        return np.cumsum(changes[:, :-1], axis=1, dtype=np.uint8) & np.uint8(1)
    # Of several polygons a row has pairs of crossings where it enters and leaves one of them: a pixel is inside of as
    # many as were entered and not left. One pass over the pixels draws all, however many there are.
    num_cells = shape[0] * shape[1]
    order = np.sort(edges.polygons[edge] * num_cells + cells) % num_cells
    depth = np.zeros(shape, dtype=np.int32)
    np.add.at(depth.reshape(-1), order[::2], 1)
    np.add.at(depth.reshape(-1), order[1::2], -1)
    inside = np.cumsum(depth[:, :-1], axis=1, dtype=np.int32) > 0
    return inside.view(np.uint8)


def _of_runs(runs: RunLengths, height: int, width: int, scale: tuple[float, float]) -> Bitmap:
    counts = np.asarray(runs.counts)
    if (runs.height, runs.width) == (height, width) and scale == (1.0, 1.0):
        pixels = np.repeat((np.arange(len(counts)) & 1).astype(np.uint8), counts)
        return np.ascontiguousarray(pixels.reshape(width, height).T)
    # The image is not of the size annotated, or is kept at another: look up the run of each pixel.
    xs, ys = (
        np.floor((np.arange(side) + 0.5) / ratio).astype(np.int64)
        for side, ratio in zip((width, height), scale, strict=True)
    )
    ends = np.cumsum(counts, dtype=np.int64)
    run_of_pixel = np.searchsorted(ends, xs[None] * runs.height + ys[:, None], side="right")
    bitmap: Bitmap = run_of_pixel.astype(np.uint8) & 1
    bitmap[ys >= runs.height] = 0
    bitmap[:, xs >= runs.width] = 0
    return bitmap


def run_lengths(bitmap: npt.ArrayLike) -> RunLengths:
    """Return the run lengths of a mask ``(height, width)``; whatever is not 0 is inside."""
    mask = np.asarray(bitmap) != 0
    height, width = mask.shape
    flat = mask.T.reshape(-1)
    changes = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    edges = np.concatenate([[0], [0] if flat[:1].any() else [], changes, [flat.size]])
    return RunLengths(np.diff(edges).astype(np.uint32), height, width)


def decode_counts(text: str | bytes) -> npt.NDArray[np.int64]:
    """Return the counts that COCO's compressed text holds.

    The text is not trusted: its numbers are bounded by what 7 characters hold, and there are at most as many as
    characters; `Masks` checks that they add up.

    Raises:
        ValueError: If the text is not such a text, or a count is negative.

    Source:
        pycocotools, ``rleFrString``: 5 bits a character from the lowest, a sixth bit if more follow, the highest of the
        last one is the sign; from the fourth count on it is the difference to the count two before.
    """
    given = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else bytes(text)
    chars = np.frombuffer(given, dtype=np.uint8).astype(np.int64) - 48
    if not chars.size:
        return chars
    is_last = chars & 32 == 0
    if chars.min() < 0 or chars.max() > 63 or not is_last[-1]:
        raise ValueError("counts are not run lengths as text: characters 0 to o, ending in a whole number")
    ends = np.flatnonzero(is_last)
    starts = np.concatenate([[0], ends[:-1] + 1])
    if (longest := (ends - starts).max() + 1) > _MAX_CHARS:
        raise ValueError(f"counts hold a number of {longest} characters; at most {_MAX_CHARS} are read")
    place = np.arange(len(chars)) - np.repeat(starts, ends - starts + 1)
    counts = np.add.reduceat((chars & 31) << (5 * place), starts)
    negative = chars[ends] & 16 != 0
    counts[negative] -= np.int64(1) << (5 * (place[ends[negative]] + 1))
    counts[1::2] = np.cumsum(counts[1::2])
    counts[2::2] = np.cumsum(counts[2::2])
    if counts.min() < 0:
        raise ValueError(f"counts hold {counts.min()}; a run has 0 pixels or more")
    return counts


def encode_counts(counts: Sequence[int] | npt.NDArray[Any]) -> str:
    """Return counts as COCO's compressed text; see `decode_counts`."""
    values = np.asarray(counts, dtype=np.int64).copy()
    values[3:] -= np.asarray(counts, dtype=np.int64)[1:-2]
    place = 5 * np.arange(_MAX_CHARS)
    bits = values[:, None] >> place
    chars = bits & 31
    rest = bits >> 5
    # What is left after the last character is nothing but its sign.
    follows = np.where(chars & 16, rest != -1, rest != 0)
    used = np.insert(np.logical_and.accumulate(follows[:, :-1], axis=1), 0, True, axis=1)
    return bytes(((chars | np.where(follows, 32, 0)) + 48)[used].tolist()).decode()
