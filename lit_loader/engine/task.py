"""What a fetcher is asked for: one batch, by index, with the key of its randomness."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["BatchKey", "BatchTimeoutError", "EndOfPass", "StreamPlace", "Task"]


class EndOfPass(Exception):
    """A pass has no more batches."""


class BatchTimeoutError(RuntimeError):
    """No batch came for ``timeout`` seconds; the same batch may still come.

    The iterator raises it to the user as a RuntimeError, as torch does.
    """


class BatchKey(NamedTuple):
    """Names a batch for the generators; None in a `Task` leaves the generators alone.

    Attributes:
        seed: The loader's seed.
        epoch: The epoch, from 0.
        batch: Number of the batch in the epoch, over all ranks.
        first: Position of its first sample in the global order; the others follow it.
        rank: This process's number; keys an iterable dataset, whose samples have no global order.
        num_positions: Positions in the global order, of which those behind are duplicates; None: not known.
    """

    seed: int
    epoch: int
    batch: int = 0
    first: int = 0
    rank: int = 0
    num_positions: int | None = None


class StreamPlace(NamedTuple):
    """Where a worker is in its stream of an iterable dataset.

    Attributes:
        samples: How many it took.
        batches: How many batches it made of them.
        ended: Whether it found the end of its stream.
        state: What the dataset's and its iterator's ``state_dict()`` gave there, as a pickled pair of plain values, or
            None if the samples are counted off.
        first: The digest of that pair after the epoch's first sample, or None if there is none.
    """

    samples: int
    batches: int
    ended: bool = False
    state: bytes | None = None
    first: str | None = None


class Task(NamedTuple):
    """One batch to make.

    Attributes:
        index: What the sampler gave: an index or a container of indices; for an iterable dataset None, or a
            container as long as the batch.
        key: The key of its randomness, if the loader is seeded.
        number: Number of the batch in this rank's epoch.
        spares: For each sample, the indices that stand in for it if it is bad, in turn; None: none do.
        places: For an iterable dataset: where each worker begins, told with its first task; None: at the beginning.
    """

    index: Any
    key: BatchKey | None = None
    number: int = 0
    spares: list[list[int]] | None = None
    places: list[StreamPlace] | None = None
