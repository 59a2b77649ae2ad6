"""Checks of boxes: outside of the image, without area, tiny, with sides that cross, around the whole image, doubled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from lit_loader.annotations.formats.rules import point_boxes
from lit_loader.annotations.problems import shorten
from lit_loader.annotations.quadrangles import clockwise, sides_cross, smallest_rectangles
from lit_loader.inspection.findings import Severity
from lit_loader.inspection.recorder import Recorder, TableSet
from lit_loader.types import IndexArray

__all__ = ["TOLERANCE_PIXELS", "check_boxes"]

TOLERANCE_PIXELS: Final = 1.0
"""Distance from the image up to which boxes and points count as inside: formats count pixels from 0 or from 1."""

# Above this share, boxes around the whole image are the design of the data, as in classification.
_RARE_SHARE: Final = 0.05
_MIN_OBJECTS: Final = 20
_SAME_BOX_PIXELS: Final = 1.0
_EDGE_PIXELS: Final = 0.5
# Share of the image's width or height, and of its own area, that a box with rough edges has outside at most. In the
# sets that were tried, boxes around people and faces at the edge had 2.6 % and 3.5 %.
_MAX_EXCESS_SHARE: Final = 0.1
_MAX_OUTSIDE_SHARE: Final = 0.5
# Coordinates that are fractions of an image are a little off in pixels.
_ROUNDING_PIXELS: Final = 0.01
# Boxes of one image that a box is compared with; a million equal boxes would otherwise take hours.
_MAX_NEIGHBOURS: Final = 500
# Tiny boxes at a distance of a pixel may hardly overlap, and are two objects then.
_MIN_CONFLICT_IOU: Final = 0.5

_Mask = npt.NDArray[np.bool_]
_all = partial(np.logical_and.reduce, axis=-1)


@dataclass(frozen=True, kw_only=True)
class _Boxes:
    """Boxes of a set with the properties that several rules need.

    Attributes:
        source: The set.
        image_of_object: Image of each object, ``(num_objects,)``.
        sizes: Width and height of the image of each object, ``(num_objects, 2)``, 0 if unknown.
        boxes: float64 ``(num_objects, 4)``.
        has_area: True for boxes with width and height, ``(num_objects,)``.
        is_whole: True for boxes that cover their whole image, ``(num_objects,)``.
        is_drawn: True unless a reader put the box around the object's points, ``(num_objects,)``.
    """

    source: TableSet
    image_of_object: IndexArray
    sizes: npt.NDArray[np.int64]
    boxes: npt.NDArray[np.float64]
    has_area: _Mask
    is_whole: _Mask
    is_drawn: _Mask

    def text(self, row: int) -> str:
        """Return class, box and image size of an object for a message."""
        table = self.source.table
        box = ", ".join(f"{value:g}" for value in self.boxes[row].tolist())
        width, height = self.sizes[row].tolist()
        size = f" (image {width} x {height})" if width and height else ""
        return f"{shorten(table.class_names[table.labels[row]])!r} box [{box}]{size}"


def check_boxes(recorder: Recorder, sources: Sequence[TableSet], *, min_side: float, duplicate_iou: float) -> None:
    """Add the defects of boxes in all sets.

    Args:
        recorder: Receives the findings.
        sources: The sets.
        min_side: Shortest side of a box, in pixels.
        duplicate_iou: IoU above which two boxes of a class count as one object.
    """
    sets = [_boxes_of(source) for source in sources]
    num_objects = sum(len(boxes.boxes) for boxes in sets)
    num_whole = sum(int(boxes.is_whole.sum()) for boxes in sets)
    is_rare = num_objects >= _MIN_OBJECTS and num_whole <= _RARE_SHARE * num_objects
    for boxes in sets:
        _check_place(recorder, boxes)
        _check_area(recorder, boxes, min_side=min_side)
        _check_quadrangles(recorder, boxes)
        if is_rare:
            rows = np.flatnonzero(boxes.is_whole)
            recorder.add_rows("whole_image_box", boxes.source, rows, partial(_whole_image_message, boxes))
        _check_duplicates(recorder, boxes, duplicate_iou=duplicate_iou)
    _check_conflicts(recorder, sets)


def _boxes_of(source: TableSet) -> _Boxes:
    table = source.table
    image_of_object = table.image_of_object()
    sizes = source.sizes[image_of_object]
    boxes = table.boxes.astype(np.float64)
    has_size: _Mask = _all(sizes > 0)
    upper = np.where(has_size[:, None], sizes, np.inf)
    covers_left: _Mask = _all(boxes[:, :2] <= _EDGE_PIXELS)
    is_drawn = np.ones(len(boxes), dtype=np.bool_)
    if table.keypoints is not None and table.visibility is not None:
        around_points = point_boxes(table.keypoints, table.visibility, sizes.astype(np.int32))[0]
        # Readers clip such boxes under some policies.
        around_points = np.clip(around_points, 0, np.tile(upper, 2))
        clipped = np.clip(boxes, 0, np.tile(upper, 2))
        is_drawn = ~_all(np.abs(around_points - clipped) < _ROUNDING_PIXELS)
    return _Boxes(
        source=source,
        image_of_object=image_of_object,
        sizes=sizes,
        boxes=boxes,
        has_area=_all(boxes[:, 2:] > boxes[:, :2]),
        is_whole=covers_left & _all(boxes[:, 2:] >= upper - _EDGE_PIXELS),
        is_drawn=is_drawn,
    )


def _check_place(recorder: Recorder, boxes: _Boxes) -> None:
    """Add boxes that reach beyond the image, and boxes outside of it."""
    sizes = boxes.sizes.astype(np.float64)
    is_checked = (boxes.sizes > 0).all(axis=1) & boxes.has_area & boxes.is_drawn
    excess = np.hstack([-boxes.boxes[:, :2], boxes.boxes[:, 2:] - sizes]).max(axis=1, initial=0)
    is_off = is_checked & ((boxes.boxes[:, 2:] <= 0) | (boxes.boxes[:, :2] >= sizes)).any(axis=1)
    is_partly = is_checked & ~is_off & (excess > TOLERANCE_PIXELS)
    is_far = is_partly & _reaches_far(boxes.boxes, sizes)

    def partly(row: int) -> str:
        return f"{boxes.text(row)} reaches {excess[row]:.4g} pixels beyond the image"

    def off(row: int) -> str:
        return f"{boxes.text(row)} is completely outside the image"

    rules: tuple[tuple[str, _Mask, Callable[[int], str], Severity | None], ...] = (
        ("box_off_image", is_off, off, None),
        ("out_of_image", is_far, partly, "error"),
        ("out_of_image", is_partly & ~is_far, partly, None),
    )
    for kind, selected, message, severity in rules:
        rows = np.flatnonzero(selected)
        recorder.add_rows(kind, boxes.source, rows, message, scores=excess[rows], severity=severity)


def _reaches_far(boxes: npt.NDArray[np.float64], sizes: npt.NDArray[np.float64]) -> _Mask:
    """Return True for boxes that reach so far beyond the image that a coordinate must be wrong, ``(num_objects,)``.

    Args:
        boxes: Boxes with an area, ``(num_objects, 4)``; the result is arbitrary for others.
        sizes: Width and height of the image of each, ``(num_objects, 2)``.
    """
    excess = np.maximum(-boxes[:, :2], boxes[:, 2:] - sizes)
    sides = boxes[:, 2:] - boxes[:, :2]
    inner_sides = np.minimum(boxes[:, 2:], sizes) - np.maximum(boxes[:, :2], 0)
    is_outside = inner_sides.prod(axis=1) < (1 - _MAX_OUTSIDE_SHARE) * sides.prod(axis=1)
    far: _Mask = is_outside | (excess > _MAX_EXCESS_SHARE * sizes).any(axis=1)
    return far


def _check_area(recorder: Recorder, boxes: _Boxes, *, min_side: float) -> None:
    """Add boxes without area, and tiny ones."""
    sides = (boxes.boxes[:, 2:] - boxes.boxes[:, :2]).min(axis=1, initial=np.inf)

    def degenerate(row: int) -> str:
        return f"{boxes.text(row)} has no area"

    def tiny(row: int) -> str:
        return f"{boxes.text(row)} has a side of {sides[row]:.3g} pixels, below {min_side:g}"

    # The label of a whole image is its box, which is empty if the image is missing; that has a finding of its own.
    is_missing_image = ~boxes.boxes.any(axis=1) & ~boxes.sizes.any(axis=1)
    recorder.add_rows("degenerate", boxes.source, np.flatnonzero(~boxes.has_area & ~is_missing_image), degenerate)
    rows = np.flatnonzero(boxes.has_area & boxes.is_drawn & (sides < min_side - _ROUNDING_PIXELS))
    recorder.add_rows("tiny_box", boxes.source, rows, tiny, scores=-sides[rows])


def _check_quadrangles(recorder: Recorder, boxes: _Boxes) -> None:
    """Add oriented boxes without area, and those with sides that cross."""
    table = boxes.source.table
    rows = np.flatnonzero(table.has_orientation())
    corners = table.oriented_corners(rows)
    is_crossed = sides_cross(corners)
    # The rectangle and not the polygon, whose parts may cancel if its sides cross.
    is_flat = smallest_rectangles(corners)[:, 2:4].min(axis=1, initial=np.inf) < _ROUNDING_PIXELS
    selected = is_crossed | is_flat
    points_by_row = dict(zip(rows[selected].tolist(), corners[selected], strict=True))
    crossed_rows = set(rows[is_crossed].tolist())

    def message(row: int) -> str:
        points = ", ".join(f"({x:g}, {y:g})" for x, y in points_by_row[row].tolist())
        defect = "sides that cross" if row in crossed_rows else "no area"
        return f"{boxes.text(row)} has corners {points} with {defect}"

    recorder.add_rows("odd_quadrangle", boxes.source, rows[selected], message)


def _whole_image_message(boxes: _Boxes, row: int) -> str:
    return f"{boxes.text(row)} covers the whole image"


@dataclass(frozen=True, kw_only=True)
class _Pairs:
    """Pairs of objects of one image whose boxes overlap, ``(num_pairs,)`` each; no object is second in two pairs.

    Attributes:
        first: Row of the object that comes first in the table.
        second: Row of the other one.
        iou: float64, their IoU.
    """

    first: IndexArray
    second: IndexArray
    iou: npt.NDArray[np.float64]


class _Neighbours:
    """Pairs of boxes of one image, in chunks of at most one pair for each object.

    The objects of an image are sorted by their left edges, so each is compared with few of those that follow it.

    Args:
        boxes: The boxes of a set.
        min_iou: IoU that pairs exceed.
        reach: Largest distance of the left edges of a pair, in widths of the left box, or in pixels.
        unit: Unit of ``reach``.
    """

    def __init__(self, boxes: _Boxes, *, min_iou: float, reach: float, unit: Literal["widths", "pixels"]) -> None:
        rows = np.flatnonzero(boxes.has_area & ~boxes.source.table.crowd)
        self._order = rows[np.lexsort([boxes.boxes[rows, 0], boxes.image_of_object[rows]])]
        self._corners = boxes.boxes[self._order]
        self._images = boxes.image_of_object[self._order]
        scale = self._corners[:, 2] - self._corners[:, 0] if unit == "widths" else 1.0
        self._reach = self._corners[:, 0] + reach * scale
        self._min_iou = min_iou

    def pairs(self) -> Iterator[_Pairs]:
        """Yield pairs of each object with the next one, then with the one after that, and so on."""
        active = np.arange(len(self._order))
        for shift in range(1, _MAX_NEIGHBOURS + 1):
            active = self._near(active, shift)
            if not len(active):
                return
            partners = active + shift
            iou = _iou(self._corners[active], self._corners[partners])
            is_pair = iou > self._min_iou
            rows = self._order[active[is_pair]]
            later = self._order[partners[is_pair]]
            # An object may be right of one partner and left of another, so one chunk could have it second twice.
            for selected, first, second in ((rows < later, rows, later), (rows > later, later, rows)):
                yield _Pairs(first=first[selected], second=second[selected], iou=iou[is_pair][selected])

    def incomplete_images(self) -> IndexArray:
        """Return the images with a box that has more neighbours than `pairs` compares."""
        active = self._near(np.arange(len(self._order)), _MAX_NEIGHBOURS + 1)
        return np.unique(self._images[active])

    def _near(self, active: IndexArray, shift: int) -> IndexArray:
        """Return the active positions whose box can overlap enough with the box that is ``shift`` positions later."""
        active = active[active + shift < len(self._order)]
        partners = active + shift
        is_near: _Mask = self._images[active] == self._images[partners]
        is_near &= self._corners[partners, 0] <= self._reach[active]
        return active[is_near]


def _iou(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the IoU of each box of ``a`` with the same row of ``b``, ``(n,)``."""
    sides = np.minimum(a[:, 2:], b[:, 2:]) - np.maximum(a[:, :2], b[:, :2])
    common = np.prod(np.clip(sides, 0, None), axis=1)
    areas = np.prod(a[:, 2:] - a[:, :2], axis=1) + np.prod(b[:, 2:] - b[:, :2], axis=1)
    ratio: npt.NDArray[np.float64] = common / (areas - common)
    return ratio


