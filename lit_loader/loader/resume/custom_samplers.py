"""Custom samplers in a loader with a seed: their draws are keyed by the epoch, and an epoch can be resumed.

A custom sampler is one that is not an `OrderSampler`: a torch sampler, a list, a user's own class.

NOTE [Keyed custom samplers]
    While a custom sampler is iterated, the process-wide generators are seeded by (seed, epoch) and continue from one
    batch to the next, so its epoch does not depend on what else the process draws. To resume at a position, its
    ``load_state_dict`` is called with what its ``state_dict`` returned there, if it has both. If not, it is iterated
    anew and the first indices are dropped. A digest of these shows whether they were the same as before. There is no
    digest for a sampler that gives each rank its own part, and for indices that are not plain values; then they are
    assumed to be the same.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, NamedTuple

from lit_loader.engine import LoaderSpec, Seen, Task, is_stateful, plan_custom
from lit_loader.loader.resume.progress import Progress, ResumePoint
from lit_loader.samplers.custom_ranks import IndexDigest, check_equal_lengths, checked_alike
from lit_loader.seeding import EpochKeys, KeyedGenerators, RngPurpose

_END = object()


class NoStateError(Exception):
    """A ``state_dict()`` raised, or returned what cannot be saved."""


def own_state(thing: Any) -> Any:
    """Return a copy of what ``thing.state_dict()`` returns now.

    Raises:
        NoStateError: If it raises, or returns what cannot be copied. Callers catch it: neither an epoch nor a
            checkpoint must fail because of it.
    """
    try:
        return copy.deepcopy(thing.state_dict())
    except Exception as error:
        name = type(thing).__name__
        raise NoStateError(f"{name}.state_dict() raised {type(error).__name__}: {error}") from error


def state_or_none(stateful: Any) -> Any:
    """Return a sampler's own state as it is now, or None if there is none."""
    try:
        return None if stateful is None else own_state(stateful)
    except NoStateError:
        return None


class SamplerPosition(NamedTuple):
    """What is needed to resume a custom sampler, in addition to the number of batches that it gave.

    Attributes:
        samples: How many samples those batches had.
        sampler_state: The sampler's own state there, or None if it has none.
        digest: The digest of the indices before, or None if the sampler has a state or no digest is kept.
        generators: Without a seed, the states of the generators when it began, or None: see
            `lit_loader.loader.resume.replay`.
        start: The epoch's first indices or batches if the sampler is split over several ranks (see `GlobalBatches`),
            or None.
    """

    samples: int = 0
    sampler_state: Any = None
    digest: str | None = None
    generators: Any = None
    start: Any = None


def find_stateful(spec: LoaderSpec) -> Any:
    """Return the batch sampler or sampler that has a state of its own, or None if none has."""
    candidates = spec.batch_sampler, getattr(spec.batch_sampler, "sampler", None), spec.sampler
    return next(filter(is_stateful, candidates), None)


def is_one_shot(spec: LoaderSpec) -> bool:
    """Whether a sampler is an iterator, which cannot be iterated twice."""
    samplers = (spec.sampler, spec.batch_sampler)
    inner = (getattr(sampler, "sampler", None) for sampler in samplers)
    return any(hasattr(sampler, "__next__") for sampler in (*samplers, *inner))


