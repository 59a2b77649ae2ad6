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
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple

from lit_loader.engine import LoaderSpec, Task, is_stateful, plan_custom
from lit_loader.resume.progress import Progress, ResumePoint
from lit_loader.samplers.custom_ranks import (
    IndexDigest,
    check_equal_lengths,
    checked_alike,
    plain_index,
)
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
        raise NoStateError(
            f"{type(thing).__name__}.state_dict() raised {type(error).__name__}: {error}"
        ) from error


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
        state: The sampler's own state there, or None if it has none.
        digest: The digest of the indices before, or None if the sampler has a state or no digest is kept.
        generators: Without a seed, the states of the generators when it began: see `lit_loader.resume.replay`.
        start: The epoch's first indices or batches if the sampler is split over several ranks (see `GlobalBatches`),
            or None.
    """

    samples: int = 0
    state: Any = None
    digest: str | None = None
    generators: Any = None
    start: Any = None


def find_stateful(spec: LoaderSpec) -> Any:
    """Return the batch sampler or sampler that has a state of its own, or None if none has."""
    for candidate in (spec.batch_sampler, getattr(spec.batch_sampler, "sampler", None), spec.sampler):
        if candidate is not None and is_stateful(candidate):
            return candidate
    return None


def is_one_shot(spec: LoaderSpec) -> bool:
    """Whether a sampler is an iterator, which cannot be iterated twice."""
    samplers = (spec.sampler, spec.batch_sampler)
    inner = (getattr(sampler, "sampler", None) for sampler in samplers)
    return any(hasattr(sampler, "__next__") for sampler in (*samplers, *inner))


def begin_custom(spec: LoaderSpec) -> SamplerPosition:
    """Return what is needed to resume an epoch at its beginning, which is now."""
    return SamplerPosition(0, state_or_none(find_stateful(spec)))


def custom_tasks(
    spec: LoaderSpec, progress: Progress, point: ResumePoint | None, seen: list[list[Any]] | None
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
    batches, before, gather = spec.global_batches, 0 if point is None else point.position, spec.gather
    stateful, name = find_stateful(spec), type(spec.custom_sampler).__name__
    compare = None
    if gather is not None and batches is None:
        check_equal_lengths(name, progress.num_batches, gather)
    elif gather is not None:
        left = progress.num_batches
        compare = partial(
            checked_alike,
            name=name,
            # a sampler without a state is iterated from the beginning, so it gives the batches before too
            num_batches=left if left is None or stateful is not None else before + left,
            # a sampler with a state must not be read ahead: its state would be that of the epoch's end
            whole=stateful is None,
            gather=gather,
        )
    indices = _keyed_indices(spec, progress, point, stateful, compare)
    if compare is not None:
        # All ranks get here in the first next() of a loader's first epoch, where the plan is made, with any workers. So
        # all of them take part in the collective, and it is over before any batch is made.
        indices = chain(list(islice(indices, 1)), indices)
    return plan_custom(indices, spec, progress.epoch, before=before, seen=seen)


def _keyed_indices(
    spec: LoaderSpec, progress: Progress, point: ResumePoint | None, stateful: Any, compare: Any
) -> Iterator[tuple[int, Any]]:
    """Yield what a custom sampler gives, from a point on: see NOTE [Keyed custom samplers].

    Each item comes with the number of samples before it in the epoch: on all ranks if the sampler is split over them,
    else on this one. ``compare`` takes the items of the epoch and returns an equal iterator, or raises if ranks differ.
    """
    assert spec.seed is not None
    epoch, global_batches, batched = progress.epoch, spec.global_batches, spec.batch_sampler is not None
    has_digest = spec.world_size == 1 or global_batches is not None
    generators = KeyedGenerators(EpochKeys(spec.seed, epoch).key(RngPurpose.SAMPLER, 0))
    saved = SamplerPosition() if point is None or point.detail is None else point.detail
    if global_batches is not None:
        is_in_epoch = stateful is not None and point is not None and point.position
        global_batches.start = saved.start if is_in_epoch else None
    anew = point is not None and point.position == 0
    items = _from_state(spec.counted_sampler, generators, stateful, saved, anew=anew)
    if compare is not None:
        items = compare(items)
    digest = IndexDigest() if has_digest and stateful is None else None
    before = 0 if point is None or stateful is not None else point.position
    samples = saved.samples if before == 0 else 0
    number = 0
    for item in items:
        given = list(item) if batched and not hasattr(item, "__len__") else item
        more = len(given) if batched else 1
        if global_batches is not None:
            more = global_batches.num_samples(given)
        samples_before, samples = samples, samples + more
        if digest is not None:
            digest.add(given)
        number += 1
        keeps_start = global_batches is not None and stateful is not None and global_batches.keeps_start
        start = global_batches.start if global_batches is not None and keeps_start else None
        found = SamplerPosition(
            samples, state_or_none(stateful), None if digest is None else digest.hex(), start=start
        )
        if number > before:
            progress.note(found)
            yield samples_before, given
        elif number == before and has_digest:
            _check_same(found, saved, f"the first {before} batches of epoch {epoch}", spec)
    if number < before:
        raise ValueError(
            f"{type(spec.custom_sampler).__name__} gave {number} batches of epoch {epoch} and the state was saved "
            f"after {before}; resume with the sampler that it was saved with, or start afresh"
        )


def _from_state(
    sampler: Any, generators: KeyedGenerators, stateful: Any, saved: SamplerPosition, *, anew: bool
) -> Iterator[Any]:
    """Yield a sampler's items, from its own state on if there is one.

    With ``anew`` the state may be that of the epoch's end. A sampler that gives nothing then is iterated once more.
    """
    has_state = stateful is not None and saved.state is not None
    if has_state:
        stateful.load_state_dict(copy.deepcopy(saved.state))
    with generators:
        items = iter(sampler)
    first = next(_keyed(items, generators), _END)
    if first is _END and has_state and anew:
        with generators:
            items = iter(sampler)
        first = next(_keyed(items, generators), _END)
    yield from () if first is _END else chain((first,), _keyed(items, generators))


def _keyed(items: Iterator[Any], generators: KeyedGenerators) -> Iterator[Any]:
    """Yield the items; the generators are exchanged only while the sampler runs."""
    while True:
        with generators:
            item = next(items, _END)
        if item is _END:
            return
        yield item


def _check_same(found: SamplerPosition, saved: SamplerPosition, where: str, spec: LoaderSpec) -> None:
    same = found.digest == saved.digest or None in (found.digest, saved.digest)
    if not same or found.samples != saved.samples:
        raise ValueError(
            f"{type(spec.custom_sampler).__name__} gave other indices in {where} than when the state was saved: it "
            "draws from a generator of its own, or its arguments changed; give it a state_dict and a load_state_dict, "
            "use a sampler of lit_loader.samplers, or start afresh"
        )


def plain_indices(units: Iterable[Any]) -> list[Any]:
    """Return indices, or batches of them, as plain values.

    Raises:
        NoStateError: If one of them is not made of plain values.
    """
    try:
        return [
            tuple(map(plain_index, unit)) if isinstance(unit, tuple) else plain_index(unit) for unit in units
        ]
    except TypeError as error:
        raise NoStateError(f"the first indices of the epoch cannot be saved: {error}") from None
