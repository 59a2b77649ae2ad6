"""The progress of a consumer in an epoch, and the point at which another iterator resumes it."""

from __future__ import annotations

from collections import deque
from typing import Any, Final, NamedTuple

MAX_HELD: Final = 4
"""How many received batches a consumer may declare unused, so that a state gives them again."""


class ResumePoint(NamedTuple):
    """Where a loader resumes.

    Attributes:
        epoch: The epoch, from 0.
        position: How much was received of it: positions of the global order, over all ranks, or batches of each rank
            if there is no global order.
        last_set: The last argument of ``set_epoch`` before the epoch began, or None if it was not called.
        detail: What else is needed to resume there: a `SamplerPosition`, a `StreamPosition`, or None.
    """

    epoch: int
    position: int
    last_set: int | None = None
    detail: Any = None


class Progress:
    """Counts the batches that the consumer received of one epoch.

    A batch counts when it was returned. A batch that raised instead counts as soon as a later one is returned: a loop
    that continues after an error is resumed after that batch, and one that stops at it gets that batch again.

    Runs in: the consumer's thread; any thread or signal handler may call `reached`.

    Args:
        epoch: The epoch.
        last_set: See `ResumePoint`.
        start: Its first position, see `ResumePoint`.
        stride: Positions in a global batch.
        num_batches: How many batches follow from there, or None if that is only clear at the end.
        first: The detail of its beginning, and of every batch if none are noted.
        dataset_before: See below.

    Attributes:
        first: As given; it may be set when the first batch is planned, if it is available only then.
        num_failed: Batches that raised since the last one that was returned; the iterator counts them.
        ended: Whether there are no more batches; set by the iterator.
        num_returned: Batches that were returned; those that raised are not among them.
        resumed: Whether it began in the middle of the epoch.
        dataset_before: The state of an iterable dataset before the epoch, or None if it has none.
    """

    def __init__(
        self,
        epoch: int,
        last_set: int | None,
        *,
        start: int = 0,
        stride: int = 1,
        num_batches: int | None = None,
        first: Any = None,
        dataset_before: Any = None,
    ) -> None:
        self.epoch, self.last_set, self.num_batches = epoch, last_set, num_batches
        self.resumed, self.num_returned = start > 0, 0
        self.dataset_before = dataset_before
        self.first, self._start, self._stride = first, start, stride
        self.num_failed, self.ended = 0, False
        self._num_received = self._num_noted = 0
        self._notes: deque[tuple[int, Any]] = deque()

    def received(self) -> None:
        """Count a batch that was returned, and the batches directly before it that raised."""
        self._num_received += 1 + self.num_failed
        self.num_failed = 0
        self.num_returned += 1

    @property
    def num_received(self) -> int:
        """How many batches the consumer received, without those before the point at which the epoch was resumed."""
        return self._num_received

    def reached(self, *, held: int = 0) -> tuple[int, Any, bool]:
        """Return the consumer's progress, without the last ``held`` batches that it received.

        Returns:
            Where the next batch begins (see `ResumePoint`), what else is needed to resume there, and whether there is
            no next batch.
        """
        ended, received = self.ended and not held, self._num_received
        counted = max(0, received - held)
        noted = [detail for number, detail in tuple(self._notes) if ended or number <= counted]
        complete = ended or (not held and received == self.num_batches)
        return self._start + counted * self._stride, noted[-1] if noted else self.first, complete

    def note(self, detail: Any) -> None:
        """Note the detail of the next batch that has none, or of the end.

        Batches may be planned long before they are received.
        """
        self._num_noted += 1
        notes = self._notes
        notes.append((self._num_noted, detail))
        while len(notes) > 1 and notes[1][0] <= self._num_received - MAX_HELD:
            notes.popleft()  # of a batch that no state can go back to any more
