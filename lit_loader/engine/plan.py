"""Plans of epochs with a seed: the tasks of one epoch, in order, each with its key.

The plan of an `OrderSampler` is a function of (spec, epoch, start) alone, so the next epoch may be planned at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from lit_loader.engine.bad_samples import NUM_SPARES
from lit_loader.engine.partners import DrawPartners, PartnerDraws, draw_indices, stored_order
from lit_loader.engine.spec import BatchKey, BatchSlicing, KeyedSpec, Seen, StreamPlace, Task
from lit_loader.samplers import rank_batch
from lit_loader.samplers.custom_ranks import rank_part
from lit_loader.seeding import key64
from lit_loader.types import Order


def plan_order(
    spec: KeyedSpec,
    slicing: BatchSlicing,
    epoch: int,
    *,
    start: int = 0,
    seen: Seen = None,
    partner_draws: PartnerDraws | None = None,
) -> Iterator[Task]:
    """Return this rank's tasks of an epoch of an `OrderSampler`, from a position of the global order on.

    The order is drawn now, from the sampler's present settings; batches are sliced when they are needed.

    Args:
        spec: The loader's settings.
        slicing: The sampler, and how batches are sliced from its order.
        epoch: The epoch, from 0.
        start: The position.
        seen: Collects the indices of each batch, or None if they are not needed.
        partner_draws: Draws the partners of mixed samples, or None if the dataset mixes none.
    """
    sampler = slicing.sampler
    rank = spec.rank
    world_size = spec.world_size
    batch_size = slicing.batch_size or 1
    global_batch = batch_size * world_size
    order_seed = spec.seed if sampler.seed is None else sampler.seed
    order = sampler.batch_order(seed=order_seed, epoch=epoch, global_batch=global_batch)
    num_before = -(-start // global_batch)
    num_tasks = spec.count_sliced(slicing, len(order) - start)
    multiple = sampler.batch_multiple
    # Other batch sizes cut through the sampler's pattern anyway.
    share_multiple = multiple if batch_size % multiple == 0 else 1
    cut = partial(
        rank_batch, order, batch_size=batch_size, rank=rank, world_size=world_size, start=start, multiple=share_multiple
    )
    draw_spares, draw_partners = _draws(spec, order, epoch, multiple=multiple, partner_draws=partner_draws)
    if seen is not None:
        # Lightning looks up a batch's indices by its number, so skipped batches need entries as well.
        seen.extend([] for _ in range(num_before))

    def make(number: int) -> Task:
        batch = cut(number - num_before, drop_last=slicing.drop_last)
        indices = batch.indices.tolist()
        key = BatchKey(
            spec.seed, epoch, number * world_size + rank, first=batch.positions.start, num_positions=len(order)
        )
        if seen is not None:
            seen.append(indices)
        spares = None if draw_spares is None else draw_spares(batch.positions)
        partners = None if draw_partners is None else draw_partners(batch.positions)
        index = indices if slicing.batch_size else indices[0]
        return Task(index, key, number, spares, partners=partners)

    # A generator expression and not `map`, so that the plan ends after an error.
    return (make(number) for number in range(num_before, num_before + num_tasks))


def _draws(
    spec: KeyedSpec, order: Order, epoch: int, *, multiple: int, partner_draws: PartnerDraws | None
) -> tuple[Callable[[range], list[list[int]]] | None, DrawPartners | None]:
    """Return the functions that draw spares and partners at consecutive positions, None where there are none."""
    draw_spares = None
    if spec.fetch.on_bad_sample == "substitute":
        order = stored_order(order)
        draw_spares = partial(_draw_spares, order, seed=spec.seed, epoch=epoch, multiple=multiple)
    draw_partners = None
    if partner_draws is not None:
        has_spares = draw_spares is not None
        draw_partners = partner_draws.for_epoch(
            order, seed=spec.seed, epoch=epoch, multiple=multiple, spares=has_spares
        )
    return draw_spares, draw_partners


def _draw_spares(order: Order, positions: range, *, seed: int, epoch: int, multiple: int) -> list[list[int]]:
    """Return the indices that may replace the samples at these positions, drawn from each sample's own position.

    They have the sampler's own distribution, and never are indices that it leaves out.
    """
    numbers = np.arange(positions.start, positions.stop)[:, None] * NUM_SPARES + np.arange(NUM_SPARES)
    key = key64(seed, "spares", epoch)
    indices: list[list[int]] = draw_indices(order, key, numbers, per_position=NUM_SPARES, multiple=multiple).tolist()
    return indices


def plan_custom(
    indices: Iterable[tuple[int, Any]], spec: KeyedSpec, epoch: int, *, num_before: int = 0, seen: Seen = None
) -> Iterator[Task]:
    """Yield this rank's batches of a custom sampler.

    On several ranks, a sampler that gives each rank its own part has no global order. Its positions are counted on each
    rank, each rank in a range of its own. Any other sampler is split over the ranks: see `GlobalBatches`.

    Args:
        indices: The sampler's items, as global batches if it is split, each with the number of samples before it.
        spec: The loader's settings.
        epoch: The epoch, from 0.
        num_before: How many batches of the epoch came before these.
        seen: Collects the indices of each batch, or None if they are not needed.
    """
    batches = spec.global_batches
    rank = spec.rank
    if seen is not None:
        seen.extend([] for _ in range(num_before))
    for number, (samples_before, index) in enumerate(indices, start=num_before):
        batch = number * spec.world_size + rank
        if batches is None:
            yield Task(index, BatchKey(spec.seed, epoch, batch, first=(rank << 48) + samples_before), number)
            continue
        part = rank_part(batches, index, rank=rank)
        num_positions = None if part.num_samples is None else samples_before + part.num_samples
        first = samples_before + part.samples_before
        if seen is not None:
            seen.append(part.index)
        yield Task(part.index, BatchKey(spec.seed, epoch, batch, first, num_positions=num_positions), number)


def plan_stream(
    index_sampler: Iterable[Any], key: BatchKey | None, *, places: Sequence[StreamPlace] = ()
) -> Iterator[Task]:
    """Yield tasks for an iterable dataset, without end unless the sampler has one.

    Args:
        index_sampler: Gives the size of each batch.
        key: The key of the epoch on this rank, or None for a loader without a seed.
        places: Where each worker begins; empty for the beginning of the dataset.
    """
    for number, index in enumerate(index_sampler):
        yield Task(index, key, places=list(places) if number < len(places) else None)
