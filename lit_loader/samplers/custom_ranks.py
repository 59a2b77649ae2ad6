"""Custom samplers on several ranks, with a seed: they are split over the ranks, which check that they agree.

NOTE [Custom samplers on several ranks]
    The draws of a custom sampler are keyed by (seed, epoch), so every rank that iterates it gets the same sequence.
    Each rank iterates all of it and takes its part of every global batch, as `rank_batch` does with an order: of
    ``batch_size * world_size`` consecutive indices, or of ``world_size`` consecutive batches of a batch sampler. The
    last global batch may be short. It is then filled up to equal parts from the start of the same sequence. Fewer than
    ``world_size`` indices (or batches) are needed for that, so only the first ``world_size - 1`` are kept. A sampler
    that gives each rank its own part by itself (`shards_itself`) is not split.

    The ranks compare their indices once for a loader, before its first batch. Ranks that disagree would train on
    overlapping or missing samples, or wait for each other for ever in a collective after the shorter one has ended. The
    process group is not looked up here: ``gather`` is passed in.
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
    """Whether a sampler gives each rank its own part: a ``DistributedSampler``, or one with a rank and a world size."""
    return any(
        isinstance(sampler, DistributedSampler)
        or (_has_int(sampler, _NUM_RANKS) and _has_int(sampler, _RANK))
        for sampler in samplers
        if not isinstance(sampler, OrderSampler)
    )


def _has_int(sampler: Any, names: tuple[str, ...]) -> bool:
    return any(type(getattr(sampler, name, None)) is int for name in names)


@dataclass(eq=False)
class GlobalBatches:
    """A custom sampler, iterated in global batches: lists of indices, or lists of the batches of a batch sampler.

    Args:
        units: Gives the indices or batches.
        size: How many of them make a global batch, over all ranks.
        world_size: Number of ranks.
        drop_last: Whether a last, short global batch is left out.
        of_batches: Whether the units are batches.
        batched: Whether a rank's part is a batch, or else a single index (``batch_size=None``).

    Attributes:
        start: The first ``world_size - 1`` units of the epoch, which fill up its end, or None before the first one. It
            is set by the caller if an epoch is resumed with a sampler's own state.
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
        """Yield the global batches; units are taken one global batch at a time."""
        every: Any = map(_copied, self.units) if self.of_batches else self.units
        for units in BatchSampler(every, self.size, self.drop_last):
            if self.start is None:
                self.start = units[: self.world_size - 1]
            yield units

    def __len__(self) -> int:
        return len(BatchSampler(self.units, self.size, self.drop_last))

    def num_samples(self, units: Sequence[Any]) -> int:
        """Return how many samples these units have."""
        return sum(map(len, units)) if self.of_batches else len(units)


def _copied(batch: Any) -> Any:
    """Return a copy of a batch that is a list or an iterator, because some samplers yield one list again and again."""
    return list(batch) if isinstance(batch, list) or not hasattr(batch, "__len__") else batch


class RankPart(NamedTuple):
    """One rank's part of one global batch.

    Attributes:
        index: An index, or a batch of them.
        samples_before: Samples of the global batch before it, on lower ranks.
        num_samples: Samples of the global batch without those that fill it up, or None if it is full.
    """

    index: Any
    samples_before: int
    num_samples: int | None


