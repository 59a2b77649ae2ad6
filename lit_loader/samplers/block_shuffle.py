"""`BlockShuffleSampler`: a shuffle that reads shards block by block, with few of them open at a time.

NOTE [Order of blocks]
    Samples that lie next to each other in a shard form a block, which one request reads. Each epoch puts the blocks
    in random order and cuts this order into groups. The samples of a group are shuffled and divided into parts for
    consecutive steps; each step takes one part of each of ``depth`` groups, and shuffles them:

        step 0    all of group 0, 1/2 of group 1, 1/3 of group 2     (depth 3)
        step 1                    1/2 of group 1, 1/3 of group 2, 1/3 of group 3
        step 2                                    1/3 of group 2, 1/3 of group 3, ...

    So ``depth`` groups are open in every step. In each step one group ends and another one begins, instead of all at
    once: requests are spread evenly, and half of the samples of the open groups have left the cache already. Disjoint
    groups of blocks would need twice the cache for the same mix. A step is a function of (seed, epoch, step) alone, so
    a slice computes its own steps and no others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from lit_loader.samplers.checks import Weights, checked_int, checked_integers, refuse_first
from lit_loader.samplers.order import SizedSampler, SliceableOrder
from lit_loader.samplers.rare_classes import RepeatedVisits
from lit_loader.samplers.shuffle import permutation
from lit_loader.seeding import key64
from lit_loader.types import IndexArray, Order

# Parts that a group of blocks is divided into. The open groups take (depth + 1) / (2 * depth) of the cache that their
# blocks fill: 56 % for 8, and never less than 50 %.
_MAX_DEPTH: Final = 8
# Steps: the current one, and the one that reading ahead has reached.
_NUM_CACHED_STEPS: Final = 2


class BlockShuffleSampler(SizedSampler):
    """Every index once an epoch, or as often as its repeats say, in an order that needs few requests to a store.

    A full shuffle of images in shards needs about one request an image, unless the cache holds most of the set. Here as
    many samples as ``open_shards`` shards have are mixed at a time, from blocks of ``block_size`` neighbours all over
    the data set, and reading ahead gets each block by a few requests. The cache needs half of the mixed samples. With
    as many open shards as there are shards the order is a full shuffle.

    Blocks instead of whole shards cost no more cache: with 250 images in a block and 4,500 in a shard,
    ``open_shards=4`` mixes 72 parts of the data set instead of 4, which is much closer to a full shuffle;
    `lit_loader.shuffle_quality` measures it. Neighbours share requests as long as the mixed samples, and at the ends of
    an epoch half as many again, are needed within 2 GiB of images, or half of ``cache_budget`` if the cache does
    not hold the whole set.

    ``repeats`` balances classes without leaving the blocks: all visits of an image in an epoch are made while its
    block is open. The integer part of a repeat is the number of visits in every epoch, and the fractional part is the
    probability of one more, as for `RepeatFactorSampler`.

    Random access: an order takes O(number of blocks) time and memory, and with ``repeats`` O(num_indices); a slice
    takes its length, and the samples of the mixed blocks at most once for each slice that does not continue another
    one. The mixed samples take 8 bytes each. With consecutive shards nothing is stored for each index.

    Args:
        shards: The shard of each index, integers of any range, ``(num_indices,)``. Indices of one shard should ascend
            as in the shard. Samples of no shard have one number, such as -1, and count as one more shard.
        shard_sizes: Instead of ``shards``, the number of indices of each shard, positive, ``(num_shards,)``, if the
            indices of each shard are consecutive. This saves an array over all indices.
        open_shards: Size of the mix, as a number of shards of mean size.
        block_size: Number of neighbours in a shard that are read together, or None for whole shards. Shards are cut
            into equal blocks of at most this size.
        repeats: Mean number of visits of each index in an epoch, not negative, ``(num_indices,)``; or None for one
            each. They are copied.
        seed: Seed of ``__iter__``; see `OrderSampler`.

    Attributes:
        num_shards: Number of shards.
        num_blocks: Number of blocks.
        num_open_blocks: Number of blocks that are mixed at a time.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If the shards are empty, a size is below 1, or the repeats are wrong or of another number.

    Source:
        Parts of shards that are shuffled and spread over a range of samples: ``py1e`` of MosaicML Streaming,
        https://docs.mosaicml.com/projects/streaming/en/stable/dataset_configuration/shuffling.html, which shuffles
        with one generator for the whole epoch instead of step by step.
    """

    def __init__(
        self,
        shards: Sequence[int] | npt.NDArray[Any] | torch.Tensor | None = None,
        *,
        shard_sizes: Sequence[int] | npt.NDArray[Any] | None = None,
        open_shards: int = 4,
        block_size: int | None = 256,
        repeats: Weights | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(seed=seed)
        if (shards is None) == (shard_sizes is None):
            raise TypeError("give either `shards`, the shard of each index, or `shard_sizes` of consecutive shards")
        members: IndexArray | None = None
        if shards is not None:
            sizes, members = _sizes_and_members(checked_integers("shards", shards))
        else:
            sizes = checked_integers("shard_sizes", shard_sizes)
            refuse_first("shard_sizes", sizes, sizes < 1, rule="be positive", remedy="leave out empty shards")
        if not len(sizes):
            raise ValueError("expected at least one shard, got none; give the shard of each index")
        self._num_indices = int(sizes.sum())
        self.num_shards = len(sizes)
        largest = self._num_indices if block_size is None else checked_int("block_size", block_size, minimum=1)
        block_starts = _equal_cuts(sizes, largest)
        self.num_blocks = len(block_starts) - 1
        open_shards = checked_int("open_shards", open_shards, minimum=1)
        num_open = min(self.num_blocks, max(1, round(open_shards * self.num_blocks / self.num_shards)))
        # All blocks in one group are a full shuffle.
        group_size = num_open if num_open == self.num_blocks else -(-num_open // _MAX_DEPTH)
        self._plan = _Plan(block_starts, members, group_size, num_open // group_size)
        self._repeats: RepeatedVisits | None = None
        self._length = self._num_indices
        if repeats is not None:
            self._repeats = RepeatedVisits("repeats", repeats)
            self._length = self._repeats.length
            if self._repeats.num_indices != self._num_indices:
                raise ValueError(
                    f"`repeats` has {self._repeats.num_indices} entries, and there are {self._num_indices} indices; "
                    "give one for each index"
                )

    @property
    def num_open_blocks(self) -> int:
        """Number of blocks that are mixed at a time."""
        return self._plan.depth * self._plan.group_size

    def order(self, *, seed: int, epoch: int) -> Order:
        """Return the epoch's visits."""
        visits = None if self._repeats is None else self._repeats.draw(seed, epoch)
        steps = _EpochSteps(self._plan, visits, seed, epoch)
        return SliceableOrder(self._length, steps.positions)

    def _identity(self) -> tuple[Any, ...]:
        repeats = () if self._repeats is None else self._repeats.identity()
        return *self._plan, *repeats

    def expected_visits(self, epoch: int = 0) -> npt.NDArray[np.float64]:
        """Return ones, or the repeats with their fractions scaled to sum to an integer."""
        return np.ones(self._num_indices) if self._repeats is None else self._repeats.expected()


