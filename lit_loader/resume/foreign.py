"""A user's own sampler in the seeded regime: its draws are keyed by the epoch, and where it is can be come back to.

NOTE [A user's sampler]
    What it draws from the process-wide generators comes from streams that are seeded by (seed, epoch) and go on
    from one batch to the next, so that an epoch of it is the same whatever else the process draws. To come back to
    a place, its own ``load_state_dict`` is called with what its ``state_dict`` gave there, if it has them; if not, it
    is iterated anew and what it gave before is dropped. A digest of that tells whether it was the same; without one,
    with a sampler that gives each rank its own part or with indices that are no numbers and strings, it is taken to be.
"""

from __future__ import annotations

import contextlib
import copy
from array import array
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch

from lit_loader.engine import is_stateful
from lit_loader.global_batches import GlobalBatches
from lit_loader.resume.own_state import NoStateError, own_state
from lit_loader.resume.progress import Progress, ResumePoint
from lit_loader.seeding import EpochKeys, KeyedGenerators, Moment

__all__ = [
    "IndexDigest",
    "SamplerDetail",
    "beginning",
    "find_stateful",
    "foreign_indices",
    "index_digest",
    "index_values",
    "is_one_shot",
    "state_of",
]


class SamplerDetail(NamedTuple):
    """What it takes to go on with a user's sampler, beside the number of its batches.

    Attributes:
        samples: How many samples those batches had.
        state: The sampler's own state there; None: it has none, or none that could be had.
        digest: The digest of the indices before; None: it has a state, or none is kept.
        generators: Without a seed, how the generators were when it began: see `lit_loader.resume.unseeded`.
        start: The epoch's first indices or batches, if several ranks cut it: see `lit_loader.global_batches`.
    """

    samples: int = 0
    state: Any = None
    digest: str | None = None
    generators: Any = None
    start: Any = None


def find_stateful(batch_sampler: Any, sampler: Any) -> Any:
    """Return the sampler that has a state of its own, if one of them does: the batch sampler, or what it draws from."""
    for candidate in (batch_sampler, getattr(batch_sampler, "sampler", None), sampler):
        if candidate is not None and is_stateful(candidate):
            return candidate
    return None


def is_one_shot(*samplers: Any) -> bool:
    """Whether one of them is an iterator, which cannot be asked again for what it gave."""
    inner = (getattr(sampler, "sampler", None) for sampler in samplers)
    return any(hasattr(sampler, "__next__") for sampler in (*samplers, *inner))


def foreign_indices(
    sampler: Any,
    *,
    name: str,
    stateful: Any,
    batched: bool,
    seed: int,
    epoch: int,
    progress: Progress,
    point: ResumePoint | None,
    digested: bool,
    compared: Callable[[Iterator[Any]], Iterator[Any]] | None = None,
) -> Iterator[tuple[int, Any]]:
    """Yield what a user's sampler gives in an epoch, from a point on: see NOTE [A user's sampler].

    Each item comes with the number of samples before it, in the epoch and on this rank, or on all if they cut it.

    Args:
        sampler: What is iterated: a sampler, or a batch sampler if ``batched``, or the `GlobalBatches` of either.
        name: What the user calls it, for the message.
        stateful: The one with a state, as `find_stateful` returns it.
        batched: Whether it gives containers of indices.
        seed: The loader's.
        epoch: The epoch.
        progress: Where it is noted, for each batch, how to go on after it: a `SamplerDetail`.
        point: Where to go on, with a `SamplerDetail`; None: at the beginning.
        digested: Whether a digest is kept.
        compared: Takes the items of the epoch and returns an equal iterator, when all ranks were found to get the
            same; None: nobody compares.

    Raises:
        ValueError: If it gives something else than it gave before, or less.
    """
    generators = KeyedGenerators(EpochKeys(seed, epoch).key(Moment.SAMPLER, 0))
    detail = SamplerDetail() if point is None or point.detail is None else point.detail
    cut = sampler if isinstance(sampler, GlobalBatches) else None
    if cut is not None:
        cut.start = detail.start if stateful is not None and point is not None and point.position else None
    every = _from_state(sampler, generators, stateful, detail, anew=point is not None and point.position == 0)
    if compared is not None:
        every = compared(every)
    digest = IndexDigest() if digested and stateful is None else None
    before = 0 if point is None or stateful is not None else point.position
    samples = detail.samples if before == 0 else 0
    number = 0
    for item in every:
        given = list(item) if batched and not hasattr(item, "__len__") else item
        more = cut.num_samples(given) if cut is not None else len(given) if batched else 1
        samples_before, samples = samples, samples + more
        if digest is not None:
            digest.add(given)
        number += 1
        start = None if cut is None or stateful is None or not cut.keeps_start else cut.start
        hexed = None if digest is None else digest.hex()
        found = SamplerDetail(samples, state_of(stateful), hexed, start=start)
        if number > before:
            progress.note(found)
            yield samples_before, given
        elif number == before and digested:
            _check(found, detail, f"{name} gave other indices in the first {before} batches of epoch {epoch}")
    if number < before:
        raise ValueError(
            f"{name} gave {number} batches of epoch {epoch} and the state was saved after {before}; "
            "resume with the sampler that it was saved with, or start afresh"
        )


