"""Tells stores of images the order in which a loader needs them, so that they can read ahead.

NOTE [The order of a rank]
    A stream has the samples of this rank, batch after batch, exactly as `lit_loader.engine.plan` slices them: from the
    position at which the epoch resumes, without a last batch that is dropped, with duplicates that fill it up. The next
    epoch follows, so that its first images are fetched while this one ends. If another epoch is begun, or a setting of
    the order has changed meanwhile, the stream begins again. The order is computed in the thread of the store's client,
    block after block. Images that are not in a stream are requested when they are read: partners of mixed samples,
    substitutes, and all images of loaders without a seed or with a sampler that is not an `OrderSampler`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from torch.utils.data import Subset

from lit_loader.engine import Batches, BatchSlicing, BatchTimeoutError, EndOfEpoch, KeyedSpec, WrappedBatches
from lit_loader.samplers.order import SliceableOrder, num_batches, rank_batch
from lit_loader.types import IndexArray

if TYPE_CHECKING:
    from lit_loader.storage.client import SlotStream
    from lit_loader.storage.images import ImageStore

__all__ = ["EpochStreams", "ReadAhead"]

# Neighbours in a shard share a request only if both are known to be needed; the order of so many takes milliseconds.
_FIRST_BLOCK: Final = 16_384
_MAX_BLOCK: Final = 65_536


class ReadAhead:
    """Streams of one loader to the stores of its data set; see NOTE [The order of a rank].

    Owns: the streams of an epoch that has ended, until the next one begins, or until `close`. An iterator owns the
        streams of its epoch.

    Args:
        dataset: Data set with a method ``stored_samples``, or a ``Subset`` of one.

    Attributes:
        dataset: The data set.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self._slots_by_store = _slots_by_store(dataset)
        self._idle: EpochStreams | None = None

    def begin(self, spec: KeyedSpec, slicing: BatchSlicing, epoch: int, start: int) -> EpochStreams | None:
        """Tell the stores the order of an epoch, and return its streams; None if no store reads ahead.

        Args:
            spec: The loader's settings.
            slicing: The sampler, and how batches are sliced from its order.
            epoch: The epoch, from 0.
            start: Position of the global order at which it resumes.

        Raises:
            ImportError: If a store needs obstore, and it is not installed.
            StorageError: If the fetch process of a store cannot start.
        """
        order = _RankOrder.of(spec, slicing)
        streams, self._idle = self._idle, None
        if streams is None or start or (streams.next_epoch, streams.order) != (epoch, order):
            if streams is not None:
                streams.close()
            num_prefetched = order.batch_size * spec.num_workers * (spec.prefetch_factor or 0)
            streams = EpochStreams(self._slots_by_store, order, num_prefetched)
            if not streams.streams:
                return None
            streams.begin(epoch, start)
        else:
            streams.extend()
        return streams

    def follow(self, batches: Batches, streams: EpochStreams) -> Batches:
        """Return the same batches, each reported to the streams when it is delivered."""
        return _ReportedBatches(batches, streams, self)

    def keep(self, streams: EpochStreams) -> None:
        """Keep the streams of an epoch that has ended for the next one."""
        self.close()
        self._idle = streams

    def close(self) -> None:
        """End the streams that no iterator uses."""
        streams, self._idle = self._idle, None
        if streams is not None:
            streams.close()


