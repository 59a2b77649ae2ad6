"""Plans: the tasks of one epoch, in order, cut from an order of ours or taken from a foreign sampler."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from torch.utils.data import BatchSampler

from lit_loader.engine import BatchKey, Task
from lit_loader.samplers import OrderSampler, num_batches, rank_batch
from lit_loader.types import Order

__all__ = [
    "Cut",
    "begin_seen_indices",
    "find_cut",
    "plan_foreign",
    "plan_keyed_foreign",
    "plan_order",
    "plan_stream",
]


class Cut(NamedTuple):
    """A sampler of ours and how its order is cut into batches; ``batch_size=None``: sample by sample."""

    sampler: OrderSampler
    batch_size: int | None
    drop_last: bool


def find_cut(sampler: Any, batch_sampler: Any) -> Cut | None:
    """Return how a loader's batches are slices of an order of ours; None if they are not."""
    if batch_sampler is None:
        return Cut(sampler, None, False) if isinstance(sampler, OrderSampler) else None
    batches = _unwrapped(batch_sampler)
    if type(batches) is BatchSampler and isinstance(batches.sampler, OrderSampler):
        return Cut(batches.sampler, batches.batch_size, batches.drop_last)
    return None


def _unwrapped(batch_sampler: Any) -> Any:
    """Look through the wrapper that Lightning puts around the batch sampler of a prediction."""
    return getattr(batch_sampler, "_batch_sampler", batch_sampler)


def begin_seen_indices(batch_sampler: Any) -> list[list[int]] | None:
    """Return the list in which Lightning's wrapper wants each batch's indices, emptied; None without one."""
    if _unwrapped(batch_sampler) is batch_sampler:
        return None
    seen: list[list[int]] = []
    batch_sampler.seen_batch_indices = seen
    return seen


def plan_order(
    order: Order,
    *,
    seed: int,
    epoch: int,
    batch_size: int | None,
    drop_last: bool,
    rank: int,
    world_size: int,
    seen: list[list[int]] | None = None,
) -> Iterator[Task]:
    """Yield this rank's batches of an order; ``batch_size=None``: its samples one by one.

    ``seen`` collects the indices of each batch, for whoever wants to know them.
    """
    size = batch_size or 1
    total = num_batches(len(order), batch_size=size, world_size=world_size, drop_last=drop_last)
    for number in range(total):
        batch = rank_batch(
            order, number, batch_size=size, rank=rank, world_size=world_size, drop_last=drop_last
        )
        key = BatchKey(seed=seed, epoch=epoch, batch=number * world_size + rank, first=batch.positions.start)
        indices = batch.indices.tolist()
        if seen is not None:
            seen.append(indices)
        yield Task(index=indices if batch_size else indices[0], key=key)


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