def _from_state(
    sampler: Any, generators: KeyedGenerators, stateful: Any, detail: SamplerDetail, *, anew: bool
) -> Iterator[Any]:
    """Yield a sampler's items, from its own state on if there is one; ``anew``: it may have been saved at its end."""
    loads = stateful is not None and detail.state is not None
    if loads:
        stateful.load_state_dict(copy.deepcopy(detail.state))
    with generators:
        items = iter(sampler)
    first = next(_keyed(items, generators), _END)
    if first is _END and loads and anew:
        with generators:
            items = iter(sampler)
        first = next(_keyed(items, generators), _END)
    yield from () if first is _END else chain((first,), _keyed(items, generators))


def beginning(batch_sampler: Any, sampler: Any) -> SamplerDetail:
    """Return what it takes to begin a pass again that begins now."""
    return SamplerDetail(0, state_of(find_stateful(batch_sampler, sampler)))


def state_of(stateful: Any) -> Any:
    """Return a sampler's own state, as it is now; None: it has none, or none that can be had."""
    try:
        return None if stateful is None else own_state(stateful)
    except NoStateError:
        return None


def _keyed(items: Iterator[Any], generators: KeyedGenerators) -> Iterator[Any]:
    """Yield the items, each made with the generators where they were left."""
    while True:
        with generators:
            item = next(items, _END)
        if item is _END:
            return
        yield item


_END = object()


def _check(found: SamplerDetail, expected: SamplerDetail, what: str) -> None:
    same = found.digest == expected.digest or None in (found.digest, expected.digest)
    if not same or found.samples != expected.samples:
        raise ValueError(
            f"{what} than when the state was saved: it draws from a "
            "generator of its own, or its arguments changed; give it a state_dict and a load_state_dict, use a "
            "sampler of lit_loader.samplers, or start afresh"
        )


def index_values(units: Iterable[Any]) -> list[Any]:
    """Return indices, or batches of them, as plain values.

    Raises:
        NoStateError: If there is one whose value cannot be told.
    """
    try:
        return [tuple(map(_value, unit)) if isinstance(unit, tuple) else _value(unit) for unit in units]
    except TypeError as error:
        raise NoStateError(f"the first indices of the epoch cannot be saved: {error}") from None


def index_digest(items: Iterable[Any]) -> str | None:
    """Return a digest of indices or batches of them; None if there is one whose value cannot be told."""
    digest = IndexDigest()
    for item in items:
        digest.add(item)
    return digest.hex()


class IndexDigest:
    """A running digest of indices; None once there is one whose value cannot be told."""

    def __init__(self) -> None:
        self._hasher: Any = blake2b(digest_size=8)

    def add(self, item: Any) -> None:
        """Take a batch of indices, or an index."""
        if self._hasher is None:
            return
        numbers = item if isinstance(item, (list, tuple)) else (item,)
        with contextlib.suppress(TypeError, OverflowError):  # not all ints; for ints this is ten times faster
            self._hasher.update(array("q", numbers).tobytes() + b"|")
            return
        try:
            self._hasher.update(repr(_value(item)).encode("utf-8", "surrogatepass"))
        except TypeError:
            self._hasher = None

    def hex(self) -> str | None:
        """Return the digest of all so far."""
        return None if self._hasher is None else self._hasher.hexdigest()


def _value(item: Any) -> Any:
    if isinstance(item, (bool, int, float, str, bytes)) or item is None:
        return item
    if isinstance(item, (torch.Tensor, np.ndarray, np.generic)):
        return item.tolist()
    if isinstance(item, (list, tuple, range)):
        return [_value(one) for one in item]
    raise TypeError(f"{type(item).__name__} has no value of its own")
