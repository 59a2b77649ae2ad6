"""Tiles of large images: a table of images becomes a table with one row for each tile of a regular grid.

NOTE [Objects of a tile]
    A box is first clipped to its image, because the part outside is invisible. A tile then has the object if it shows
    at least the share ``keep`` of the clipped area; oriented boxes have the area of their polygon. A box without
    area has no share: every tile that touches it has the object. A crowd region is in every tile that shows any part of
    it. The tile that shows most of an object has it at any share, the first one if several show equally much, so no
    object gets lost, even if it is larger than a tile or at the corner of four tiles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from lit_loader.annotations.columns import Attribute, offsets_of
from lit_loader.annotations.formats.image_sizes import read_shown_sizes
from lit_loader.annotations.quadrangles import visible_areas
from lit_loader.annotations.table import COLUMNS, AnnotationTable
from lit_loader.errors import SettingError
from lit_loader.types import IndexArray

__all__ = ["MAX_TILES", "TileStage", "Tiling", "file_sizes", "tile_images", "tile_table"]

MAX_TILES: Final = 2**23
"""Maximum number of tiles of a table, about 1 GB of columns."""

TileStage: TypeAlias = Literal["train", "val", "test", "predict"]
"""A stage whose samples may be tiles."""

_MAX_SIDE: Final = 2**31 - 1
_MAX_PAIRS: Final = 2**27
_PAIRS_AT_ONCE: Final = 2**20
# Clipping a polygon takes about 2 kB.
_ORIENTED_PAIRS_AT_ONCE: Final = 2**16

_Integers: TypeAlias = npt.NDArray[np.int64]
_Floats: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Tiling:
    """Settings of a grid of overlapping tiles, see `tile_table`.

    Args:
        size: Side of a tile in pixels, or its (height, width).
        overlap: Smallest overlap of two neighbours, as a fraction of the tile's side, in [0, 1); rounded to pixels.
        keep: Smallest share of an object's area that a tile must show to have the object, in (0, 1]. The tile that
            shows most of it has it at any share.
        stages: Stages whose samples are tiles; the other stages have whole images.

    Raises:
        TypeError: If a setting has a wrong type.
        ValueError: If a setting is out of range.
    """

    size: int | Sequence[int] = field(kw_only=False)
    overlap: float = 0.2
    keep: float = 0.3
    stages: Sequence[TileStage] = get_args(TileStage)

    def __post_init__(self) -> None:
        sides = self.size if isinstance(self.size, Sequence) else (self.size, self.size)
        # type(): True is an int, but no number of pixels.
        if len(sides) != 2 or any(type(side) is not int for side in sides):
            raise TypeError(f"size={self.size!r} of a tiling must be an int or a pair (height, width) of ints")
        if not all(1 <= side <= _MAX_SIDE for side in sides):
            raise ValueError(f"size={self.size!r} of a tiling must be in [1, {_MAX_SIDE}] pixels")
        for name, value in (("overlap", self.overlap), ("keep", self.keep)):
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise TypeError(f"{name}={value!r} of a tiling must be a number")
        if not 0 <= self.overlap < 1:
            raise ValueError(f"overlap={self.overlap} of a tiling must be in [0, 1), a fraction of the tile")
        if not 0 < self.keep <= 1:
            raise ValueError(f"keep={self.keep} of a tiling must be in (0, 1], a share of an object's area")
        choices = get_args(TileStage)
        if isinstance(self.stages, str) or not self.stages or not set(self.stages) <= set(choices):
            raise ValueError(f"stages={self.stages!r} of a tiling must be a list of {', '.join(choices)}, not empty")
        # Lists from a config or a checkpoint would make equal settings differ, and the settings mutable.
        object.__setattr__(self, "size", self.size if isinstance(self.size, int) else tuple(sides))
        object.__setattr__(self, "stages", tuple(self.stages))

    @property
    def sides(self) -> tuple[int, int]:
        """Height and width of a tile in pixels."""
        return (self.size, self.size) if isinstance(self.size, int) else (self.size[0], self.size[1])


def tile_table(table: AnnotationTable, tiling: Tiling, *, exif_orientation: bool = True) -> AnnotationTable:
    """Return a table with one row for each tile of each image, in the order of the images.

    The tiles of an image follow each other row by row from its left upper corner. Neighbours have a constant stride,
    except that the last tile of a row or column is moved inwards to end at the image's edge. A tile is not larger than
    its image. Every pixel is in at least one tile.

    A tile has a ``region``, its size, and the path, ids and stamp of its image. Objects are chosen as in NOTE [Objects
    of a tile]. Their boxes are clipped to the tile and relative to its left upper corner, and an object that the tile
    cuts is ``truncated`` and has no annotated area (NaN). Oriented boxes are relative to the same corner, and never
    clipped. Keypoints are relative to it too, and have visibility 0 outside of the tile. Masks cover the whole image.

    The sizes of images that the table does not know are read from the files' headers. An image whose header cannot be
    read gets one row with all of its objects and a region of zeros, which is the whole file; reading its sample raises
    the file's error. Without ``exif_orientation`` all headers are read, because sizes of turned images may be upright.

    Args:
        table: Whole images.
        tiling: The grid.
        exif_orientation: Whether images are turned upright when they are read.

    Raises:
        ValueError: If the table has regions already, or the grid has more than `MAX_TILES` tiles.
    """
    if table.regions is not None:
        raise ValueError(f"{table!r} already describes regions of images; pass the table of whole images")
    sizes = _known_sizes(table, exif_orientation)
    # The axes of an array are x and y from here on.
    axes = [_Axis.of(sizes[:, axis], side, tiling.overlap) for axis, side in enumerate(reversed(tiling.sides))]
    _check_number(axes, table, tiling)
    columns, rows = (axis.counts for axis in axes)
    images = np.repeat(np.arange(table.num_images), columns * rows)
    first_tiles = offsets_of(columns * rows)[:-1]
    row, column = np.divmod(np.arange(len(images)) - first_tiles[images], columns[images])
    corners = np.stack([axes[0].starts(images, column), axes[1].starts(images, row)], axis=1)
    sides = np.minimum(sizes[images], list(reversed(tiling.sides)))
    regions = np.concatenate([corners, corners + sides], axis=1)
    objects, tiles = _tiles_of_objects(table, sizes, axes, first_tiles, regions, tiling)
    source_rows = {"images": images, "objects": objects}
    columns_by_name = {
        name: spec.take(getattr(table, name), source_rows[spec.rows])
        for name, spec in COLUMNS.items()
        if spec.rows in source_rows
    }
    attributes = {
        name: Attribute(ids=attribute.ids[objects], names=attribute.names)
        for name, attribute in table.attributes.items()
    }
    return replace(
        table,
        offsets=offsets_of(np.bincount(tiles, minlength=len(images))),
        attributes=attributes,
        **{
            **columns_by_name,
            **_cut_columns(table, sizes, regions, objects, tiles),
            "regions": regions,
            "file_sizes": sizes[images],
            "widths": sides[:, 0],
            "heights": sides[:, 1],
        },
    )


def tile_images(tiles: AnnotationTable) -> IndexArray:
    """Return the image of each row of a table from `tile_table`, int64 ``(num_tiles,)``, as rows of the image table.

    Raises:
        ValueError: If the table does not begin with the first tile of an image.
    """
    if tiles.regions is None:
        raise ValueError(f"{tiles!r} has no regions; pass a table from tile_table")
    # Paths would not do, because a table may have an image twice.
    is_first = (tiles.regions[:, :2] == 0).all(axis=1)
    if tiles.num_images and not is_first[0]:
        raise ValueError(f"{tiles!r} begins in the middle of an image; pass a whole table from tile_table")
    images: IndexArray = np.cumsum(is_first, dtype=np.int64) - 1
    return images


def file_sizes(table: AnnotationTable) -> npt.NDArray[np.int32]:
    """Return (width, height) of the image file of each row according to the table, int32 ``(num_images, 2)``.

    They are 0 if unknown, as for regions without ``file_sizes``.
    """
    sizes: npt.NDArray[np.int32] = np.stack([table.widths, table.heights], axis=1)
    if table.regions is None:
        return sizes
    if table.file_sizes is not None:
        return table.file_sizes
    # A region of zeros is the whole file, so the row's size is the file's.
    return np.where(table.regions.any(axis=1, keepdims=True), 0, sizes)


class _Axis(NamedTuple):
    """Grid of the tiles of every image along one axis.

    Attributes:
        sizes: int64 ``(num_images,)``, length of each image.
        counts: int64 ``(num_images,)``, number of tiles along the axis.
        side: Side of a tile; a shorter image has one tile of its own length.
        stride: Distance of the starts of two tiles.
    """

    sizes: _Integers
    counts: _Integers
    side: int
    stride: int

    @classmethod
    def of(cls, sizes: _Integers, side: int, overlap: float) -> _Axis:
        # With an overlap near 1 the stride would round to 0, and the grid would not advance.
        stride = max(1, round(side * (1 - overlap)))
        remainder = np.maximum(sizes - side, 0)
        return cls(sizes=sizes, counts=-(-remainder // stride) + 1, side=side, stride=stride)

    def starts(self, images: IndexArray, positions: _Integers) -> _Integers:
        """Return the first pixel of some tiles, given their images and positions on the axis."""
        last_starts = np.maximum(self.sizes[images] - self.side, 0)
        return np.minimum(positions * self.stride, last_starts)

    def touched(self, images: IndexArray, low: _Floats, high: _Floats) -> tuple[_Integers, _Integers]:
        """Return the first and the last tile that touches each interval, which is inside its image."""
        ends = self.counts[images] - 1
        first = np.clip(np.ceil((low - self.side) / self.stride), 0, ends).astype(np.int64)
        last = np.clip(np.floor(high / self.stride), 0, ends).astype(np.int64)
        # The last tile starts before its place in the grid.
        last = np.where(high >= self.sizes[images] - self.side, ends, last)
        return first, last


def _known_sizes(table: AnnotationTable, exif_orientation: bool) -> _Integers:
    """Return int64 ``(num_images, 2)`` width and height of each image, 0 if its header cannot be read."""
    sizes = np.stack([table.widths, table.heights], axis=1).astype(np.int64)
    is_unknown = (sizes == 0).any(axis=1)
    # Folders and some formats have the upright sizes, also of images that are not turned when they are read.
    rows = np.flatnonzero(is_unknown | (not exif_orientation))
    if len(rows):
        # A table may have an image several times; its header is read once.
        paths = dict.fromkeys(table.image_paths[int(row)] for row in rows)
        header_sizes, is_turned, _ = read_shown_sizes(table.root, list(paths), num_workers=None, progress=False)
        number_by_path = {path: number for number, path in enumerate(paths)}
        numbers = np.array([number_by_path[table.image_paths[int(row)]] for row in rows])
        upright_sizes = header_sizes[numbers].astype(np.int64)
        is_stored = is_turned[numbers] & (not exif_orientation)
        read_sizes = np.where(is_stored[:, None], upright_sizes[:, ::-1], upright_sizes)
        # The data set compares annotated sizes with the file.
        is_upright = (sizes[rows] == upright_sizes).all(axis=1)
        sizes[rows] = np.where((is_unknown[rows] | is_upright)[:, None], read_sizes, sizes[rows])
    return sizes


def _check_number(axes: Sequence[_Axis], table: AnnotationTable, tiling: Tiling) -> None:
    """Raise ValueError before arrays of an absurd number of tiles are allocated."""
    # In float64, because products of hostile sizes overflow int64.
    counts = axes[0].counts.astype(np.float64) * axes[1].counts
    if counts.sum() > MAX_TILES:
        image = int(counts.argmax())
        problem = (
            f"cuts {table.num_images} images into {counts.sum():.0f} tiles, more than the {MAX_TILES} of a table; "
            f"{table.image_path(image)} alone, {axes[0].sizes[image]}x{axes[1].sizes[image]} pixels, gets "
            f"{counts[image]:.0f}"
        )
        raise _too_many(tiling, problem)


def _too_many(tiling: Tiling, problem: str) -> SettingError:
    """Return the error for a tiling with too many tiles."""
    # Plain values, which can be written in a config as well.
    value = {"size": tiling.size, "overlap": tiling.overlap}
    return SettingError("tiling", value, problem, "choose larger tiles or a smaller overlap")


def _visible_boxes(table: AnnotationTable, objects: IndexArray, sizes: _Integers) -> _Floats:
    """Return boxes clipped to their images, float64 ``(n, 4)``; an image of unknown size clips nothing on the right."""
    limits = np.where(sizes == 0, np.inf, sizes)
    boxes = table.boxes[objects].astype(np.float64)
    clipped: _Floats = np.clip(boxes, 0, np.tile(limits[table.image_of_object()[objects]], 2))
    return clipped


def _tiles_of_objects(
    table: AnnotationTable,
    sizes: _Integers,
    axes: Sequence[_Axis],
    first_tiles: IndexArray,
    regions: _Integers,
    tiling: Tiling,
) -> tuple[IndexArray, IndexArray]:
    """Return the pairs of an object and a tile that keeps it; see NOTE [Objects of a tile].

    Returns:
        int64 object rows and tile rows, in the order of the tiles, and in each tile in the order of the objects.
    """
    image_of_object = table.image_of_object()
    boxes = _visible_boxes(table, np.arange(table.num_objects), sizes)
    first_columns, last_columns = axes[0].touched(image_of_object, boxes[:, 0], boxes[:, 2])
    first_rows, last_rows = axes[1].touched(image_of_object, boxes[:, 1], boxes[:, 3])
    # A box whose corners are exchanged covers nothing.
    spans = np.maximum(last_columns - first_columns + 1, 0)
    counts = spans * np.maximum(last_rows - first_rows + 1, 0)
    pair_offsets = offsets_of(counts)
    if pair_offsets[-1] > _MAX_PAIRS:
        problem = f"divides {table.num_objects} objects among tiles in {pair_offsets[-1]} ways, more than {_MAX_PAIRS}"
        raise _too_many(tiling, problem)
    is_oriented = table.has_orientation()
    pairs_at_once = _ORIENTED_PAIRS_AT_ONCE if is_oriented.any() else _PAIRS_AT_ONCE
    object_parts = [np.zeros(0, np.int64)]
    tile_parts = [np.zeros(0, np.int64)]
    start = 0
    while start < table.num_objects:
        # Pairs of all objects at once could take many gigabytes.
        limit = pair_offsets[start] + pairs_at_once
        end = max(start + 1, int(np.searchsorted(pair_offsets, limit, side="right")) - 1)
        objects = np.repeat(np.arange(start, end), counts[start:end])
        numbers = np.arange(len(objects)) - (pair_offsets[objects] - pair_offsets[start])
        row, column = np.divmod(numbers, spans[objects])
        images = image_of_object[objects]
        positions = (first_rows[objects] + row) * axes[0].counts[images] + first_columns[objects] + column
        tiles = first_tiles[images] + positions
        area = (boxes[objects, 2:] - boxes[objects, :2]).prod(axis=1)
        visible_area = _visible_area(boxes[objects], regions[tiles])
        pairs = np.flatnonzero(is_oriented[objects])
        if len(pairs):
            # The box around a thin diagonal object is mostly background.
            corners = table.oriented_corners(objects[pairs])
            limits = np.where(sizes == 0, np.inf, sizes)[images[pairs]]
            area[pairs] = visible_areas(corners, np.hstack([np.zeros_like(limits), limits]))
            # A tile that does not touch the box stays at -1.
            visible_area[pairs] = np.minimum(visible_area[pairs], visible_areas(corners, regions[tiles[pairs]]))
        is_member = _shows_enough(area, visible_area, table.crowd[objects], tiling.keep)
        is_member[_first_maxima(visible_area, counts[start:end])] = True
        # An image of unknown size has one tile, which gets every object.
        is_member |= (sizes[images] == 0).any(axis=1)
        object_parts.append(objects[is_member])
        tile_parts.append(tiles[is_member])
        start = end
    all_objects = np.concatenate(object_parts)
    all_tiles = np.concatenate(tile_parts)
    # Pairs are in the order of objects. A stable sort by tile preserves this order within each tile.
    order = np.argsort(all_tiles, kind="stable")
    return all_objects[order], all_tiles[order]


def _visible_area(boxes: _Floats, regions: _Integers) -> _Floats:
    """Return the area that each tile shows of its box, -1 if they do not touch."""
    visible_sides = np.minimum(boxes[:, 2:], regions[:, 2:]) - np.maximum(boxes[:, :2], regions[:, :2])
    visible_area: _Floats = np.where((visible_sides >= 0).all(axis=1), visible_sides.prod(axis=1), -1)
    return visible_area


def _shows_enough(
    area: _Floats, visible_area: _Floats, crowd: npt.NDArray[np.bool_], keep: float
) -> npt.NDArray[np.bool_]:
    """Return True for each pair of an object and a tile that shows a large enough share of it."""
    # The second condition is for shares so small that `keep * area` rounds to 0.
    shows_share = (visible_area >= keep * area) & (visible_area > 0)
    shows_crowd = crowd & (visible_area > 0)
    return np.asarray(shows_share | shows_crowd | ((area == 0) & (visible_area >= 0)))


def _first_maxima(values: _Floats, counts: _Integers) -> IndexArray:
    """Return the position of the first largest value of each of several runs, if it is above 0."""
    counts = counts[counts > 0]
    starts = offsets_of(counts)[:-1]
    if not len(starts):
        return starts
    maxima = np.repeat(np.maximum.reduceat(values, starts), counts)
    positions = np.flatnonzero((values == maxima) & (values > 0))
    _, first = np.unique(np.repeat(np.arange(len(counts)), counts)[positions], return_index=True)
    return positions[first]


def _cut_columns(
    table: AnnotationTable, sizes: _Integers, regions: _Integers, objects: IndexArray, tiles: IndexArray
) -> Mapping[str, Any]:
    """Return the columns of objects that a tile changes, one row for each pair of an object and a tile."""
    limits = regions[tiles].astype(np.float64)
    has_size = limits[:, 2:].all(axis=1)
    limits[~has_size, 2:] = np.inf
    boxes = _visible_boxes(table, objects, sizes)
    clipped = np.clip(boxes, np.tile(limits[:, :2], 2), np.tile(limits[:, 2:], 2))
    is_cut = (clipped != boxes).any(axis=1)
    columns: dict[str, Any] = {
        "boxes": (clipped - np.tile(limits[:, :2], 2)).astype(np.float32),
        "truncated": table.truncated[objects] | is_cut,
    }
    if table.areas is not None:
        # The visible part of an annotated area (of a mask) is unknown.
        columns["areas"] = np.where(is_cut, np.float32(np.nan), table.areas[objects])
    shifts = limits[:, :2]
    if table.corners is not None:
        columns["corners"] = (table.corners[objects] - shifts[:, None]).astype(np.float32)
    if table.rotated_boxes is not None:
        rotated_boxes = table.rotated_boxes[objects]
        columns["rotated_boxes"] = np.hstack([rotated_boxes[:, :2] - shifts, rotated_boxes[:, 2:]]).astype(np.float32)
    if table.keypoints is not None and table.visibility is not None:
        points = table.keypoints[objects].astype(np.float64) - limits[:, None, :2]
        inside = ((points >= 0) & (points <= (limits[:, 2:] - limits[:, :2])[:, None])).all(axis=2)
        columns["keypoints"] = points.astype(np.float32)
        columns["visibility"] = np.where(inside, table.visibility[objects], np.uint8(0))
    return columns
