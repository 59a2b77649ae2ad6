"""Custom samplers on several ranks, with a seed: split over the ranks, after a check that all ranks agree.

NOTE [Custom samplers on several ranks]
    The draws of a custom sampler are keyed by (seed, epoch), so every rank that iterates it gets the same sequence.
    Each rank iterates the whole sequence and takes its part of every global batch, as `rank_batch` does with an order.
    A global batch is ``batch_size * world_size`` consecutive indices, or ``world_size`` consecutive batches of a batch
    sampler. A short last global batch is filled up to equal parts from the start of the same sequence.

    The ranks compare their indices once for each loader, before its first batch. Ranks that disagree would train on
    overlapping or missing samples, or one would wait forever in a collective after the other has ended. The process
    group is not looked up here: ``gather`` is passed in.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from hashlib import blake2b
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import BatchSampler, DistributedSampler

from lit_loader.samplers.order import OrderSampler

# The names that torch, Detectron2, MMEngine and Accelerate use for the number of ranks and for the rank.
_NUM_RANKS = ("num_replicas", "world_size", "_world_size", "num_shards", "num_processes")
_RANK = ("rank", "_rank", "shard_id", "shard_index", "process_index")


def shards_itself(*samplers: Any) -> bool:
    """Return True if a sampler shards itself: a ``DistributedSampler``, or one with a rank and a world size."""
    return any(
        isinstance(sampler, DistributedSampler) or (_has_int(sampler, _NUM_RANKS) and _has_int(sampler, _RANK))
        for sampler in samplers
        if not isinstance(sampler, OrderSampler)
    )


def _has_int(sampler: Any, names: tuple[str, ...]) -> bool:
    # Exactly int: bools and property objects are not ranks.
    return any(type(getattr(sampler, name, None)) is int for name in names)


@dataclass(eq=False)
class GlobalBatches:
    """A custom sampler, iterated in global batches: lists of indices, or lists of batches of a batch sampler.

    Args:
        units: Iterable of indices or batches.
        size: Units in a global batch, over all ranks.
        world_size: Number of ranks.
        drop_last: True to drop a short last global batch.
        of_batches: True if the units are batches.
        batched: True if a rank's part is a batch, False if it is a single index (``batch_size=None``).

    Attributes:
        start: The first ``world_size - 1`` units of the epoch, which fill up its end, or None before the first unit.
            The caller sets it if it resumes an epoch with the sampler's own state.
    """

    units: Any
    size: int
    _: KW_ONLY
    world_size: int
    drop_last: bool = False
    of_batches: bool = False
    batched: bool = True
    start: list[Any] | None = field(default=None, init=False)

    def __iter__(self) -> Iterator[list[Any]]:
        """Yield the global batches; units are read one global batch at a time."""
        # torch's BatchSampler cuts any iterable into lists.
        source: Any = map(_copied, self.units) if self.of_batches else self.units
        for units in BatchSampler(source, self.size, self.drop_last):
            if self.start is None:
                # Filling up the last global batch takes fewer than world_size units.
                self.start = units[: self.world_size - 1]
            yield units

    def __len__(self) -> int:
        return len(BatchSampler(self.units, self.size, self.drop_last))

    def num_samples(self, units: Sequence[Any]) -> int:
        """Return the number of samples in these units."""
        return sum(map(len, units)) if self.of_batches else len(units)


def _copied(batch: Any) -> Any:
    """Return a copy of a batch that is a list or an iterator."""
    # Some batch samplers yield the same list again and again, with new contents.
    return list(batch) if isinstance(batch, list) or not hasattr(batch, "__len__") else batch


class RankPart(NamedTuple):
    """One rank's part of one global batch.

    Attributes:
        index: An index, or a batch of indices.
        samples_before: Number of samples of the global batch on lower ranks.
        num_samples: Number of samples of a short global batch, without the duplicates that fill it up, or None if the
            global batch is full.
    """

    index: Any
    samples_before: int
    num_samples: int | None


def rank_part(batches: GlobalBatches, units: list[Any], *, rank: int) -> RankPart:
    """Return a rank's part of a global batch; a short one is filled up to equal parts from the start of the epoch.

    Args:
        batches: The sampler that yielded the global batch.
        units: The units of the global batch, at least one.
        rank: This rank.
    """
    world_size = batches.world_size
    start = batches.start or []
    # All ranks need equal parts, because a rank without a batch would leave the others waiting in a collective.
    share = -(-len(units) // world_size)
    missing = share * world_size - len(units)
    # With more ranks than units in the epoch, the first units are repeated several times, as in `rank_batch`.
    full_units = units + [start[number % len(start)] for number in range(missing)]
    part = full_units[rank * share : (rank + 1) * share]
    return RankPart(
        index=part[0] if batches.of_batches or not batches.batched else part,
        samples_before=batches.num_samples(full_units[: rank * share]),
        num_samples=batches.num_samples(units) if missing else None,
    )


def find_global_batches(sampler: Any, batch_sampler: Any, world_size: int) -> GlobalBatches | None:
    """Return the global batches of a custom sampler, or None if it is not split over ranks.

    Args:
        sampler: The loader's sampler.
        batch_sampler: The loader's batch sampler, or None.
        world_size: Number of ranks.
    """
    samplers: tuple[Any, ...] = (sampler,)
    if batch_sampler is not None:
        # The loader's sampler has no effect next to a batch sampler; only Lightning looks at it.
        samplers = (batch_sampler, getattr(batch_sampler, "sampler", None))
    if world_size == 1 or shards_itself(*samplers):
        return None
    if batch_sampler is None:
        return GlobalBatches(sampler, world_size, world_size=world_size, batched=False)
    if type(batch_sampler) is not BatchSampler:
        return GlobalBatches(batch_sampler, world_size, world_size=world_size, of_batches=True)
    # torch's BatchSampler takes consecutive indices, so it is cut like batch_size=.
    return GlobalBatches(
        batch_sampler.sampler,
        batch_sampler.batch_size * world_size,
        world_size=world_size,
        drop_last=batch_sampler.drop_last,
    )


# -- the comparison of ranks -------------------------------------------------------------------------------

Gather = Callable[[Any], list[Any]]
"""Takes this rank's plain value and returns the values of all ranks, in rank order."""


