"""A pass over an iterable dataset that says with each batch where its worker is, and can begin there.

NOTE [Where a stream is]
    A worker is at a sample count. To come back to it, the dataset's own ``load_state_dict`` is called with what its
    ``state_dict`` gave in that worker, if it has them; if not, the samples before are made again and dropped, each
    with its own key, so that what a dataset keeps (a shuffle buffer, say) comes out the same. Between epochs nothing
    of the dataset's is saved: the next epoch begins with the dataset as it was made, so one that counts its epochs
    itself, without workers or in persistent ones, is told the epoch by whoever resumes.
"""

from __future__ import annotations

import pickle
from typing import Any, NamedTuple

from lit_loader.engine.fetch import IterableFetcher
from lit_loader.engine.task import BatchKey, StreamPlace, Task

__all__ = ["Placed", "TrackedStream", "is_stateful"]


def is_stateful(dataset: Any) -> bool:
    """Whether an object has a state of its own that can be saved and loaded."""
    return callable(getattr(dataset, "state_dict", None)) and callable(
        getattr(dataset, "load_state_dict", None)
    )


class Placed(NamedTuple):
    """A batch of a stream, with where its worker is after it.

    Attributes:
        batch: The batch.
        worker: Who made it.
        place: Where that worker is.
    """

    batch: Any
    worker: int
    place: StreamPlace


class TrackedStream(IterableFetcher):
    """Fetches from one pass over an iterable dataset, and returns `Placed` batches: see NOTE [Where a stream is].

    Args:
        with_state: Whether the dataset's own state goes with each batch; its object must be this worker's alone.
        settings: As for `IterableFetcher`.
    """

    def __init__(self, dataset: Any, *, with_state: bool, worker: int, **settings: Any) -> None:
        super().__init__(dataset, worker=worker, **settings)
        self._number, self._with_state = worker, with_state

    def samples(self, task: Task) -> Any:
        """Return the next samples; the first ones stand where the task's worker is to begin."""
        if self._samples is None and task.places is not None:
            self._begin_at(task.places[self._number], task.key)
        return super().samples(task)

    def _begin_at(self, place: StreamPlace, key: BatchKey | None) -> None:
        if place.ended:
            self._ended = True
        elif place.state is not None:
            self._dataset.load_state_dict(pickle.loads(place.state))
            self.start(key)
            self._count = place.samples
        else:
            self.start(key)
            try:
                for _ in range(place.samples):
                    self._next_sample()
            except StopIteration:
                self._ended = True
        self._num_batches = place.batches

    def collate(self, samples: Any, key: BatchKey | None) -> Placed:
        """Return the batch of these samples and where the worker is after it."""
        batch = super().collate(samples, key)
        return Placed(
            batch, self._number, StreamPlace(self._count, self._num_batches, self._ended, self._state())
        )

    def _state(self) -> bytes | None:
        """Return the dataset's own state; None if it has none that can be had: then samples are counted."""
        if not self._with_state:
            return None
        try:
            return pickle.dumps(self._dataset.state_dict())
        except Exception:  # a pass must not end because nobody could go on with it
            self._with_state = False
            return None
