"""Fetchers: from a task to a collated batch, the same code inline and in a worker.

Seeding stands here and nowhere else: before each sample, and before the collate function.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from torch.utils.data import IterableDataset, Subset

from lit_loader.engine.task import BatchKey, Task
from lit_loader.seeding import EpochKeys, seed_generators
from lit_loader.types import CollateFn

__all__ = ["Fetcher", "IterableFetcher", "MapFetcher", "make_fetcher", "unwrap_subset"]


class Fetcher(Protocol):
    """Makes batches."""

    def fetch(self, task: Task) -> Any:
        """Return the batch; raises StopIteration when an iterable dataset has ended."""


def make_fetcher(
    dataset: Any, *, batched: bool, collate_fn: CollateFn, drop_last: bool, worker: int = 0
) -> Fetcher:
    """Return the fetcher for a dataset.

    Args:
        dataset: A map or an iterable dataset.
        batched: Whether a task names several samples that are collated, or one that is converted.
        collate_fn: Called with the list of samples, or with the sample.
        drop_last: Whether an iterable dataset's last, short batch is dropped.
        worker: The worker's number, which keys an iterable dataset's samples.
    """
    if isinstance(dataset, IterableDataset):
        return IterableFetcher(
            dataset, batched=batched, collate_fn=collate_fn, drop_last=drop_last, worker=worker
        )
    return MapFetcher(dataset, batched=batched, collate_fn=collate_fn)


class MapFetcher:
    """Fetches from a dataset with ``__getitem__`` or ``__getitems__``."""

    def __init__(self, dataset: Any, *, batched: bool, collate_fn: CollateFn) -> None:
        self._dataset, self._batched, self._collate_fn = dataset, batched, collate_fn
        self._keys: EpochKeys | None = None

    def fetch(self, task: Task) -> Any:
        """Return the batch that the task names."""
        index = task.index
        if task.key is not None:
            return self._fetch_keyed(index, task.key)
        if not self._batched:
            return self._collate_fn(self._dataset[index])
        if getattr(self._dataset, "__getitems__", None):
            return self._collate_fn(self._dataset.__getitems__(index))
        return self._collate_fn([self._dataset[i] for i in index])

    def _fetch_keyed(self, index: Any, key: BatchKey) -> Any:
        keys = self._epoch_keys(key)
        dataset = self._dataset
        if not self._batched:
            dataset, (index,) = unwrap_subset(dataset, [index])
            seed_generators(keys.sample(key.first))
            sample = dataset[index]
            seed_generators(keys.batch(key.batch))
            return self._collate_fn(sample)
        dataset, index = unwrap_subset(dataset, index)
        samples: Any
        if getattr(dataset, "__getitems__", None):
            seed_generators(keys.sample(key.first))
            samples = dataset.__getitems__(index)
        else:
            samples = []
            for position, i in enumerate(index, start=key.first):
                seed_generators(keys.sample(position))
                samples.append(dataset[i])
        seed_generators(keys.batch(key.batch))
        return self._collate_fn(samples)

    def _epoch_keys(self, key: BatchKey) -> EpochKeys:
        if self._keys is None or (self._keys.seed, self._keys.epoch) != (key.seed, key.epoch):
            self._keys = EpochKeys(key.seed, key.epoch)
        return self._keys


def unwrap_subset(dataset: Any, index: Any) -> tuple[Any, Any]:
    """Return the dataset under torch's `Subset` and the indices into it.

    `Subset` has ``__getitems__``, which would give a batch of a split one key; its samples keep their own.
    A subclass may do more than look up, so only the class itself is unwrapped.
    """
    while type(dataset) is Subset:
        indices = dataset.indices
        index = [[indices[j] for j in i] if isinstance(i, list) else indices[i] for i in index]
        dataset = dataset.dataset
    return dataset, index


class IterableFetcher:
    """Fetches from one pass over an iterable dataset.

    Determinism: with a key, sample number n is seeded from (seed, epoch, rank, worker, n), and so are
        ``__iter__`` and the collate function.
    """

    def __init__(
        self, dataset: Any, *, batched: bool, collate_fn: CollateFn, drop_last: bool, worker: int
    ) -> None:
        self._dataset, self._batched, self._collate_fn = dataset, batched, collate_fn
        self._drop_last, self._worker = drop_last, worker
        self._samples: Iterator[Any] | None = None
        self._keys: EpochKeys | None = None
        self._count = self._num_batches = 0
        self._ended = False

    def start(self, key: BatchKey | None) -> None:
        """Begin the pass: ``iter(dataset)``."""
        if key is not None:
            self._keys = EpochKeys(key.seed, key.epoch)
            self._worker += key.rank << 32  # ranks' workers are told apart
            seed_generators(self._keys.stream_start(self._worker))
        self._samples = iter(self._dataset)

    def fetch(self, task: Task) -> Any:
        """Return the next batch, as long as ``task.index`` says."""
        if self._ended:
            raise StopIteration
        if self._samples is None:
            self.start(task.key)
        data: Any
        if self._batched:
            data = []
            for _ in task.index:
                try:
                    data.append(self._next_sample())
                except StopIteration:
                    self._ended = True
                    break
            if not data or (self._drop_last and len(data) < len(task.index)):
                raise StopIteration
        else:
            data = self._next_sample()
        if self._keys is not None:
            seed_generators(self._keys.stream_batch(self._worker, self._num_batches))
            self._num_batches += 1
        return self._collate_fn(data)

    def _next_sample(self) -> Any:
        if self._keys is not None:
            seed_generators(self._keys.stream(self._worker, self._count))
        assert self._samples is not None
        sample = next(self._samples)
        self._count += 1
        return sample
