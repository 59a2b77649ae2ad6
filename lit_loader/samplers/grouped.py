"""`GroupedSampler`: batches of one group each, from any sampler's order; and groups of images of similar shape."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lit_loader.samplers.checks import as_array, checked_int, checked_integers, refuse_first
from lit_loader.samplers.mixed_source import MixedSourceSampler
from lit_loader.samplers.order import OrderSampler, SliceableOrder, array_order
from lit_loader.samplers.shuffle import permutation
from lit_loader.samplers.weighted import AliasTable, WeightedRandomSampler
from lit_loader.seeding import key64
from lit_loader.types import IndexArray, Order

_MOST_GROUPS = 1 << 16  # up to here numpy's stable sort is a radix sort

Sizes = list[int] | npt.NDArray[Any] | torch.Tensor
_Floats = npt.NDArray[np.float64]
_Groups = npt.NDArray[np.uint8 | np.uint16]


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

    Random access: an order costs O(n) time and 8 bytes a position (32 while it is made), and a slice its own length.
    With weights and replacement an order costs nothing and a slice its own length, from tables of 12 bytes a weight.

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
        self._tables: tuple[int, _GroupTables] | None = None
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
        checked_int("global_batch", global_batch, minimum=1)
        self._check_length()
        if _draws_freely(self.sampler):
            keys = key64(seed, "group of a batch", epoch), key64(seed, "weighted in a group", epoch)
            return _GroupDrawOrder(self._group_tables(), keys, len(self), global_batch)
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
        # built again when needed, which is cheaper than pickling them
        return {**self.__dict__, "_tables": None}

    def _group_tables(self) -> _GroupTables:
        revision = self.sampler.revision
        if self._tables is None or self._tables[0] != revision:
            assert isinstance(self.sampler, WeightedRandomSampler)
            self._tables = revision, _GroupTables(self.sampler._weights, self.group_ids)
        return self._tables[1]

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
    ends = np.cumsum(counts)
    begins, cuts = ends - counts, ends - counts % global_batch
    result = np.empty(len(indices), dtype=np.int64)
    result[stop:] = indices[stop:]
    by_group = np.take(indices, np.argsort(groups[:stop], kind="stable"), out=result[:stop], mode="clip")
    full, rest = _parts(by_group, begins, cuts), _parts(by_group, cuts, ends)
    batches = np.concatenate([by_group[:0], *full, *rest]).reshape(num_full, global_batch)
    placed = result[:stop].reshape(num_full, global_batch)
    np.take(batches, permutation(key, num_full), axis=0, out=placed, mode="clip")
    return result


def _parts(array: IndexArray, begins: IndexArray, ends: IndexArray) -> list[IndexArray]:
    """Return views of the parts of an array that are not empty."""
    some = np.flatnonzero(begins < ends)
    return [array[begin:end] for begin, end in zip(begins[some].tolist(), ends[some].tolist(), strict=True)]


def _draws_freely(sampler: OrderSampler) -> bool:
    """Whether a sampler draws independently by weights that can be read here."""
    return (
        isinstance(sampler, WeightedRandomSampler)
        and sampler.replacement
        and type(sampler).order is WeightedRandomSampler.order
    )


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
    refuse_first(
        "group_ids",
        values,
        (values < 0) | (values >= _MOST_GROUPS),
        rule=f"lie in [0, {_MOST_GROUPS - 1}]",
        remedy="count the groups from 0: numpy.unique(group_ids, return_inverse=True)[1]",
    )
    result: _Groups = values.astype(np.uint8 if values.max(initial=0) < 256 else np.uint16)
    result.flags.writeable = False
    return result


# -- weighted draws in batches of one group ----------------------------------------------------------------


class _GroupTables:
    """One alias table over the groups and one of each group's members, made when the group is first drawn.

    Args:
        weights: float64 ``(n,)``, finite, not negative, not all zero, n < 2**31.
        group_ids: The group of each index, ``(n,)``.
    """

    def __init__(self, weights: _Floats, group_ids: _Groups) -> None:
        members = np.argsort(group_ids, kind="stable").astype(np.int32)
        ends = np.cumsum(np.bincount(group_ids))
        # Scaled first, so that sums do not overflow; bincount adds in the order of the indices.
        totals = np.bincount(group_ids, weights=weights / weights.max()).astype(np.float64)
        self.groups = AliasTable(totals)
        self._members = np.split(members, ends[:-1])
        self._weights, self._tables = weights, dict[int, AliasTable]()

    def draw(self, group: int, key: int, start: int, stop: int) -> IndexArray:
        """Return draws number ``start`` to ``stop - 1`` within a group of positive weight, int64."""
        members, table = self._members[group], self._tables.get(group)
        if table is None:
            table = self._tables[group] = AliasTable(self._weights[members])
        return members[table.draw(key, start, stop)].astype(np.int64)


class _GroupDrawOrder(SliceableOrder):
    """Draws of which every ``global_batch`` consecutive ones are of one group; only the tables are stored.

    Args:
        tables: Of the weights.
        keys: 64 bits for the batches' groups, and for the draws within them.
        length: Number of positions.
        global_batch: Positions a batch; the last one may have fewer.
    """

    def __init__(self, tables: _GroupTables, keys: tuple[int, int], length: int, global_batch: int) -> None:
        super().__init__(length)
        self._tables, self._keys, self._global_batch = tables, keys, global_batch

    def positions(self, start: int, stop: int) -> IndexArray:
        """Return the draws at these positions, batch by batch."""
        size, (group_key, key) = self._global_batch, self._keys
        first = start // size
        groups = self._tables.groups.draw(group_key, first, -(-stop // size)).tolist()
        return np.concatenate(
            [
                self._tables.draw(group, key, max(start, batch * size), min(stop, (batch + 1) * size))
                for batch, group in enumerate(groups, first)
            ]
        )


# -- groups of images of similar shape ---------------------------------------------------------------------


def aspect_ratio_buckets(widths: Sizes, heights: Sizes, num_buckets: int) -> IndexArray:
    """Return groups of images with similar ratios of width to height.

    Groups are cut in two one by one. Each time that cut is chosen which lowers the most the number of images times the
    standard deviation of the logarithm of the ratio, summed over the groups. (Cuts at quantiles, which give groups of
    equal size, go through the most common ratios; see ``benchmarks/padding.py``.) Images of one ratio are in one group.
    For batches of images that are resized to one shorter or longer side.

    Args:
        widths: Pixels of each image, ``(n,)``, positive.
        heights: As ``widths``.
        num_buckets: Groups at most; fewer where there are fewer ratios.

    Returns:
        int64 ``(n,)``, from 0 for the narrowest images; every group has some images.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If a size is not positive and finite (the first is named), the shapes differ, or
            ``num_buckets`` is not positive.

    Source:
        As `size_buckets`, of one dimension.
    """
    width, height = _checked_sizes(widths, heights)
    # Division is exactly rounded, so equal ratios are equal float64 numbers, on any machine.
    ratios, place, counts = np.unique(width / height, return_inverse=True, return_counts=True)
    logs = _logs(ratios)[None]
    return _cut(logs, counts, num_buckets, along=logs)[place]


def size_buckets(widths: Sizes, heights: Sizes, num_buckets: int) -> IndexArray:
    """Return groups of images with similar widths and heights.

    Groups are cut in two one by one. Each time that cut is chosen which lowers the most the number of images times the
    sum of the standard deviations of log width and log height, summed over the groups, because the padding on each side
    grows with these. A cut is between two widths, heights, areas, or ratios. Images of one size are in one group. For
    batches of images that keep their own size.

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
        Gems II, which lower squared deviations, and along the axes alone.
    """
    (width, of_width), (height, of_height) = (
        np.unique(side, return_inverse=True) for side in _checked_sizes(widths, heights)
    )
    # One number for each size, sorted by width and height. (np.unique of pairs does the same, ten times slower.)
    num_heights = max(len(height), 1)
    sizes, place, counts = np.unique(
        of_width * num_heights + of_height, return_inverse=True, return_counts=True
    )
    sides = _logs(np.stack([width[sizes // num_heights], height[sizes % num_heights]]))
    along = np.concatenate([sides, [sides[0] + sides[1], sides[0] - sides[1]]])
    return _cut(sides, counts, num_buckets, along=along)[place]


def _cut(sides: _Floats, counts: IndexArray, num_buckets: int, *, along: _Floats) -> IndexArray:
    """Return the group of each value, cut by cut.

    Args:
        sides: ``(d, n)``, n values of d numbers, whose deviations are lowered.
        counts: How often each value comes, ``(n,)``.
        num_buckets: Groups at most.
        along: ``(k, n)``, k numbers of each value; a cut separates those with a lower number from the others.
    """
    num_buckets = checked_int("num_buckets", num_buckets, minimum=1)
    groups = [np.arange(len(counts))]
    cuts = [_best_cut(groups[0], sides, counts, along)]
    while len(groups) < num_buckets and any(parts for _, parts in cuts):
        chosen = max(range(len(cuts)), key=lambda group: cuts[group][0])
        groups[chosen : chosen + 1] = parts = cuts[chosen][1]
        cuts[chosen : chosen + 1] = [_best_cut(part, sides, counts, along) for part in parts]
    group_of = np.empty(len(counts), dtype=np.int64)
    for group, own in enumerate(groups):
        group_of[own] = group
    return group_of


def _best_cut(
    own: IndexArray, sides: _Floats, counts: IndexArray, along: _Floats
) -> tuple[float, list[IndexArray]]:
    """Return how much the best cut of a group (the values at ``own``) lowers its spread, and the two parts."""
    best: tuple[float, list[IndexArray]] = -np.inf, []
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
        if lowered[place] > best[0]:
            end = int(between[place]) + 1
            best = float(lowered[place]), [order[:end], order[end:]]
    return best


def _spread(sums: _Floats) -> _Floats:
    """Return count times standard deviation, added over the sides, from count, sum, and sum of squares."""
    count, first, second = sums
    result: _Floats = np.sqrt(np.maximum(count * second - first * first, 0)).sum(axis=0)
    return result


def _logs(values: _Floats) -> _Floats:
    return np.round(np.log(values), 12).astype(np.float64)  # further digits differ between machines


def _checked_sizes(widths: Sizes, heights: Sizes) -> list[_Floats]:
    sides: list[_Floats] = []
    for name, values in (("widths", widths), ("heights", heights)):
        array = as_array(name, values)
        if array.size and array.dtype.kind not in "iuf":
            raise TypeError(f"`{name}` must be numbers, got {array.dtype}")
        array = array.astype(np.float64)
        wrong = ~(np.isfinite(array) & (array > 0))
        refuse_first(name, array, wrong, rule="be positive", remedy="give every image its size")
        sides.append(array)
    if len(sides[0]) != len(sides[1]):
        raise ValueError(f"{len(sides[0])} `widths` and {len(sides[1])} `heights`; give both for every image")
    return sides
