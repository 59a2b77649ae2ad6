"""Checks of points: outside of the image, at one place, and left exchanged with right.

NOTE [Exchanged sides]
    If an annotator confuses left and right, the points of an object are the mirror image of the shape that the other
    objects have. A turned head or a rotated image changes a shape, but does not mirror it. So an object is compared
    with the mean shape of all objects after the best rotation, scale and shift, once unchanged and once with the points
    of each pair exchanged. It is reported only if both hold: with exchanged points it matches the mean shape well
    (correlation of at least `_MIN_MATCH`), and the part of the shape that does not match shrinks to
    `_MAX_RESIDUAL_RATIO` or less. A profile face matches a frontal mean shape badly either way, and a face on its head
    needs a rotation only, so neither is reported. Two points match each other however they are exchanged, so objects
    need three.

    People seen from behind are mirrored, too, and rightly so. The set decides: objects that bend or are seen from all
    sides have no common shape, so nothing is reported unless the median correlation is at least `_MIN_MEDIAN_MATCH`
    (0.99 for faces, 0.94 for people in COCO). If more than `_MAX_SHARE` of all objects are mirrored, a set with more
    than this share mixes two conventions or both sides, and its mirrored objects are notes; unless nearly all of the
    set are, which is another convention than in the other sets.

    The mean shape is the eigenvector with the largest eigenvalue of the sum of z z^H, where z are an object's points
    as complex numbers, centred and with norm 1. A minority of mirrored shapes hardly changes it.

    Source: Kent 1994, The complex Bingham distribution and shape analysis (full Procrustes mean).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from lit_loader.annotations.keypoints import KeypointSchema
from lit_loader.annotations.problems import shorten
from lit_loader.inspection.check_objects import TOLERANCE_PIXELS
from lit_loader.inspection.recorder import Recorder, TableSet

__all__ = ["check_points"]

_MIN_MATCH: Final = 0.9
_MIN_MEDIAN_MATCH: Final = 0.97
_MAX_RESIDUAL_RATIO: Final = 0.25
_MAX_SHARE: Final = 0.05
_MIN_OBJECTS: Final = 20
_MIN_POINTS: Final = 3
_MAX_NAMES: Final = 3
# Objects of a chunk, so that temporary arrays stay below some ten megabytes.
_CHUNK_POINTS: Final = 1 << 20

_Mask: TypeAlias = npt.NDArray[np.bool_]
_Shapes: TypeAlias = npt.NDArray[np.complex128]
"""Points as complex numbers ``(n, K)``, centred and with norm 1; 0 where absent."""


def check_points(recorder: Recorder, sources: Sequence[TableSet]) -> None:
    """Add the defects of points in all sets.

    Args:
        recorder: Receives the findings.
        sources: The sets; those without points are skipped.
    """
    sources_by_schema: dict[KeypointSchema, list[TableSet]] = defaultdict(list)
    for source in sources:
        schema = source.table.keypoint_schema
        if schema is not None:
            sources_by_schema[schema].append(source)
            _check_places(recorder, source, schema)
    for schema, schema_sources in sources_by_schema.items():
        if schema.flip_pairs:
            _check_sides(recorder, schema_sources, schema)


def _points_of(source: TableSet) -> tuple[npt.NDArray[np.float32], _Mask]:
    """Return the points of a set, ``(num_objects, K, 2)``, and which of them are present, ``(num_objects, K)``."""
    table = source.table
    assert table.keypoints is not None
    assert table.visibility is not None
    return table.keypoints, table.visibility > 0


def _chunks(num_objects: int, num_points: int) -> list[slice]:
    step = max(1, _CHUNK_POINTS // num_points)
    return [slice(start, start + step) for start in range(0, num_objects, step)]


def _check_places(recorder: Recorder, source: TableSet, schema: KeypointSchema) -> None:
    """Add points outside of the image, points at the origin, and objects whose points are all at one place."""
    points, present = _points_of(source)
    sizes = source.sizes[source.table.image_of_object()]
    excess = np.zeros(len(points))
    is_collapsed = np.zeros(len(points), dtype=np.bool_)
    has_origin = np.zeros(len(points), dtype=np.bool_)
    for chunk in _chunks(*present.shape):
        excess[chunk] = _excess(points[chunk], present[chunk], sizes[chunk]).max(axis=1, initial=0)
        low = np.where(present[chunk, :, None], points[chunk], np.inf).min(axis=1, initial=np.inf)
        high = np.where(present[chunk, :, None], points[chunk], -np.inf).max(axis=1, initial=-np.inf)
        is_collapsed[chunk] = (low == high).all(axis=1) & (present[chunk].sum(axis=1) > 1)
        has_origin[chunk] = ((points[chunk] == 0).all(axis=2) & present[chunk]).any(axis=1)

    def outside(row: int) -> str:
        is_outside = _excess(points[row], present[row], sizes[row]) > TOLERANCE_PIXELS
        width, height = sizes[row].tolist()
        return f"{_names(schema, points[row], is_outside)} outside the image ({width} x {height})"

    def collapsed(row: int) -> str:
        x, y = points[row][present[row]][0].tolist()
        return f"all {present[row].sum()} points are at ({x:g}, {y:g})"

    def origin(row: int) -> str:
        return f"{_names(schema, points[row], (points[row] == 0).all(axis=1) & present[row])} at the origin"

    rows = np.flatnonzero(excess > TOLERANCE_PIXELS)
    recorder.add_rows("keypoint_outside", source, rows, outside, scores=excess[rows])
    recorder.add_rows("collapsed_points", source, np.flatnonzero(is_collapsed), collapsed)
    recorder.add_rows("point_at_origin", source, np.flatnonzero(has_origin & ~is_collapsed), origin)


def _excess(points: npt.NDArray[np.float32], present: _Mask, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return how many pixels each point ``(..., K, 2)`` is outside of an image of ``sizes`` ``(..., 2)``, else 0."""
    limits = sizes[..., None, :]
    distances = np.maximum(-points, points - limits).max(axis=-1)
    is_outside = present & (limits > 0).all(axis=-1) & (distances > 0)
    return np.where(is_outside, distances, 0.0)


