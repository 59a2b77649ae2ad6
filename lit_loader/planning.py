"""Plans: the tasks of one epoch, in order, cut from an order of ours or taken from a foreign sampler."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from lit_loader.engine import BatchKey, Task
from lit_loader.samplers import num_batches, rank_batch
from lit_loader.types import Order

__all__ = ["plan_foreign", "plan_keyed_foreign", "plan_order", "plan_stream"]


def plan_order(
    order: Order,
    *,
    seed: int,
    epoch: int,
    batch_size: int | None,
    drop_last: bool,
    rank: int,
    world_size: int,
) -> Iterator[Task]:
    """Yield this rank's batches of an order; ``batch_size=None``: its samples one by one."""
    size = batch_size or 1
    total = num_batches(len(order), batch_size=size, world_size=world_size, drop_last=drop_last)
    for number in range(total):
        batch = rank_batch(
            order, number, batch_size=size, rank=rank, world_size=world_size, drop_last=drop_last
        )
        key = BatchKey(seed=seed, epoch=epoch, batch=number * world_size + rank, first=batch.positions.start)
        yield Task(index=batch.indices if batch_size else int(batch.indices[0]), key=key)


def plan_foreign(indices: Iterable[Any]) -> Iterator[Task]:
    """Yield what a sampler gives, as torch would."""
    for index in indices:
        yield Task(index=index)


def plan_keyed_foreign(
    indices: Iterable[Any], *, batched: bool, seed: int, epoch: int, rank: int, world_size: int
) -> Iterator[Task]:
    """Yield what a foreign sampler gives, with keys.

    Its place in a global order is not known, so positions are counted as they come, and the ranks count
    in blocks far apart.
    """
    first = rank << 48
    for number, index in enumerate(indices):
        if batched and not hasattr(index, "__len__"):
            index = list(index)
        key = BatchKey(seed=seed, epoch=epoch, batch=number * world_size + rank, first=first)
        yield Task(index=index, key=key)
        first += len(index) if batched else 1


def plan_stream(indices: Iterable[Any], *, seed: int, epoch: int, rank: int) -> Iterator[Task]:
    """Yield requests to an iterable dataset; its own end is the end."""
    key = BatchKey(seed=seed, epoch=epoch, rank=rank)
    for index in indices:
        yield Task(index=index, key=key)
