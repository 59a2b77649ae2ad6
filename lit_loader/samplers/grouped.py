"""`GroupedSampler`: batches of one group each, from any sampler's order; and groups of images of similar shape."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lit_loader.samplers.checks import Weights, checked_int, checked_integers, checked_weights, refuse_first
from lit_loader.samplers.mixed_source import MixedSourceSampler
from lit_loader.samplers.order import OrderSampler, SliceableOrder, array_order
from lit_loader.samplers.shuffle import permutation
from lit_loader.samplers.weighted import AliasTable, WeightedRandomSampler
from lit_loader.seeding import key64
from lit_loader.types import IndexArray, Order

_MOST_GROUPS = 1 << 16  # up to here numpy's stable sort is a radix sort

_Floats = npt.NDArray[np.float64]
_Groups = npt.NDArray[np.uint16]


class GroupedSampler(OrderSampler):
    """Rearranges the positions of another sampler's order so that every batch, over all ranks, is of one group.

    Each epoch is rearranged as a whole: see `regrouped`. Every position comes once, the length is the inner sampler's,
    and the same global batch gives the same batches on any number of ranks. Groups change which indices share a batch,
    not how often an index comes. A sampler that balances every batch, such as `ClassAwareSampler`, balances only the
    epoch then.

    Around a `WeightedRandomSampler` with replacement nothing is regrouped: each batch draws its group by the groups'
    total weights, then its samples within it by theirs. So a position gets index i with probability
    ``weights[i] / sum(weights)``, as without groups; the draws of one batch are not independent of each other, and
    every batch is of one group, the last one too.

    Batches are composed by `lit_loader.DataLoader` with a seed; iterating the sampler raises.

    Random access: an order costs O(n) time and 8 bytes a position (more while it is made), and a slice its own length.
    With weights and replacement tables of 16 bytes a weight are kept until other weights are set.

    Args:
        sampler: Gives the indices: one of lit_loader's samplers, or an `OrderSampler` of your own.
        group_ids: The group of each index, integers in [0, 65535], shape ``(sampler.num_indices,)``; neighbours
            should be alike, since what is left over of a group shares a batch with the next one's.
        seed: Seed of the orders, or None for the inner sampler's, or the loader's if that has none.

    Attributes:
        sampler: As given.
        group_ids: As given, unsigned, read-only.

    Raises:
        TypeError: If ``sampler`` is not an `OrderSampler`, or composes batches itself (`MixedSourceSampler`, and any
            with a `batch_order` of its own, as this class); if the ids are not integers.
        ValueError: If there are not as many ids as indices, or an id is negative or too large (the first is named).

    Source:
        Groups for equal shapes: torchvision's reference ``group_by_aspect_ratio.py`` and detectron2's
        ``AspectRatioGroupedDataset``, which collect the batches of each rank for themselves.
    """

    def __init__(
        self,
        sampler: OrderSampler,
        group_ids: npt.NDArray[Any] | torch.Tensor | list[int],
        *,
        seed: int | None = None,
    ) -> None:
        _check_sampler(sampler)
        super().__init__(seed=sampler.seed if seed is None else seed)
        self.sampler = sampler
        self.group_ids = _checked_groups(group_ids)
        self._draws: tuple[int, _GroupDraws] | None = None  # and the revision that they were made for
        self._check_length()

    def __len__(self) -> int:
        return len(self.sampler)

    @property
    def num_indices(self) -> int:
        """The inner sampler's."""
        return self.sampler.num_indices

    @property
    def revision(self) -> int:
        """The inner sampler's."""
        return self.sampler.revision

    def order(self, *, seed: int, epoch: int) -> Order:
        """Return the inner sampler's order, without groups."""
        return self.sampler.order(seed=seed, epoch=epoch)

    def batch_order(self, *, seed: int, epoch: int, global_batch: int) -> Order:
        """Return the order whose consecutive global batches are of one group each.

        Args:
            seed: Any int.
            epoch: The epoch, from 0.
            global_batch: Positions a batch, over all ranks, at least 1.

        Raises:
            ValueError: If the length of the inner sampler's dataset has changed.
        """
        self._check_length()
        if type(self.sampler) is WeightedRandomSampler and self.sampler.replacement:
            keys = key64(seed, "group of a batch", epoch), key64(seed, "weighted in a group", epoch)
            if self._draws is None or self._draws[0] != self.revision:
                self._draws = self.revision, _GroupDraws(self.sampler._weights, self.group_ids)
            return SliceableOrder(len(self), partial(self._draws[1].positions, keys, global_batch))
        order = self.sampler.order(seed=seed, epoch=epoch)
        indices = order[0 : len(order)]
        key = key64(seed, "grouped", epoch)
        return array_order(regrouped(indices, self.group_ids[indices], global_batch=global_batch, key=key))

    def _identity(self) -> tuple[Any, ...]:
        return self.sampler.fingerprint(), self.group_ids

    def expected_visits(self) -> _Floats:
        """Return the inner sampler's, which groups do not change."""
        return self.sampler.expected_visits()

    def __iter__(self) -> Iterator[int]:
        """Refuse: torch's loader, which iterates a sampler, does not pass the size of a batch.

        Raises:
            RuntimeError: Always.
        """
        raise RuntimeError(
            "GroupedSampler is iterated, and does not know how large batches are; use it as `sampler=` of "
            "lit_loader.DataLoader with seed= and batch_size=, which composes its batches"
        )

    def __getstate__(self) -> dict[str, Any]:
        # made again when needed, which is cheaper than pickling them
        return {**self.__dict__, "_draws": None}

    def _check_length(self) -> None:
        if len(self.group_ids) != self.sampler.num_indices:
            raise ValueError(
                f"`group_ids` has {len(self.group_ids)} entries, and {type(self.sampler).__name__} has "
                f"num_indices={self.sampler.num_indices}; give one group for each index of the dataset "
                "(and to SubsetRandomSampler the dataset's length, num_indices=)"
            )


