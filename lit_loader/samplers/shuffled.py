"""`RandomSampler`: every index once, shuffled anew each epoch."""

from __future__ import annotations

from collections.abc import Sized

import numpy as np
import numpy.typing as npt
import torch.utils.data

from lit_loader.samplers.base import OrderSampler
from lit_loader.samplers.checks import checked_source
from lit_loader.samplers.feistel import FeistelOrder
from lit_loader.samplers.orders import ArrayOrder, SliceableOrder, permutation
from lit_loader.seeding import key64

__all__ = ["RandomSampler"]

_MOST_SORTED = 1 << 20


class RandomSampler(OrderSampler, torch.utils.data.RandomSampler):
    """A permutation of the indices; each epoch has its own.

    Up to 2**20 indices it is sorted from hashes once an epoch, in O(n log n) and 8 bytes an index. Above, any position
    of it is evaluated alone (see `FeistelOrder`): no memory, and the first batch of a billion is there at once.

    Also torch's ``RandomSampler``, because that is how Lightning recognises a shuffled loader. Torch's
    ``replacement`` and ``num_samples`` are `WeightedRandomSampler`'s here (with equal weights); its
    ``generator`` is replaced by ``seed``. The length follows ``len(data_source)``, which may change
    between epochs.

    Args:
        data_source: The dataset, or its length.
        seed: Seed of ``__iter__``; see `OrderSampler`.

    Raises:
        TypeError: If ``data_source`` has no length.
        ValueError: If it is empty, as in torch.
    """

    def __init__(self, data_source: Sized | int, *, seed: int | None = None) -> None:
        OrderSampler.__init__(self, seed=seed)
        self.data_source = checked_source(data_source)
        self.replacement = False
        self.generator = None
        if len(self.data_source) == 0:
            raise ValueError("num_samples should be a positive integer value, but got num_samples=0")

    def __len__(self) -> int:
        return len(self.data_source)

    @property
    def num_indices(self) -> int:
        """The dataset's length."""
        return len(self.data_source)

    def order(self, *, seed: int, epoch: int) -> SliceableOrder:
        """Return a permutation that depends on (seed, epoch) and the dataset's length."""
        key, length = key64(seed, "shuffle", epoch), len(self.data_source)
        return ArrayOrder(permutation(key, length)) if length <= _MOST_SORTED else FeistelOrder(key, length)

    def expected_visits(self) -> npt.NDArray[np.float64]:
        """Return ones."""
        return np.ones(len(self.data_source))
