"""What a fetcher is asked for: one batch or a piece of one, by index, with the key of its randomness."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["BatchKey", "EndOfPass", "StreamPlace", "Task"]


class EndOfPass(Exception):
    """A pass has no more batches."""


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
        state: What the dataset's own ``state_dict()`` gave there, pickled; None: the samples are counted off.
    """

    samples: int
    batches: int
    ended: bool = False
    state: bytes | None = None


class Task(NamedTuple):
    """One batch to make, or a piece of one.

    Attributes:
        index: What the sampler gave: an index or a container of indices; for an iterable dataset None, or a
            container as long as the batch.
        key: The key of its randomness, if the loader is seeded.
        whole: Whether the samples are to be collated: False for a piece, whose batch is collated when all
            of its pieces are there.
        row: For a piece: which sample of the batch is its first.
        num_rows: For a piece: samples in the batch.
        number: Number of the batch in this rank's epoch.
        spares: For each sample, the indices that stand in for it if it is bad, in turn; None: none do.
        places: For an iterable dataset: where each worker begins, told with its first task; None: at the beginning.
    """

    index: Any
    key: BatchKey | None = None
    whole: bool = True
    row: int = 0
    num_rows: int = 0
    number: int = 0
    spares: list[list[int]] | None = None
    places: list[StreamPlace] | None = None

    def pieces(self, size: int) -> list[Task]:
        """Return the batch cut into pieces of ``size`` samples; itself if it is no larger."""
        if len(self.index) <= size:
            return [self]
        assert self.key is not None
        first, indices = self.key.first, list(self.index)  # a foreign sampler's may be a set
        return [
            self._replace(
                index=indices[n : n + size],
                key=self.key._replace(first=first + n),
                whole=False,
                row=n,
                num_rows=len(indices),
                spares=None if self.spares is None else self.spares[n : n + size],
            )
            for n in range(0, len(indices), size)
        ]