def regrouped(indices: IndexArray, groups: _Groups, *, global_batch: int, key: int) -> IndexArray:
    """Return an epoch's indices in batches of one group each, in O(n).

    The positions of each group, in their order, make as many full batches as possible. The remaining positions, sorted
    by group, make mixed batches. All full batches then come in random order. The last ``len(indices) % global_batch``
    positions stay where they are, so that ``drop_last`` leaves out the same indices as without groups. (If it left out
    the end of the mixed batches, the groups with the largest ids would lose their images in every epoch.) No other
    arrangement of the rest has fewer mixed batches. If the last positions were chosen from the remaining ones, there
    would be half a mixed batch fewer an epoch, in the mean.

    Args:
        indices: int64 ``(n,)``.
        groups: The group of each position, ``(n,)``.
        global_batch: Positions a batch.
        key: A 64-bit key, for the random order.

    Returns:
        int64 ``(n,)``: the same indices, each equally often.
    """
    num_full, num_left = divmod(len(indices), global_batch)
    stop = len(indices) - num_left
    counts = np.bincount(groups[:stop])
    number = np.arange(stop) - np.repeat(np.cumsum(counts) - counts, counts)  # of a position in its group
    is_full = number < np.repeat(counts - counts % global_batch, counts)
    by_group = indices[np.argsort(groups[:stop], kind="stable")]
    batches = np.concatenate([by_group[is_full], by_group[~is_full]]).reshape(num_full, global_batch)
    return np.concatenate([batches[permutation(key, num_full)].reshape(-1), indices[stop:]])


def _check_sampler(sampler: Any) -> None:
    if not isinstance(sampler, OrderSampler):
        raise TypeError(
            f"`sampler` must be an OrderSampler, got {type(sampler).__name__}, whose order cannot be read as a whole "
            "before it is iterated; give the one of the same name from lit_loader.samplers"
        )
    if type(sampler).batch_order is not OrderSampler.batch_order or isinstance(sampler, MixedSourceSampler):
        raise TypeError(
            f"{type(sampler).__name__} composes every batch itself, and groups would undo it; "
            "give GroupedSampler the sampler of single samples, or use this one without groups"
        )


def _checked_groups(group_ids: Any) -> _Groups:
    values = checked_integers("group_ids", group_ids)
    wrong, rule = (values < 0) | (values >= _MOST_GROUPS), f"lie in [0, {_MOST_GROUPS - 1}]"
    remedy = "count the groups from 0: numpy.unique(group_ids, return_inverse=True)[1]"
    refuse_first("group_ids", values, wrong, rule=rule, remedy=remedy)
    result = values.astype(np.uint16)
    result.flags.writeable = False
    return result


# -- weighted draws in batches of one group ----------------------------------------------------------------


