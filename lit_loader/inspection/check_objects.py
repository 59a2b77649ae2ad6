"""Checks of boxes: outside of the image, without area, tiny, covering the whole image, doubled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

from lit_loader.annotations.formats.rules import point_boxes
from lit_loader.annotations.problems import shorten
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
# Coordinates that are fractions of an image are a little off in pixels.
_ROUNDING_PIXELS: Final = 0.01
# One image with a million boxes in one column would otherwise take hours.
_MAX_COMPARISONS: Final = 200_000_000

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
    pairs_of_sets = []
    for boxes in sets:
        _check_place(recorder, boxes)
        _check_area(recorder, boxes, min_side=min_side)
        if is_rare:
            rows = np.flatnonzero(boxes.is_whole)
            recorder.add_rows("whole_image_box", boxes.source, rows, partial(_whole_image_message, boxes))
        pairs = _overlapping_pairs(boxes, min_iou=min(duplicate_iou, 0.9))
        _check_duplicates(recorder, boxes, pairs, duplicate_iou=duplicate_iou)
        pairs_of_sets.append(pairs)
    _check_conflicts(recorder, sets, pairs_of_sets)


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

    def partly(row: int) -> str:
        return f"{boxes.text(row)} reaches {excess[row]:.4g} pixels beyond the image"

    def off(row: int) -> str:
        return f"{boxes.text(row)} is completely outside the image"

    for kind, selected, message in (("out_of_image", is_partly, partly), ("box_off_image", is_off, off)):
        rows = np.flatnonzero(selected)
        recorder.add_rows(kind, boxes.source, rows, message, scores=excess[rows])


def _check_area(recorder: Recorder, boxes: _Boxes, *, min_side: float) -> None:
    """Add boxes without area, and tiny ones."""
    sides = (boxes.boxes[:, 2:] - boxes.boxes[:, :2]).min(axis=1, initial=np.inf)

    def degenerate(row: int) -> str:
        return f"{boxes.text(row)} has no area"

    def tiny(row: int) -> str:
        return f"{boxes.text(row)} has a side of {sides[row]:.3g} pixels, below {min_side:g}"

    recorder.add_rows("degenerate", boxes.source, np.flatnonzero(~boxes.has_area), degenerate)
    rows = np.flatnonzero(boxes.has_area & boxes.is_drawn & (sides < min_side - _ROUNDING_PIXELS))
    recorder.add_rows("tiny_box", boxes.source, rows, tiny, scores=-sides[rows])


def _whole_image_message(boxes: _Boxes, row: int) -> str:
    return f"{boxes.text(row)} covers the whole image"


@dataclass(frozen=True, kw_only=True)
class _Pairs:
    """Pairs of objects of one image whose boxes overlap, ``(num_pairs,)`` each.

    Attributes:
        first: Row of the object that comes first in the table.
        second: Row of the other one.
        iou: float64, their IoU.
    """

    first: IndexArray
    second: IndexArray
    iou: npt.NDArray[np.float64]


def _overlapping_pairs(boxes: _Boxes, *, min_iou: float) -> _Pairs:
    """Return the pairs of boxes with an IoU above ``min_iou``.

    The objects of an image are sorted by their left edges. An IoU above t needs left edges no further apart than
    (1 - t) times the width of the left box, so each object is compared with few of those that follow it.
    """
    rows = np.flatnonzero(boxes.has_area & ~boxes.source.table.crowd)
    order = rows[np.lexsort([boxes.boxes[rows, 0], boxes.image_of_object[rows]])]
    corners = boxes.boxes[order]
    images = boxes.image_of_object[order]
    reach = corners[:, 0] + (1 - min_iou) * (corners[:, 2] - corners[:, 0])
    active = np.arange(len(order))
    pairs = []
    num_comparisons = 0
    shift = 1
    while len(active) and num_comparisons < _MAX_COMPARISONS:
        active = active[active + shift < len(order)]
        partners = active + shift
        is_near = (images[active] == images[partners]) & (corners[partners, 0] <= reach[active])
        active = active[is_near]
        partners = partners[is_near]
        num_comparisons += len(is_near)
        iou = _iou(corners[active], corners[partners])
        is_pair = iou > min_iou
        pair_rows = np.sort(np.stack([order[active[is_pair]], order[partners[is_pair]]], axis=1), axis=1)
        pairs.append((pair_rows[:, 0], pair_rows[:, 1], iou[is_pair]))
        shift += 1
    if not pairs:
        return _Pairs(first=order[:0], second=order[:0], iou=np.zeros(0))
    first, second, iou = (np.concatenate(columns) for columns in zip(*pairs, strict=True))
    return _Pairs(first=first, second=second, iou=iou)


def _iou(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the IoU of each box of ``a`` with the same row of ``b``, ``(n,)``."""
    sides = np.minimum(a[:, 2:], b[:, 2:]) - np.maximum(a[:, :2], b[:, :2])
    common = np.prod(np.clip(sides, 0, None), axis=1)
    areas = np.prod(a[:, 2:] - a[:, :2], axis=1) + np.prod(b[:, 2:] - b[:, :2], axis=1)
    ratio: npt.NDArray[np.float64] = common / (areas - common)
    return ratio


