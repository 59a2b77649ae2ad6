"""Plans: the tasks of one epoch, in order, cut from an order of ours or taken from a foreign sampler."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain, count, islice
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch.utils.data import BatchSampler, IterableDataset

from lit_loader.engine import NUM_SPARES, BatchKey, OnBadSample, StreamPlace, Task
from lit_loader.global_batches import GlobalBatches, rank_part
from lit_loader.injection import unwrapped
from lit_loader.rank_agreement import Gather, check_equal_lengths, checked_alike
from lit_loader.resume import (
    Progress,
    ReplayedSampler,
    ResumePoint,
    find_stateful,
    foreign_indices,
    generators_of,
)
from lit_loader.samplers import OrderSampler, num_batches, rank_batch
from lit_loader.seeding import hash_u64, key64
from lit_loader.transport import PageLock
from lit_loader.types import Order

__all__ = [
    "Cut",
    "Loader",
    "begin_seen_indices",
    "find_cut",
    "index_sampler",
    "is_watched",
    "plan_global_batches",
    "plan_keyed_foreign",
    "plan_order",
    "plan_seeded",
    "plan_stream",
    "plan_unseeded",
    "sampler_generators",
    "seen_indices",
    "users_sampler",
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
    max_worker_restarts: int | None
    hang_timeout_s: float | None
    on_bad_sample: OnBadSample
    max_bad_samples: int | None
    batch_sampler: Any
    sampler: Any
    batch_size: int | None

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

    @property
    def _global_batches(self) -> GlobalBatches | None:
        """What a rank's part of a user's sampler is cut from; None: it is taken as it is."""

    @property
    def _gather(self) -> Gather | None:
        """What the ranks compare a user's sampler by; None: they need not, or have done so."""

    def _ranks_compared(self) -> None:
        """Note that they have."""


def find_cut(sampler: Any, batch_sampler: Any) -> Cut | None:
    """Return how a loader's batches are slices of an order of ours; None if they are not."""
    if batch_sampler is None:
        return Cut(sampler, None, False) if isinstance(sampler, OrderSampler) else None
    batches = unwrapped(batch_sampler)
    if type(batches) is BatchSampler and isinstance(batches.sampler, OrderSampler):
        return Cut(batches.sampler, batches.batch_size, batches.drop_last)
    return None


