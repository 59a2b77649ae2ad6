"""`GroupedSampler`: batches of one group each, such as images of like shape, out of any sampler's order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NoReturn

import numpy as np
import numpy.typing as npt
import torch

from lit_loader.samplers.base import OrderSampler
from lit_loader.samplers.checks import checked_int, checked_integers
from lit_loader.samplers.group_draws import GroupDrawOrder, GroupTables
from lit_loader.samplers.mixed_source import MixedSourceSampler
from lit_loader.samplers.orders import ArrayOrder, SliceableOrder, permutation
from lit_loader.samplers.weighted import WeightedRandomSampler
from lit_loader.seeding import key64
from lit_loader.types import IndexArray, Order

__all__ = ["GroupedSampler", "regrouped"]

_MOST_GROUPS: Final = 1 << 16  # up to here numpy's stable sort is a radix sort


class GroupedSampler(OrderSampler):
    """Puts the positions of another sampler's order together so that a batch, over all ranks, is of one group.

    Decided anew each epoch, over the whole order: see `regrouped`. Every position comes once, the length is the inner
    sampler's, and the same global batch gives the same batches on any number of ranks. Groups change what stands
    beside what in a batch, not how often an index comes; a sampler that evens out every batch, such as
    `ClassAwareSampler`, evens out the epoch only.

    Around a `WeightedRandomSampler` with replacement nothing is regrouped: each batch draws its group by the groups'
    total weights, then its samples within it by theirs. So a position gets index i with probability
    ``weights[i] / sum(weights)``, as without groups; the draws of one batch are not independent of each other, and
    every batch is of one group, the last one too.

    Batches are put together by `lit_loader.DataLoader` with a seed; iterating the sampler raises.

    Random access: the first slice of an epoch costs O(n) time and 8 bytes a position (four times that while it is
    made), those after it their own length. With weights and replacement every slice costs its own length, from tables
    of 12 bytes a weight.

    Args:
        sampler: What is drawn how often: any sampler of ours, or an `OrderSampler` of yours.
        group_ids: The group of each index, integers in [0, 65535], shape ``(sampler.num_indices,)``; neighbours
            should be alike, since what is left over of a group shares a batch with the next one's.
        seed: Seed of the orders; None: the inner sampler's, and the loader's if that has none.

    Attributes:
        sampler: As given.
        group_ids: As given, unsigned, read-only.

    Raises:
        TypeError: If ``sampler`` is not an `OrderSampler`, or one that says itself what a batch holds
            (`MixedSourceSampler`, and what has a `batch_order` of its own, as this class does); if the ids are not
            integers.
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
        self._tables: tuple[int, GroupTables] | None = None
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
            ValueError: If the inner sampler's dataset has another length by now.
        """
        checked_int("global_batch", global_batch, minimum=1)
        self._check_length()
        if _draws_freely(self.sampler):
            keys = key64(seed, "group of a batch", epoch), key64(seed, "weighted in a group", epoch)
            return GroupDrawOrder(self._group_tables(), keys, len(self), global_batch=global_batch)
        order = self.sampler.order(seed=seed, epoch=epoch)
        return _GroupedOrder(order, self.group_ids, key64(seed, "grouped", epoch), global_batch)

    def _identity(self) -> tuple[Any, ...]:
        return self.sampler.fingerprint(), self.group_ids

    def expected_visits(self) -> npt.NDArray[np.float64]:
        """Return the inner sampler's, which groups do not change."""
        return self.sampler.expected_visits()

    def __iter__(self) -> Iterator[int]:
        """Refuse: what iterates a sampler does not say how large its batches are.

        Raises:
            RuntimeError: Always.
        """
        _refuse_iteration()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tables": None}  # rebuilt when asked for: cheaper than sending them

    def _group_tables(self) -> GroupTables:
        revision = self.sampler.revision
        if self._tables is None or self._tables[0] != revision:
            assert isinstance(self.sampler, WeightedRandomSampler)
            self._tables = revision, GroupTables(self.sampler._weights, self.group_ids)
        return self._tables[1]

    def _check_length(self) -> None:
        if len(self.group_ids) != self.sampler.num_indices:
            raise ValueError(
                f"`group_ids` has {len(self.group_ids)} entries, and {type(self.sampler).__name__} speaks of "
                f"num_indices={self.sampler.num_indices}; give one group for each index of the dataset "
                "(and to SubsetRandomSampler the dataset's length, num_indices=)"
            )


