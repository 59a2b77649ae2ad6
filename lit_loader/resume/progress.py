"""How far a consumer has come in a pass, and the point at which another pass goes on."""

from __future__ import annotations

from collections import deque
from typing import Any, Final, NamedTuple

__all__ = ["MOST_HELD", "Progress", "Reached", "ResumePoint"]

MOST_HELD: Final = 4
"""How many batches a consumer may have received and not yet used, and still have a state that gives them again."""


class ResumePoint(NamedTuple):
    """Where a stream goes on.

    Attributes:
        epoch: The epoch, from 0.
        position: What was received of it: positions of the global order, over all ranks; batches of each rank where
            there is no such order.
        named: The epoch that was named last (``set_epoch``) before it began; None: none was.
        detail: What else it takes to go on there: see `lit_loader.resume.foreign` and `lit_loader.resume.stream`.
    """

    epoch: int
    position: int
    named: int | None = None
    detail: Any = None


class Reached(NamedTuple):
    """How far a consumer has come in a pass.

    Attributes:
        position: Where the next batch begins, see `ResumePoint`.
        detail: What else it takes to go on there.
        complete: Whether there is none.
    """

    position: int
    detail: Any
    complete: bool


class Progress:
    """What the consumer received of one pass.

    A batch counts when it was returned. One that raised instead counts as soon as a later one is returned: whoever goes
    on after an error goes on after that batch, and whoever stops at it gets it again.

    Runs in: the consumer counts, the pass notes, and any thread or signal handler may ask how far it is.

    Args:
        epoch: The epoch of the pass.
        named: The epoch that was named last; None: none was.
        start: Its first position, see `ResumePoint`.
        stride: Positions a batch.
        num_batches: How many batches it has from there; None: not known before its end.
        first: The detail of its beginning, and of every batch where none is noted.

    Attributes:
        resumed: Whether it began in the middle of the epoch.
        end_detail: The detail of its end, or None if that is the last one noted.
    """

    def __init__(
        self,
        epoch: int,
        named: int | None,
        *,
        start: int = 0,
        stride: int = 1,
        num_batches: int | None = None,
        first: Any = None,
    ) -> None:
        self._first = first
        self.epoch, self.named, self.num_batches = epoch, named, num_batches
        self._start, self._stride = start, stride
        self._num_received = self._num_failed = self._num_returned = self._num_noted = 0
        self.resumed = start > 0
        self._ended = False
        self.end_detail: Any = None
        self._notes: deque[tuple[int, Any]] = deque()

    def received(self) -> None:
        """Count a batch that was returned, and those before it that were not."""
        self._num_received += 1 + self._num_failed
        self._num_failed = 0
        self._num_returned += 1

    def failed(self) -> None:
        """Count a batch that raised."""
        self._num_failed += 1

    def ended(self) -> None:
        """There are no more batches."""
        self._ended = True

    def begin(self, detail: Any) -> None:
        """Set the detail of the beginning, which may be known only when the first batch is planned."""
        self._first = detail

    @property
    def num_returned(self) -> int:
        """Batches of this pass that were returned; those that raised are not among them."""
        return self._num_returned

    @property
    def untouched(self) -> bool:
        """Whether no batch of this pass was returned or raised."""
        return self._num_received + self._num_failed == 0

    def reached(self, *, held: int = 0) -> Reached:
        """Return how far the consumer is, not counting the last ``held`` batches that it received."""
        ended, received = self._ended, self._num_received
        counted = max(0, received - held)
        known = [detail for number, detail in tuple(self._notes) if number <= counted]
        detail = known[-1] if known else self._first
        complete = not held and (ended or received == self.num_batches)
        if complete and self.end_detail is not None:
            detail = self.end_detail
        return Reached(self._start + counted * self._stride, detail, complete)

    def note(self, detail: Any) -> None:
        """Keep what it takes to go on after the next batch that was not noted yet; the pass may be ahead of us."""
        self._num_noted += 1
        notes = self._notes
        notes.append((self._num_noted, detail))
        while len(notes) > 1 and notes[1][0] <= self._num_received - MOST_HELD:
            notes.popleft()  # of a batch long received: not of the last ones, which a consumer may hold unused
