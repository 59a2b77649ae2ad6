"""Plans: the tasks of one epoch, in order, cut from an order of ours or taken from a foreign sampler."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch.utils.data import BatchSampler, IterableDataset

from lit_loader.engine import NUM_SPARES, BatchKey, OnBadSample, Task
from lit_loader.samplers import OrderSampler, num_batches, rank_batch
from lit_loader.seeding import hash_u64, key64
from lit_loader.transport import PageLock
from lit_loader.types import Order

__all__ = [
    "Cut",
    "Loader",
    "begin_seen_indices",
    "find_cut",
    "is_watched",
    "plan_foreign",
    "plan_keyed_foreign",
    "plan_order",
    "plan_seeded",
    "plan_stream",
    "seen_indices",
]


class Cut(NamedTuple):
    """A sampler of ours and how its order is cut into batches; ``batch_size=None``: sample by sample."""

    sampler: OrderSampler
    batch_size: int | None
    drop_last: bool


class Loader(Protocol):
    """A loader, as far as its passes look at it; the names are those of `lit_loader.DataLoader`."""

    dataset: Any
    num_workers: int
    collate_fn: Any
    drop_last: bool
    timeout: float
    worker_init_fn: Any
    worker_method: Literal["multiprocessing", "thread"]
    multiprocessing_context: Any
    generator: torch.Generator | None
    prefetch_factor: int | None
    persistent_workers: bool
    in_order: bool
    seed: int | None
    share_batches: bool | None
    max_worker_restarts: int | None
    hang_timeout_s: float | None
    on_bad_sample: OnBadSample
    max_bad_samples: int | None
    batch_sampler: Any

    def __len__(self) -> int:
        """Its number of batches."""

    @property
    def _page_lock(self) -> PageLock | None:
        """What page-locks the memory that batches come in."""

    @property
    def _passes(self) -> Any:
        """Its passes."""

    @property
    def _next_epoch(self) -> int:
        """The epoch that the next iterator claims."""

    @property
    def _cut(self) -> Cut | None:
        """How batches are sliced from an order of ours; None: an index sampler is iterated."""

    @property
    def _index_sampler(self) -> Any:
        """What gives the indices."""

    @property
    def _place(self) -> tuple[int, int]:
        """Rank and world size."""


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


def is_watched(batch_sampler: Any) -> bool:
    """Whether Lightning's wrapper wants to know each batch's indices, so that none may be planned early."""
    return _unwrapped(batch_sampler) is not batch_sampler


def seen_indices(batch_sampler: Any) -> list[list[Any]] | None:
    """Return the list in which Lightning's wrapper has each batch's indices; None without one."""
    return batch_sampler.seen_batch_indices if is_watched(batch_sampler) else None


def begin_seen_indices(batch_sampler: Any) -> list[list[int]] | None:
    """Return the list in which Lightning's wrapper wants each batch's indices, emptied; None without one."""
    if not is_watched(batch_sampler):
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
    with_spares: bool = False,
) -> Iterator[Task]:
    """Yield this rank's batches of an order; ``batch_size=None``: its samples one by one.

    ``seen`` collects the indices of each batch, for whoever wants to know them; ``with_spares``: each sample has some
    that may stand in for it.
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
        spares = _spares(order, batch.positions, seed=seed, epoch=epoch) if with_spares else None
        yield Task(index=indices if batch_size else indices[0], key=key, number=number, spares=spares)


def _spares(order: Order, positions: range, *, seed: int, epoch: int) -> list[list[int]]:
    """Return the indices that may stand in for the samples at these positions.

    They are what the order has at other positions, drawn uniformly from a hash of each sample's own position. So they
    come from the sampler's own population, as often as it gives them: never from images that it leaves out.
    """
    numbers = np.arange(positions.start * NUM_SPARES, positions.stop * NUM_SPARES, dtype=np.uint64)
    drawn = (hash_u64(key64(seed, "spares", epoch), numbers) % np.uint64(len(order))).tolist()
    indices = [int(order[position : position + 1][0]) for position in drawn]
    return [indices[n : n + NUM_SPARES] for n in range(0, len(indices), NUM_SPARES)]


def plan_foreign(indices: Iterable[Any]) -> Iterator[Task]:
    """Yield what a sampler gives, as torch would: one that raised may be asked again."""
    return map(_numbered, indices, count())


def _numbered(index: Any, number: int) -> Task:
    return Task(index, number=number)


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
        yield Task(index=index, key=key, number=number)
        first += len(index) if batched else 1


def plan_stream(indices: Iterable[Any], *, seed: int, epoch: int, rank: int) -> Iterator[Task]:
    """Yield requests to an iterable dataset; its own end is the end."""
    key = BatchKey(seed=seed, epoch=epoch, rank=rank)
    for index in indices:
        yield Task(index=index, key=key)


def plan_seeded(loader: Loader, epoch: int, cut: Cut | None) -> Iterator[Task]:
    """Return the tasks of an epoch of a loader that has a seed."""
    assert loader.seed is not None
    rank, world_size = loader._place
    place = {"seed": loader.seed, "epoch": epoch, "rank": rank, "world_size": world_size}
    if isinstance(loader.dataset, IterableDataset):
        return plan_stream(loader._index_sampler, seed=loader.seed, epoch=epoch, rank=rank)
    if cut is None:
        return plan_keyed_foreign(
            iter(loader._index_sampler), batched=loader.batch_sampler is not None, **place
        )
    order_seed = loader.seed if cut.sampler.seed is None else cut.sampler.seed
    return plan_order(
        cut.sampler.order(seed=order_seed, epoch=epoch),
        batch_size=cut.batch_size,
        drop_last=cut.drop_last,
        seen=begin_seen_indices(loader.batch_sampler),
        with_spares=loader.on_bad_sample == "substitute",
        **place,
    )
