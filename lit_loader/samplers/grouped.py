"""`GroupedSampler`: any sampler's order in batches of one group each; and groups of images of similar shape."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lit_loader.samplers.block_shuffle import BlockShuffleSampler
from lit_loader.samplers.checks import Weights, checked_int, checked_integers, checked_weights, refuse_first
from lit_loader.samplers.order import OrderSampler, SliceableOrder, array_order, epoch_visits
from lit_loader.samplers.shuffle import permutation
from lit_loader.samplers.weighted import AliasTable, WeightedRandomSampler
from lit_loader.schedules import EpochSchedule
from lit_loader.seeding import key64
from lit_loader.types import IndexArray, Order

# Up to here numpy's stable sort is a radix sort.
_MOST_GROUPS = 1 << 16

_Floats = npt.NDArray[np.float64]
_Groups = npt.NDArray[np.uint16]


class GroupedSampler(OrderSampler):
    """Rearranges the positions of another sampler's order so that every batch, over all ranks, is of one group.

    Each epoch is rearranged as a whole: see `regrouped`. Every position comes once, the length stays the same, and the
    same global batch gives the same batches on any number of ranks. Groups change which indices share a batch, not how
    often an index comes. A sampler that balances every batch, such as `ClassAwareSampler`, then balances only the
    epoch.

    Around a `WeightedRandomSampler` with replacement nothing is regrouped. Each batch draws its group by the total
    weights of the groups, then its samples within the group by their weights. So a position gets index i with
    probability ``weights[i] / sum(weights)``, as without groups; the draws of one batch are not independent of each
    other, and every batch, even the last one, has one group.

    `lit_loader.DataLoader` with a seed composes the batches; iterating the sampler raises.

    Random access: an order takes O(n) time and 8 bytes a position (more while it is made), a slice takes its length.
    With weights and replacement, tables of 16 bytes a weight are cached until other weights are set.

    Args:
        sampler: One of lit_loader's samplers, or an `OrderSampler` of your own.
        group_ids: The group of each index, integers in [0, 65535], shape ``(sampler.num_indices,)``. Groups with
            neighbouring ids should be similar, because their remainders share a batch.
        seed: Seed of the orders, or None for the inner sampler's seed, or else the loader's.

    Attributes:
        sampler: The inner sampler.
        group_ids: The groups, uint16, read-only.

    Raises:
        TypeError: If ``sampler`` is not an `OrderSampler`, or composes batches itself (`MixedSourceSampler`, and any
            sampler that overrides `batch_order`, like this class) or is a `BlockShuffleSampler`; if the ids are not
            integers.
        ValueError: If there are more or fewer ids than indices, or an id is negative or too large (the first is named).

    Source:
        Groups of similar shapes: torchvision's reference ``group_by_aspect_ratio.py`` and detectron2's
        ``AspectRatioGroupedDataset``, which collect batches on each rank separately.
    """

    def __init__(
        self, sampler: OrderSampler, group_ids: npt.NDArray[Any] | torch.Tensor | list[int], *, seed: int | None = None
    ) -> None:
        if not isinstance(sampler, OrderSampler):
            raise TypeError(
                f"`sampler` must be an OrderSampler, got {type(sampler).__name__}, whose order is not known before it "
                "is iterated; use the sampler of the same name from lit_loader.samplers"
            )
        if type(sampler).batch_order is not OrderSampler.batch_order or sampler.batch_multiple > 1:
            raise TypeError(
                f"{type(sampler).__name__} composes every batch itself, and groups would undo that; pass a sampler of "
                f"single samples to GroupedSampler, or use {type(sampler).__name__} without groups"
            )
        if isinstance(sampler, BlockShuffleSampler):
            raise TypeError(
                "BlockShuffleSampler keeps neighbours in a shard together, and groups would spread them over the "
                "epoch, with one request an image; use it without groups, or pass RandomSampler to GroupedSampler"
            )
        super().__init__(seed=sampler.seed if seed is None else seed)
        self.sampler = sampler
        values = checked_integers("group_ids", group_ids)
        refuse_first(
            "group_ids",
            values,
            (values < 0) | (values >= _MOST_GROUPS),
            rule=f"be in [0, {_MOST_GROUPS - 1}]",
            remedy="count the groups from 0: numpy.unique(group_ids, return_inverse=True)[1]",
        )
        self.group_ids = values.astype(np.uint16)
        self.group_ids.flags.writeable = False
        # With the revision and the epoch of the weights.
        self._draws: tuple[tuple[int, int], _GroupDraws] | None = None
        self._check_length()

    def __len__(self) -> int:
        return len(self.sampler)

    @property
    def num_indices(self) -> int:
        """Length of the dataset, from the inner sampler."""
        return self.sampler.num_indices

    @property
    def revision(self) -> int:
        """Revision of the inner sampler."""
        return self.sampler.revision

    def order(self, *, seed: int, epoch: int) -> Order:
        """Return the inner sampler's order, without groups."""
        return self.sampler.order(seed=seed, epoch=epoch)

    def batch_order(self, *, seed: int, epoch: int, global_batch: int) -> Order:
        """Return the order whose consecutive global batches have one group each.

        Args:
            seed: Any int.
            epoch: The epoch, from 0.
            global_batch: Positions a batch, over all ranks, at least 1.

        Raises:
            ValueError: If the length of the inner sampler's dataset has changed.
        """
        # The inner sampler's length follows its dataset, which may have changed since.
        self._check_length()
        # Exactly WeightedRandomSampler: a subclass may draw in another way.
        if type(self.sampler) is WeightedRandomSampler and self.sampler.replacement:
            keys = (key64(seed, "group of a batch", epoch), key64(seed, "weighted in a group", epoch))
            state = (self.revision, self.sampler.weights_epoch(epoch))
            draws = self._draws
            if draws is None or draws[0] != state:
                draws = (state, _GroupDraws(self.sampler.weights_in(epoch), self.group_ids))
                self._draws = draws
            return SliceableOrder(len(self), partial(draws[1].positions, keys, global_batch))
        order = self.sampler.order(seed=seed, epoch=epoch)
        indices = order[0 : len(order)]
        key = key64(seed, "grouped", epoch)
        return array_order(regrouped(indices, self.group_ids[indices], global_batch=global_batch, key=key))

    def _identity(self) -> tuple[Any, ...]:
        return self.sampler.fingerprint(), self.group_ids

    @property
    def schedules(self) -> tuple[EpochSchedule, ...]:
        """Schedules of the inner sampler."""
        return self.sampler.schedules

    def expected_visits(self, epoch: int = 0) -> _Floats:
        """Return the expected visits of the inner sampler, which groups do not change."""
        return epoch_visits(self.sampler, epoch)

    def __iter__(self) -> Iterator[int]:
        """Raise an error: a loader that iterates the sampler does not pass the size of a batch.

        Raises:
            RuntimeError: Always.
        """
        raise RuntimeError(
            "GroupedSampler cannot be iterated, because it must know the batch size; use it as `sampler=` of "
            "lit_loader.DataLoader with seed= and batch_size=, which composes its batches"
        )

    def __getstate__(self) -> dict[str, Any]:
        # Building the tables again is cheaper than pickling them.
        return {**self.__dict__, "_draws": None}

    def _check_length(self) -> None:
        if len(self.group_ids) != self.sampler.num_indices:
            raise ValueError(
                f"`group_ids` has {len(self.group_ids)} entries, and {type(self.sampler).__name__} has "
                f"num_indices={self.sampler.num_indices}; give one group for each index of the dataset "
                "(SubsetRandomSampler takes the dataset's length as num_indices=)"
            )


