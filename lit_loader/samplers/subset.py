"""`SubsetRandomSampler`: the indices given, shuffled anew each epoch or as they stand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.utils.data

from lit_loader.samplers.base import OrderSampler
from lit_loader.samplers.checks import checked_flag, checked_int, checked_integers
from lit_loader.samplers.orders import ArrayOrder, SliceableOrder
from lit_loader.samplers.shuffled import RandomSampler
from lit_loader.types import IndexArray, Order

__all__ = ["SubsetRandomSampler"]


class SubsetRandomSampler(OrderSampler, torch.utils.data.SubsetRandomSampler):
    """Every index given once an epoch; one that is given twice comes twice.

    Torch's ``generator`` is replaced by ``seed``. With ``shuffle`` an epoch costs what that of
    `RandomSampler` over as many indices does, without it nothing.

    Args:
        indices: Indices of the dataset, shape ``(n,)``; a list, array or tensor. They are copied.
        shuffle: Whether each epoch has an order of its own; if not, the indices come in the order given.
        num_indices: Length of the dataset, which `expected_visits` speaks of; None: the largest index plus one.
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
        self.indices = _checked_indices(indices)
        self.shuffle = checked_flag("shuffle", shuffle)
        self.generator = None
        largest = int(self.indices.max(initial=-1))
        self._num_indices = (
            largest + 1 if num_indices is None else checked_int("num_indices", num_indices, minimum=0)
        )
        if largest >= self._num_indices:
            first = int((self.indices >= self._num_indices).argmax())
            raise ValueError(
                f"indices[{first}]={self.indices[first]} does not exist with num_indices={self._num_indices}, the "
                "length of the dataset; leave it out of `indices` or correct num_indices"
            )

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def num_indices(self) -> int:
        """The dataset's length, or the largest index plus one."""
        return self._num_indices

    def order(self, *, seed: int, epoch: int) -> Order:
        """Return the indices, shuffled or not."""
        if not self.shuffle or len(self.indices) == 0:
            return ArrayOrder(self.indices)
        return _PickedOrder(self.indices, RandomSampler(len(self.indices)).order(seed=seed, epoch=epoch))

    def _identity(self) -> tuple[Any, ...]:
        return self._num_indices, self.shuffle, self.indices

    def expected_visits(self) -> npt.NDArray[np.float64]:
        """Return how often each index was given."""
        return np.bincount(self.indices, minlength=self._num_indices).astype(np.float64)


class _PickedOrder(SliceableOrder):
    """Of some indices those at the places of another order."""

    def __init__(self, indices: IndexArray, places: Order) -> None:
        super().__init__(len(places))
        self._indices, self._places = indices, places

    def positions(self, start: int, stop: int) -> IndexArray:
        return self._indices[self._places[start:stop]]


def _checked_indices(values: Sequence[int] | npt.NDArray[Any] | torch.Tensor) -> IndexArray:
    if getattr(values, "dtype", None) in (np.bool_, torch.bool):
        raise TypeError(
            "`indices` must be integers, got a mask of bool; give its true places, np.flatnonzero(mask)"
        )
    indices = checked_integers("indices", values).copy()
    wrong = indices < 0
    if wrong.any():
        first = int(wrong.argmax())
        raise ValueError(
            f"`indices` count from 0, got indices[{first}]={indices[first]}; add the dataset's length to it"
        )
    indices.flags.writeable = False
    return indices
