"""Merging of the detections in overlapping tiles of an image into detections of the image.

NOTE [Detections of one object agree where tiles overlap]
    Two tiles that overlap both show the zone that they share. If detections in both are one object, the parts of their
    boxes in the zone are equal, however much of the object each tile shows beyond it. So the IoU of these parts decides
    instead of the IoU of the boxes. It is never lower, because boxes of two tiles meet only in the zone: duplicates
    that non-maximum suppression would remove agree as well. Tiles that only touch share a line. If boxes on both sides
    end at it, their parts of the line are compared.
    Detections of one tile are different objects, because the model has already removed its duplicates.
    Merging is limited to 100 detections per class and tile, by score.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from lit_loader.annotations import AnnotationTable, tile_images
from lit_loader.annotations.masks import Masks, RunLengths, run_lengths
from lit_loader.callbacks.prediction_files import Prediction
from lit_loader.datamodules import TableDataModule
from lit_loader.datasets import Stage

__all__ = ["MergedBoxes", "TiledImages", "is_tiled", "merge_boxes", "merge_tiles"]

_Floats: TypeAlias = npt.NDArray[np.float64]

_BORDER_SHARE: Final = 0.01
"""A side of a box this near to a border of its tile, as a share of the tile's side, is cut by the border."""

_MIN_BORDER_PIXELS: Final = 2.0

_MAX_LINKED: Final = 100
"""Detections of a class in a tile that are merged with others, those with the highest scores."""

_CONTEXT_SHARE: Final = 0.1
"""A side of a box this far from the borders of its tile, as a share of the tile's side, has full weight."""


class MergedBoxes(NamedTuple):
    """M objects, by falling score.

    Attributes:
        boxes: float64 ``(M, 4)``, xyxy in pixels of the image.
        members: Detections of each object, by falling score.
    """

    boxes: _Floats
    members: list[list[int]]


def merge_boxes(
    boxes: npt.ArrayLike,
    labels: npt.ArrayLike,
    scores: npt.ArrayLike,
    tiles: npt.ArrayLike,
    regions: npt.ArrayLike,
    *,
    size: tuple[int, int],
    min_iou: float = 0.5,
) -> MergedBoxes:
    """Merge boxes that are one object, see NOTE [Detections of one object agree where tiles overlap].

    In the order of their scores, each detection that is not part of an object yet starts one, and takes detections of
    the same class from tiles around it, at most one of a tile, that agree with no other detection better. Each side of
    the object's box is the mean of the sides of its members, weighted by their scores and by their distances to the
    border of the tile, up to a tenth of the tile: a side near a border may be cut, and the model has seen little around
    it. If all are cut, the outermost side is taken.

    Args:
        boxes: ``(N, 4)``, xyxy in pixels of the image.
        labels: ``(N,)``, classes.
        scores: ``(N,)``.
        tiles: int ``(N,)``, position of each detection's tile in ``regions``.
        regions: ``(T, 4)``, left, top, right and bottom of tiles, in pixels of the image.
        size: Height and width of the image.
        min_iou: Smallest IoU in the common zone of detections of one object, in (0, 1].

    Raises:
        ValueError: If ``min_iou`` is out of range.
    """
    if not 0 < min_iou <= 1:
        raise ValueError(f"min_iou={min_iou} must be in (0, 1]")
    order = np.argsort(-np.asarray(scores, dtype=np.float64), kind="stable")
    sorted_boxes = np.asarray(boxes, dtype=np.float64).reshape(-1, 4)[order]
    sorted_tiles = np.asarray(tiles, dtype=np.int64)[order]
    borders = np.asarray(regions, dtype=np.float64).reshape(-1, 4)
    distances = _distances(sorted_boxes, sorted_tiles, borders, size)
    links = _find_links(sorted_boxes, np.asarray(labels)[order], sorted_tiles, borders, distances == 0)
    members = _group(links, sorted_tiles.tolist(), min_iou)
    # A score of 0 would leave a side without a weight.
    weights = distances * np.asarray(scores, dtype=np.float64)[order, None].clip(1e-6)
    merged = sorted_boxes[[rows[0] for rows in members]]
    for index, rows in enumerate(members):
        if len(rows) > 1:
            merged[index] = _join(sorted_boxes[rows], weights[rows])
    return MergedBoxes(merged, [order[rows].tolist() for rows in members])