class _RankOrder(NamedTuple):
    """Everything that the order of a rank depends on, except for epoch and start."""

    sampler: Any
    batch_size: int
    drop_last: bool
    seed: int
    rank: int
    world_size: int
    revision: int
    num_positions: int

    @classmethod
    def of(cls, spec: KeyedSpec, slicing: BatchSlicing) -> _RankOrder:
        sampler = slicing.sampler
        seed = spec.seed if sampler.seed is None else sampler.seed
        batch_size = slicing.batch_size or 1
        settings = (sampler, batch_size, slicing.drop_last, seed, spec.rank, spec.world_size)
        return cls(*settings, sampler.revision, len(sampler))

    def num_batches(self, start: int) -> int:
        """Return the number of batches of an epoch from a position on."""
        return num_batches(
            self.num_positions - start, batch_size=self.batch_size, world_size=self.world_size, drop_last=self.drop_last
        )

    def num_samples(self, start: int) -> int:
        """Return the number of samples of an epoch from a position on."""
        count = self.num_batches(start)
        # The last batch may be smaller; its indices do not matter.
        positions = SliceableOrder(self.num_positions, np.arange)
        return 0 if not count else (count - 1) * self.batch_size + len(self._batch(positions, count - 1, start))

    def indices(self, epoch: int, start: int) -> Iterator[IndexArray]:
        """Yield the indices of an epoch from a position on, in blocks of growing length."""
        global_batch = self.batch_size * self.world_size
        order = self.sampler.batch_order(seed=self.seed, epoch=epoch, global_batch=global_batch)
        num_full = (len(order) - start) // global_batch
        first = 0
        block = max(1, _FIRST_BLOCK // self.batch_size)
        while first < num_full:
            end = min(first + block, num_full)
            indices = order[start + first * global_batch : start + end * global_batch]
            yield indices.reshape(-1, self.world_size, self.batch_size)[:, self.rank].reshape(-1)
            first = end
            # Long blocks are computed faster, but the first images must not wait for them.
            block = min(2 * block, max(1, _MAX_BLOCK // self.batch_size))
        if num_full < self.num_batches(start):
            yield self._batch(order, num_full, start)

    def _batch(self, order: Any, number: int, start: int) -> IndexArray:
        multiple = self.sampler.batch_multiple
        return rank_batch(
            order,
            number,
            batch_size=self.batch_size,
            rank=self.rank,
            world_size=self.world_size,
            drop_last=self.drop_last,
            start=start,
            multiple=multiple if self.batch_size % multiple == 0 else 1,
        ).indices


class EpochStreams:
    """One stream to each store that reads ahead, and the position of the consumer in them.

    Attributes:
        order: The order of the rank.
        streams: The streams.
        next_epoch: The epoch that follows in the streams.
    """

    def __init__(
        self, slots_by_store: list[tuple[ImageStore, npt.NDArray[np.int32]]], order: _RankOrder, num_prefetched: int
    ) -> None:
        self.order = order
        streams = [(store.open_stream(num_prefetched), slots) for store, slots in slots_by_store]
        self.streams: list[tuple[SlotStream, npt.NDArray[np.int32]]] = [
            (stream, slots) for stream, slots in streams if stream is not None
        ]
        self.next_epoch = 0
        self._num_before = 0
        self._num_samples = 0

    def begin(self, epoch: int, start: int) -> None:
        """Tell the stores an epoch from a position on, and the next epoch."""
        self.next_epoch = epoch + 1
        self._num_before = 0
        self._num_samples = self.order.num_samples(start)
        for stream, slots in self.streams:
            stream.begin(chain(_blocks(self.order, slots, epoch, start), _blocks(self.order, slots, epoch + 1, 0)))

    def extend(self) -> None:
        """Begin the next epoch, which the stores know already, and tell them the one after it."""
        self._num_before += self._num_samples
        self._num_samples = self.order.num_samples(0)
        self.next_epoch += 1
        for stream, slots in self.streams:
            stream.extend(_blocks(self.order, slots, self.next_epoch, 0))

    def report(self, num_batches: int) -> bool:
        """Report how many batches of the epoch were delivered; return True if they were all."""
        num_delivered = min(num_batches * self.order.batch_size, self._num_samples)
        for stream, _ in self.streams:
            stream.delivered(self._num_before + num_delivered)
        return num_delivered == self._num_samples

    def close(self) -> None:
        """End the streams."""
        for stream, _ in self.streams:
            stream.close()


class _ReportedBatches(WrappedBatches):
    """Reports each batch that was delivered to the stores."""

    def __init__(self, batches: Batches, streams: EpochStreams, read_ahead: ReadAhead) -> None:
        super().__init__(batches)
        self._streams: EpochStreams | None = streams
        self._read_ahead = read_ahead
        self._num_batches = 0

    def next_batch(self) -> Any:
        """Return the next batch, or raise its error."""
        try:
            batch = self._batches.next_batch()
        except (EndOfEpoch, BatchTimeoutError):
            raise
        except Exception:
            self._report()
            raise
        self._report()
        return batch

    def close(self) -> None:
        """Drop the epoch; its streams end, unless all batches were delivered."""
        streams, self._streams = self._streams, None
        if streams is not None:
            streams.close()
        super().close()

    def _report(self) -> None:
        self._num_batches += 1
        streams = self._streams
        if streams is not None and streams.report(self._num_batches):
            self._streams = None
            self._read_ahead.keep(streams)


def _blocks(order: _RankOrder, slots: npt.NDArray[np.int32], epoch: int, start: int) -> Iterator[npt.NDArray[np.int32]]:
    return (slots[indices] for indices in order.indices(epoch, start))


def _slots_by_store(dataset: Any) -> list[tuple[ImageStore, npt.NDArray[np.int32]]]:
    """Return each store with the slot of each sample's image there, int32 ``(len(dataset),)``, -1 for others."""
    subsets = []
    while isinstance(dataset, Subset):
        subsets.append(dataset)
        dataset = dataset.dataset
    # An array for each store: samples of one store need not be consecutive.
    slots_by_store: dict[int, tuple[ImageStore, npt.NDArray[np.int32]]] = {}
    for part in getattr(dataset, "stored_samples", list)():
        if id(part.store) not in slots_by_store:
            slots_by_store[id(part.store)] = part.store, np.full(len(dataset), -1, dtype=np.int32)
        slots = slots_by_store[id(part.store)][1]
        slots[part.first : part.first + len(part.slots)] = part.slots
    for subset in reversed(subsets):
        rows = np.asarray(subset.indices, dtype=np.int64)
        slots_by_store = {key: (store, slots[rows]) for key, (store, slots) in slots_by_store.items()}
    return list(slots_by_store.values())