def rank_part(batches: GlobalBatches, units: list[Any], *, rank: int) -> RankPart:
    """Return a rank's part of a global batch, filled up to equal parts from the start of the epoch if it is short.

    Args:
        batches: What yielded the global batch.
        units: The units of the global batch, at least one.
        rank: This rank.
    """
    world_size, start = batches.world_size, batches.start or []
    share = -(-len(units) // world_size)
    missing = share * world_size - len(units)
    # With more ranks than units in the epoch, the first units are repeated several times, as in an order.
    filled = units + [start[number % len(start)] for number in range(missing)]
    part = filled[rank * share : (rank + 1) * share]
    return RankPart(
        index=part[0] if batches.of_batches or not batches.batched else part,
        samples_before=batches.num_samples(filled[: rank * share]),
        num_samples=batches.num_samples(units) if missing else None,
    )


def find_global_batches(sampler: Any, batch_sampler: Any, world_size: int) -> GlobalBatches | None:
    """Return the global batches of a custom sampler, or None if it is not split over ranks.

    Args:
        sampler: The loader's.
        batch_sampler: The loader's, or None.
        world_size: Number of ranks.
    """
    # Beside a batch sampler the loader's sampler only serves Lightning, which looks at it.
    given = (sampler,) if batch_sampler is None else (batch_sampler, getattr(batch_sampler, "sampler", None))
    if world_size == 1 or shards_itself(*given):
        return None
    if batch_sampler is None:
        return GlobalBatches(sampler, world_size, world_size=world_size, batched=False)
    if type(batch_sampler) is not BatchSampler:
        return GlobalBatches(batch_sampler, world_size, world_size=world_size, of_batches=True)
    # torch's own batch sampler takes consecutive indices, like batch_size=
    size, drop_last = batch_sampler.batch_size * world_size, batch_sampler.drop_last
    return GlobalBatches(batch_sampler.sampler, size, world_size=world_size, drop_last=drop_last)


# -- the comparison of ranks -------------------------------------------------------------------------------

Gather = Callable[[Any], list[Any]]
"""Takes this rank's plain value and returns those of all ranks, in the order of ranks."""


def checked_alike(
    batches: Iterator[Any], *, name: str, num_batches: int | None, whole: bool, gather: Gather
) -> Iterator[Any]:
    """Return an equal iterator over a sampler's global batches after a check that all ranks get the same.

    Args:
        batches: The global batches of the epoch that begins now.
        name: The class of the sampler, for the message.
        num_batches: Their number, or None if the sampler has no length.
        whole: Whether all of them are compared. If not, or without a length, only the first is.
        gather: Exchanges what the ranks get. All ranks call it here.

    Raises:
        ValueError: On every rank, if the ranks differ.
    """
    taken: list[Any] = []
    failure: Exception | None = None
    try:
        taken.extend(islice(batches, num_batches if whole and num_batches is not None else 1))
        digest = IndexDigest()
        for batch in taken:
            digest.add(batch)
        key = f"num_batches={num_batches}, digest={digest.hex()}"
        shown = f"{key}, first={repr(taken[:1])[:60]}"
    except Exception as error:  # the other ranks wait for this rank, so it takes part in any case
        failure, key = error, "an error"
        shown = f"{type(error).__name__}: {error}"[:200]
    reports = gather((key, shown))
    if failure is not None:
        raise failure
    _refuse_differences(
        reports,
        f"{name} gives its ranks other indices",
        "With seed= every rank iterates the whole sampler and takes its part of each global batch, so all must get the "
        "same. If it gives each rank its own part, let it show int attributes `rank` and `num_replicas`, as torch's "
        "DistributedSampler does; if not, let it draw from the process-wide generators, which seed= keys, or use a "
        "sampler of lit_loader.samplers",
    )
    return chain(taken, batches)


def check_equal_lengths(name: str, num_batches: int | None, gather: Gather) -> None:
    """Refuse a sampler that gives each rank its own part, if the parts have different numbers of batches.

    Raises:
        ValueError: On every rank, if so.
    """
    _refuse_differences(
        gather((f"part of {num_batches}", str(num_batches))),
        f"{name} gives its ranks other numbers of batches",
        "All ranks need equally many, or those with more wait for ever; give it drop_last=True or let it fill up, or "
        "use a sampler of lit_loader.samplers",
    )


def _refuse_differences(reports: list[tuple[str, str]], what: str, remedy: str) -> None:
    """Raise ValueError if the ranks' first texts differ; the second ones are shown."""
    # two texts, because a repr() may differ where values are equal
    if len({key for key, _ in reports}) > 1:
        listed = "; ".join(f"rank {rank}: {shown}" for rank, (_, shown) in enumerate(reports))
        raise ValueError(f"{what} ({listed}). {remedy}")


# -- values and digests of indices -------------------------------------------------------------------------


class IndexDigest:
    """A running digest of indices, which is None after one that is not a plain value, and always if it is not kept."""

    def __init__(self, *, kept: bool = True) -> None:
        self._hasher: Any = blake2b(digest_size=8) if kept else None

    def add(self, item: Any) -> None:
        """Add an index, or a batch of indices."""
        if self._hasher is None:
            return
        numbers = item if isinstance(item, (list, tuple)) else (item,)
        with contextlib.suppress(TypeError, OverflowError):  # ten times faster, for ints only
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
        """Whether the indices so far are not those of another digest; False if there is none of one of them."""
        return None not in (self.hex(), other) and self.hex() != other


def plain_index(item: Any) -> Any:
    """Return an index, or a batch of indices, as plain values; TypeError if that is not possible."""
    if isinstance(item, (bool, int, float, str, bytes)) or item is None:
        return item
    if isinstance(item, (torch.Tensor, np.ndarray, np.generic)):
        return item.tolist()
    if isinstance(item, (list, tuple, range)):
        return [plain_index(one) for one in item]
    raise TypeError(f"{type(item).__name__} has no value that can be saved; give ints, strings or lists")
