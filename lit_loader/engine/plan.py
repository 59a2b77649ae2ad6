"""Plans: the tasks of one epoch, in order, sliced from an `OrderSampler`'s order or taken from another sampler.

The plan of an `OrderSampler` is a function of (spec, epoch, start) alone, so the next epoch may be planned at any time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import Any

import numpy as np

from lit_loader.engine.bad_samples import NUM_SPARES
from lit_loader.engine.spec import BatchKey, LoaderSpec, Seen, StreamPlace, Task
from lit_loader.samplers import rank_batch
from lit_loader.samplers.custom_ranks import rank_part
from lit_loader.seeding import hash_u64, key64
from lit_loader.types import Order


def plan_order(spec: LoaderSpec, epoch: int, *, start: int = 0, seen: Seen = None) -> Iterator[Task]:
    """Return this rank's tasks of an epoch of an `OrderSampler`, from a position of the global order on.

    The order is drawn now, from the sampler as it is now; batches are sliced when they are asked for.

    Args:
        spec: Of a loader with a seed.
        epoch: The epoch, from 0.
        start: The position.
        seen: Collects the indices of each batch, or None if they are not wanted.
    """
    slicing, seed, rank, world_size = spec.slicing, spec.seed, spec.rank, spec.world_size
    assert slicing is not None
    assert seed is not None
    sampler, size, drop_last = slicing.sampler, slicing.batch_size or 1, slicing.drop_last
    own_seed = seed if sampler.seed is None else sampler.seed
    order = sampler.batch_order(seed=own_seed, epoch=epoch, global_batch=size * world_size)
    total, before = spec.count_sliced(len(order) - start), -(-start // (size * world_size))
    cut = partial(rank_batch, order, batch_size=size, rank=rank, world_size=world_size, start=start)
    with_spares = spec.fetch.on_bad_sample == "substitute"
    if seen is not None:
        seen.extend([] for _ in range(before))  # Lightning finds a batch's indices by its number

    def make(number: int) -> Task:
        batch = cut(number - before, drop_last=drop_last)
        first, indices = batch.positions.start, batch.indices.tolist()
        key = BatchKey(seed, epoch, number * world_size + rank, first, num_positions=len(order))
        if seen is not None:
            seen.append(indices)
        spares = _draw_spares(order, batch.positions, seed=seed, epoch=epoch) if with_spares else None
        return Task(indices if slicing.batch_size else indices[0], key, number, spares)

    # a generator, which ends after an error
    return (make(number) for number in range(before, before + total))


def _draw_spares(order: Order, positions: range, *, seed: int, epoch: int) -> list[list[int]]:
    """Return the indices that may replace the samples at these positions.

    They are the indices at other positions of the order, drawn uniformly from a hash of each sample's own position. So
    they have the sampler's own distribution, and never are indices that it leaves out.
    """
    numbers = np.arange(positions.start * NUM_SPARES, positions.stop * NUM_SPARES, dtype=np.uint64)
    drawn = (hash_u64(key64(seed, "spares", epoch), numbers) % np.uint64(len(order))).tolist()
    indices = [int(order[position : position + 1][0]) for position in drawn]
    return [indices[n : n + NUM_SPARES] for n in range(0, len(indices), NUM_SPARES)]


def plan_custom(
    indices: Iterable[tuple[int, Any]], spec: LoaderSpec, epoch: int, *, before: int = 0, seen: Seen = None
) -> Iterator[Task]:
    """Yield this rank's batches of a custom sampler, with keys.

    On several ranks, a sampler that gives each rank its own part has no global order. Its positions are counted on each
    rank, each rank in a range of its own. Any other sampler is split over the ranks: see `GlobalBatches`.

    Args:
        indices: What the sampler gives, in global batches if it is split, each with the number of samples before it.
        spec: Of a loader with a seed.
        epoch: The epoch, from 0.
        before: How many batches of the epoch came before these.
        seen: Collects the indices of each batch, or None if they are not wanted.
    """
    batches, seed, rank, world_size = spec.global_batches, spec.seed, spec.rank, spec.world_size
    assert seed is not None
    if seen is not None:
        seen.extend([] for _ in range(before))
    for number, (samples_before, index) in enumerate(indices, start=before):
        batch = number * world_size + rank
        if batches is None:
            yield Task(index, BatchKey(seed, epoch, batch, first=(rank << 48) + samples_before), number)
            continue
        part = rank_part(batches, index, rank=rank)
        num_positions = None if part.num_samples is None else samples_before + part.num_samples
        first = samples_before + part.samples_before
        if seen is not None:
            seen.append(part.index)
        yield Task(part.index, BatchKey(seed, epoch, batch, first, num_positions=num_positions), number)


def plan_unkeyed(indices: Iterator[Any], *, before: int = 0) -> Iterator[Task]:
    """Return the tasks of a loader without a seed."""
    # unlike a generator, it continues after a sampler's error
    return map(lambda index, number: Task(index, number=number), indices, count(before))


def plan_stream(spec: LoaderSpec, epoch: int, *, places: Sequence[StreamPlace] = ()) -> Iterator[Task]:
    """Yield tasks for an iterable dataset, without end unless the sampler has one.

    Args:
        spec: Of the loader.
        epoch: The epoch, from 0.
        places: Where each worker begins; empty for the beginning of the dataset.
    """
    key = None if spec.seed is None else BatchKey(spec.seed, epoch, rank=spec.rank)
    for number, index in enumerate(spec.index_sampler):
        yield Task(index, key, places=list(places) if number < len(places) else None)