def regrouped(
    indices: IndexArray, groups: npt.NDArray[np.uint8 | np.uint16], *, global_batch: int, key: int
) -> IndexArray:
    """Return an epoch's indices in batches of one group each, in O(n).

    The positions of a group are put together in their order, and as many full batches as they give are of that
    group alone. What is left over, sorted by group, is cut into mixed batches. All full batches then come in random
    order. The last ``len(indices) % global_batch`` positions stay where they are: what ``drop_last`` leaves out is
    what it leaves out without groups. (Were it what remains behind the mixed batches, the groups with the largest
    ids would lose their images in every epoch.) Of the rest no arrangement has fewer mixed batches; were the last
    positions chosen among what is left over too, there would be half a batch less an epoch in the mean.

    Args:
        indices: int64 ``(n,)``.
        groups: The group of each position, ``(n,)``.
        global_batch: Positions a batch.
        key: A 64-bit key, for the random order.

    Returns:
        int64 ``(n,)``: the same indices, each as often.
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


class _GroupedOrder(SliceableOrder):
    """An order that is regrouped when it is first read."""

    def __init__(
        self, order: Order, group_ids: npt.NDArray[np.uint8 | np.uint16], key: int, global_batch: int
    ) -> None:
        super().__init__(len(order))
        self._order, self._group_ids, self._key, self._global_batch = order, group_ids, key, global_batch
        self._regrouped: ArrayOrder | None = None

    def positions(self, start: int, stop: int) -> IndexArray:
        if self._regrouped is None:
            indices = self._order[0 : len(self)]
            self._regrouped = ArrayOrder(
                regrouped(indices, self._group_ids[indices], global_batch=self._global_batch, key=self._key)
            )
        return self._regrouped[start:stop]


def _draws_freely(sampler: OrderSampler) -> bool:
    """Whether a sampler's draws are independent, by weights that are known here."""
    return (
        isinstance(sampler, WeightedRandomSampler)
        and sampler.replacement
        and type(sampler).order is WeightedRandomSampler.order
    )


def _check_sampler(sampler: Any) -> None:
    own_batches = (
        isinstance(sampler, OrderSampler) and type(sampler).batch_order is not OrderSampler.batch_order
    )
    if own_batches or isinstance(sampler, MixedSourceSampler):
        raise TypeError(
            f"{type(sampler).__name__} says itself what every batch holds, and groups would undo it; "
            "give GroupedSampler the sampler of single samples, or use this one without groups"
        )
    if not isinstance(sampler, OrderSampler):
        raise TypeError(
            f"`sampler` must be an OrderSampler, got {type(sampler).__name__}, whose batches can only be put together "
            "from an order that is known as a whole; give the one of the same name from lit_loader.samplers"
        )


def _checked_groups(group_ids: Any) -> npt.NDArray[np.uint8 | np.uint16]:
    values = checked_integers("group_ids", group_ids)
    wrong = (values < 0) | (values >= _MOST_GROUPS)
    if wrong.any():
        first = int(wrong.argmax())
        raise ValueError(
            f"`group_ids` must lie in [0, {_MOST_GROUPS - 1}], got group_ids[{first}]={values[first]}; count "
            "the groups from 0: numpy.unique(group_ids, return_inverse=True)[1]"
        )
    small = np.uint8 if values.max(initial=0) < 256 else np.uint16
    result: npt.NDArray[np.uint8 | np.uint16] = values.astype(small)
    result.flags.writeable = False
    return result


def _refuse_iteration() -> NoReturn:
    raise RuntimeError(
        "GroupedSampler is iterated, and does not know how large batches are; use it as `sampler=` of "
        "lit_loader.DataLoader with seed= and batch_size=, which puts its batches together"
    )
