"""Fetchers: from a task to samples and from samples to a batch, the same code inline and in every worker.

Where the generators are seeded is decided here and nowhere else: before each sample, and before the collate
function. How they are seeded is handed in (`Aim`): a process's own generators, or a thread's.

NOTE [StopIteration]
    Only ``next()`` of an iterable dataset's iterator may end an epoch. With a key, a StopIteration that the user's code
    raises elsewhere is an error, as one rank would end its epoch early and the others would wait for it. Without a key
    it ends the loop, as with torch's loader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeAlias

from torch.utils.data import IterableDataset, Subset

from lit_loader.engine.failures import name_batch, name_sample, name_sample_before, stop_iteration_as_error
from lit_loader.engine.task import BatchKey, Task
from lit_loader.seeding import EpochKeys, Moment, seed_process
from lit_loader.types import CollateFn

__all__ = [
    "Aim",
    "Fetcher",
    "IterableFetcher",
    "MapFetcher",
    "Placer",
    "keep",
    "make_fetcher",
    "unwrap_subset",
]


class Aim(Protocol):
    """Brings the generators to a moment."""

    def __call__(self, keys: EpochKeys, moment: Moment, a: int, b: int = 0, /) -> None:
        """Seed them, or see to it that they are seeded when they are first drawn from."""


Placer: TypeAlias = Callable[[Any], Any]


def keep(sample: Any) -> Any:
    """Return the sample as it is."""
    return sample


class Fetcher(Protocol):
    """Makes batches."""

    def samples(self, task: Task) -> Any:
        """Return what is to be collated; raises StopIteration when an iterable dataset has ended."""

    def collate(self, samples: Any, key: BatchKey | None) -> Any:
        """Return the batch."""


def make_fetcher(
    dataset: Any,
    *,
    batched: bool,
    collate_fn: CollateFn,
    drop_last: bool,
    worker: int = 0,
    aim: Aim = seed_process,
    place: Placer = keep,
) -> Fetcher:
    """Return the fetcher for a dataset.

    Args:
        dataset: A map or an iterable dataset.
        batched: Whether a task names several samples that are collated, or one that is converted.
        collate_fn: Called with the list of samples, or with the sample.
        drop_last: Whether an iterable dataset's last, short batch is dropped.
        worker: The worker's number, which keys an iterable dataset's samples.
        aim: Seeds the generators for a moment.
        place: Called with each sample as soon as it is made; what it returns is collated.
    """
    if isinstance(dataset, IterableDataset):
        return IterableFetcher(
            dataset,
            batched=batched,
            collate_fn=collate_fn,
            drop_last=drop_last,
            worker=worker,
            aim=aim,
            place=place,
        )
    return MapFetcher(dataset, batched=batched, collate_fn=collate_fn, aim=aim, place=place)


class MapFetcher:
    """Fetches from a dataset with ``__getitem__`` or ``__getitems__``."""

    def __init__(
        self,
        dataset: Any,
        *,
        batched: bool,
        collate_fn: CollateFn,
        aim: Aim = seed_process,
        place: Placer = keep,
    ) -> None:
        self._dataset, self._batched, self._collate_fn = dataset, batched, collate_fn
        self._aim, self._place = aim, place
        self._keys: EpochKeys | None = None

    def samples(self, task: Task) -> Any:
        """Return the samples that the task names: a list, or the one sample where nothing is batched."""
        index, key = task.index, task.key
        if key is not None:
            try:
                return self._keyed(index, key)
            except StopIteration as error:  # see NOTE [StopIteration]
                raise stop_iteration_as_error(error, f"dataset {type(self._dataset).__name__}") from error
        dataset, place = self._dataset, self._place
        if not self._batched:
            return _made(dataset, index, index)
        if getattr(dataset, "__getitems__", None):
            return _made_together(dataset, index, index)
        left = iter(index)
        try:
            if place is keep:
                return [dataset[i] for i in left]
            return [place(dataset[i]) for i in left]
        except Exception as error:
            name_sample_before(error, dataset, index, left)
            raise

    def collate(self, samples: Any, key: BatchKey | None) -> Any:
        """Return the batch of these samples."""
        if key is None:
            return self._collate_fn(samples)
        self._aim(self._epoch_keys(key), Moment.BATCH, key.batch)
        return _collated_with_key(self._collate_fn, samples)

    def _keyed(self, index: Any, key: BatchKey) -> Any:
        keys, aim = self._epoch_keys(key), self._aim
        if not self._batched:
            dataset, (inner,) = unwrap_subset(self._dataset, [index])
            aim(keys, Moment.SAMPLE, key.first)
            return _made(dataset, inner, index)
        dataset, inners = unwrap_subset(self._dataset, index)
        if getattr(dataset, "__getitems__", None):
            aim(keys, Moment.SAMPLE, key.first)
            return _made_together(dataset, inners, index)
        samples, moment, place = [], Moment.SAMPLE, self._place
        left = iter(inners)
        try:
            for position, i in enumerate(left, start=key.first):
                aim(keys, moment, position)
                samples.append(place(dataset[i]))
        except Exception as error:
            name_sample_before(error, dataset, inners, left, given=index)
            raise
        return samples

    def _epoch_keys(self, key: BatchKey) -> EpochKeys:
        keys = self._keys
        if (
            keys is None
            or keys.epoch != key.epoch
            or keys.seed != key.seed
            or keys.num_positions != key.num_positions
        ):
            keys = self._keys = EpochKeys(key.seed, key.epoch, key.num_positions)
        return keys


def _made(dataset: Any, index: Any, given: Any) -> Any:
    try:
        return dataset[index]
    except Exception as error:
        name_sample(error, dataset, index, given)
        raise


def _made_together(dataset: Any, indices: Any, given: Any) -> Any:
    try:
        return dataset.__getitems__(indices)
    except Exception as error:
        name_batch(error, given)
        raise


def _collated_with_key(collate_fn: CollateFn, samples: Any) -> Any:
    try:
        return collate_fn(samples)
    except StopIteration as error:  # see NOTE [StopIteration]
        raise stop_iteration_as_error(error, "collate_fn") from error


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
        self,
        dataset: Any,
        *,
        batched: bool,
        collate_fn: CollateFn,
        drop_last: bool,
        worker: int,
        aim: Aim = seed_process,
        place: Placer = keep,
    ) -> None:
        self._dataset, self._batched, self._collate_fn = dataset, batched, collate_fn
        self._drop_last, self._worker, self._aim, self._place = drop_last, worker, aim, place
        self._stream = worker  # with a key, the worker's number over all ranks
        self._samples: Iterator[Any] | None = None
        self._keys: EpochKeys | None = None
        self._count = self._num_batches = 0
        self._ended = False

    def start(self, key: BatchKey | None) -> None:
        """Begin the pass: ``iter(dataset)``."""
        if key is not None:
            self._keys = EpochKeys(key.seed, key.epoch)
            self._stream = self._worker + (key.rank << 32)
            self._aim(self._keys, Moment.STREAM_START, self._stream)
        try:
            self._samples = iter(self._dataset)
        except StopIteration as error:  # see NOTE [StopIteration]
            if key is None:
                raise
            raise stop_iteration_as_error(
                error, f"__iter__ of dataset {type(self._dataset).__name__}"
            ) from error

    def samples(self, task: Task) -> Any:
        """Return the next samples, as many as ``task.index`` is long; one where nothing is batched."""
        if self._ended:
            raise StopIteration
        if self._samples is None:
            self.start(task.key)
        if not self._batched:
            return self._next_sample()
        data: list[Any] = []
        for _ in task.index:
            try:
                data.append(self._place(self._next_sample()))
            except StopIteration:
                self._ended = True
                break
        if not data or (self._drop_last and len(data) < len(task.index)):
            raise StopIteration
        return data

    def end(self) -> Any:
        """Return where the stream is at its end: None, as it is not tracked."""
        return None

    def collate(self, samples: Any, key: BatchKey | None) -> Any:
        """Return the batch of these samples."""
        if self._keys is None:
            return self._collate_fn(samples)
        self._aim(self._keys, Moment.STREAM_BATCH, self._stream, self._num_batches)
        self._num_batches += 1
        return _collated_with_key(self._collate_fn, samples)

    def _next_sample(self) -> Any:
        if self._keys is not None:
            self._aim(self._keys, Moment.STREAM, self._stream, self._count)
        assert self._samples is not None
        sample = next(self._samples)
        self._count += 1
        return sample
