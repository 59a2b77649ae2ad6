"""Fetchers: from a task to samples and from samples to a batch, the same code inline and in every worker.

Fetchers alone decide when generators are seeded: before each sample, and before the collate function. An argument
(`SeedFn`) decides whether the generators of the process or of the thread are seeded.

NOTE [StopIteration]
    Only ``next()`` of an iterable dataset's iterator may end an epoch. With a key, a StopIteration that other user code
    raises becomes an error: one rank would end its epoch early while the others wait for it. Without a key it ends the
    loop, as with torch's loader.

NOTE [Resumed streams]
    To continue in the middle of an iterable dataset, a worker loads the states of the dataset and of its iterator in
    the order of torchdata's ``StatefulDataLoader``: the dataset's, then ``iter(dataset)``, then the iterator's. Without
    a state, the worker makes the earlier samples again and drops them, each with its own key, so that the dataset's
    memory (a shuffle buffer, for example) is the same again.
"""

from __future__ import annotations

import pickle
import random
import time
import warnings
from collections.abc import Callable, Iterator
from functools import lru_cache
from hashlib import blake2b
from operator import length_hint
from typing import Any, NamedTuple, TypeAlias

from numpy import random as numpy_random
from torch import Tensor
from torch.utils.data import IterableDataset, Subset

from lit_loader.engine.bad_samples import (
    BadSample,
    PartialBatch,
    file_of,
    name_batch,
    name_sample,
    stop_iteration_as_error,
)
from lit_loader.engine.parts import Attempts, PartChoice, PartReader, SeedFn, task_parts
from lit_loader.engine.repeatability import MAX_SAMPLE_S, NUM_CHECKED, describe_difference, find_difference
from lit_loader.engine.spec import BatchKey, FetchSpec, StreamPlace, Task
from lit_loader.errors import PrivateGeneratorWarning
from lit_loader.foundation.stage_times import SAMPLING
from lit_loader.memory import batch_memory
from lit_loader.mixing import PartnerDataset
from lit_loader.seeding import EpochKeys, RngPurpose, seed_process
from lit_loader.seeding.generators import context

Move: TypeAlias = Callable[[Any], Any]
"""Takes a sample and returns an equal one in other memory, or the same object if there is nothing to move."""


def warn_of_dataset(text: str) -> None:
    """Warn of a dataset that draws from a generator of its own."""
    warnings.warn(text, PrivateGeneratorWarning, stacklevel=2)


def make_fetcher(
    spec: FetchSpec, worker: int = 0, *, seed: SeedFn = seed_process, warn: Callable[[str], None] = warn_of_dataset
) -> Fetcher:
    """Return the fetcher of a worker.

    Args:
        spec: How batches are made.
        worker: Number of the worker; with a seed it is part of the keys of an iterable dataset's samples.
        seed: Seeds the generators.
        warn: Warns of a dataset that draws from a generator of its own.
    """
    if isinstance(spec.dataset, IterableDataset):
        return IterableFetcher(spec, worker, seed=seed)
    fetcher_class = MapFetcher if spec.on_bad_sample == "raise" else SkippingFetcher
    return fetcher_class(spec, seed=seed, warn=warn)


