"""Orders, the base of all samplers, and the batches that ranks take from an order.

A sampler is a pure function of (seed, epoch) that returns an order: a sequence of the epoch's dataset indices that can
be sliced anywhere. A global batch is ``batch_size * world_size`` consecutive positions of an order; rank r takes the
r-th contiguous part of it. ``drop_last`` drops the last, partial global batch. Without ``drop_last`` it is a smaller
batch on one rank, as in torch; on several ranks it is filled up to the next multiple of ``world_size`` from the start
of the same order. So all ranks have equally many batches and samples. A rank with one batch less would leave the others
waiting in a collective forever.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import distributed
from torch.utils.data import DistributedSampler

from lit_loader.samplers.checks import checked_int
from lit_loader.schedules import EpochSchedule
from lit_loader.types import IndexArray, Order

# Positions turned into Python ints at a time by __iter__.
_BLOCK = 4096


class SliceableOrder:
    """An order whose slices are computed by a function; slices clamp as for a list.

    Args:
        length: Number of positions.
        positions: Takes ``0 <= start < stop <= length`` and returns the indices there, int64 ``(stop - start,)``. The
            result depends on the arguments alone, not on earlier calls.
    """

    def __init__(self, length: int, positions: Callable[[int, int], IndexArray]) -> None:
        self._length = length
        self._positions = positions

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, positions: slice, /) -> IndexArray:
        if not isinstance(positions, slice):
            raise TypeError(f"an order is read by slices, got order[{positions!r}]; use order[i : i + 1]")
        if positions.step not in (None, 1):
            raise ValueError(f"an order has no steps, got step={positions.step}; slice and take every k-th")
        # Clamps as for a list, so a function of positions never sees a position outside the order.
        start, stop, _ = positions.indices(self._length)
        return self._positions(start, stop) if start < stop else np.empty(0, dtype=np.int64)


def array_order(indices: IndexArray) -> IndexArray:
    """Return an array of indices as an order: the array itself, whose slices are views.

    Args:
        indices: int64 array, shape ``(length,)``. It is made read-only, so do not pass an array that you write to.
    """
    if indices.ndim != 1 or indices.dtype != np.int64:
        raise ValueError(f"`indices` must be int64 of shape (n,), got {indices.dtype} {indices.shape}")
    indices.flags.writeable = False
    return indices


class OrderSampler(DistributedSampler[int], abc.ABC):
    """Base of the samplers: `order` gives the indices of an epoch as a random-access sequence.

    It subclasses torch's ``DistributedSampler`` for one reason: on several ranks Lightning replaces any other sampler,
    and an `OrderSampler` must stay, because `lit_loader.DataLoader` shards the order itself. Torch's constructor is not
    called; ``num_replicas`` is 1 and ``rank`` is 0, so that iterating the sampler gives the whole order, and
    ``num_samples`` is ``len(self)``.

    Determinism: ``order`` depends on the seed, the epoch and the sampler's arguments alone: the same bits on any
    machine and numpy version. Neither iterating nor reading an order changes the sampler.

    Args:
        seed: Seed of `__iter__`, for use in torch's own loader, or None to draw one from torch's default generator each
            time, as torch's ``RandomSampler`` does. `lit_loader.DataLoader` passes this seed to `order`, or its own
            if this is None.

    Attributes:
        seed: As given.
        epoch: The epoch that `__iter__` yields, 0 until `set_epoch` is called.
        num_epochs_set: Number of calls of `set_epoch`, so that a loader notices a call with the same epoch.
    """

    seed: int | None  # type: ignore[assignment] # torch's is an int
    _cached_fingerprint: tuple[tuple[int, int, int], str] | None = None

    def __init__(self, *, seed: int | None = None) -> None:
        self.seed = None if seed is None else checked_int("seed", seed)
        self.epoch = 0
        self.num_epochs_set = 0
        # Attributes of torch's DistributedSampler.
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
        """Return the order that batches are sliced from: `order`, unless the sampler composes batches itself.

        Args:
            seed: Any int.
            epoch: The epoch, from 0.
            global_batch: Positions a batch, over all ranks.
        """
        return self.order(seed=seed, epoch=epoch)

    @property
    def revision(self) -> int:
        """Number of times that settings which affect orders were changed since construction.

        When it changes, a loader drops the batches that it has made ahead.
        """
        return 0

    @property
    def batch_multiple(self) -> int:
        """Length of the pattern that the order repeats, a divisor of ``len(self)``; 1 without a pattern.

        Batches whose size is a multiple of it have equal parts of every place in the pattern.
        """
        return 1

    def fingerprint(self) -> str:
        """Return 32 hex digits that identify all settings that orders depend on, without seed and epoch.

        Two samplers with the same fingerprint give the same orders, on any machine. The first call reads all settings,
        at a gigabyte a second; the result is cached until `revision` or a length changes.
        """
        # The length of a dataset may change between epochs without a new revision.
        state = (self.revision, len(self), self.num_indices)
        if self._cached_fingerprint is None or self._cached_fingerprint[0] != state:
            self._cached_fingerprint = (state, fingerprint_of(type(self).__name__, *self._identity()))
        return self._cached_fingerprint[1]

    def _identity(self) -> tuple[Any, ...]:
        """Return the settings that orders depend on, without seed and epoch: plain values and arrays of numbers.

        A subclass adds its settings.
        """
        return len(self), self.num_indices

    @abc.abstractmethod
    def __len__(self) -> int:
        """Return the number of positions in an epoch, over all ranks."""

    @property
    @abc.abstractmethod
    def num_indices(self) -> int:
        """Length of the dataset: the sampler's indices are in ``range(num_indices)``."""

    @property
    def schedules(self) -> tuple[EpochSchedule, ...]:
        """Schedules of the settings that change from epoch to epoch; empty if all epochs have the same settings."""
        return ()

    @abc.abstractmethod
    def expected_visits(self, epoch: int = 0) -> npt.NDArray[np.float64]:
        """Return how often each index appears in an epoch, in the mean over seeds.

        Args:
            epoch: The epoch, from 0. It matters only with `schedules`.

        Returns:
            float64 array, shape ``(num_indices,)``; the sum is ``len(self)``.
        """

    @property
    def num_samples(self) -> int:  # type: ignore[override] # a writeable attribute in torch
        """The number of positions in an epoch, over all ranks."""
        return len(self)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that comes next.

        Raises:
            TypeError: If ``epoch`` is not an int.
            ValueError: If ``epoch`` is negative.
        """
        # Counted, because set_epoch(3) twice means that epoch 3 is iterated twice.
        self.epoch = checked_int("epoch", epoch, minimum=0)
        self.num_epochs_set += 1

    def __iter__(self) -> Iterator[int]:
        """Yield the whole order of `epoch`, for use outside of `lit_loader.DataLoader`.

        Raises:
            RuntimeError: On several ranks: only `lit_loader.DataLoader` with a seed gives each rank its part.
        """
        if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
            raise RuntimeError(
                f"{type(self).__name__} is iterated on world_size={distributed.get_world_size()} ranks, so every rank "
                "would see every sample; use it in lit_loader.DataLoader with seed=, which gives each rank its part"
            )
        seed = self.seed
        if seed is None:
            # As torch's RandomSampler does, so that manual_seed() decides the order.
            seed = int(torch.empty((), dtype=torch.int64).random_().item())
        # In blocks: a list of all indices would take 36 bytes each, and the order of a shuffle may store nothing.
        order = self.order(seed=seed, epoch=self.epoch)
        for start in range(0, len(order), _BLOCK):
            yield from order[start : start + _BLOCK].tolist()


class SizedSampler(OrderSampler):
    """Base of the samplers with fixed lengths; a subclass sets ``_length`` and ``_num_indices``."""

    _length: int
    _num_indices: int

    def __len__(self) -> int:
        return self._length

    @property
    def num_indices(self) -> int:
        """Length of the dataset: the sampler's indices are in ``range(num_indices)``."""
        return self._num_indices