def _check_duplicates(recorder: Recorder, boxes: _Boxes, *, duplicate_iou: float) -> None:
    """Add each object whose box almost equals the box of an earlier object of its class and image."""
    table = boxes.source.table
    # Left edges that are further apart than this leave too little of the left box for the IoU.
    neighbours = _Neighbours(boxes, min_iou=duplicate_iou, reach=1 - duplicate_iou, unit="widths")
    # An object that doubles several partners is one finding, for the pair that overlaps most.
    best_iou = np.zeros(len(boxes.boxes))
    partners = np.full(len(boxes.boxes), -1)
    for pairs in neighbours.pairs():
        is_better = table.labels[pairs.first] == table.labels[pairs.second]
        is_better &= pairs.iou > best_iou[pairs.second]
        # Boxes around crossing oriented objects overlap, although the objects do not.
        sides = (boxes.boxes[pairs.second, 2:] - boxes.boxes[pairs.second, :2]).max(axis=1, initial=0)
        is_better &= _corner_distances(boxes, pairs) <= (1 - duplicate_iou) * sides
        best_iou[pairs.second[is_better]] = pairs.iou[is_better]
        partners[pairs.second[is_better]] = pairs.first[is_better]

    def message(row: int) -> str:
        return f"{boxes.text(row)} has IoU {best_iou[row]:.3f} with {_other(boxes, int(partners[row]))}"

    def incomplete(row: int) -> str:
        path = shorten(table.image_paths[row])
        return f"{path!r} has so many boxes at one place that each was compared with {_MAX_NEIGHBOURS} of them only"

    rows = np.flatnonzero(partners >= 0)
    recorder.add_rows("duplicate_box", boxes.source, rows, message, scores=best_iou[rows], partners=partners)
    recorder.add_rows("not_compared", boxes.source, neighbours.incomplete_images(), incomplete, unit="images")