def _names(schema: KeypointSchema, points: npt.NDArray[np.float32], selected: _Mask) -> str:
    """Return names and coordinates of the first selected points, and a verb."""
    numbers = np.flatnonzero(selected).tolist()
    texts = [f"{shorten(schema.names[k])!r} ({points[k, 0]:g}, {points[k, 1]:g})" for k in numbers[:_MAX_NAMES]]
    if len(numbers) > _MAX_NAMES:
        texts.append(f"{len(numbers) - _MAX_NAMES} more")
    return f"{', '.join(texts)} {'is' if len(numbers) == 1 else 'are'}"


def _check_sides(recorder: Recorder, sources: Sequence[TableSet], schema: KeypointSchema) -> None:
    """Add objects whose left and right points are exchanged; see NOTE [Exchanged sides]."""
    mirror = np.arange(len(schema.names))
    pairs = np.array(schema.flip_pairs)
    mirror[pairs] = pairs[:, ::-1]
    mean = _mean_shape(sources, len(mirror))
    gains_of_sets = [_gains_of(source, mean, mirror) for source in sources]
    matches = np.concatenate([best_matches for _, best_matches in gains_of_sets])
    if len(matches) < _MIN_OBJECTS or np.median(matches) < _MIN_MEDIAN_MATCH:
        return
    is_rare = sum(int((gains > 0).sum()) for gains, _ in gains_of_sets) <= _MAX_SHARE * len(matches)
    for source, (gains, set_matches) in zip(sources, gains_of_sets, strict=True):
        rows = np.flatnonzero(gains)
        share = len(rows) / max(1, len(set_matches))
        # In a small set one mirrored object may be a large share.
        is_defect = is_rare or not _MAX_SHARE < share < 1 - _MAX_SHARE
        kind = "swapped_points" if is_defect else "mirrored_points"
        recorder.add_rows(kind, source, rows, partial(_sides_message, schema), scores=gains[rows])


