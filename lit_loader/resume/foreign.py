"""A user's own sampler in the seeded regime: its draws are keyed by the epoch, and where it is can be come back to.

NOTE [A user's sampler]
    What it draws from the process-wide generators comes from streams that are seeded by (seed, epoch) and go on
    from one batch to the next, so that an epoch of it is the same whatever else the process draws. To come back to
    a place, its own ``load_state_dict`` is called with what its ``state_dict`` gave there, if it has them; if not, it
    is iterated anew and what it gave before is dropped. A digest of that tells whether it was the same; without one,
    with more than one rank or with indices that are no numbers and strings, it is taken to be.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from hashlib import blake2b
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch

from lit_loader.engine import is_stateful
from lit_loader.resume.own_state import NoStateError, own_state
from lit_loader.resume.progress import Progress, ResumePoint
from lit_loader.seeding import EpochKeys, KeyedGenerators, Moment

__all__ = ["SamplerDetail", "beginning", "find_stateful", "foreign_indices", "is_one_shot"]


class SamplerDetail(NamedTuple):
    """What it takes to go on with a user's sampler, beside the number of its batches.

    Attributes:
        samples: How many samples those batches had.
        state: The sampler's own state there; None: it has none, or none that could be had.
        digest: The digest of the indices before; None: it has a state, or none is kept.
    """

    samples: int = 0
    state: Any = None
    digest: str | None = None


def find_stateful(batch_sampler: Any, sampler: Any) -> Any:
    """Return the sampler that has a state of its own, if one of them does: the batch sampler, or what it draws from."""
    for candidate in (batch_sampler, getattr(batch_sampler, "sampler", None), sampler):
        if candidate is not None and is_stateful(candidate):
            return candidate
    return None


def is_one_shot(*samplers: Any) -> bool:
    """Whether one of them is an iterator, which cannot be asked again for what it gave."""
    return any(hasattr(sampler, "__next__") for sampler in samplers)


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
) -> Iterator[tuple[int, Any]]:
    """Yield what a user's sampler gives in an epoch, from a point on: see NOTE [A user's sampler].

    Each item comes with the number of samples before it, in the epoch and on this rank.

    Args:
        sampler: What is iterated: a sampler, or a batch sampler if ``batched``.
        name: What the user calls it, for the message.
        stateful: The one with a state, as `find_stateful` returns it.
        batched: Whether it gives containers of indices.
        seed: The loader's.
        epoch: The epoch.
        progress: Where it is noted, for each batch, how to go on after it: a `SamplerDetail`.
        point: Where to go on, with a `SamplerDetail`; None: at the beginning.
        digested: Whether a digest is kept.

    Raises:
        ValueError: If it gives something else than it gave before, or less.
    """
    generators = KeyedGenerators(EpochKeys(seed, epoch).key(Moment.SAMPLER, 0))
    detail = SamplerDetail() if point is None or point.detail is None else point.detail
    loads = stateful is not None and detail.state is not None
    if loads:
        stateful.load_state_dict(copy.deepcopy(detail.state))
    with generators:
        items = iter(sampler)
    first = next(_keyed(items, generators), _END)
    if first is _END and loads and point is not None and point.position == 0:
        with generators:  # its state was saved at its end, and it now begins anew
            items = iter(sampler)
        first = next(_keyed(items, generators), _END)
    digest = _Digest() if digested and stateful is None else None
    before = 0 if point is None or stateful is not None else point.position
    samples = detail.samples if before == 0 else 0
    number = 0
    for item in () if first is _END else chain((first,), _keyed(items, generators)):
        given = list(item) if batched and not hasattr(item, "__len__") else item
        samples_before, samples = samples, samples + (len(given) if batched else 1)
        if digest is not None:
            digest.add(given)
        number += 1
        found = SamplerDetail(samples, _state_of(stateful), None if digest is None else digest.hex())
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


def beginning(batch_sampler: Any, sampler: Any) -> SamplerDetail:
    """Return what it takes to begin a pass again that begins now."""
    return SamplerDetail(0, _state_of(find_stateful(batch_sampler, sampler)))


def _state_of(stateful: Any) -> Any:
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


class _Digest:
    """A running digest of indices; None once there is one whose value cannot be told."""

    def __init__(self) -> None:
        self._hasher: Any = blake2b(digest_size=8)

    def add(self, item: Any) -> None:
        """Take a batch of indices, or an index."""
        if self._hasher is None:
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
