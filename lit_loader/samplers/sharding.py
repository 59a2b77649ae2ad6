"""Sharding: which positions of an order make a rank's batch. Pure functions, no process group.

A global batch is ``batch_size * world_size`` consecutive positions; rank r takes the r-th contiguous part
of it. What is left at the end, fewer positions than a global batch, is dropped with ``drop_last``; on one
rank it is a smaller batch, as in torch; on several it is filled up to the next multiple of ``world_size``
from the start of the same order, so that every rank has as many batches and as many samples as any other
(a rank with one batch less would leave the others waiting in a collective for ever).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lit_loader.samplers.checks import checked_flag, checked_int
from lit_loader.types import IndexArray, Order

__all__ = ["RankBatch", "num_batches", "rank_batch"]


@dataclass(frozen=True, kw_only=True, eq=False)
class RankBatch:
    """One rank's part of one global batch.

    Attributes:
        positions: Consecutive positions in the global order; those of ``num_positions`` and more are
            duplicates, of position ``p % num_positions``.
        indices: The dataset indices there, int64, as many as positions.
        num_duplicates: How many of the positions, the last ones, are duplicates.
    """

    positions: range
    indices: IndexArray
    num_duplicates: int


def num_batches(num_positions: int, *, batch_size: int, world_size: int, drop_last: bool) -> int:
    """Return how many batches each rank gets, the same for all.

    Args:
        num_positions: Length of the order, over all ranks.
        batch_size: Samples a batch on each rank.
        world_size: Number of ranks.
        drop_last: Whether a partial global batch is left out.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If ``num_positions`` is negative or another count is not positive.
    """
    checked_int("num_positions", num_positions, minimum=0)
    global_batch = _global_batch(batch_size, world_size)
    if checked_flag("drop_last", drop_last):
        return num_positions // global_batch
    return -(-num_positions // global_batch)


def rank_batch(
    order: Order,
    batch: int,
    *,
    batch_size: int,
    rank: int,
    world_size: int,
    drop_last: bool,
    start: int = 0,
) -> RankBatch:
    """Return one rank's batch, in time that depends neither on the batch's number nor on the other ranks.

    Args:
        order: The epoch's order, over all ranks.
        batch: Number of the batch, from 0 at ``start``.
        batch_size: Samples a batch on each rank.
        rank: This rank, in ``range(world_size)``.
        world_size: Number of ranks.
        drop_last: Whether a partial global batch is left out.
        start: The position at which the first global batch begins; those before it are gone.

    Raises:
        IndexError: If there is no such batch.
        TypeError: If an argument is of the wrong type.
        ValueError: If an argument is out of range.
    """
    length = len(order)
    if not 0 <= checked_int("start", start) <= length:
        raise ValueError(f"start={start} lies outside of the order's {length} positions")
    count = num_batches(length - start, batch_size=batch_size, world_size=world_size, drop_last=drop_last)
    if checked_int("rank", rank, minimum=0) >= world_size:
        raise ValueError(f"rank={rank} does not exist with world_size={world_size}; ranks count from 0")
    if not 0 <= checked_int("batch", batch) < count:
        raise IndexError(f"batch={batch} does not exist, this order gives each rank {count} batches")
    first = start + batch * batch_size * world_size
    share = min(batch_size, -(-(length - first) // world_size))
    positions = range(first + rank * share, first + (rank + 1) * share)
    real = order[min(positions.start, length) : min(positions.stop, length)]
    num_duplicates = share - len(real)
    if num_duplicates == 0:
        return RankBatch(positions=positions, indices=real, num_duplicates=0)
    pieces = [real]
    position, missing = max(positions.start, length), num_duplicates
    while missing:  # several times round where there are more ranks than positions
        begin = position % length
        piece = order[begin : begin + missing]
        pieces.append(piece)
        position, missing = position + len(piece), missing - len(piece)
    return RankBatch(positions=positions, indices=np.concatenate(pieces), num_duplicates=num_duplicates)


def _global_batch(batch_size: int, world_size: int) -> int:
    return checked_int("batch_size", batch_size, minimum=1) * checked_int("world_size", world_size, minimum=1)
