"""What a fetcher is asked for: one batch, by index, with the key of its randomness."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["BatchKey", "EndOfPass", "Task"]


class EndOfPass(Exception):
    """A pass has no more batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchKey:
    """Names a batch for the generators; None in a `Task` leaves the generators alone.

    Attributes:
        seed: The loader's seed.
        epoch: The epoch, from 0.
        batch: Number of the batch in the epoch, over all ranks.
        first: Position of its first sample in the global order; the others follow it.
        rank: This process's number; keys an iterable dataset, whose samples have no global order.
    """

    seed: int
    epoch: int
    batch: int = 0
    first: int = 0
    rank: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One batch to make.

    Attributes:
        index: What the sampler gave: an index or a container of indices; for an iterable dataset None, or a
            container as long as the batch.
        key: The key of its randomness, if the loader is seeded.
    """

    index: Any
    key: BatchKey | None = None
