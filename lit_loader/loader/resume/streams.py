"""Positions in an iterable dataset: one for each worker, and the number of the worker whose batch comes next."""

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
    """Position of a consumer in an epoch of an iterable dataset.

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
            # Then the samples before are made again and dropped.
            state = None
        workers.append([samples, batches, ended, state, None if state is None else first])
    return {"workers": workers, "turn": detail.turn}


def stream_position(fields: dict[str, Any], *, with_state: bool) -> StreamPosition:
    """Return the position in these fields, which were checked; without the datasets' states if not ``with_state``."""
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
        persistent_workers: True if workers keep their copies of the dataset.

    Returns:
        The state, and True if the next epoch is sure to be the same as in a run that was not stopped.
    """
    place_states = [place_state for _, _, _, place_state, _ in state["workers"]]
    dataset_states = [None if place_state is None else place_state[0] for place_state in place_states]
    next_state = {
        **state,
        "epoch": state["epoch"] + 1,
        "position": 0,
        "workers": [[0, 0, False, None, None] for _ in place_states],
        "turn": 0,
    }
    if state["num_workers"] == 0:
        if dataset_states[0] is not None:
            next_state["dataset_state"] = dataset_states[0]
    elif persistent_workers:
        next_state["workers"] = [[0, 0, False, place_state, None] for place_state in place_states]
        return next_state, all(dataset_state is None for dataset_state in dataset_states)
    return next_state, True


class StreamBatches(WrappedBatches):
    """The batches of an iterable dataset; the workers' positions after each batch are noted.

    Args:
        batches: The engine's, which give a `StreamBatch` each.
        progress: Receives a `StreamPosition` for each batch.
        position: Where the epoch begins.
    """

    def __init__(self, batches: Scheduler | InlineBatches, progress: Progress, position: StreamPosition) -> None:
        super().__init__(batches)
        self._stream_batches = batches
        self._progress = progress
        self._position = position

    def next_batch(self) -> Any:
        """Return the next batch or raise EndOfEpoch."""
        try:
            stream_batch: StreamBatch = self._stream_batches.next_batch()
        except EndOfEpoch:
            for end in self._stream_batches.stream_ends():
                self._advance(end)
            self._progress.note(self._position)
            raise
        except BatchTimeoutError:
            # The same batch may still come, so it does not count yet.
            raise
        except Exception:
            # A batch that raised counts as well: a loop may continue after the error.
            self._progress.note(self._position)
            raise
        self._advance(stream_batch)
        self._progress.note(self._position)
        return stream_batch.batch

    def _advance(self, stream_batch: StreamBatch) -> None:
        worker = stream_batch.worker
        if stream_batch.notice is not None:
            warnings.warn(
                f"the iterable dataset of worker {worker} could not resume from its state, and its first samples were "
                f"made again and dropped: {stream_batch.notice}",
                ResumeWarning,
                stacklevel=6,
            )
        # A new tuple each time: the positions noted for earlier batches must not change.
        places = list(self._position.places)
        places[worker] = stream_batch.place
        self._position = StreamPosition(tuple(places), (worker + 1) % len(places))