class MapFetcher:
    """Fetch from a dataset with ``__getitem__`` or ``__getitems__``, or the parts of a `PartnerDataset`."""

    def __init__(self, spec: FetchSpec, *, seed: SeedFn, warn: Callable[[str], None]) -> None:
        self._dataset = spec.dataset
        self._batched = spec.batched
        self._collate_fn = spec.collate_fn
        self._seed = seed
        self._warn = warn
        self._checked_epoch = spec.checked_epoch
        # The task, samples and seconds of a batch that `collate` checks.
        self._unchecked: tuple[Task, Any, float] | None = None
        self._epoch_keys = lru_cache(maxsize=1)(EpochKeys)
        self._inner_dataset, _ = unwrap_subset(spec.dataset, [])
        self._reader: PartReader | None = None
        if isinstance(self._inner_dataset, PartnerDataset):
            self._reader = PartReader(self._inner_dataset, seed=seed)

    def samples(self, task: Task, *, move: Move | None = None) -> Any:
        """Return the samples of a task: a list, or one sample without batching.

        Args:
            task: The task.
            move: Moves each new sample to other memory, or None to move none.
        """
        # A batch that failed before it was collated may have left its samples here.
        self._unchecked = None
        if task.key is None:
            return self._make(task, move)
        # `collate` follows in the same thread, so the collate function has the same number.
        context.batch = task.number
        start = time.perf_counter()
        samples = _call_keyed(f"dataset {type(self._dataset).__name__}", self._make, task, move)
        self._check_later(task, samples, start)
        return samples

    def _check_later(self, task: Task, samples: Any, start: float) -> None:
        """Let `collate` check the samples: a dataset may overwrite them when it makes them again."""
        if task.key is not None and task.key.epoch == self._checked_epoch:
            self._unchecked = task, samples, time.perf_counter() - start

    def _check_repeatability(self, task: Task, samples: Any, seconds: float) -> None:
        """Make the epoch's first samples again and warn if one differs: see `lit_loader.engine.repeatability`."""
        key = task.key
        indices = list(task.index) if self._batched else [task.index]
        num_before = task.number * len(indices)
        if key is None or num_before >= NUM_CHECKED or seconds > MAX_SAMPLE_S * len(indices):
            return
        first_samples = list(samples) if self._batched else [samples]
        states = _shared_states()
        try:
            # Not in the slot of the batch, where it would occupy the place of another sample.
            with batch_memory.using(None):
                for row, sample in self._make_again(task, indices, key, NUM_CHECKED - num_before):
                    where = find_difference(first_samples[row], sample)
                    if where is not None:
                        break
                else:
                    return
        except Exception:
            # The epoch itself makes no sample twice and compares none, so this is not one of its errors.
            return
        self._checked_epoch = None  # warn only once
        # If another worker thread has drawn meanwhile, the samples differ for another reason.
        if states == _shared_states():
            self._warn(describe_difference(self._dataset, indices[row], where))

    def _make_again(self, task: Task, indices: list[Any], key: BatchKey, count: int) -> Iterator[tuple[int, Any]]:
        """Make the first samples of a task again from the same keys, and yield them with their rows."""
        dataset, _ = unwrap_subset(self._dataset, indices)
        # The whole batch has one key, so it is made again as a whole.
        if self._batched and self._reader is None and getattr(dataset, "__getitems__", None):
            yield from enumerate(self._make(task, None))
            return
        for row, index in enumerate(indices[:count]):
            sample_key = BatchKey(key.seed, key.epoch, key.batch, key.first + row, key.rank, key.num_positions)
            sample_partners = None if task.partners is None else task.partners[row : row + 1]
            sample_index = [index] if self._batched else index
            sample_task = Task(sample_index, sample_key, task.number, partners=sample_partners)
            sample = self._make(sample_task, None)
            yield row, sample[0] if self._batched else sample

    def collate(self, samples: Any, key: BatchKey | None) -> Any:
        """Return the batch of these samples."""
        if key is None:
            return self._collate_fn(samples)
        unchecked, self._unchecked = self._unchecked, None
        self._seed(self._keys(key), RngPurpose.BATCH, key.batch)
        batch = _call_keyed("collate_fn", self._collate_fn, samples)
        if unchecked is not None:
            with SAMPLING:
                self._check_repeatability(*unchecked)
        return batch

    def count(self, samples: Any, task: Task) -> int:
        """Return the number of samples in the result of `samples`."""
        return _count(samples, task) if self._batched else 1

    def _make(self, task: Task, move: Move | None) -> Any:
        if self._reader is not None:
            return self._make_mixed(self._reader, task, move)
        key = task.key
        keys = None if key is None else self._keys(key)
        loader_indices = task.index if self._batched else [task.index]
        try:
            dataset, indices = unwrap_subset(self._dataset, loader_indices)
            if self._batched and getattr(dataset, "__getitems__", None):
                if key is not None:
                    self._seed(keys, RngPurpose.SAMPLE, key.first)
                samples = dataset.__getitems__(indices)
                return list(map(move, samples)) if move is not None and type(samples) is list else samples
        except Exception as error:
            name_batch(error, loader_indices)
            raise
        samples = []
        index = None
        position = 0 if key is None else key.first
        # Looked up once: in Python 3.11 the member of an enum takes as long as a small sample.
        seed = self._seed
        purpose = RngPurpose.SAMPLE
        try:
            for index in indices:
                if keys is not None:
                    seed(keys, purpose, position)
                    position += 1
                sample = dataset[index]
                if move is not None:
                    moved = move(sample)
                    if moved is sample and not samples:
                        # The first sample has nothing to move, so the others hardly have: a look at each small sample
                        # took more time than the sample and its collation.
                        move = None
                    sample = moved
                samples.append(sample)
        except Exception as error:
            name_sample(error, dataset, index, loader_indices, len(samples))
            raise
        return samples if self._batched else samples[0]

    def _make_mixed(self, reader: PartReader, task: Task, move: Move | None) -> Any:
        """Return the samples of a `PartnerDataset`."""
        loader_indices = task.index if self._batched else [task.index]
        planned_parts = [task_parts(task, row, index) for row, index in enumerate(loader_indices)]
        try:
            parts_by_row = list(map(self._unwrapped, planned_parts))
        except Exception as error:
            name_batch(error, loader_indices)
            raise
        samples = []
        for row, parts in enumerate(parts_by_row):
            try:
                sample = self._make_sample(task.key, row, parts)
                samples.append(sample if move is None else move(sample))
            except Exception as error:
                self._name_part(error, planned_parts[row], parts, reader.find_bad_part(error))
                raise
        return samples if self._batched else samples[0]

    def _make_sample(self, key: BatchKey | None, row: int, parts: list[PartChoice]) -> Any:
        """Return the sample of one row, seeded; ``parts`` have indices of the dataset under a `Subset`."""
        keys = None if key is None else self._keys(key)
        position = row if key is None else key.first + row
        if self._reader is not None:
            return self._reader.sample(keys, position, parts)
        if keys is not None:
            self._seed(keys, RngPurpose.SAMPLE, position)
        return self._inner_dataset[parts[0].dataset_index]

    def _unwrapped(self, parts: list[PartChoice]) -> list[PartChoice]:
        """Return parts with indices of the dataset under a `Subset`."""
        if self._inner_dataset is self._dataset:
            return parts
        _, indices = unwrap_subset(self._dataset, [part.dataset_index for part in parts])
        return [PartChoice(index, part.object_row, part.mix) for part, index in zip(parts, indices, strict=True)]

    def _name_part(
        self, error: Exception, planned_parts: list[PartChoice], parts: list[PartChoice], number: int
    ) -> None:
        """Add the name of the part to its error."""
        name_sample(
            error,
            self._inner_dataset,
            parts[number].dataset_index,
            [part.dataset_index for part in planned_parts],
            number,
            partner_of=None if number == 0 else planned_parts[0].dataset_index,
        )

    def _keys(self, key: BatchKey) -> EpochKeys:
        return self._epoch_keys(key.seed, key.epoch, key.num_positions)