class _GroupDraws:
    """Draws of which every ``size`` consecutive ones, a global batch, are of one group.

    There is one alias table over the groups, and one of each group's members, made when the group is first drawn.

    Args:
        weights: float64 ``(n,)``, finite, not negative, not all zero.
        group_ids: The group of each index, ``(n,)``.
    """

    def __init__(self, weights: _Floats, group_ids: _Groups) -> None:
        members = np.argsort(group_ids, kind="stable")
        self._members = np.split(members, np.cumsum(np.bincount(group_ids))[:-1])
        # Scaled first, so that sums do not overflow; bincount adds in the order of the indices.
        totals = np.bincount(group_ids, weights=weights / weights.max()).astype(np.float64)
        self._groups = AliasTable(totals)
        self._weights, self._tables = weights, dict[int, AliasTable]()

    def positions(self, keys: tuple[int, int], size: int, start: int, stop: int) -> IndexArray:
        """Return the draws at these positions, batch by batch.

        Args:
            keys: 64 bits for the batches' groups, and for the draws within them.
            size: Positions a batch; the last one may have fewer.
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

    The groups are those of `size_buckets`, by the ratio alone. (Cuts at quantiles, which give groups of equal size, go
    through the most common ratios; see ``benchmarks/padding.py``.) For batches of images that are resized to one
    shorter or longer side.

    Args:
        widths: Pixels of each image, ``(n,)``, positive.
        heights: As ``widths``.
        num_buckets: Groups at most; fewer where there are fewer ratios.

    Returns:
        int64 ``(n,)``, from 0 for the narrowest images; every group has some images.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If a size is not positive and finite (the first is named), there are none, the shapes differ, or
            ``num_buckets`` is not positive.
    """
    width, height = _checked_sizes(widths, heights)
    return _cut([width / height], num_buckets)


def size_buckets(widths: Weights, heights: Weights, num_buckets: int) -> IndexArray:
    """Return groups of images with similar widths and heights.

    Groups are cut in two one by one: each time the group and the measure among width, height, area and ratio with the
    largest standard deviation of the logarithm, times the number of images. The cut is made where the squared
    deviations within the two parts are least. Images of one size are in one group. For batches of images that keep
    their own size.

    Args:
        widths: Pixels of each image, ``(n,)``, positive.
        heights: As ``widths``.
        num_buckets: Groups at most; fewer where there are fewer sizes.

    Returns:
        int64 ``(n,)``, from 0, in the order of the cuts, so that neighbours are parts of one earlier group; every
        group has some images.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: As `aspect_ratio_buckets` does.

    Source:
        The greedy cuts of Wu 1991, "Efficient statistical computations for optimal color quantization", Graphics
        Gems II, which are along the axes alone; the place of a cut: Otsu 1979, "A threshold selection method from
        gray-level histograms".
    """
    width, height = _checked_sizes(widths, heights)
    return _cut([width, height, width * height, width / height], num_buckets)


def _cut(measures: list[_Floats], num_buckets: int) -> IndexArray:
    """Return the group of each image, cut by cut; each image has one positive number of each measure, ``(n,)``."""
    num_buckets = checked_int("num_buckets", num_buckets, minimum=1)
    # In whole numbers, whose sums are exact and the same on any machine.
    logs = [np.rint(np.log(measure) * 1e4).astype(np.int64) for measure in measures]
    groups = [np.arange(len(logs[0]))]
    while len(groups) < num_buckets:
        spread, g, m = max(
            (_spread(values[own]), g, m) for g, own in enumerate(groups) for m, values in enumerate(logs)
        )
        if spread == 0:
            break
        values = logs[m][groups[g]]
        ordered = np.sort(values)
        below, sums = np.arange(1, len(values)), np.cumsum(ordered)
        above = len(values) - below
        gaps = (sums[-1] - sums[:-1]) / above - sums[:-1] / below  # between the means of the two parts
        gain = below * above * gaps**2
        gain[ordered[1:] == ordered[:-1]] = 0
        is_low = values <= ordered[gain.argmax()]
        groups[g : g + 1] = groups[g][is_low], groups[g][~is_low]
    group_of = np.empty(len(logs[0]), dtype=np.int64)
    for group, own in enumerate(groups):
        group_of[own] = group
    return group_of


def _spread(values: IndexArray) -> int:
    """Return the squared product of number and standard deviation, exactly."""
    return len(values) * int((values * values).sum()) - int(values.sum()) ** 2


def _checked_sizes(widths: Weights, heights: Weights) -> list[_Floats]:
    sides = [checked_weights("widths", widths), checked_weights("heights", heights)]
    for name, side in zip(("widths", "heights"), sides, strict=True):
        refuse_first(name, side, side == 0, rule="be positive", remedy="give every image its size")
    if len(sides[0]) != len(sides[1]):
        raise ValueError(f"{len(sides[0])} `widths` and {len(sides[1])} `heights`; give both for every image")
    return sides
