"""Groups of images of like shape: buckets of aspect ratios, or of widths and heights."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from lit_loader.samplers.checks import checked_int
from lit_loader.types import IndexArray

__all__ = ["aspect_ratio_buckets", "size_buckets"]

Sizes = list[int] | npt.NDArray[Any] | torch.Tensor
_Floats = npt.NDArray[np.float64]


def aspect_ratio_buckets(widths: Sizes, heights: Sizes, num_buckets: int) -> IndexArray:
    """Return groups of images with like width over height.

    Of the groups so far, the one is cut in two whose best cut lowers the most the number of images times standard
    deviation of the logarithm of the ratio, summed over the groups. (Cuts at quantiles, which give groups of equal
    size, go through the middle of what is common; see ``benchmarks/padding.py``.) Images of one ratio are in one
    group. Serves batches of images that are resized to one shorter or longer side.

    Args:
        widths: Pixels of each image, ``(n,)``, positive.
        heights: As ``widths``.
        num_buckets: Groups at most; fewer where there are fewer ratios.

    Returns:
        int64 ``(n,)``, from 0 for the narrowest images; every group has some.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If a size is not positive and finite (the first is named), the shapes differ, or
            ``num_buckets`` is not positive.

    Source:
        As `size_buckets`, of one dimension.
    """
    width, height = _checked_sizes(widths, heights)
    # A quotient is the nearest float64, so equal ratios are equal numbers, on any machine.
    ratios, place, counts = np.unique(width / height, return_inverse=True, return_counts=True)
    logs = _logs(ratios)[None]
    return _cut(logs, counts, num_buckets, along=logs)[place]


def size_buckets(widths: Sizes, heights: Sizes, num_buckets: int) -> IndexArray:
    """Return groups of images with like widths and heights.

    Of the groups so far, the one is cut in two whose best cut lowers the most the number of images times the sum of
    the standard deviations of log width and log height, summed over the groups: what is padded on each side grows
    with them. A cut goes between two widths, heights, areas, or ratios. Images of one size are in one group. Serves
    batches of images that keep their own size.

    Args:
        widths: Pixels of each image, ``(n,)``, positive.
        heights: As ``widths``.
        num_buckets: Groups at most; fewer where there are fewer sizes.

    Returns:
        int64 ``(n,)``, from 0, in the order of the cuts, so that neighbours are parts of what was one group; every
        group has some.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: As `aspect_ratio_buckets` does.

    Source:
        The greedy cuts of Wu 1991, "Efficient statistical computations for optimal color quantization", Graphics
        Gems II, which lower squared deviations, and along the axes alone.
    """
    (width, of_width), (height, of_height) = (
        np.unique(side, return_inverse=True) for side in _checked_sizes(widths, heights)
    )
    sizes, place, counts = np.unique(
        of_width * len(height) + of_height, return_inverse=True, return_counts=True
    )
    sides = _logs(np.stack([width[sizes // max(len(height), 1)], height[sizes % max(len(height), 1)]]))
    along = np.concatenate([sides, [sides[0] + sides[1], sides[0] - sides[1]]])
    return _cut(sides, counts, num_buckets, along=along)[place]


class _Cut(NamedTuple):
    """Of a group the best cut: by how much it lowers the spread, and the two parts."""

    lowered: float
    parts: list[IndexArray]


def _cut(sides: _Floats, counts: IndexArray, num_buckets: int, *, along: _Floats) -> IndexArray:
    """Return the group of each value, cut by cut.

    Args:
        sides: ``(d, n)``, n values of d numbers, whose deviations are lowered.
        counts: How often each value comes, ``(n,)``.
        num_buckets: Groups at most.
        along: ``(k, n)``, k numbers of each value; a cut parts those with a lower one from the others.
    """
    num_buckets = checked_int("num_buckets", num_buckets, minimum=1)
    groups = [np.arange(len(counts))]
    cuts = [_best_cut(groups[0], sides, counts, along)]
    while len(groups) < num_buckets and any(cut.parts for cut in cuts):
        chosen = max(range(len(cuts)), key=lambda group: cuts[group].lowered)
        groups[chosen : chosen + 1] = parts = cuts[chosen].parts
        cuts[chosen : chosen + 1] = [_best_cut(part, sides, counts, along) for part in parts]
    group_of = np.empty(len(counts), dtype=np.int64)
    for group, own in enumerate(groups):
        group_of[own] = group
    return group_of


def _best_cut(own: IndexArray, sides: _Floats, counts: IndexArray, along: _Floats) -> _Cut:
    """Return the cut of a group, places ``own`` of the values that `_cut` has, that lowers its spread the most."""
    best = _Cut(-np.inf, [])
    for axis in along:
        order = own[np.argsort(axis[own], kind="stable")]
        values, count = sides[:, order], counts[order]
        between = np.flatnonzero(np.diff(axis[order]))
        if len(between) == 0:
            continue
        centred = values - values.min(axis=1, keepdims=True)
        sums = np.cumsum(
            np.stack([np.broadcast_to(count, values.shape), count * centred, count * centred**2]), axis=2
        )
        whole, below = sums[:, :, -1:], sums[:, :, between]
        lowered = _spread(whole) - _spread(below) - _spread(whole - below)
        place = int(lowered.argmax())
        if lowered[place] > best.lowered:
            end = int(between[place]) + 1
            best = _Cut(float(lowered[place]), [order[:end], order[end:]])
    return best


def _spread(sums: _Floats) -> _Floats:
    """Return count times standard deviation, added over the sides, from count, sum, and sum of squares."""
    count, first, second = sums
    result: _Floats = np.sqrt(np.maximum(count * second - first * first, 0)).sum(axis=0)
    return result


def _logs(values: _Floats) -> _Floats:
    return np.round(np.log(values), 12).astype(np.float64)  # beyond that machines differ


def _checked_sizes(widths: Sizes, heights: Sizes) -> tuple[_Floats, _Floats]:
    width, height = _checked_side("widths", widths), _checked_side("heights", heights)
    if len(width) != len(height):
        raise ValueError(f"{len(width)} `widths` and {len(height)} `heights`; give both for every image")
    return width, height


def _checked_side(name: str, values: Sizes) -> _Floats:
    array = values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"`{name}` must have one dimension, got shape {array.shape}")
    if array.size and array.dtype.kind not in "iuf":
        raise TypeError(f"`{name}` must be numbers, got {array.dtype}")
    array = array.astype(np.float64)
    wrong = ~(np.isfinite(array) & (array > 0))
    if wrong.any():
        first = int(wrong.argmax())
        raise ValueError(
            f"`{name}` must be positive, got {name}[{first}]={array[first]:g}; give every image its size"
        )
    return array