def _distances(boxes: _Floats, tiles: npt.NDArray[np.int64], regions: _Floats, size: tuple[int, int]) -> _Floats:
    """Return the distances of the sides of boxes to the borders that may cut them, ``(N, 4)``, 0 for a cut side.

    They are limited to a tenth of the tile's side, which is also the distance to a border of the image.
    """
    sides = np.tile(regions[:, 2:] - regions[:, :2], 2)
    tolerance = np.maximum(_BORDER_SHARE * sides, _MIN_BORDER_PIXELS)
    limits = _CONTEXT_SHARE * sides
    distances = np.clip(np.abs(boxes - regions[tiles]) - tolerance[tiles], 0, limits[tiles])
    # An object ends at the border of the image; beyond any other border of a tile it may go on.
    height, width = size
    is_inner = regions != (0, 0, width, height)
    return np.where(is_inner[tiles], distances, limits[tiles])


class _Links(NamedTuple):
    """Evidence that detections are one object or not.

    Attributes:
        overlaps: For each detection, the area that it shares with others in the zone of their tiles, by row.
        areas: For each detection, the area of its part in the zone that its tile shares with another, by tile.
    """

    overlaps: list[dict[int, float]]
    areas: list[dict[int, float]]


def _find_links(
    boxes: _Floats,
    labels: npt.NDArray[Any],
    tiles: npt.NDArray[np.int64],
    regions: _Floats,
    is_cut: npt.NDArray[np.bool_],
) -> _Links:
    links = _Links([{} for _ in boxes], [{} for _ in boxes])
    is_linked = _ranks(tiles, labels) < _MAX_LINKED
    rows_by_tile = {int(tile): np.flatnonzero((tiles == tile) & is_linked) for tile in np.unique(tiles)}
    for first, second in _neighbours(np.array(list(rows_by_tile), dtype=np.int64), regions):
        low = np.maximum(regions[first, :2], regions[second, :2])
        high = np.minimum(regions[first, 2:], regions[second, 2:])
        is_narrow = high - low < _MIN_BORDER_PIXELS
        parts = []
        for tile, other in ((first, second), (second, first)):
            rows = rows_by_tile[tile]
            corners = np.concatenate([np.maximum(boxes[rows, :2], low), np.minimum(boxes[rows, 2:], high)], axis=1)
            for axis in np.flatnonzero(is_narrow):
                # Only boxes that end at the common line have a part of it, one pixel wide.
                side = axis + 2 * int(regions[tile, axis] < regions[other, axis])
                corners[:, axis] = 0
                corners[:, axis + 2] = is_cut[rows, side]
            areas = (corners[:, 2:] - corners[:, :2]).clip(0).prod(axis=1)
            has_part = areas > 0
            parts.append((rows[has_part], corners[has_part]))
            for row, area in zip(rows[has_part].tolist(), areas[has_part].tolist(), strict=True):
                links.areas[row][other] = area
        (rows_1, corners_1), (rows_2, corners_2) = parts
        lows = np.maximum(corners_1[:, None, :2], corners_2[:, :2])
        sides = np.minimum(corners_1[:, None, 2:], corners_2[:, 2:]) - lows
        overlaps = sides.clip(0).prod(axis=2) * (labels[rows_1][:, None] == labels[rows_2])
        for i, j in zip(*np.nonzero(overlaps), strict=True):
            overlap = float(overlaps[i, j])
            links.overlaps[rows_1[i]][int(rows_2[j])] = overlap
            links.overlaps[rows_2[j]][int(rows_1[i])] = overlap
    return links


