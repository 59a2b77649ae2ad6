"""The position of a consumer in an iterable dataset: that of each worker, and which worker's batch comes next."""

from __future__ import annotations

import pickle
import warnings
from typing import Any, NamedTuple

from lit_loader.engine import (
    BatchTimeoutError,
    EndOfEpoch,
    InlineBatches,
    Scheduler,
    StreamBatch,
    StreamPlace,
    WrappedBatches,
)
from lit_loader.errors import ResumeWarning
from lit_loader.loader.resume.progress import Progress
from lit_loader.loader.resume.state_format import is_plain


class StreamPosition(NamedTuple):
    """Where an epoch of an iterable dataset resumes.

    Attributes:
        places: Each worker's position.
        turn: Number of the worker whose batch comes next.
    """

    places: tuple[StreamPlace, ...]
    turn: int

    @classmethod
    def start(cls, num_workers: int) -> StreamPosition:
        """Return the beginning."""
        return cls((StreamPlace(0, 0),) * max(1, num_workers), 0)

    def next_epoch(self) -> StreamPosition:
        """Return the beginning of the next epoch, with the states of the workers' datasets at the end of this one."""
        return StreamPosition(tuple(StreamPlace(0, 0, state=place.state) for place in self.places), 0)


def stream_fields(detail: StreamPosition) -> dict[str, Any]:
    """Return the fields of a state: ``workers`` and ``turn``."""
    workers = []
    for samples, batches, ended, pickled, first in detail.places:
        state = None if pickled is None else pickle.loads(pickled)
        if not is_plain(state):
            state = None  # then the samples before are made again and dropped
        workers.append([samples, batches, ended, state, None if state is None else first])
    return {"workers": workers, "turn": detail.turn}


def stream_position(fields: dict[str, Any], *, with_state: bool) -> StreamPosition:
    """Return the position in these fields, which were checked; without the datasets' states if so wished."""
    places = []
    for samples, batches, ended, state, first in fields["workers"]:
        has_state = with_state and state is not None
        pickled = pickle.dumps(state) if has_state else None
        places.append(StreamPlace(samples, batches, ended, pickled, first if has_state else None))
    return StreamPosition(tuple(places), fields["turn"])


def next_epoch_state(state: dict[str, Any], *, persistent_workers: bool) -> tuple[dict[str, Any], bool]:
    """Return a state that begins the next epoch where an epoch of an iterable dataset was broken off.

    A dataset without workers is iterated again as its last sample left it. Workers get new copies of it in each epoch.
    Persistent workers keep their copies, which are ahead of the batches that were received by a number that differs
    from run to run.

    Args:
        state: A state of an iterable dataset, which was checked.
        persistent_workers: Whether workers keep their copies of the dataset.

    Returns:
        The state, and whether the next epoch is sure to be the one of a run that was not stopped.
    """
    num_workers, places = state["num_workers"], state["workers"]
    beginning = [[0, 0, False, None, None] for _ in places]
    following = {**state, "epoch": state["epoch"] + 1, "position": 0, "workers": beginning, "turn": 0}
    dataset_states = [None if place[3] is None else place[3][0] for place in places]
    if num_workers == 0:
        following["dataset_state"] = (
            state["dataset_state"] if dataset_states[0] is None else dataset_states[0]
        )
    elif persistent_workers:
        following["workers"] = [[0, 0, False, place[3], None] for place in places]
        return following, all(dataset_state is None for dataset_state in dataset_states)
    return following, True


class StreamBatches(WrappedBatches):
    """The batches of an iterable dataset; the workers' positions after each batch are noted.

    Args:
        batches: Of the epoch, as `StreamBatch`.
        progress: Receives a `StreamPosition` for each batch.
        position: Where the epoch begins.
    """

    def __init__(
        self, batches: Scheduler | InlineBatches, progress: Progress, position: StreamPosition
    ) -> None:
        super().__init__(batches)
        self._made, self._progress, self._position = batches, progress, position

    def next_batch(self) -> Any:
        """Return the next batch or raise EndOfEpoch."""
        try:
            made: StreamBatch = self._made.next_batch()
        except EndOfEpoch:
            for end in self._made.stream_ends():
                self._take(end)
            self._progress.note(self._position)
            raise
        except BatchTimeoutError:
            raise
        except Exception:
            self._progress.note(self._position)  # a batch that raised counts too
            raise
        self._take(made)
        self._progress.note(self._position)
        return made.batch

    def _take(self, made: StreamBatch) -> None:
        if made.notice is not None:
            warnings.warn(
                f"the iterable dataset of worker {made.worker} could not go on from its state, and its samples were "
                f"counted off: {made.notice}",
                ResumeWarning,
                stacklevel=6,
            )
        places = list(self._position.places)
        places[made.worker] = made.place
        self._position = StreamPosition(tuple(places), (made.worker + 1) % len(places))