def epoch_visits(sampler: OrderSampler, epoch: int) -> npt.NDArray[np.float64]:
    """Return `OrderSampler.expected_visits` of an epoch.

    Raises:
        ValueError: They have no closed form.
    """
    # Without schedules all epochs are equal, and the method of a user's sampler need not take one.
    return sampler.expected_visits(epoch) if sampler.schedules else sampler.expected_visits()


# -- ranks -------------------------------------------------------------------------------------------------


class RankBatch(NamedTuple):
    """One rank's part of one global batch.

    Attributes:
        positions: Consecutive positions in the global order. A position p of ``num_positions`` or more is a duplicate
            of position ``p % num_positions``.
        indices: The dataset index of each position, int64.
    """

    positions: range
    indices: IndexArray


def num_batches(num_positions: int, *, batch_size: int, world_size: int, drop_last: bool) -> int:
    """Return the number of batches of each rank, equal on all ranks.

    Args:
        num_positions: Length of the order, over all ranks, not negative.
        batch_size: Samples a batch on each rank.
        world_size: Number of ranks.
        drop_last: True to drop the last, partial global batch.

    Raises:
        TypeError: If ``batch_size`` or ``world_size`` is not an int.
        ValueError: If one of them is not positive.
    """
    checked_int("batch_size", batch_size, minimum=1)
    global_batch = batch_size * checked_int("world_size", world_size, minimum=1)
    return (num_positions if drop_last else num_positions + global_batch - 1) // global_batch


