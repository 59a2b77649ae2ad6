"""`SequentialSampler`: the indices in their own order."""

from __future__ import annotations

from collections.abc import Sized

import numpy as np
import numpy.typing as npt
import torch.utils.data

from lit_loader.samplers.base import OrderSampler
from lit_loader.samplers.checks import checked_source
from lit_loader.samplers.orders import SequentialOrder

__all__ = ["SequentialSampler"]


class SequentialSampler(OrderSampler, torch.utils.data.SequentialSampler):
    """Every index once, 0 first.

    Also torch's ``SequentialSampler``, so that Lightning sees that nothing is shuffled. The length
    follows ``len(data_source)``, which may change between epochs.

    Args:
        data_source: The dataset, or its length.
        seed: Accepted by every sampler; this one's order is the same for all seeds.
    """

    def __init__(self, data_source: Sized | int, *, seed: int | None = None) -> None:
        OrderSampler.__init__(self, seed=seed)
        self.data_source = checked_source(data_source)

    def __len__(self) -> int:
        return len(self.data_source)

    @property
    def num_indices(self) -> int:
        """The dataset's length."""
        return len(self.data_source)

    def order(self, *, seed: int, epoch: int) -> SequentialOrder:
        """Return 0, 1, 2, ...; the same for every seed and epoch."""
        return SequentialOrder(len(self.data_source))

    def expected_visits(self) -> npt.NDArray[np.float64]:
        """Return ones."""
        return np.ones(len(self.data_source))