def _corner_distances(boxes: _Boxes, pairs: _Pairs) -> npt.NDArray[np.float64]:
    """Return the largest distance of the corners of each pair in pixels, ``(num_pairs,)``; 0 without oriented boxes."""
    table = boxes.source.table
    if table.corners is None and table.rotated_boxes is None:
        return np.zeros(len(pairs.first))
    # Two annotators may go round an object in opposite senses.
    first = clockwise(table.oriented_corners(pairs.first))
    second = clockwise(table.oriented_corners(pairs.second))
    # Either object may begin at any of its corners.
    distances = [np.abs(first - np.roll(second, shift, axis=1)).max(axis=(1, 2), initial=0) for shift in range(4)]
    smallest: npt.NDArray[np.float64] = np.min(distances, axis=0)
    return smallest


def _check_conflicts(recorder: Recorder, sets: Sequence[_Boxes]) -> None:
    """Add each object with the box of an earlier object of another class, unless the two classes often share boxes.

    In data with several labels per box, such as `person` and `woman`, pairs of classes share many boxes by design.
    """
    class_counts = np.sum([boxes.source.table.class_counts() for boxes in sets], axis=0)
    counts: Counter[tuple[int, int]] = Counter()
    for boxes in sets:
        for _, class_pairs in _conflicts(boxes):
            counts.update(class_pairs)
    if not counts:
        return
    rare_pairs = {
        pair for pair, count in counts.items() if count <= max(2, _RARE_SHARE * min(class_counts[list(pair)]))
    }
    for boxes in sets:
        partners = np.full(len(boxes.boxes), -1)
        # Pairs are not stored but found again, since a few equal boxes with many classes have millions of pairs.
        for pairs, class_pairs in _conflicts(boxes):
            is_rare = np.fromiter((pair in rare_pairs for pair in class_pairs), np.bool_, len(class_pairs))
            is_first = is_rare & (partners[pairs.second] < 0)
            partners[pairs.second[is_first]] = pairs.first[is_first]
        message = partial(_conflict_message, boxes, partners)
        recorder.add_rows("conflicting_box", boxes.source, np.flatnonzero(partners >= 0), message, partners=partners)