def is_watched(batch_sampler: Any) -> bool:
    """Whether Lightning's wrapper wants to know each batch's indices, so that none may be planned early."""
    return unwrapped(batch_sampler) is not batch_sampler


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
    start: int = 0,
    seen: list[list[int]] | None = None,
    with_spares: bool = False,
) -> Iterator[Task]:
    """Yield this rank's batches of an order from a position on; ``batch_size=None``: its samples one by one.

    ``seen`` collects the indices of each batch, for whoever wants to know them; ``with_spares``: each sample has some
    that may stand in for it.
    """
    size = batch_size or 1
    total = num_batches(len(order) - start, batch_size=size, world_size=world_size, drop_last=drop_last)
    before = -(-start // (size * world_size))
    if seen is not None:
        seen.extend([] for _ in range(before))
    for number in range(before, before + total):
        batch = rank_batch(
            order,
            number - before,
            batch_size=size,
            rank=rank,
            world_size=world_size,
            drop_last=drop_last,
            start=start,
        )
        key = BatchKey(
            seed=seed,
            epoch=epoch,
            batch=number * world_size + rank,
            first=batch.positions.start,
            num_positions=len(order),
        )
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


def plan_unseeded(
    loader: Loader, progress: Progress, point: ResumePoint | None
) -> tuple[ReplayedSampler, Iterator[Task]]:
    """Return what the sampler of a loader without a seed gives, and the tasks of it.

    As torch's loader does, a sampler that raised may be asked again.

    Args:
        loader: The loader.
        progress: Where it is noted how to go on.
        point: Where the epoch is gone on with, or None at its beginning.
    """
    indices = ReplayedSampler(
        loader._index_sampler,
        name=type(users_sampler(loader)).__name__,
        stateful=find_stateful(loader.batch_sampler, loader.sampler),
        own=sampler_generators(loader),
        progress=progress,
        point=point,
    )
    return indices, map(_numbered, indices, count(0 if point is None else point.position))


def sampler_generators(loader: Loader) -> list[torch.Generator]:
    """Return the torch generators of a loader's own that its sampler may draw from."""
    given = [unwrapped(loader.batch_sampler), loader.sampler]
    return generators_of(*given, *(getattr(sampler, "sampler", None) for sampler in given), loader)


def _numbered(index: Any, number: int) -> Task:
    return Task(index, number=number)


def plan_keyed_foreign(
    indices: Iterable[tuple[int, Any]],
    *,
    seed: int,
    epoch: int,
    rank: int,
    world_size: int,
    before: int = 0,
) -> Iterator[Task]:
    """Yield what a foreign sampler gives, see `foreign_indices`, with keys, ``before`` batches into the epoch.

    On several ranks it is one that gives each its own part: its place in a global order is not known, so positions are
    counted as they come, and the ranks count in blocks far apart.
    """
    for number, (samples_before, index) in enumerate(indices, start=before):
        first = (rank << 48) + samples_before
        key = BatchKey(seed=seed, epoch=epoch, batch=number * world_size + rank, first=first)
        yield Task(index=index, key=key, number=number)


def plan_global_batches(
    indices: Iterable[tuple[int, list[Any]]],
    batches: GlobalBatches,
    *,
    seed: int,
    epoch: int,
    rank: int,
    before: int = 0,
    seen: list[list[Any]] | None = None,
) -> Iterator[Task]:
    """Yield a rank's parts of the global batches of a user's sampler, ``before`` of them into the epoch.

    ``indices`` are the global batches as `foreign_indices` gives them, ``seen`` is that of `plan_order`.
    """
    if seen is not None:
        seen.extend([] for _ in range(before))
    for number, (samples_before, units) in enumerate(indices, start=before):
        part = rank_part(batches, units, rank=rank)
        key = BatchKey(
            seed=seed,
            epoch=epoch,
            batch=number * batches.world_size + rank,
            first=samples_before + part.samples_before,
            num_positions=None if part.num_samples is None else samples_before + part.num_samples,
        )
        if seen is not None:
            seen.append(part.index)
        yield Task(index=part.index, key=key, number=number)


def plan_stream(
    indices: Iterable[Any], *, key: BatchKey | None = None, places: tuple[StreamPlace, ...] | None = None
) -> Iterator[Task]:
    """Yield requests to an iterable dataset; its own end is the end. ``places``: where each worker begins."""
    num_told = 0 if places is None else len(places)
    for number, index in enumerate(indices):
        yield Task(index=index, key=key, places=list(places) if places and number < num_told else None)


def plan_seeded(
    loader: Loader,
    epoch: int,
    cut: Cut | None,
    progress: Progress | None = None,
    point: ResumePoint | None = None,
) -> Iterator[Task]:
    """Return the tasks of an epoch of a loader that has a seed.

    Args:
        loader: The loader.
        epoch: The epoch.
        cut: How it slices an order of ours, if it does.
        progress: Where it is noted how to go on, where positions do not tell.
        point: Where the epoch is gone on with; None: at its beginning.
    """
    assert loader.seed is not None
    rank, world_size = loader._place
    place = {"seed": loader.seed, "epoch": epoch, "rank": rank, "world_size": world_size}
    if isinstance(loader.dataset, IterableDataset):
        places = None if point is None else point.detail.places
        key = BatchKey(seed=loader.seed, epoch=epoch, rank=rank)
        return plan_stream(loader._index_sampler, key=key, places=places)
    if cut is None:
        return _plan_users_sampler(loader, progress or Progress(epoch, None), point, place)
    order_seed = loader.seed if cut.sampler.seed is None else cut.sampler.seed
    global_batch = (cut.batch_size or 1) * world_size
    return plan_order(
        cut.sampler.batch_order(seed=order_seed, epoch=epoch, global_batch=global_batch),
        batch_size=cut.batch_size,
        drop_last=cut.drop_last,
        start=0 if point is None else point.position,
        seen=begin_seen_indices(loader.batch_sampler),
        with_spares=loader.on_bad_sample == "substitute",
        **place,
    )


def users_sampler(loader: Loader) -> Any:
    """Return the sampler or batch sampler that a user gave: torch's loader wraps one and makes up the other."""
    return (
        loader.sampler
        if loader.batch_size is not None or loader.batch_sampler is None
        else loader.batch_sampler
    )


def index_sampler(loader: Loader) -> Any:
    """Return what gives the indices, in the batches of one rank or in global ones; its length is the loader's."""
    batches = loader._global_batches
    return loader._index_sampler if batches is None else batches


def _plan_users_sampler(
    loader: Loader, progress: Progress, point: ResumePoint | None, place: dict[str, int]
) -> Iterator[Task]:
    batches, before = loader._global_batches, 0 if point is None else point.position
    name = type(users_sampler(loader)).__name__
    stateful = find_stateful(loader.batch_sampler, loader.sampler)
    gather = loader._gather
    compared = None
    if gather is not None and batches is None:
        check_equal_lengths(name, progress.num_batches, gather)
    elif gather is not None:
        left = progress.num_batches
        compared = partial(
            checked_alike,
            name=name,
            num_batches=left if left is None or stateful is not None else before + left,  # one is asked anew
            whole=stateful is None,  # what has a state would be at the epoch's end
            gather=gather,
        )
    indices = foreign_indices(
        loader._index_sampler if batches is None else batches,
        name=name,
        stateful=stateful,
        batched=loader.batch_sampler is not None,
        seed=place["seed"],
        epoch=place["epoch"],
        progress=progress,
        point=point,
        digested=place["world_size"] == 1 or batches is not None,
        compared=compared,
    )
    if compared is not None:
        # All ranks come here in the first next() of a loader's first epoch, where the plan is made, whatever their
        # workers: so they meet in the collective, and it ends before a batch is asked for.
        indices = chain(list(islice(indices, 1)), indices)
    if gather is not None:
        loader._ranks_compared()
    if batches is None:
        return plan_keyed_foreign(indices, before=before, **place)
    return plan_global_batches(
        indices,
        batches,
        seed=place["seed"],
        epoch=place["epoch"],
        rank=place["rank"],
        before=before,
        seen=begin_seen_indices(loader.batch_sampler),
    )