def custom_tasks(
    spec: LoaderSpec, progress: Progress, point: ResumePoint | None, seen: Seen
) -> Iterator[Task]:
    """Return this rank's tasks of an epoch of a custom sampler, from a point on.

    Args:
        spec: Of a loader with a seed.
        progress: Receives a `SamplerPosition` for each batch, from which the epoch can be resumed after it.
        point: Where to resume, with a `SamplerPosition`, or None at the beginning.
        seen: Collects the indices of each batch of a sampler that is split over ranks, or None if they are not wanted.

    Raises:
        ValueError: If the sampler gives other or fewer indices than before; on every rank, if the ranks compare it and
            differ.
    """
    batches, stateful, name = spec.global_batches, find_stateful(spec), type(spec.custom_sampler).__name__
    before = 0 if point is None else point.position
    saved = SamplerPosition() if point is None or point.detail is None else point.detail
    if batches is not None:
        batches.start = saved.start
    items = _keyed_items(
        spec, progress.epoch, stateful, saved.sampler_state, anew=point is not None and before == 0
    )
    # All ranks get here in the first next() of a loader's first epoch, with any workers, before any batch is made. So
    # all of them take part in the collective.
    if spec.gather is not None and batches is None:
        check_equal_lengths(name, progress.num_batches, spec.gather)
    elif spec.gather is not None:
        left = progress.num_batches
        items = checked_alike(
            items,
            name=name,
            # a sampler without a state is iterated from the beginning, so it gives the batches before too
            num_batches=left if left is None or stateful is not None else before + left,
            # a sampler with a state must not be read ahead: its state would be that of the epoch's end
            whole=stateful is None,
            gather=spec.gather,
        )
    indices = _noted_items(items, spec, progress, saved, before)
    return plan_custom(indices, spec, progress.epoch, before=before, seen=seen)


def _keyed_items(spec: LoaderSpec, epoch: int, stateful: Any, state: Any, *, anew: bool) -> Iterator[Any]:
    """Yield what a custom sampler gives, from its own state on if there is one: see NOTE [Keyed custom samplers].

    With ``anew`` the state may be that of the epoch's end. A sampler that gives nothing then is iterated once more.
    """
    assert spec.seed is not None
    generators = KeyedGenerators(EpochKeys(spec.seed, epoch).key(RngPurpose.SAMPLER, 0))
    has_state = stateful is not None and state is not None
    if has_state:
        stateful.load_state_dict(copy.deepcopy(state))
    for _ in range(2 if has_state and anew else 1):
        with generators.exchanged():  # exchanged only while the sampler runs
            items = iter(spec.counted_sampler)
            item = next(items, _END)
        if item is not _END:
            break
    while item is not _END:
        yield item
        with generators.exchanged():
            item = next(items, _END)


def _noted_items(
    items: Iterator[Any], spec: LoaderSpec, progress: Progress, saved: SamplerPosition, before: int
) -> Iterator[tuple[int, Any]]:
    """Yield the items of an epoch after the first ``before``, and note the position after each.

    Each item comes with the number of samples before it in the epoch: on all ranks if the sampler is split over them,
    else on this one. A sampler with a state of its own does not give the first items again.
    """
    batches, batched = spec.global_batches, spec.batch_sampler is not None
    stateful, name, epoch = find_stateful(spec), type(spec.custom_sampler).__name__, progress.epoch
    # the parts of a sampler that shards itself may differ, and a state is the same on every rank
    is_checked = stateful is None and (spec.world_size == 1 or batches is not None)
    digest = IndexDigest(kept=is_checked)
    to_drop, samples = (before, 0) if stateful is None else (0, saved.samples)
    number = 0
    for number, item in enumerate(items, start=1):
        given = list(item) if batched and not hasattr(item, "__len__") else item
        samples_before = samples
        if batches is not None:
            samples += batches.num_samples(given)
        else:
            samples += len(given) if batched else 1
        digest.add(given)
        if number > to_drop:
            start = None
            if batches is not None and stateful is not None and (batches.of_batches or not batches.drop_last):
                start = batches.start
            progress.note(SamplerPosition(samples, state_or_none(stateful), digest.hex(), start=start))
            yield samples_before, given
        elif number == to_drop and is_checked and (samples != saved.samples or digest.differs(saved.digest)):
            raise ValueError(
                f"{name} gave other indices in the first {before} batches of epoch {epoch} than when the state was "
                "saved: it draws from a generator of its own, or its arguments changed; give it a state_dict and a "
                "load_state_dict, use a sampler of lit_loader.samplers, or start afresh"
            )
    if number < to_drop:
        raise ValueError(
            f"{name} gave {number} batches of epoch {epoch} and the state was saved after {before}; resume with the "
            "sampler that it was saved with, or start afresh"
        )
