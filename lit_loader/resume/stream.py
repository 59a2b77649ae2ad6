"""A pass over an iterable dataset, as far as the consumer has come: where each worker is, and whose turn it is."""

from __future__ import annotations

import pickle
import warnings
from typing import Any, NamedTuple

from lit_loader.engine import BatchTimeoutError, DirectedRun, EndOfPass, InlineRun, Placed, StreamPlace
from lit_loader.errors import ResumeWarning
from lit_loader.resume.plain import is_plain
from lit_loader.resume.progress import Progress

__all__ = ["StreamDetail", "StreamRun", "stream_detail", "stream_fields"]


class StreamDetail(NamedTuple):
    """Where a stream goes on.

    Attributes:
        places: Where each worker is.
        turn: Whose batch comes next.
    """

    places: tuple[StreamPlace, ...]
    turn: int

    @classmethod
    def start(cls, num_workers: int) -> StreamDetail:
        """Return the beginning."""
        return cls((StreamPlace(0, 0),) * max(1, num_workers), 0)

    def next_epoch(self) -> StreamDetail:
        """Return the beginning of the next epoch, with what the workers' datasets are at the end of this one."""
        return StreamDetail(tuple(StreamPlace(0, 0, state=place.state) for place in self.places), 0)


def stream_fields(detail: StreamDetail) -> dict[str, Any]:
    """Return the fields of a state: ``workers``, ``states``, ``firsts`` and ``turn``."""
    states: list[Any] | None = [
        None if place.state is None else pickle.loads(place.state) for place in detail.places
    ]
    if not is_plain(states) or not any(place.state for place in detail.places):
        states = None  # the samples are counted off
    return {
        "workers": [[place.samples, place.batches, place.ended] for place in detail.places],
        "states": states,
        "firsts": None if states is None else [place.first for place in detail.places],
        "turn": detail.turn,
    }


def stream_detail(fields: dict[str, Any], *, with_state: bool) -> StreamDetail:
    """Return where a stream goes on by these fields, which were checked."""
    none = [None] * len(fields["workers"])
    states = fields["states"] if with_state and fields["states"] is not None else none
    firsts = fields["firsts"] if with_state and fields["firsts"] is not None else none
    places = tuple(
        StreamPlace(samples, batches, ended, None if state is None else pickle.dumps(state), first)
        for (samples, batches, ended), state, first in zip(fields["workers"], states, firsts, strict=True)
    )
    return StreamDetail(places, fields["turn"])


class StreamRun:
    """Delivers the batches of a stream and notes where each leaves its worker.

    Args:
        run: The pass, whose batches are `Placed`.
        progress: Where it is noted.
        detail: Where the pass began.
    """

    def __init__(self, run: InlineRun | DirectedRun, progress: Progress, detail: StreamDetail) -> None:
        self._run, self._progress, self._detail = run, progress, detail

    def next_batch(self) -> Any:
        """Return the next batch or raise EndOfPass."""
        try:
            placed = self._run.next_batch()
        except (EndOfPass, StopIteration):  # the second of the dataset itself, without workers
            for end in self._run.ends():
                self._take(end)
            self._progress.end_detail = self._detail
            raise EndOfPass from None
        except BatchTimeoutError:
            raise
        except Exception:
            self._progress.note(self._detail)  # a batch that raised counts too
            raise
        if type(placed) is not Placed:
            raise TypeError(f"a batch of a stream came as {type(placed).__name__}, without its place")
        self._take(placed)
        self._progress.note(self._detail)
        return placed.batch

    def _take(self, placed: Placed) -> None:
        if placed.notice is not None:
            warnings.warn(
                f"the iterable dataset of worker {placed.worker} could not go on from its state, and its samples were "
                f"counted off: {placed.notice}",
                ResumeWarning,
                stacklevel=5,
            )
        places = list(self._detail.places)
        places[placed.worker] = placed.place
        self._detail = StreamDetail(tuple(places), (placed.worker + 1) % len(places))

    @property
    def workers(self) -> list[Any]:
        """The worker processes or threads."""
        return self._run.workers

    def poll(self) -> bool:
        """Whether `next_batch` would return or raise at once."""
        return self._run.poll()

    def close(self) -> None:
        """Drop the pass."""
        self._run.close()
