"""A pass over an iterable dataset that says with each batch where its worker is, and can begin there.

NOTE [Where a stream is]
    A worker is at a sample count. To come back to it the states of the dataset and of its iterator are loaded, in the
    order of torchdata's ``StatefulDataLoader``: the dataset's, then ``iter(dataset)``, then the iterator's. Where the
    iterator has a state, the dataset itself perhaps, the dataset's is loaded once more after it: its ``__iter__`` may
    reset it or count the epoch. If neither has a state, the samples before are made again and dropped, each with its
    own key, so that what a dataset keeps (a shuffle buffer, say) is the same again.

NOTE [A dataset that begins anew]
    A dataset whose generator ``__iter__`` resets it undoes ``load_state_dict`` at its first sample, and would begin at
    0 without a word. So the digest of the state after the first sample of an epoch goes with every place. If the state
    after the first sample of a resumed pass has that digest, the dataset began anew: then its samples are counted off
    as if it had no state, and the consumer is told.

NOTE [Between epochs]
    A dataset may count its epochs. What a worker's copy of it is at the end of an epoch comes with the end, and is
    loaded before ``iter(dataset)`` when the next epoch is begun by new workers in the place of persistent ones.
"""

from __future__ import annotations

import pickle
from hashlib import blake2b
from typing import Any, NamedTuple

from lit_loader.engine.failures import no_end
from lit_loader.engine.fetch import IterableFetcher
from lit_loader.engine.task import BatchKey, StreamPlace, Task

__all__ = ["Placed", "TrackedStream", "is_stateful"]


def is_stateful(thing: Any) -> bool:
    """Whether an object has a state of its own that can be saved and loaded."""
    return callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None))


class Placed(NamedTuple):
    """A batch of a stream, with where its worker is after it.

    Attributes:
        batch: The batch, or None at the end of the worker's stream.
        worker: Who made it.
        place: Where that worker is.
        began_anew: Whether the dataset did not go on from a loaded state: see NOTE [A dataset that begins anew].
    """

    batch: Any
    worker: int
    place: StreamPlace
    began_anew: bool = False


class TrackedStream(IterableFetcher):
    """Fetches from one pass over an iterable dataset, and returns `Placed` batches: see NOTE [Where a stream is].

    Args:
        with_state: Whether states of the dataset and its iterator go with each batch; both must be this worker's alone.
        settings: As for `IterableFetcher`.
    """

    def __init__(self, dataset: Any, *, with_state: bool, worker: int, **settings: Any) -> None:
        super().__init__(dataset, worker=worker, **settings)
        self._number, self._with_state = worker, with_state
        self._beginning: StreamPlace | None = None  # where a pass that was told so begins
        self._first: str | None = None  # the digest of NOTE [A dataset that begins anew]
        self._loaded: StreamPlace | None = None  # what was loaded, until the next sample shows that it was
        self._began_anew = False
        self._key: BatchKey | None = None

    def samples(self, task: Task) -> Any:
        """Return the next samples; the first ones stand where the task's worker is to begin."""
        if task.places is not None:
            self._beginning = task.places[self._number]
        if self._samples is None and not self._ended and self._beginning is not None:
            try:
                self._begin_at(self._beginning, task.key)
            except BaseException as error:
                self._samples = None  # asked again it fails again: it must not begin at 0 instead
                if isinstance(error, StopIteration):  # see NOTE [StopIteration] in `lit_loader.engine.fetch`
                    what = f"load_state_dict of {type(self._dataset).__name__} or its iterator"
                    raise no_end(error, what) from error
                raise
        return super().samples(task)

    def _begin_at(self, place: StreamPlace, key: BatchKey | None) -> None:
        dataset_state, iterator_state = (None, None) if place.state is None else pickle.loads(place.state)
        has_state = dataset_state is not None and is_stateful(self._dataset)
        if has_state:
            self._dataset.load_state_dict(dataset_state)
        self._num_batches, self._first, self._key = place.batches, place.first, key
        if place.ended:
            self._ended, self._count = True, place.samples
            return
        self.start(key)
        if place.samples == 0:
            return
        samples: Any = self._samples
        iterator_has_state = iterator_state is not None and is_stateful(samples)
        if iterator_has_state:
            samples.load_state_dict(iterator_state)
        if has_state and (iterator_has_state or samples is self._dataset):
            self._dataset.load_state_dict(dataset_state)
        if has_state or iterator_has_state:
            self._count, self._loaded = place.samples, place
        else:
            self._drop(place.samples)

    def _drop(self, num_samples: int) -> None:
        try:
            for _ in range(num_samples):
                super()._next_sample()
        except StopIteration:
            self._ended = True

    def _next_sample(self) -> Any:
        sample = super()._next_sample()
        if self._loaded is not None:
            place, self._loaded = self._loaded, None
            if place.first is not None and self._digest() == place.first:
                self._began_anew, self._count = True, 0
                self.start(self._key)
                self._drop(place.samples)
                if self._ended:
                    raise StopIteration
                sample = super()._next_sample()
        elif self._count == 1:
            self._first = self._digest()
        return sample

    def collate(self, samples: Any, key: BatchKey | None) -> Placed:
        """Return the batch of these samples and where the worker is after it."""
        return self._placed(super().collate(samples, key))

    def end(self) -> Placed:
        """Return where the worker is at the end of its stream."""
        self._ended = True
        return self._placed(None)

    def _placed(self, batch: Any) -> Placed:
        place = StreamPlace(self._count, self._num_batches, self._ended, self._state(), self._first)
        began_anew, self._began_anew = self._began_anew, False
        return Placed(batch, self._number, place, began_anew)

    def _digest(self) -> str | None:
        state = self._state()
        return None if state is None else blake2b(state, digest_size=8).hexdigest()

    def _state(self) -> bytes | None:
        """Return the states of the dataset and its iterator, or None if there are none: then samples are counted."""
        if not self._with_state:
            return None
        try:
            iterator: Any = None if self._samples is self._dataset else self._samples
            states = [
                thing.state_dict() if is_stateful(thing) else None for thing in (self._dataset, iterator)
            ]
            return None if all(state is None for state in states) else pickle.dumps(states)
        except Exception:  # a pass must not end because its state cannot be had
            self._with_state = False
            return None
