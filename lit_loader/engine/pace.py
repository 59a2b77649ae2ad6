"""How long samples take and whether they are waited for, and so how finely a batch is cut between workers."""

from __future__ import annotations

import math

__all__ = ["Pace"]

_PIECE_S = 0.005  # a piece of work this long makes its message's cost small
_PIECES_A_WORKER = 2  # more cost the consumer a wakeup each, and no gain could be measured
_READY_BATCHES = 4
_DECAY = 0.9


class Pace:
    """A running mean of the seconds that a sample takes, and how consumers fare, over all workers of a pool.

    What it decides never changes a batch's bits, only who makes which part of it.
    """

    def __init__(self) -> None:
        self._sample_s: float | None = None
        self._num_ready = 0

    def note(self, num_samples: int, seconds: float) -> None:
        """Take down that so many samples took so long."""
        if num_samples:
            mean = seconds / num_samples
            old = self._sample_s
            self._sample_s = mean if old is None else _DECAY * old + (1 - _DECAY) * mean

    def note_wait(self) -> None:
        """Take down that a consumer had to wait."""
        self._num_ready = 0

    def note_delivery(self) -> None:
        """Take down that a batch was delivered."""
        self._num_ready += 1

    @property
    def keeps_up(self) -> bool:
        """Whether the last few batches lay ready when they were asked for."""
        return self._num_ready > _READY_BATCHES

    def piece_size(self, batch_size: int, num_workers: int, *, share: bool | None) -> int:
        """Return how many samples a piece of a batch holds; ``batch_size`` leaves it whole.

        Args:
            batch_size: Samples in the batch.
            num_workers: Workers that might share it.
            share: True: it is shared in any case; False: it is not; None: if its pieces would take long
                enough, and as long as nothing is known, so that the first batch comes soon.
        """
        if share is False or num_workers == 1 or batch_size < 2:
            return batch_size
        fair = math.ceil(batch_size / num_workers)
        if share or self._sample_s is None:
            return fair
        worth = math.ceil(_PIECE_S / max(self._sample_s, 1e-9))
        if 2 * worth > batch_size:
            return batch_size
        return max(worth, math.ceil(batch_size / (_PIECES_A_WORKER * num_workers)))
