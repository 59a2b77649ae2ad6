"""`RandomSampler`: every index once, shuffled anew each epoch."""

from __future__ import annotations

from collections.abc import Sized

import numpy as np
import numpy.typing as npt
import torch.utils.data

from lit_loader.samplers.base import OrderSampler
from lit_loader.samplers.checks import checked_source
from lit_loader.samplers.orders import ArrayOrder, permutation
from lit_loader.seeding import key64

__all__ = ["RandomSampler"]


class RandomSampler(OrderSampler, torch.utils.data.RandomSampler):
    """A permutation of the indices; each epoch has its own.

    Also torch's ``RandomSampler``, because that is how Lightning recognises a shuffled loader. Torch's
    ``replacement`` and ``num_samples`` are `WeightedRandomSampler`'s here (with equal weights); its
    ``generator`` is replaced by ``seed``. The length follows ``len(data_source)``, which may change
    between epochs. An epoch costs O(n log n) when its order is made and 8 bytes an index.

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

    def order(self, *, seed: int, epoch: int) -> ArrayOrder:
        """Return a permutation that depends on (seed, epoch) and the dataset's length."""
        return ArrayOrder(permutation(key64(seed, "shuffle", epoch), len(self.data_source)))

    def expected_visits(self) -> npt.NDArray[np.float64]:
        """Return ones."""
        return np.ones(len(self.data_source))
