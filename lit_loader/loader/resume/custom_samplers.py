"""Custom samplers in a loader with a seed: their draws are keyed by the epoch, and an epoch can be resumed.

A custom sampler is one that is not an `OrderSampler`: a torch sampler, a list, a user's own class.

NOTE [Keyed custom samplers]
    While a custom sampler is iterated, the process-wide generators are seeded by (seed, epoch) and continue from one
    batch to the next, so its epoch does not depend on what else the process draws. To resume at a position, the
    sampler's ``load_state_dict`` is called with the ``state_dict`` saved there, if it has both. If not, it is iterated
    anew and the first indices are dropped. A digest shows whether these are the same as before. A sampler that gives
    each rank its own part has no digest, and indices that are not plain values have none; then they are assumed to be
    the same.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, NamedTuple

from lit_loader.engine import KeyedSpec, Seen, Task, plan_custom
from lit_loader.errors import ResumeError
from lit_loader.loader.resume.progress import Progress, ResumePoint
from lit_loader.loader.resume.state import find_stateful, state_or_none
from lit_loader.samplers.custom_ranks import Gather, IndexDigest, check_equal_lengths, checked_alike
from lit_loader.seeding import EpochKeys, KeyedGenerators, RngPurpose

_END = object()


class SamplerPosition(NamedTuple):
    """The detail of a `ResumePoint` of a custom sampler.

    Attributes:
        samples: How many samples the batches before had.
        sampler_state: The sampler's own state there, or None if it has none.
        digest: The digest of the indices before, or None if the sampler has a state or no digest is computed.
        start: The epoch's first indices or batches if the sampler is split over several ranks (see `GlobalBatches`),
            or None.
    """

    samples: int = 0
    sampler_state: Any = None
    digest: str | None = None
    start: Any = None


def custom_tasks(
    spec: KeyedSpec, progress: Progress, point: ResumePoint | None, seen: Seen, *, gather: Gather | None
) -> Iterator[Task]:
    """Return this rank's tasks of an epoch of a custom sampler, from a point on.

    Args:
        spec: The loader's settings.
        progress: Receives a `SamplerPosition` for each batch, from which the epoch can be resumed after it.
        point: Where to resume, with a `SamplerPosition`, or None at the beginning.
        seen: Collects the indices of each batch of a sampler that is split over ranks, or None if they are not needed.
        gather: The collective by which the ranks compare the sampler now, or None if they do not.

    Raises:
        ValueError: If the sampler gives other or fewer indices than before; on every rank, if the ranks compare it and
            differ.
    """
    batches = spec.global_batches
    stateful = find_stateful(spec)
    name = type(spec.custom_sampler).__name__
    num_before = 0 if point is None else point.position
    saved = SamplerPosition() if point is None or point.detail is None else point.detail
    if batches is not None:
        batches.start = saved.start
    items = _keyed_items(
        spec,
        progress.epoch,
        stateful,
        saved.sampler_state,
        # The state may have been saved at the end of the epoch before.
        retry_if_empty=point is not None and num_before == 0,
    )
    # All ranks get here in the first next() of a loader's first epoch, with any workers, before any batch is made. So
    # all of them take part in the collective.
    if gather is not None and batches is None:
        check_equal_lengths(name, progress.num_batches, gather)
    elif gather is not None:
        num_batches = progress.num_batches
        if num_batches is not None and stateful is None:
            # A sampler without a state is iterated from the beginning, so it also gives the batches before.
            num_batches += num_before
        items = checked_alike(
            items,
            name=name,
            num_batches=num_batches,
            # A sampler with a state must not be read ahead: it would be at its end when its state is noted.
            whole=stateful is None,
            gather=gather,
        )
    indices = _noted_items(items, spec, progress, saved, num_before)
    return plan_custom(indices, spec, progress.epoch, num_before=num_before, seen=seen)


def _keyed_items(spec: KeyedSpec, epoch: int, stateful: Any, state: Any, *, retry_if_empty: bool) -> Iterator[Any]:
    """Yield the items of a custom sampler, from its own state on if there is one: see NOTE [Keyed custom samplers].

    With ``retry_if_empty``, a sampler with a state that gives nothing is iterated once more.
    """
    generators = KeyedGenerators(EpochKeys(spec.seed, epoch).key(RngPurpose.SAMPLER, 0))
    has_state = stateful is not None and state is not None
    if has_state:
        stateful.load_state_dict(copy.deepcopy(state))
    for _ in range(2 if has_state and retry_if_empty else 1):
        # The generators are exchanged only while the sampler runs: without workers, samples are made in between.
        with generators.exchanged():
            items = iter(spec.counted_sampler)
            item = next(items, _END)
        if item is not _END:
            break
    while item is not _END:
        yield item
        with generators.exchanged():
            item = next(items, _END)


def _noted_items(
    items: Iterator[Any], spec: KeyedSpec, progress: Progress, saved: SamplerPosition, num_before: int
) -> Iterator[tuple[int, Any]]:
    """Yield the items of an epoch after the first ``num_before``, and note the position after each.

    Each item is paired with the number of samples before it in the epoch: on all ranks if the sampler is split over
    them, else on this one. A sampler with a state of its own does not give the first items again.
    """
    batches = spec.global_batches
    is_batched = spec.batch_sampler is not None
    stateful = find_stateful(spec)
    name = type(spec.custom_sampler).__name__
    # The parts of a sampler that shards itself may differ, and a state is the same on every rank.
    is_checked = stateful is None and (spec.world_size == 1 or batches is not None)
    digest = IndexDigest(enabled=is_checked)
    num_dropped = num_before if stateful is None else 0
    samples = 0 if stateful is None else saved.samples
    number = 0
    for number, item in enumerate(items, start=1):
        index = list(item) if is_batched and not hasattr(item, "__len__") else item
        samples_before = samples
        if batches is not None:
            samples += batches.num_samples(index)
        else:
            samples += len(index) if is_batched else 1
        digest.add(index)
        if number > num_dropped:
            start = None
            if batches is not None and stateful is not None and (batches.of_batches or not batches.drop_last):
                start = batches.start
            progress.note(SamplerPosition(samples, state_or_none(stateful), digest.hex(), start=start))
            yield samples_before, index
        elif number == num_dropped and is_checked and (samples != saved.samples or digest.differs(saved.digest)):
            raise ResumeError(
                f"{name} gave other indices in the first {num_before} batches of epoch {progress.epoch} than when the "
                "state was saved: it draws from a generator of its own, or its arguments changed; give it a state_dict "
                "and a load_state_dict, use a sampler of lit_loader.samplers, or start afresh"
            )
    if number < num_dropped:
        raise ResumeError(
            f"{name} gave {number} batches of epoch {progress.epoch} and the state was saved after {num_before}; "
            "resume with the sampler that it was saved with, or start afresh"
        )
