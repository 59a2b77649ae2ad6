"""`SequentialSampler`, `RandomSampler` and `SubsetRandomSampler`: every index once, in order or shuffled."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.utils.data

from lit_loader.samplers.checks import checked_flag, checked_int, checked_integers, refuse_first
from lit_loader.samplers.order import OrderSampler, SizedSampler, SliceableOrder, array_order
from lit_loader.samplers.shuffle import shuffled
from lit_loader.seeding import key64
from lit_loader.types import IndexArray, Order


class _DatasetSampler(OrderSampler):
    """Base of the samplers that visit every index of a dataset once in an epoch.

    The length follows ``len(data_source)``, which may change between epochs.
    """

    def __init__(self, data_source: Sized | int, *, seed: int | None = None) -> None:
        OrderSampler.__init__(self, seed=seed)
        if not isinstance(data_source, Sized):
            try:
                data_source = range(checked_int("data_source", data_source, minimum=0))
            except TypeError:
                raise TypeError(
                    f"`data_source` must be a length or have one, got {type(data_source).__name__}; "
                    "give a dataset with `__len__` or an int"
                ) from None
        self.data_source = data_source

    def __len__(self) -> int:
        return len(self.data_source)

    @property
    def num_indices(self) -> int:
        """The dataset's length."""
        return len(self.data_source)

    def expected_visits(self, epoch: int = 0) -> npt.NDArray[np.float64]:
        """Return ones."""
        return np.ones(len(self.data_source))


class SequentialSampler(_DatasetSampler, torch.utils.data.SequentialSampler):
    """Every index once, in order.

    It is a subclass of torch's ``SequentialSampler``, by which Lightning recognises a loader that does not shuffle. The
    length follows ``len(data_source)``, which may change between epochs.

    Args:
        data_source: The dataset, or its length.
        seed: Accepted for uniformity; the order is the same for all seeds.

    Raises:
        TypeError: If ``data_source`` has no length.
    """

    def order(self, *, seed: int, epoch: int) -> Order:
        """Return 0, 1, 2, ...; the same for every seed and epoch, without memory."""
        # np.arange(start, stop) gives the indices at these positions, because each index is its own position.
        return SliceableOrder(len(self.data_source), np.arange)


class RandomSampler(_DatasetSampler, torch.utils.data.RandomSampler):
    """A permutation of the indices; each epoch has its own.

    Up to 2**20 indices it is computed once an epoch by sorting hashes, in O(n log n) and 8 bytes an index. With more,
    each position is computed independently, without memory, and the first batch of a billion indices comes at once.

    It is a subclass of torch's ``RandomSampler``, by which Lightning recognises a shuffled loader. For torch's
    ``replacement`` and ``num_samples`` use `WeightedRandomSampler` with equal weights; ``seed`` replaces torch's
    ``generator``. The length follows ``len(data_source)``, which may change between epochs.

    Args:
        data_source: The dataset, or its length.
        seed: Seed of ``__iter__``; see `OrderSampler`.

    Raises:
        TypeError: If ``data_source`` has no length.
        ValueError: If it is empty, as in torch.
    """

    def __init__(self, data_source: Sized | int, *, seed: int | None = None) -> None:
        super().__init__(data_source, seed=seed)
        # Lightning and other libraries read torch's attributes.
        self.replacement = False
        self.generator = None
        if len(self.data_source) == 0:
            # torch's message.
            raise ValueError("num_samples should be a positive integer value, but got num_samples=0")

    def order(self, *, seed: int, epoch: int) -> Order:
        """Return a permutation that depends on (seed, epoch) and the dataset's length."""
        return shuffled(key64(seed, "shuffle", epoch), len(self.data_source))


class SubsetRandomSampler(SizedSampler, torch.utils.data.SubsetRandomSampler):
    """A subset of the indices, each once an epoch; a repeated index is visited repeatedly.

    ``seed`` replaces torch's ``generator``. With ``shuffle`` an epoch costs as much as with a `RandomSampler` of the
    same length; without it an epoch costs nothing.

    Args:
        indices: Indices of the dataset, shape ``(n,)``; a list, array or tensor. They are copied.
        shuffle: True for a new order in each epoch, False for the order of ``indices``.
        num_indices: Length of the dataset, for `expected_visits`, or None for the largest index plus one.
        seed: Seed of ``__iter__``; see `OrderSampler`.

    Raises:
        TypeError: If an argument is of the wrong type, for instance a mask.
        ValueError: If an index is negative or not below ``num_indices`` (the first is named).
    """

    indices: IndexArray  # type: ignore[assignment] # a sequence in torch

    def __init__(
        self,
        indices: Sequence[int] | npt.NDArray[Any] | torch.Tensor,
        *,
        shuffle: bool = True,
        num_indices: int | None = None,
        seed: int | None = None,
    ) -> None:
        OrderSampler.__init__(self, seed=seed)
        # A copy, because the fingerprint is cached and must not change with the caller's array.
        self.indices = checked_integers("indices", indices).copy()
        self.indices.flags.writeable = False
        self.shuffle = checked_flag("shuffle", shuffle)
        self.generator = None
        if num_indices is None:
            num_indices = int(self.indices.max(initial=-1)) + 1
        self._num_indices = checked_int("num_indices", num_indices, minimum=0)
        self._length = len(self.indices)
        wrong = (self.indices < 0) | (self.indices >= num_indices)
        rule = f"be in [0, {num_indices}), where num_indices is the length of the dataset"
        refuse_first("indices", self.indices, wrong, rule=rule)

    def order(self, *, seed: int, epoch: int) -> Order:
        """Return the indices, shuffled or not."""
        if not self.shuffle:
            return array_order(self.indices)
        # The shuffle may be too large to store, so indices are looked up slice by slice.
        places = shuffled(key64(seed, "shuffle", epoch), len(self.indices))
        return SliceableOrder(len(places), partial(_subset_slice, self.indices, places))

    def _identity(self) -> tuple[Any, ...]:
        return self._num_indices, self.shuffle, self.indices

    def expected_visits(self, epoch: int = 0) -> npt.NDArray[np.float64]:
        """Return how often ``indices`` lists each index."""
        return np.bincount(self.indices, minlength=self._num_indices).astype(np.float64)


def _subset_slice(indices: IndexArray, places: Order, start: int, stop: int) -> IndexArray:
    # A module-level function, because an order can be pickled and a lambda cannot.
    return indices[places[start:stop]]