def rank_batch(
    order: Order,
    batch: int,
    *,
    batch_size: int,
    rank: int,
    world_size: int,
    drop_last: bool,
    start: int = 0,
    multiple: int = 1,
) -> RankBatch:
    """Return one rank's batch; the time depends neither on the batch's number nor on the other ranks.

    Args:
        order: The epoch's order, over all ranks.
        batch: Number of the batch, from 0 at ``start``.
        batch_size: Samples a batch on each rank.
        rank: This rank, in ``range(world_size)``.
        world_size: Number of ranks.
        drop_last: True to drop the last, partial global batch.
        start: Position at which the first global batch begins; earlier positions are skipped.
        multiple: The sampler's ``batch_multiple``: the last, partial global batch is divided at multiples of it.

    Raises:
        IndexError: If ``batch`` is not a batch of this order.
        TypeError: If a size is not an int.
        ValueError: If an argument is out of range.
    """
    length = len(order)
    if not 0 <= start <= length:
        raise ValueError(f"start={start} must be in [0, {length}], where {length} is the length of the order")
    count = num_batches(length - start, batch_size=batch_size, world_size=world_size, drop_last=drop_last)
    if not 0 <= rank < world_size:
        raise ValueError(f"rank={rank} does not exist with world_size={world_size}; ranks count from 0")
    if not 0 <= batch < count:
        raise IndexError(f"batch={batch} does not exist, this order gives each rank {count} batches")
    first = start + batch * batch_size * world_size
    # The last global batch is divided equally among the ranks, without cutting through a pattern of the sampler.
    share = min(batch_size, -(-(length - first) // (world_size * multiple)) * multiple)
    positions = range(first + rank * share, first + (rank + 1) * share)
    # A user's order may not clamp its slices, so no slice goes beyond the end.
    indices = order[min(positions.start, length) : min(positions.stop, length)]
    # Fill up from the start of the order. With more ranks than positions this takes several rounds.
    while len(indices) < share:
        begin = (positions.start + len(indices)) % length
        indices = np.concatenate([indices, order[begin : min(begin + share - len(indices), length)]])
    return RankBatch(positions, indices)


# -- fingerprints ------------------------------------------------------------------------------------------


def fingerprint_of(*parts: Any) -> str:
    """Return 32 hex digits that depend on the parts, their order, number and types, and the shapes of arrays.

    An array is read in place, at a gigabyte a second; only an array that is not contiguous is copied.

    Args:
        parts: None, bool, int, float, str and numpy arrays of numbers.

    Raises:
        TypeError: If a part is anything else.
    """
    hasher = blake2b(digest_size=16)
    for part in parts:
        if isinstance(part, np.ndarray) and part.dtype.kind in "biuf":
            array = np.ascontiguousarray(part, dtype=part.dtype.newbyteorder("<"))
            # Little-endian on every machine. The text in front tells arrays of equal bytes and other shapes apart.
            hasher.update(f"{array.dtype.str}{array.shape}\0".encode())
            hasher.update(array.reshape(-1).data)
        elif isinstance(part, float):  # numpy's float64 too, with the same text
            hasher.update(f"{float(part).hex()}\0".encode())
        elif part is None or isinstance(part, bool | int | str):
            # The quotes tell a string from a number, and an escaped string has no zero byte.
            hasher.update(f"{part!a}\0".encode())
        else:
            raise TypeError(
                f"a fingerprint takes None, bool, int, float, str and arrays of numbers, got {type(part).__name__}; "
                "return such values from `_identity`"
            )
    return hasher.hexdigest()