def regrouped(indices: IndexArray, groups: _Groups, *, global_batch: int, key: int) -> IndexArray:
    """Return an epoch's indices in batches of one group each, in O(n).

    The positions of each group, in their order, form as many full batches as possible. The remaining positions, sorted
    by group, form mixed batches. All full batches then come in random order. The last ``len(indices) % global_batch``
    positions stay where they are, so that ``drop_last`` drops the same indices as without groups. With this rule no
    arrangement has fewer mixed batches. Taking the last positions from the remaining ones would save half a mixed batch
    an epoch on average, but the groups with the largest ids would lose images in every epoch.

    Args:
        indices: int64 ``(n,)``.
        groups: The group of each position, ``(n,)``.
        global_batch: Positions a batch.
        key: A 64-bit key for the random order.

    Returns:
        int64 ``(n,)``, a permutation of ``indices``.
    """
    num_full = len(indices) // global_batch
    stop = num_full * global_batch
    counts = np.bincount(groups[:stop])
    # Positions sorted by group: the place of each within its group, and whether it belongs to a full batch.
    place_in_group = np.arange(stop) - np.repeat(np.cumsum(counts) - counts, counts)
    is_full = place_in_group < np.repeat(counts - counts % global_batch, counts)
    sorted_indices = indices[np.argsort(groups[:stop], kind="stable")]
    batches = np.concatenate([sorted_indices[is_full], sorted_indices[~is_full]])
    batches = batches.reshape(num_full, global_batch)
    return np.concatenate([batches[permutation(key, num_full)].reshape(-1), indices[stop:]])


