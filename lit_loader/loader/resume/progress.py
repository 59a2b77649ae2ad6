"""The progress of a consumer in an epoch, and the point at which another iterator resumes it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

MAX_HELD: Final = 4
"""How many received batches a consumer may declare unused, so that a state gives them again."""


class ResumePoint(NamedTuple):
    """Position at which a loader resumes.

    Attributes:
        epoch: The epoch, from 0.
        position: How much of the epoch was received: positions of the global order, over all ranks, or without a global
            order the batches of each rank.
        last_set: The last argument of ``set_epoch`` before the epoch began, or None if it was not called.
        detail: The further data needed to resume there: a `SamplerPosition`, a `TorchPosition`, a `StreamPosition`, the
            revision of an `OrderSampler`, or None.
    """

    epoch: int
    position: int
    last_set: int | None = None
    detail: Any = None


@dataclass(eq=False)
class Progress:
    """Counts the batches that the consumer received of one epoch.

    A batch counts when it was returned. A batch that raised instead counts as soon as a later one is returned: a loop
    that continues after an error is resumed after that batch, and one that stops at it gets that batch again.

    Runs in: the consumer's thread; any thread or signal handler may call `reached`.

    Attributes:
        epoch: The epoch.
        last_set: See `ResumePoint`.
        start: Its first position, see `ResumePoint`; above 0 if the epoch is resumed.
        stride: Positions in a global batch.
        num_batches: How many batches follow from there, or None if that is only clear at the end.
        first: The detail at the beginning, and after every batch if none is noted; it may be set when the first batch
            is planned, if it is available only then.
        dataset_before: The state of an iterable dataset before the epoch, or None if it has none.
        ended: True after the last batch; set by the iterator.
        num_failed: Batches that raised since the last one that was returned; the iterator counts them.
        num_returned: Batches that were returned; those that raised do not count.
        num_received: Batches that were returned or raised, without those before the point at which the epoch was
            resumed, and without those that raised last.
    """

    epoch: int
    last_set: int | None
    start: int = field(default=0, kw_only=True)
    stride: int = field(default=1, kw_only=True)
    num_batches: int | None = field(default=None, kw_only=True)
    first: Any = field(default=None, kw_only=True)
    dataset_before: Any = field(default=None, kw_only=True)
    ended: bool = field(default=False, init=False)
    num_failed: int = field(default=0, init=False)
    num_returned: int = field(default=0, init=False)
    num_received: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._num_noted = 0
        self._notes: deque[tuple[int, Any]] = deque()

    def received(self) -> None:
        """Count a batch that was returned, and the batches directly before it that raised."""
        self.num_received += 1 + self.num_failed
        self.num_failed = 0
        self.num_returned += 1

    def reached(self, *, num_held: int = 0) -> tuple[int, Any, bool]:
        """Return the consumer's progress, without the last ``num_held`` batches that it received.

        Returns:
            The position and the detail of a `ResumePoint` of the next batch, and True if the epoch is complete.
        """
        has_ended = self.ended and not num_held
        num_received = self.num_received
        num_counted = max(0, num_received - num_held)
        # A copy, because another thread may note a batch meanwhile.
        notes = tuple(self._notes)
        details = [detail for number, detail in notes if has_ended or number <= num_counted]
        is_complete = has_ended or (not num_held and num_received == self.num_batches)
        return self.start + num_counted * self.stride, details[-1] if details else self.first, is_complete

    def note(self, detail: Any) -> None:
        """Note the detail of the next batch that has none, or of the end.

        Batches may be planned long before they are received.
        """
        self._num_noted += 1
        notes = self._notes
        notes.append((self._num_noted, detail))
        while len(notes) > 1 and notes[1][0] <= self.num_received - MAX_HELD:
            # No state can return to that batch any more.
            notes.popleft()
