"""A pass over an iterable dataset that says with each batch where its worker is, and can begin there.

NOTE [Where a stream is]
    A worker is at a sample count. To come back to it the states of the dataset and of its iterator are loaded, in the
    order of torchdata's ``StatefulDataLoader``: the dataset's, then ``iter(dataset)``, then the iterator's. If the
    dataset's state is another one then (its ``__iter__`` resets it, or counts the epoch), it is loaded once more. If
    neither has a state, the samples before are made again and dropped, each with its own key, so that what a dataset
    keeps (a shuffle buffer, say) is the same again.

NOTE [A dataset that begins anew]
    A dataset whose generator ``__iter__`` resets it undoes ``load_state_dict`` at its first sample, and would begin at
    0 silently. So the digests of the state before and after an epoch's first sample go with every place. If the first
    sample of a resumed pass leaves the state that an epoch's first sample left, the dataset began anew, unless the
    loaded state is that of an epoch's beginning (in a stream that repeats itself). Its samples are then counted off as
    if it had no state, with a warning. Not noticed: a dataset that begins anew and is in another state then than at the
    beginning of the epoch.

NOTE [Between epochs]
    A dataset may count its epochs. What a worker's copy of it is at the end of an epoch comes with the end, and is
    loaded before ``iter(dataset)`` when the next epoch is begun by new workers in the place of persistent ones. A
    dataset may also be left at its end, and find that out when it is iterated: an epoch that was loaded at its
    beginning and is empty is iterated once more.
"""

from __future__ import annotations

import pickle
from hashlib import blake2b
from typing import Any, NamedTuple

from torch import Tensor

from lit_loader.engine.failures import stop_iteration_as_error
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
        notice: What the consumer is to be warned of, or None.
    """

    batch: Any
    worker: int
    place: StreamPlace
    notice: str | None = None


class TrackedStream(IterableFetcher):
    """Fetches from one pass over an iterable dataset, and returns `Placed` batches: see NOTE [Where a stream is].

    Args:
        with_state: Whether states of the dataset and its iterator go with each batch; both must be this worker's alone.
        settings: As for `IterableFetcher`.
    """

    def __init__(self, dataset: Any, *, with_state: bool, worker: int, **settings: Any) -> None:
        super().__init__(dataset, worker=worker, **settings)
        self._number, self._with_state = worker, with_state
        self._beginning: StreamPlace | None = None  # where a resumed pass begins
        self._first: str | None = None  # the digests of NOTE [A dataset that begins anew]
        self._loaded: StreamPlace | None = None  # what was loaded, until the next sample shows that it was
        self._notice: str | None = None
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
                    raise stop_iteration_as_error(error, what) from error
                raise
        return super().samples(task)

    def _begin_at(self, place: StreamPlace, key: BatchKey | None) -> None:
        self._num_batches, self._first, self._key = place.batches, place.first, key
        try:
            has_state = self._load(place, key)
        except Exception as error:
            if key is not None:
                raise
            self._notice = (
                f"load_state_dict raised {type(error).__name__}: {error}"  # torch's loader would go on
            )
            has_state = False
            self.start(key)
        if place.ended:
            self._ended, self._count = True, place.samples
        elif has_state:
            self._count, self._loaded = place.samples, place
        else:
            self._drop(place.samples)

    def _load(self, place: StreamPlace, key: BatchKey | None) -> bool:
        """Begin the pass with the states of a place; return whether it is there."""
        dataset_state, iterator_state = (None, None) if place.state is None else pickle.loads(place.state)
        has_state = dataset_state is not None and is_stateful(self._dataset)
        if has_state:
            self._dataset.load_state_dict(dataset_state)
        if place.ended and not has_state:
            return True
        self.start(key)
        samples: Any = self._samples
        if (
            place.ended
        ):  # a dataset that was left at its end may find that out when it is iterated, not before
            next(samples, None)
            self._load_if_changed(dataset_state)
            return True
        if place.samples == 0:
            return False
        iterator_has_state = iterator_state is not None and is_stateful(samples)
        if iterator_has_state:
            samples.load_state_dict(iterator_state)
        holds_place = iterator_has_state or samples is self._dataset
        if has_state and holds_place:
            self._load_if_changed(dataset_state)
        return has_state or iterator_has_state

    def _load_if_changed(self, dataset_state: Any) -> None:
        if _values(self._dataset.state_dict()) != _values(dataset_state):
            self._dataset.load_state_dict(dataset_state)

    def _drop(self, num_samples: int) -> None:
        try:
            for _ in range(num_samples):
                super()._next_sample()
        except StopIteration:
            self._ended = True
            self._notice = f"it gave fewer than the {num_samples} samples that were taken from it before"

    def _next_sample(self) -> Any:
        before = self._digest() if self._count == 0 else None
        try:
            sample = super()._next_sample()
        except StopIteration:
            if self._count or self._beginning is None or self._beginning.samples:
                raise
            self._beginning = None
            self.start(self._key)  # see NOTE [Between epochs]
            sample = super()._next_sample()
        if self._loaded is not None:
            place, self._loaded = self._loaded, None
            if self._began_anew(place):
                self._notice = (
                    "its __iter__ resets what its load_state_dict loaded; have it go on from the loaded state, or give "
                    "the iterator a state_dict and a load_state_dict"
                )
                self._count = 0
                self.start(self._key)
                self._drop(place.samples)
                if self._ended:
                    raise StopIteration
                sample = super()._next_sample()
        elif self._count == 1 and before is not None:
            self._first = f"{before} {self._digest()}"
        return sample

    def _began_anew(self, place: StreamPlace) -> bool:
        """Whether a dataset that was loaded at a place has just given its first sample: see the NOTE."""
        if place.first is None or place.state is None:
            return False
        before, _, after = place.first.partition(" ")
        at_beginning = before != after and _digest_of(pickle.loads(place.state)) == before
        return self._digest() == after and not at_beginning

    def collate(self, samples: Any, key: BatchKey | None) -> Placed:
        """Return the batch of these samples and where the worker is after it."""
        return self._placed(super().collate(samples, key))

    def end(self) -> Placed:
        """Return where the worker is at the end of its stream."""
        self._ended = True
        return self._placed(None)

    def _placed(self, batch: Any) -> Placed:
        place = StreamPlace(self._count, self._num_batches, self._ended, self._state(), self._first)
        notice, self._notice = self._notice, None
        return Placed(batch, self._number, place, notice)

    def _digest(self) -> str | None:
        states = self._states()
        return None if states is None else _digest_of(states)

    def _state(self) -> bytes | None:
        states = self._states()
        return None if states is None else pickle.dumps(states)

    def _states(self) -> list[Any] | None:
        """Return the states of the dataset and its iterator, or None if there are none: then samples are counted."""
        if not self._with_state:
            return None
        try:
            iterator: Any = None if self._samples is self._dataset else self._samples
            states = [
                thing.state_dict() if is_stateful(thing) else None for thing in (self._dataset, iterator)
            ]
            pickle.dumps(states)
        except Exception:  # a pass must not end because its state cannot be had
            self._with_state = False
            return None
        return None if all(state is None for state in states) else states


def _digest_of(states: Any) -> str:
    return blake2b(repr(_values(states)).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _values(state: Any) -> Any:
    """Return a state as values that are equal where states are, also after a way through JSON."""
    if isinstance(state, dict):
        return {str(key): _values(state[key]) for key in sorted(state, key=str)}
    if isinstance(state, (list, tuple)):
        return [_values(part) for part in state]
    return state.tolist() if isinstance(state, Tensor) else state