def _gains_of(
    source: TableSet, mean: _Shapes, mirror: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the gain of each object of a set, see `_mirror_gains`, and the better match of each measured object."""
    points, present = _points_of(source)
    gains = np.zeros(len(points))
    matches = [np.zeros(0)]
    for chunk in _chunks(*present.shape):
        gains[chunk], best_matches = _mirror_gains(points[chunk], present[chunk], mean, mirror)
        matches.append(best_matches)
    return gains, np.concatenate(matches)


def _sides_message(schema: KeypointSchema, row: int) -> str:
    names = " and ".join(repr(shorten(schema.names[position])) for position in schema.flip_pairs[0])
    return f"the points mirror the shape of the other objects; {names} and all other pairs seem to be exchanged"


def _shapes(points: npt.NDArray[np.float32], present: _Mask) -> _Shapes:
    """Return points ``(n, K, 2)`` as shapes; an object without two different points is 0."""
    z: _Shapes = points[..., 0] + 1j * points[..., 1].astype(np.float64)
    counts = np.maximum(present.sum(axis=1, keepdims=True), 1)
    centres = (z * present).sum(axis=1, keepdims=True) / counts
    z = (z - centres) * present
    norms = np.sqrt((np.abs(z) ** 2).sum(axis=1, keepdims=True))
    shapes: _Shapes = z / np.maximum(norms, np.finfo(np.float64).tiny)
    return shapes


def _mean_shape(sources: Sequence[TableSet], num_points: int) -> _Shapes:
    """Return the mean shape of all objects ``(K,)``."""
    total = np.zeros((num_points, num_points), dtype=np.complex128)
    for source in sources:
        points, present = _points_of(source)
        for chunk in _chunks(*present.shape):
            shapes = _shapes(points[chunk], present[chunk])
            total += shapes.T @ shapes.conj()
    mean: _Shapes = np.linalg.eigh(total)[1][:, -1]
    return mean


def _mirror_gains(
    points: npt.NDArray[np.float32], present: _Mask, mean: _Shapes, mirror: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Compare objects with the mean shape, once unchanged and once with each pair exchanged.

    Args:
        points: Shape ``(n, K, 2)``.
        present: Shape ``(n, K)``.
        mean: Mean shape, ``(K,)``.
        mirror: Position of the point that each point is exchanged with, ``(K,)``.

    Returns:
        By how much exchanged points match better, 0 unless the object counts as mirrored, ``(n,)``; the better of the
        two correlations for each object with a complete pair and at least three points.
    """
    shapes = _shapes(points, present)
    has_pair = (present & present[:, mirror] & (mirror != np.arange(len(mirror)))).any(axis=1)
    is_measured = has_pair & (present.sum(axis=1) >= _MIN_POINTS)
    match = _match(shapes, present, mean)
    mirrored_match = _match(shapes[:, mirror], present[:, mirror], mean)
    residual = 1 - match**2
    mirrored_residual = 1 - mirrored_match**2
    is_mirrored = is_measured & (mirrored_match >= _MIN_MATCH) & (mirrored_residual <= _MAX_RESIDUAL_RATIO * residual)
    return np.where(is_mirrored, residual - mirrored_residual, 0.0), np.maximum(match, mirrored_match)[is_measured]


def _match(shapes: _Shapes, present: _Mask, mean: _Shapes) -> npt.NDArray[np.float64]:
    """Return the correlation of shapes with the present points of the mean shape after the best rotation, ``(n,)``."""
    counts = np.maximum(present.sum(axis=1), 1)
    sums = present @ mean
    norms = np.sqrt(np.maximum(present @ np.abs(mean) ** 2 - np.abs(sums) ** 2 / counts, 1e-12))
    match: npt.NDArray[np.float64] = np.minimum(np.abs(shapes @ mean.conj()) / norms, 1.0)
    return match