def checked_alike(
    batches: Iterator[Any], *, name: str, num_batches: int | None, whole: bool, gather: Gather
) -> Iterator[Any]:
    """Check that all ranks get the same global batches, and return an iterator over them.

    Args:
        batches: The global batches of the epoch that begins now.
        name: The class of the sampler, for the message.
        num_batches: Number of global batches, or None if the sampler has no length.
        whole: True to compare all global batches. Otherwise, or without a length, only the first is compared.
        gather: Exchanges the reports of the ranks. All ranks call it here.

    Raises:
        ValueError: On every rank, if the ranks differ.
    """
    compared: list[Any] = []
    failure: Exception | None = None
    try:
        compared.extend(islice(batches, num_batches if whole and num_batches is not None else 1))
        digest = IndexDigest()
        for batch in compared:
            digest.add(batch)
        key = f"num_batches={num_batches}, digest={digest.hex()}"
        description = f"{key}, first={repr(compared[:1])[:60]}"
    except Exception as error:  # the other ranks wait in gather(), so this rank must take part
        failure = error
        key = "an error"
        description = f"{type(error).__name__}: {error}"[:200]
    reports = gather((key, description))
    if failure is not None:
        raise failure
    _refuse_differences(
        reports,
        f"{name} gives different indices on different ranks",
        "With seed= every rank iterates the whole sampler and takes its part of each global batch, so all ranks must "
        "get the same indices. If the sampler shards itself, give it int attributes `rank` and `num_replicas`, as "
        "torch's DistributedSampler has; otherwise let it draw from the process-wide generators, which seed= keys, or "
        "use a sampler of lit_loader.samplers",
    )
    # The compared batches were taken from the iterator, so they are put back in front.
    return chain(compared, batches)


def check_equal_lengths(name: str, num_batches: int | None, gather: Gather) -> None:
    """Check that the parts of a sampler that shards itself have equally many batches.

    Raises:
        ValueError: On every rank, if they do not.
    """
    _refuse_differences(
        gather((f"part of {num_batches}", str(num_batches))),
        f"{name} gives different numbers of batches on different ranks",
        "All ranks need equally many batches, or some ranks wait forever; pass it drop_last=True, let it fill up the "
        "last batch, or use a sampler of lit_loader.samplers",
    )


def _refuse_differences(reports: list[tuple[str, str]], problem: str, remedy: str) -> None:
    """Raise ValueError if the ranks' reports, each a key and a description, have different keys."""
    # The description is not compared, because a repr() may differ where values are equal.
    if len({key for key, _ in reports}) > 1:
        descriptions = "; ".join(f"rank {rank}: {text}" for rank, (_, text) in enumerate(reports))
        raise ValueError(f"{problem} ({descriptions}). {remedy}")


# -- values and digests of indices -------------------------------------------------------------------------


class IndexDigest:
    """Running digest of indices. It becomes None after an index that is not a plain value.

    Args:
        enabled: False for a digest that is always None.
    """

    def __init__(self, *, enabled: bool = True) -> None:
        self._hasher: Any = blake2b(digest_size=8) if enabled else None

    def add(self, item: Any) -> None:
        """Add an index, or a batch of indices."""
        if self._hasher is None:
            return
        numbers = item if isinstance(item, (list, tuple)) else (item,)
        # Ten times faster than repr(), but only for ints.
        with contextlib.suppress(TypeError, OverflowError):
            # The separator tells [1], [2] from [1, 2].
            self._hasher.update(array("q", numbers).tobytes() + b"|")
            return
        try:
            self._hasher.update(repr(plain_index(item)).encode("utf-8", "surrogatepass"))
        except TypeError:
            self._hasher = None

    def hex(self) -> str | None:
        """Return the digest of all indices so far, or None."""
        return None if self._hasher is None else self._hasher.hexdigest()

    def differs(self, other: str | None) -> bool:
        """Return True if both digests are known and differ."""
        return None not in (self.hex(), other) and self.hex() != other


def plain_index(item: Any) -> Any:
    """Return an index, or a batch of indices, as plain values; TypeError if that is not possible."""
    if isinstance(item, (bool, int, float, str, bytes)) or item is None:
        return item
    if isinstance(item, (torch.Tensor, np.ndarray, np.generic)):
        return item.tolist()
    if isinstance(item, (list, tuple, range)):
        return [plain_index(part) for part in item]
    raise TypeError(f"{type(item).__name__} has no value that can be saved; use ints, strings or lists")