class _Plan(NamedTuple):
    """Blocks of a data set, and the number of them that are mixed.

    Attributes:
        block_starts: int64 ``(num_blocks + 1,)``, first place of each block, and the number of indices.
        members: int64 ``(num_indices,)``, the index at each place, or None if each index is its own place.
        group_size: Number of blocks in a group.
        depth: Number of groups that are open at a time.
    """

    block_starts: IndexArray
    members: IndexArray | None
    group_size: int
    depth: int


def _sizes_and_members(shards: IndexArray) -> tuple[IndexArray, IndexArray | None]:
    """Return the number of indices of each shard, and the indices by shard, or None if they are sorted already."""
    members = None
    if (shards[1:] < shards[:-1]).any():
        members = np.argsort(shards, kind="stable")
        shards = shards[members]
    starts = np.flatnonzero(np.diff(shards, prepend=shards[:1] - 1))
    return np.diff(np.append(starts, len(shards))), members


def _equal_cuts(sizes: IndexArray, largest: int) -> IndexArray:
    """Cut intervals into parts of at most a size, as equal as possible.

    Args:
        sizes: Length of each interval, int64 ``(n,)``, positive.
        largest: Largest size of a part.

    Returns:
        First place of each part, and the sum of the sizes, int64 ``(num_parts + 1,)``.
    """
    num_parts = -(-sizes // largest)
    first_parts = np.cumsum(num_parts) - num_parts
    interval_starts = np.cumsum(sizes) - sizes
    intervals = np.repeat(np.arange(len(sizes)), num_parts)
    parts = np.arange(len(intervals)) - first_parts[intervals]
    starts = interval_starts[intervals] + parts * sizes[intervals] // num_parts[intervals]
    return np.append(starts, sizes.sum())


class _EpochSteps:
    """The steps of one epoch, see NOTE [Order of blocks]; the last ones, and the open groups, are cached.

    Args:
        plan: The blocks.
        visits: Number of visits of each index in the epoch, int64 ``(num_indices,)``, or None for one each.
        seed: Any int.
        epoch: The epoch.
    """

    def __init__(self, plan: _Plan, visits: IndexArray | None, seed: int, epoch: int) -> None:
        self._block_starts = plan.block_starts
        self._members = plan.members
        self._visits = visits
        self._key = (seed, epoch)
        self._group_size = plan.group_size
        self._blocks = permutation(key64(seed, "blocks", epoch), len(plan.block_starts) - 1)
        group_lengths = np.add.reduceat(self._block_lengths()[self._blocks], self._group_starts())
        self._depth = min(plan.depth, len(group_lengths))
        self._num_steps = len(group_lengths) - self._depth + 1
        self._step_offsets = np.append(0, np.cumsum(self._step_lengths(group_lengths)))
        self._groups: dict[int, IndexArray] = {}
        self._steps: tuple[tuple[int, IndexArray], ...] = ()

    def positions(self, start: int, stop: int) -> IndexArray:
        """Return a copy of the indices at these positions."""
        first = int(np.searchsorted(self._step_offsets, start, side="right")) - 1
        last = int(np.searchsorted(self._step_offsets, stop, side="left"))
        parts = []
        for step in range(first, last):
            offset = int(self._step_offsets[step])
            parts.append(self._step(step)[max(start - offset, 0) : stop - offset])
        return np.concatenate(parts)

    def _block_lengths(self) -> IndexArray:
        """Return the number of visits to each block, int64 ``(num_blocks,)``."""
        if self._visits is None:
            return np.diff(self._block_starts)
        visits = self._visits if self._members is None else self._visits[self._members]
        return np.add.reduceat(visits, self._block_starts[:-1])

    def _group_starts(self) -> IndexArray:
        """Return the place of each group's first block in the epoch's order of blocks."""
        return np.arange(0, len(self._blocks), self._group_size)

    def _steps_of(self, group: Any) -> tuple[Any, Any]:
        """Return the first step of a group, or of an array of them, and its number of steps."""
        first = np.maximum(group - self._depth + 1, 0)
        return first, np.minimum(group, self._num_steps - 1) - first + 1

    def _step_lengths(self, group_lengths: IndexArray) -> IndexArray:
        """Return the number of visits in each step, int64 ``(num_steps,)``."""
        steps = np.arange(self._num_steps)
        lengths = np.zeros(self._num_steps, dtype=np.int64)
        for place in range(self._depth):
            starts, stops = self._part(steps, steps + place, group_lengths[steps + place])
            lengths += stops - starts
        return lengths

    def _part(self, step: Any, group: Any, length: Any) -> tuple[Any, Any]:
        """Return start and stop of the part of a group's visits that a step takes; of arrays, arrays."""
        first, num_steps = self._steps_of(group)
        return (step - first) * length // num_steps, (step - first + 1) * length // num_steps

    def _step(self, step: int) -> IndexArray:
        for cached_step, indices in self._steps:
            if cached_step == step:
                return indices
        # Threads may read the same order: they see an old or a new dict, and at worst compute the same group twice.
        cached_groups = self._groups
        groups: dict[int, IndexArray] = {}
        for group in range(step, step + self._depth):
            groups[group] = cached_groups[group] if group in cached_groups else self._group(group)
        parts = []
        for group, visits in groups.items():
            start, stop = self._part(step, group, len(visits))
            parts.append(visits[start:stop])
        mixed = np.concatenate(parts)
        indices = mixed[permutation(key64(*self._key, "step", step), len(mixed))]
        self._groups = groups
        self._steps = ((step, indices), *self._steps[: _NUM_CACHED_STEPS - 1])
        return indices

    def _group(self, group: int) -> IndexArray:
        """Return the visits of a group in random order."""
        blocks = self._blocks[group * self._group_size : (group + 1) * self._group_size]
        starts = self._block_starts[blocks]
        lengths = self._block_starts[blocks + 1] - starts
        # The places of all blocks: each block's start, and the place within it.
        within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        places = np.repeat(starts, lengths) + within
        indices: IndexArray = places if self._members is None else self._members[places]
        if self._visits is not None:
            indices = np.repeat(indices, self._visits[indices])
        return indices[permutation(key64(*self._key, "group", group), len(indices))]