# -- weighted draws in batches of one group ----------------------------------------------------------------


class _GroupDraws:
    """Weighted draws in which each global batch of ``size`` consecutive draws has one group.

    There is one alias table over the groups, and one over the members of each group, made when the group is first
    drawn.

    Args:
        weights: float64 ``(n,)``, finite, not negative, not all zero.
        group_ids: The group of each index, ``(n,)``.
    """

    def __init__(self, weights: _Floats, group_ids: _Groups) -> None:
        members = np.argsort(group_ids, kind="stable")
        self._members = np.split(members, np.cumsum(np.bincount(group_ids))[:-1])
        # Weights are scaled so that the sums do not overflow; bincount adds in the order of the indices.
        totals = np.bincount(group_ids, weights=weights / weights.max()).astype(np.float64)
        # Groups without weight are never drawn.
        self._groups = AliasTable(totals)
        self._weights = weights
        self._tables: dict[int, AliasTable] = {}

    def positions(self, keys: tuple[int, int], size: int, start: int, stop: int) -> IndexArray:
        """Return the draws at these positions, batch by batch.

        Args:
            keys: 64-bit keys of the batches' groups, and of the draws within them.
            size: Positions a batch; the last batch may have fewer.
            start: The first position.
            stop: One past the last position.
        """
        first = start // size
        groups = self._groups.draw(keys[0], first, -(-stop // size)).tolist()
        return np.concatenate(
            [
                self._draw(group, keys[1], max(start, batch * size), min(stop, (batch + 1) * size))
                for batch, group in enumerate(groups, first)
            ]
        )

    def _draw(self, group: int, key: int, start: int, stop: int) -> IndexArray:
        members = self._members[group]
        if group not in self._tables:
            self._tables[group] = AliasTable(self._weights[members])
        return members[self._tables[group].draw(key, start, stop)]


# -- groups of images of similar shape ---------------------------------------------------------------------


def aspect_ratio_buckets(widths: Weights, heights: Weights, num_buckets: int) -> IndexArray:
    """Return groups of images with similar ratios of width to height.

    Use them for batches of images that are resized to one shorter or longer side. The groups are cut as in
    `size_buckets`, by the ratio alone. (Cuts at quantiles, which give groups of equal size, separate images of the most
    common ratios; see ``benchmarks/padding.py``.)

    Args:
        widths: Pixels of each image, ``(n,)``, positive.
        heights: As ``widths``.
        num_buckets: Maximum number of groups; there are fewer if there are fewer ratios.

    Returns:
        int64 ``(n,)``, from 0 for the narrowest images; no group is empty.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If a size is not positive and finite (the first is named), the sizes are empty, the shapes differ,
            or ``num_buckets`` is not positive.
    """
    width, height = _checked_sizes(widths, heights)
    return _cut([width / height], num_buckets)


def size_buckets(widths: Weights, heights: Weights, num_buckets: int) -> IndexArray:
    """Return groups of images with similar widths and heights.

    Use them for batches of images that keep their size. Groups are cut in two, one after the other. Each step takes the
    group, and the measure among width, height, area and ratio, with the largest product of the number of images and
    the standard deviation of the logarithm, and cuts where the squared deviations within the two parts are smallest.
    Images of one size are in one group.

    Args:
        widths: Pixels of each image, ``(n,)``, positive.
        heights: As ``widths``.
        num_buckets: Maximum number of groups; there are fewer if there are fewer sizes.

    Returns:
        int64 ``(n,)``, from 0, in the order of the cuts, so that neighbouring groups are parts of one earlier group; no
        group is empty.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: As for `aspect_ratio_buckets`.

    Source:
        Greedy cuts: Wu 1991, "Efficient statistical computations for optimal color quantization", Graphics Gems II
        (along the axes only). Place of a cut: Otsu 1979, "A threshold selection method from gray-level histograms".
    """
    width, height = _checked_sizes(widths, heights)
    return _cut([width, height, width * height, width / height], num_buckets)


def _cut(measures: list[_Floats], num_buckets: int) -> IndexArray:
    """Return the group of each image.

    Args:
        measures: One positive number for each image, ``(n,)``, for each measure.
        num_buckets: Maximum number of groups.
    """
    num_buckets = checked_int("num_buckets", num_buckets, minimum=1)
    # Sums of whole numbers are exact and the same on any machine.
    logs = [np.rint(np.log(measure) * 1e4).astype(np.int64) for measure in measures]
    groups = [np.arange(len(logs[0]))]
    while len(groups) < num_buckets:
        # On ties the largest indices win, so that the result does not depend on the machine.
        spread, g, m = max(
            (_spread(values[images]), g, m) for g, images in enumerate(groups) for m, values in enumerate(logs)
        )
        if spread == 0:
            break
        values = logs[m][groups[g]]
        ordered = np.sort(values)
        sums = np.cumsum(ordered)
        # The between-class variance of Otsu for a cut after each value.
        below = np.arange(1, len(values))
        above = len(values) - below
        mean_differences = (sums[-1] - sums[:-1]) / above - sums[:-1] / below
        gain = below * above * mean_differences**2
        gain[ordered[1:] == ordered[:-1]] = 0  # equal values stay together
        is_low = values <= ordered[gain.argmax()]
        # The two parts replace the group, so that neighbouring ids stay similar.
        groups[g : g + 1] = groups[g][is_low], groups[g][~is_low]
    group_ids = np.empty(len(logs[0]), dtype=np.int64)
    for group, images in enumerate(groups):
        group_ids[images] = group
    return group_ids


def _spread(values: IndexArray) -> int:
    """Return the exact square of the number of values times their standard deviation."""
    return len(values) * int((values * values).sum()) - int(values.sum()) ** 2


def _checked_sizes(widths: Weights, heights: Weights) -> list[_Floats]:
    sides = [checked_weights("widths", widths), checked_weights("heights", heights)]
    for name, side in zip(("widths", "heights"), sides, strict=True):
        refuse_first(name, side, side == 0, rule="be positive", remedy="give the size of every image")
    if len(sides[0]) != len(sides[1]):
        raise ValueError(
            f"got {len(sides[0])} `widths` and {len(sides[1])} `heights`; give one of each for every image"
        )
    return sides
