"""`OrderSampler`: the base of all samplers, a pure function of (seed, epoch) that gives an order."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import distributed
from torch.utils.data import DistributedSampler

from lit_loader.samplers.checks import checked_int
from lit_loader.samplers.fingerprint import fingerprint_of
from lit_loader.types import Order

__all__ = ["OrderSampler"]

_BLOCK = 4096  # positions turned into Python ints at a time by __iter__


class OrderSampler(DistributedSampler[int], abc.ABC):
    """Base of the samplers: `order` gives the indices of an epoch as a random-access sequence.

    It subclasses torch's ``DistributedSampler`` for one reason: Lightning replaces every sampler that is
    not one when it runs on several ranks, and ours must be left alone, because `lit_loader.DataLoader`
    shards the order itself. Torch's constructor is not called; ``num_replicas`` is 1 and ``rank`` is 0,
    so iterating the sampler gives the whole order, and ``num_samples`` is ``len(self)``.

    Determinism: ``order`` depends on the seed, the epoch and the sampler's arguments alone: the same bits
    on any machine and numpy version. Neither iterating nor asking for an order changes the sampler.

    Args:
        seed: Seed of `__iter__`, for use in torch's own loader. None: one is drawn from torch's default
            generator each time, as torch's ``RandomSampler`` does. Our loader passes its own seed to `order`.

    Attributes:
        seed: As given.
        epoch: The epoch that `__iter__` gives, 0 until `set_epoch` names another.
        epochs_named: How often `set_epoch` was called, so that a loader notices that somebody names epochs.
    """

    seed: int | None  # type: ignore[assignment] # torch's is an int
    _fingerprinted: tuple[tuple[int, int, int], str] | None = None

    def __init__(self, *, seed: int | None = None) -> None:
        self.seed = None if seed is None else checked_int("seed", seed)
        self.epoch = 0
        self.epochs_named = 0
        self.num_replicas = 1
        self.rank = 0
        self.drop_last = False

    @abc.abstractmethod
    def order(self, *, seed: int, epoch: int) -> Order:
        """Return the order of an epoch, a pure function of the arguments.

        Args:
            seed: Any int.
            epoch: The epoch, from 0.
        """

    def batch_order(self, *, seed: int, epoch: int, global_batch: int) -> Order:
        """Return the order that batches are sliced from: `order`, unless the sampler puts batches together itself.

        Args:
            seed: Any int.
            epoch: The epoch, from 0.
            global_batch: Positions a batch, over all ranks.
        """
        return self.order(seed=seed, epoch=epoch)

    @property
    def revision(self) -> int:
        """How often what the orders depend on was changed since the sampler was made; 0 for one that cannot change.

        A batch that was made ahead is dropped when this moves on.
        """
        return 0

    def fingerprint(self) -> str:
        """Return 32 hex digits that stand for everything the orders depend on but seed and epoch.

        Two samplers of ours with the same give the same orders, on any machine; one that is changed gets another.
        The first call reads all there is, a gigabyte a second; later ones return what was found, until `revision` or
        a length moves on.
        """
        state = (self.revision, len(self), self.num_indices)
        if self._fingerprinted is None or self._fingerprinted[0] != state:
            self._fingerprinted = state, fingerprint_of(type(self).__name__, *self._identity())
        return self._fingerprinted[1]

    def _identity(self) -> tuple[Any, ...]:
        """Return what the orders depend on but seed and epoch: plain values, arrays, and tuples of them.

        A subclass with other settings than its length returns those too.
        """
        return len(self), self.num_indices

    @abc.abstractmethod
    def __len__(self) -> int:
        """Return the number of positions in an epoch, over all ranks."""

    @property
    @abc.abstractmethod
    def num_indices(self) -> int:
        """The size of the dataset the sampler speaks of: its indices lie in ``range(num_indices)``."""

    @abc.abstractmethod
    def expected_visits(self) -> npt.NDArray[np.float64]:
        """Return how often each index appears in an epoch, in the mean over seeds.

        Returns:
            float64 array, shape ``(num_indices,)``; the sum is ``len(self)``.
        """

    @property
    def num_samples(self) -> int:  # type: ignore[override] # a writeable attribute in torch
        """The number of positions in an epoch, over all ranks."""
        return len(self)

    def set_epoch(self, epoch: int) -> None:
        """Name the epoch that comes next.

        Raises:
            TypeError: If ``epoch`` is not an int.
            ValueError: If ``epoch`` is negative.
        """
        self.epoch = checked_int("epoch", epoch, minimum=0)
        self.epochs_named += 1

    def __iter__(self) -> Iterator[int]:
        """Yield the whole order of `epoch`, for use outside of our loader.

        Raises:
            RuntimeError: If several ranks are running: only our loader, with a seed, gives each its part.
        """
        if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
            raise RuntimeError(
                f"{type(self).__name__} is iterated on world_size={distributed.get_world_size()} ranks, and every "
                "one would see every sample; use it in lit_loader.DataLoader with seed=, which gives each rank its part"
            )
        seed = self.seed
        if seed is None:
            seed = int(torch.empty((), dtype=torch.int64).random_().item())
        order = self.order(seed=seed, epoch=self.epoch)
        for start in range(0, len(order), _BLOCK):
            yield from order[start : start + _BLOCK].tolist()