def _conflicts(boxes: _Boxes) -> Iterator[tuple[_Pairs, list[tuple[int, int]]]]:
    """Yield pairs of equal boxes with different classes, and the two classes of each pair in ascending order."""
    labels = boxes.source.table.labels
    neighbours = _Neighbours(boxes, min_iou=_MIN_CONFLICT_IOU, reach=_SAME_BOX_PIXELS, unit="pixels")
    for pairs in neighbours.pairs():
        distances = np.abs(boxes.boxes[pairs.first] - boxes.boxes[pairs.second]).max(axis=1, initial=0)
        is_conflict = (labels[pairs.first] != labels[pairs.second]) & (distances <= _SAME_BOX_PIXELS)
        is_conflict &= _corner_distances(boxes, pairs) <= _SAME_BOX_PIXELS
        # An image with several labels has a box around the whole image for each.
        is_conflict &= ~boxes.is_whole[pairs.first]
        first = pairs.first[is_conflict]
        second = pairs.second[is_conflict]
        classes = np.sort(np.stack([labels[first], labels[second]], axis=1), axis=1)
        yield _Pairs(first=first, second=second, iou=pairs.iou[is_conflict]), list(map(tuple, classes.tolist()))


def _conflict_message(boxes: _Boxes, partners: IndexArray, row: int) -> str:
    table = boxes.source.table
    partner = int(partners[row])
    name = shorten(table.class_names[table.labels[partner]])
    return f"{boxes.text(row)} is also the box of a {name!r}{_place(boxes, partner)}"


def _other(boxes: _Boxes, row: int) -> str:
    box = ", ".join(f"{value:g}" for value in boxes.boxes[row].tolist())
    return f"[{box}]{_place(boxes, row)}"


def _place(boxes: _Boxes, row: int) -> str:
    place = boxes.source.table.place_of_object(row)
    return "" if place is None else f" ({place})"