def _check_duplicates(recorder: Recorder, boxes: _Boxes, pairs: _Pairs, *, duplicate_iou: float) -> None:
    """Add each object whose box almost equals the box of an earlier object of its class and image."""
    labels = boxes.source.table.labels
    is_same = (labels[pairs.first] == labels[pairs.second]) & (pairs.iou > duplicate_iou)
    numbers = np.flatnonzero(is_same)
    # An object that doubles several partners is one finding, for the pair that overlaps most.
    numbers = numbers[np.lexsort([-pairs.iou[numbers], pairs.second[numbers]])]
    rows, positions = np.unique(pairs.second[numbers], return_index=True)
    number_by_row = dict(zip(rows.tolist(), numbers[positions].tolist(), strict=True))

    def message(row: int) -> str:
        number = number_by_row[row]
        return f"{boxes.text(row)} has IoU {pairs.iou[number]:.3f} with {_other(boxes, int(pairs.first[number]))}"

    recorder.add_rows("duplicate_box", boxes.source, rows, message, scores=pairs.iou[list(number_by_row.values())])


def _check_conflicts(recorder: Recorder, sets: Sequence[_Boxes], pairs_of_sets: Sequence[_Pairs]) -> None:
    """Add each object with the box of an earlier object of another class, unless the two classes often share boxes.

    In data with several labels per box, such as `person` and `woman`, pairs of classes share many boxes by design.
    """
    class_counts = np.sum([boxes.source.table.class_counts() for boxes in sets], axis=0)
    conflicts = []
    counts: Counter[tuple[int, int]] = Counter()
    for boxes, pairs in zip(sets, pairs_of_sets, strict=True):
        labels = boxes.source.table.labels
        distances = np.abs(boxes.boxes[pairs.first] - boxes.boxes[pairs.second]).max(axis=1, initial=0)
        is_conflict = (labels[pairs.first] != labels[pairs.second]) & (distances <= _SAME_BOX_PIXELS)
        # An image with several labels has a box around the whole image for each.
        is_conflict &= ~boxes.is_whole[pairs.first]
        numbers = np.flatnonzero(is_conflict)
        classes = np.sort(np.stack([labels[pairs.first[numbers]], labels[pairs.second[numbers]]], axis=1), axis=1)
        class_pairs = list(map(tuple, classes.tolist()))
        counts.update(class_pairs)
        conflicts.append((numbers, class_pairs))
    for boxes, pairs, (numbers, class_pairs) in zip(sets, pairs_of_sets, conflicts, strict=True):
        first_by_row: dict[int, int] = {}
        for number, class_pair in zip(numbers.tolist(), class_pairs, strict=True):
            limit = max(2, _RARE_SHARE * min(class_counts[list(class_pair)]))
            if counts[class_pair] <= limit:
                first_by_row.setdefault(int(pairs.second[number]), int(pairs.first[number]))
        message = partial(_conflict_message, boxes, first_by_row)
        recorder.add_rows("conflicting_box", boxes.source, sorted(first_by_row), message)


def _conflict_message(boxes: _Boxes, first_by_row: dict[int, int], row: int) -> str:
    table = boxes.source.table
    first = first_by_row[row]
    return f"{boxes.text(row)} is also the box of a {table.class_names[table.labels[first]]!r}{_place(boxes, first)}"


def _other(boxes: _Boxes, row: int) -> str:
    box = ", ".join(f"{value:g}" for value in boxes.boxes[row].tolist())
    return f"[{box}]{_place(boxes, row)}"


def _place(boxes: _Boxes, row: int) -> str:
    place = boxes.source.table.place_of_object(row)
    return "" if place is None else f" ({place})"