def _call_keyed(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call user code, which must not end a keyed epoch: see NOTE [StopIteration]."""
    try:
        return function(*arguments)
    except StopIteration as error:
        raise stop_iteration_as_error(error, name) from error


def _count(samples: Any, task: Task) -> int:
    # ``__getitems__`` may return anything, such as a dict of columns, or a tensor without dimensions.
    return len(samples) if type(samples) is list else length_hint(task.index, 1)


def unwrap_subset(dataset: Any, index: Any) -> tuple[Any, Any]:
    """Return the dataset under torch's `Subset` and the indices into it.

    `Subset` has ``__getitems__``, so without this a whole batch of a split would share one key. Subclasses are left as
    they are, because they may do more than map indices.
    """
    while type(dataset) is Subset:
        indices = dataset.indices
        index = [[indices[j] for j in i] if isinstance(i, list) else indices[i] for i in index]
        dataset = dataset.dataset
    return dataset, index


class SkippingFetcher(MapFetcher):
    """Fetch sample by sample, and skip or replace bad samples, for which ``dataset[index]`` raises an ``Exception``.

    If a task has ``spares``, the first of them that does not fail replaces a bad sample; otherwise the batch shrinks.
    Of a mixed sample, each partner is replaced alone, by its own spares. If any sample failed, the result is a
    `PartialBatch`. Errors of the collate function always reach the consumer, because no sample can be blamed for them.
    """

    def samples(self, task: Task, *, move: Move | None = None) -> Any:
        """Return the samples of a task: a list, or one sample without batching; see `MapFetcher`."""
        start = time.perf_counter()
        if task.key is not None:
            context.batch = task.number
        samples: list[Any] = []
        bad: list[BadSample] = []
        is_lost = False
        for row, index in enumerate(task.index if self._batched else [task.index]):
            attempts: Attempts | None = None
            planned_parts = task_parts(task, row, index)
            while planned_parts:
                parts = self._unwrapped(planned_parts)
                try:
                    sample = self._make_sample(task.key, row, parts)
                    samples.append(sample if move is None else move(sample))
                except Exception as error:
                    number = 0 if self._reader is None else self._reader.find_bad_part(error)
                    if isinstance(error, MemoryError):
                        # Not the sample's fault, so it is neither skipped nor replaced.
                        self._name_part(error, planned_parts, parts, number)
                        raise
                    # The traceback would keep the other samples alive.
                    error.__traceback__ = None
                    attempts = attempts or Attempts(task, row, index)
                    file = file_of(error, self._inner_dataset, parts[number].dataset_index)
                    attempts.add(error, planned_parts, number, file)
                    planned_parts = attempts.next_parts()
                else:
                    break
            else:
                is_lost = is_lost or task.spares is not None
            if attempts is not None:
                bad += attempts.records()
        contents: Any = samples if self._batched else next(iter(samples), None)
        if bad:
            return PartialBatch(contents, bad, is_lost)
        self._check_later(task, contents, start)
        return contents

    def collate(self, samples: Any, key: BatchKey | None) -> Any:
        """Return the batch of these samples with the records of bad ones; a lost batch if no sample is left."""
        if type(samples) is not PartialBatch:
            return super().collate(samples, key)
        contents, bad, is_lost = samples
        if is_lost or (self._batched and not contents):
            return PartialBatch(None, bad, is_lost=True)
        return PartialBatch(super().collate(contents, key), bad, is_lost=False)

    def count(self, samples: Any, task: Task) -> int:
        """Return the number of samples in the result of `samples`, without bad ones."""
        if type(samples) is not PartialBatch:
            return super().count(samples, task)
        return 0 if samples.is_lost else super().count(samples.contents, task)


def _shared_states() -> Any:
    """Return the states of the generators that worker threads share, or None in a process.

    If another thread draws from them between two samples, those differ, and `SharedDrawCheck` is there to warn.
    """
    if context.generator is None:
        return None
    return random.getstate(), str(numpy_random.get_state(legacy=False))


def is_stateful(candidate: Any) -> bool:
    """Return True if an object has a state that can be saved and loaded."""
    return callable(getattr(candidate, "state_dict", None)) and callable(getattr(candidate, "load_state_dict", None))


class StreamBatch(NamedTuple):
    """A batch of an iterable dataset, and its worker's position after it.

    Attributes:
        batch: The batch, or None at the end of the worker's stream.
        worker: Number of the worker.
        place: The worker's position.
        notice: Text of a warning for the consumer, or None.
    """

    batch: Any
    worker: int
    place: StreamPlace
    notice: str | None = None


class IterableFetcher:
    """Fetch from one epoch of an iterable dataset, and return `StreamBatch`: see NOTE [Resumed streams].

    Determinism: with a key, sample number n is seeded from (seed, epoch, rank, worker, n), and so are
        ``__iter__`` and the collate function.
    """

    def __init__(self, spec: FetchSpec, worker: int, *, seed: SeedFn) -> None:
        self._dataset = spec.dataset
        self._batched = spec.batched
        self._collate_fn = spec.collate_fn
        self._drop_last = spec.drop_last
        self._worker = worker
        self._seed = seed
        # With a key, the number over all ranks.
        self._stream = worker
        self._samples: Iterator[Any] | None = None
        self._key: BatchKey | None = None
        self._keys: EpochKeys | None = None
        self._count = 0  # samples taken from the stream
        self._num_batches = 0
        self._ended = False
        self._with_state = spec.stream_state
        # The place where a resumed epoch begins, until its first sample is made.
        self._beginning: StreamPlace | None = None
        # The digests of the states before and after the epoch's first sample, for `_starts_over`.
        self._first: str | None = None
        self._notice: str | None = None

    def start(self, key: BatchKey | None) -> None:
        """Begin the epoch: ``iter(dataset)``."""
        self._key = key
        if key is None:
            self._samples = iter(self._dataset)
            return
        self._keys = EpochKeys(key.seed, key.epoch)
        # An iterable dataset has no global order, so the rank is a part of the key.
        self._stream = self._worker + (key.rank << 32)
        self._seed(self._keys, RngPurpose.STREAM_START, self._stream)
        self._samples = _call_keyed(f"__iter__ of dataset {type(self._dataset).__name__}", iter, self._dataset)

    def samples(self, task: Task, *, move: Move | None = None) -> Any:
        """Return the next samples, as many as ``task.index`` has entries, or one sample without batching."""
        if task.key is not None:
            # The batches of a stream have no number that all ranks share. A sample of a map dataset, which has one, may
            # iterate this stream.
            context.batch = None
        if task.places is not None and self._samples is None:
            self._beginning = task.places[self._worker]
        if self._samples is None and not self._ended:
            self._begin(task.key)
        if self._ended:
            raise StopIteration
        if not self._batched:
            return self._next_sample()
        data: list[Any] = []
        for _ in task.index:
            try:
                sample = self._next_sample()
                data.append(sample if move is None else move(sample))
            except StopIteration:
                self._ended = True
                break
        if not data or (self._drop_last and len(data) < len(task.index)):
            raise StopIteration
        return data

    def collate(self, samples: Any, key: BatchKey | None) -> StreamBatch:
        """Return the batch of these samples, and the worker's position after it."""
        if self._keys is None:
            return self._with_place(self._collate_fn(samples))
        self._seed(self._keys, RngPurpose.STREAM_BATCH, self._stream, self._num_batches)
        self._num_batches += 1
        return self._with_place(_call_keyed("collate_fn", self._collate_fn, samples))

    def count(self, samples: Any, task: Task) -> int:
        """Return the number of samples in the result of `samples`."""
        return _count(samples, task) if self._batched else 1

    def end(self) -> StreamBatch:
        """Return the worker's position at the end of its stream."""
        self._ended = True
        return self._with_place(None)

    # -- the beginning of the stream ------------------------------------------------------------------------

    def _begin(self, key: BatchKey | None) -> None:
        """Begin the epoch, at the position in the first task."""
        if self._beginning is None:
            self.start(key)
            return
        name = f"load_state_dict of {type(self._dataset).__name__} or its iterator"
        try:
            _call_keyed(name, self._begin_at, self._beginning, key)
        except BaseException:
            # The next call must fail too, and not begin at 0.
            self._samples = None
            raise

    def _begin_at(self, place: StreamPlace, key: BatchKey | None) -> None:
        self._num_batches = place.batches
        self._first = place.first
        try:
            has_state = self._load(place, key)
        except Exception as error:
            if key is not None:
                raise
            # Without a key the loader continues wherever torch's would.
            self._notice = f"load_state_dict raised {type(error).__name__}: {error}"
            has_state = False
            self.start(key)
        if place.ended:
            self._ended = True
            self._count = place.samples
        elif has_state:
            self._count = place.samples
        elif place.samples:
            self._drop(place.samples)
            self._beginning = None

    def _load(self, place: StreamPlace, key: BatchKey | None) -> bool:
        """Begin the epoch with the states of a position; return False if samples must be dropped to reach it."""
        dataset_state, iterator_state = (None, None) if place.state is None else pickle.loads(place.state)
        has_state = dataset_state is not None and is_stateful(self._dataset)
        if has_state:
            self._dataset.load_state_dict(dataset_state)
        if place.ended and not has_state:
            return True
        self.start(key)
        samples: Any = self._samples
        if place.ended:
            # A dataset may count its epochs, so new workers need its state at the end of the last one. Some datasets
            # notice only in their iteration that they were saved at their end, and yield no sample then.
            next(samples, None)
            self._load_if_changed(dataset_state)
            return True
        if place.samples == 0:
            return False
        iterator_has_state = iterator_state is not None and is_stateful(samples)
        if iterator_has_state:
            samples.load_state_dict(iterator_state)
        holds_place = iterator_has_state or samples is self._dataset
        # ``__iter__`` may have reset the dataset, or counted the epoch, after its state was loaded.
        if has_state and holds_place:
            self._load_if_changed(dataset_state)
        return has_state or iterator_has_state

    def _load_if_changed(self, dataset_state: Any) -> None:
        if _values(self._dataset.state_dict()) != _values(dataset_state):
            self._dataset.load_state_dict(dataset_state)

    def _drop(self, num_samples: int) -> None:
        try:
            for _ in range(num_samples):
                self._make_sample()
        except StopIteration:
            self._ended = True
            self._notice = f"it yielded fewer than the {num_samples} samples that had been taken from it"

    def _next_sample(self) -> Any:
        place = self._beginning
        digest_before = _digest(self._states()) if self._count == 0 else None
        try:
            sample = self._make_sample()
        except StopIteration:
            if place is None or place.samples:
                raise
            # The dataset was saved at its end and has noticed that only now, so begin its next epoch.
            self.start(self._key)
            sample = self._make_sample()
        self._beginning = None
        if place is not None and self._starts_over(place):
            # Treat the dataset as one without a state.
            self._notice = (
                "its __iter__ resets what its load_state_dict loaded; let it continue from the loaded state, or give "
                "the iterator a state_dict and a load_state_dict"
            )
            self._count = 0
            self.start(self._key)
            self._drop(place.samples)
            if self._ended:
                raise StopIteration
            sample = self._make_sample()
        elif self._count == 1 and digest_before is not None:
            self._first = f"{digest_before} {_digest(self._states())}"
        return sample

    def _starts_over(self, place: StreamPlace) -> bool:
        """Return True if the dataset has just yielded the epoch's first sample again.

        If ``__iter__`` is a generator function that resets the dataset, the reset happens at the first sample, after
        ``load_state_dict``, and the dataset would silently begin at 0.
        """
        if place.first is None or place.state is None:
            return False
        digest_before, _, digest_after = place.first.partition(" ")
        changes_state = digest_before != digest_after
        # In a stream that repeats itself, the loaded state may be the one at the beginning of an epoch.
        at_beginning = changes_state and _digest(pickle.loads(place.state)) == digest_before
        return _digest(self._states()) == digest_after and not at_beginning

    def _make_sample(self) -> Any:
        if self._keys is not None:
            self._seed(self._keys, RngPurpose.STREAM, self._stream, self._count)
        assert self._samples is not None
        sample = next(self._samples)
        self._count += 1
        return sample

    # -- the state ------------------------------------------------------------------------------------------

    def _with_place(self, batch: Any) -> StreamBatch:
        states = self._states()
        state = None if states is None else pickle.dumps(states)
        place = StreamPlace(self._count, self._num_batches, self._ended, state, self._first)
        notice, self._notice = self._notice, None
        return StreamBatch(batch, self._worker, place, notice)

    def _states(self) -> list[Any] | None:
        """Return the states of the dataset and its iterator, or None if neither has one and samples are counted."""
        if not self._with_state:
            return None
        try:
            iterator = None if self._samples is self._dataset else self._samples
            owners: Any = (self._dataset, iterator)
            states = [owner.state_dict() if is_stateful(owner) else None for owner in owners]
            pickle.dumps(states)
        except Exception:
            # An epoch must not fail because a state cannot be saved.
            self._with_state = False
            return None
        return None if all(state is None for state in states) else states


Fetcher: TypeAlias = MapFetcher | IterableFetcher
"""Makes batches: ``samples(task)``, then ``collate(samples, key)``. StopIteration is the end of a stream."""


def _digest(states: Any) -> str | None:
    if states is None:
        return None
    return blake2b(repr(_values(states)).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _values(state: Any) -> Any:
    """Return a state as plain values, which are equal for equal states even if one of them was saved as JSON."""
    if isinstance(state, dict):
        return {str(key): _values(state[key]) for key in sorted(state, key=str)}
    if isinstance(state, (list, tuple)):
        return [_values(part) for part in state]
    return state.tolist() if isinstance(state, Tensor) else state