def _ranks(tiles: npt.NDArray[np.int64], labels: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Number the detections of each tile and class."""
    order = np.lexsort((labels, tiles))
    is_first = (np.diff(tiles[order], prepend=-1) != 0) | (labels[order] != np.roll(labels[order], 1))
    starts = np.flatnonzero(is_first)
    lengths = np.diff(np.append(starts, len(order)))
    ranks = np.empty(len(order), dtype=np.int64)
    ranks[order] = np.arange(len(order)) - np.repeat(starts, lengths)
    return ranks


def _neighbours(tiles: npt.NDArray[np.int64], regions: _Floats) -> Iterator[tuple[int, int]]:
    """Yield the pairs of tiles that share a zone or a line."""
    borders = regions[tiles]
    for index, tile in enumerate(tiles.tolist()):
        low = np.maximum(borders[index, :2], borders[index + 1 :, :2])
        sides = np.minimum(borders[index, 2:], borders[index + 1 :, 2:]) - low
        # A single pixel, where only the corners of tiles touch, tells nothing.
        is_near = (sides >= 0).all(axis=1) & (sides >= _MIN_BORDER_PIXELS).any(axis=1)
        for other in tiles[index + 1 :][is_near].tolist():
            yield tile, other


def _group(links: _Links, tiles: Sequence[int], min_iou: float) -> list[list[int]]:
    """Return the detections of each object, as sorted rows of detections that are sorted by score."""
    groups = []
    is_free = [True] * len(tiles)
    for seed in range(len(tiles)):
        if not is_free[seed]:
            continue
        is_free[seed] = False
        members = [seed]
        candidates = dict.fromkeys(links.overlaps[seed])
        while candidates:
            occupied = {tiles[row] for row in members}
            choices_by_tile: dict[int, list[tuple[float, float, int]]] = {}
            for row in candidates:
                if is_free[row] and tiles[row] not in occupied:
                    overlap, iou = _agreement(links, tiles, row, members)
                    if iou >= min_iou and not _fits_better(links, tiles, row, members, is_free):
                        choices_by_tile.setdefault(tiles[row], []).append((iou, overlap, -row))
            if not choices_by_tile:
                break
            row = -max(map(_clearest, choices_by_tile.values()))[1]
            is_free[row] = False
            members.append(row)
            candidates |= dict.fromkeys(links.overlaps[row])
        groups.append(sorted(members))
    return groups


def _fits_better(
    links: _Links, tiles: Sequence[int], row: int, members: Sequence[int], is_free: Sequence[bool]
) -> bool:
    """Return True if a detection agrees better with a free detection in the tile of a member than with the member."""
    # Its object may be next to another one that its tile does not show.
    member_by_tile = {tiles[member]: member for member in members}
    for other in links.overlaps[row]:
        if is_free[other] and tiles[other] in member_by_tile:
            member = member_by_tile[tiles[other]]
            if _agreement(links, tiles, row, [other])[1] > _agreement(links, tiles, row, [member])[1]:
                return True
    return False


def _clearest(choices: list[tuple[float, float, int]]) -> tuple[float, int]:
    """Return how clear it is which detection of a tile belongs to an object, and its negative row."""
    # Of detections that agree equally, the one with the highest score.
    choices.sort(reverse=True)
    iou, overlap, negative_row = choices[0]
    # Large objects are equal in a zone that both cover. Zones in which they differ are decided first, and the members
    # from there then tell them apart.
    margin = iou - choices[1][0] if len(choices) > 1 else iou
    return margin * overlap, negative_row


def _agreement(links: _Links, tiles: Sequence[int], row: int, members: Sequence[int]) -> tuple[float, float]:
    """Return the area that a detection shares with an object's members in all zones, and the IoU of their parts."""
    overlap = 0.0
    union = 0.0
    overlaps = links.overlaps[row]
    areas = links.areas[row]
    for member in members:
        # A member without a part in the zone, where the detection has one, counts against it.
        overlap += overlaps.get(member, 0.0)
        union += areas.get(tiles[member], 0.0) + links.areas[member].get(tiles[row], 0.0)
    union -= overlap
    return overlap, overlap / union if union else 0.0


def _join(boxes: _Floats, weights: _Floats) -> _Floats:
    """Return the mean of the sides of an object's parts; the outermost of sides that all have a weight of 0."""
    total = weights.sum(axis=0)
    outermost = np.concatenate([boxes[:, :2].min(axis=0), boxes[:, 2:].max(axis=0)])
    # Means of differences, so that equal sides have exactly this mean.
    base = boxes[weights.argmax(axis=0), np.arange(4)]
    means = base + ((boxes - base) * weights).sum(axis=0) / np.where(total > 0, total, 1)
    return np.where(total > 0, means, outermost)


# -- predictions -----------------------------------------------------------------------------------------


def merge_tiles(
    parts: Sequence[Prediction], regions: npt.ArrayLike, *, size: tuple[int, int], min_iou: float = 0.5
) -> Prediction:
    """Merge the predictions in all tiles of an image, see `merge_boxes`.

    The member with the largest box, whose tile shows most of the object, gives points and attributes. Masks are united.

    Args:
        parts: Predictions of each tile, at least one, in pixels of the tile.
        regions: int ``(T, 4)``, left, top, right and bottom of each tile, in pixels of the image.
        size: Height and width of the image.
        min_iou: Smallest IoU in the common zone of detections of one object.

    Returns:
        Predictions in pixels of the image, by falling score.
    """
    borders = np.asarray(regions, dtype=np.int64).reshape(-1, 4)
    tiles = np.repeat(np.arange(len(parts)), [len(part.labels) for part in parts])
    offsets = borders[tiles, :2].astype(np.float32)
    columns = {name: _stacked([getattr(part, name) for part in parts]) for name in ("labels", "scores", "boxes")}
    boxes = columns["boxes"] + np.tile(offsets, 2)
    merged = merge_boxes(boxes, columns["labels"], columns["scores"], tiles, borders, size=size, min_iou=min_iou)
    best = [rows[0] for rows in merged.members]
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
    # `max` returns the first of equal ones, which has the highest score.
    largest = [max(rows, key=areas.__getitem__) for rows in merged.members]
    keypoints = _stacked([part.keypoints for part in parts])
    keypoint_scores = _stacked([part.keypoint_scores for part in parts])
    masks = None
    if parts[0].masks is not None:
        bitmaps = Masks.from_rows([mask for part in parts for mask in part.masks or ()])
        masks = [_united(bitmaps, rows, borders[tiles[rows]], size) for rows in merged.members]
    return Prediction(
        size=size,
        labels=columns["labels"][best],
        scores=columns["scores"][best],
        boxes=merged.boxes.astype(np.float32),
        keypoints=None if keypoints is None else keypoints[largest] + offsets[largest][:, None],
        keypoint_scores=None if keypoint_scores is None else keypoint_scores[largest],
        attributes={
            name: np.concatenate([part.attributes[name] for part in parts])[largest] for name in parts[0].attributes
        },
        masks=masks,
    )


def _stacked(values: Sequence[Any]) -> Any:
    return None if values[0] is None else np.concatenate(values)


def _united(masks: Masks, rows: Sequence[int], regions: npt.NDArray[np.int64], size: tuple[int, int]) -> RunLengths:
    """Return the union of masks of tiles as a mask of the image."""
    height, width = size
    first_column = int(regions[:, 0].min())
    # Only the columns that the tiles cover are drawn, because an image may be much wider.
    canvas = np.zeros((height, int(regions[:, 2].max()) - first_column), dtype=np.uint8)
    for row, (x1, y1, x2, y2) in zip(rows, regions.tolist(), strict=True):
        canvas[y1:y2, x1 - first_column : x2 - first_column] |= masks.rasterize(row, y2 - y1, x2 - x1)
    return run_lengths(canvas, first_column=first_column, width=width)


def is_tiled(datamodule: Any, stage: Stage) -> bool:
    """Return True if the samples of a stage of a data module are tiles."""
    tiling = datamodule.tiling if isinstance(datamodule, TableDataModule) else None
    return tiling is not None and stage in tiling.stages


class TiledImages:
    """Images of a table, and their tiles in another.

    Args:
        tiles: One row per tile, see `tile_table`.
        images: One row per image.

    Attributes:
        image_of_tile: int64 ``(num_tiles,)``, row of each tile's image.
        num_tiles: int64 ``(num_images,)``, number of tiles of each image.
        sizes: int64 ``(num_images, 2)``, height and width of each image.

    Raises:
        ValueError: If the tiles belong to other images.
    """

    def __init__(self, tiles: AnnotationTable, images: AnnotationTable) -> None:
        self.image_of_tile = tile_images(tiles)
        self._regions = cast("npt.NDArray[np.int32]", tiles.regions)  # `tile_images` refuses None
        num_images = int(self.image_of_tile.max(initial=-1)) + 1
        if num_images != images.num_images:
            raise ValueError(f"{tiles!r} has tiles of {num_images} images, expected tiles of {images!r}")
        self.num_tiles = np.bincount(self.image_of_tile, minlength=images.num_images)
        # The tiles cover their image, whose size the table may not know.
        self.sizes = np.zeros((images.num_images, 2), dtype=np.int64)
        np.maximum.at(self.sizes, self.image_of_tile, self._regions[:, [3, 2]])

    def complete(self, tile_rows: npt.ArrayLike) -> list[int]:
        """Return the rows of the images that have all of their tiles in a selection.

        Args:
            tile_rows: int ``(n,)``, the selection, without repetitions.
        """
        rows = np.asarray(tile_rows, dtype=np.int64)
        counts = np.bincount(self.image_of_tile[rows], minlength=len(self.num_tiles))
        return np.flatnonzero((counts == self.num_tiles) & (counts > 0)).tolist()

    def size(self, image: int) -> tuple[int, int]:
        """Return height and width of an image."""
        height, width = self.sizes[image].tolist()
        return height, width

    def merge(self, predictions: Mapping[int, Prediction], *, min_iou: float = 0.5) -> dict[int, Prediction]:
        """Return predictions by row of the image, from those by row of the tile."""
        tiles_by_image: dict[int, list[int]] = {}
        for row in sorted(predictions):
            tiles_by_image.setdefault(int(self.image_of_tile[row]), []).append(row)
        merged = {}
        for image, rows in sorted(tiles_by_image.items()):
            parts = [predictions[row] for row in rows]
            merged[image] = merge_tiles(parts, self._regions[rows], size=self.size(image), min_iou=min_iou)
        return merged
