"""A user's own sampler on several ranks, with a seed: which one is cut by rank, and a rank's part of a global batch.

NOTE [A user's sampler on several ranks]
    Its draws are keyed by (seed, epoch), so every rank that iterates it gets the same sequence. Each rank iterates all
    of it and takes its part of every global batch, as `lit_loader.samplers.rank_batch` cuts an order: of
    ``batch_size * world_size`` consecutive indices, or of ``world_size`` consecutive batches of a batch sampler. The
    last global batch may be short. It is then filled up to equal parts from the start of the same sequence. Fewer than
    ``world_size`` indices (or batches) are needed for that, so only the first ``world_size - 1`` are kept. A sampler
    that gives each rank its own part by itself (`shards_itself`) is not cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from torch.utils.data import BatchSampler, DistributedSampler

from lit_loader.samplers import OrderSampler

__all__ = ["GlobalBatches", "RankPart", "find_global_batches", "rank_part", "shards_itself"]

# The names that torch, Detectron2, MMEngine and Accelerate use for the number of ranks and for the rank.
_NUM_RANKS = ("num_replicas", "world_size", "_world_size", "num_shards", "num_processes")
_RANK = ("rank", "_rank", "shard_id", "shard_index", "process_index")


def shards_itself(*samplers: Any) -> bool:
    """Whether a sampler gives each rank its own part: a ``DistributedSampler``, or one that shows rank and ranks."""
    for sampler in samplers:
        if isinstance(sampler, OrderSampler):
            continue
        if isinstance(sampler, DistributedSampler) or (
            _shows(sampler, _NUM_RANKS) and _shows(sampler, _RANK)
        ):
            return True
    return False


def _shows(sampler: Any, names: tuple[str, ...]) -> bool:
    return any(type(getattr(sampler, name, None)) is int for name in names)


class GlobalBatches:
    """A user's sampler, iterated in global batches: lists of indices, or lists of the batches of a batch sampler.

    Args:
        units: Gives the indices or batches.
        size: How many of them make a global batch, over all ranks.
        drop_last: Whether a last, short global batch is left out.
        world_size: Number of ranks.
        of_batches: Whether the units are batches.
        batched: Whether a rank's part is a batch; False: it is a single index (``batch_size=None``).

    Attributes:
        start: The first ``world_size - 1`` units of the epoch, which fill up its end; None before the first one. It is
            set from outside where an epoch is gone on with by a sampler's own state.
    """

    def __init__(
        self,
        units: Any,
        size: int,
        *,
        drop_last: bool,
        world_size: int,
        of_batches: bool,
        batched: bool = True,
    ) -> None:
        self.units, self.size, self.drop_last, self.world_size = units, size, drop_last, world_size
        self.of_batches, self.batched = of_batches, batched
        self.start: list[Any] | None = None

    def __iter__(self) -> Iterator[list[Any]]:
        """Yield the global batches; units are taken one global batch at a time."""
        groups: Any = BatchSampler(
            map(_kept, self.units) if self.of_batches else self.units, self.size, self.drop_last
        )
        for units in groups:
            if self.start is None:
                self.start = units[: self.world_size - 1]
            yield units

    def __len__(self) -> int:
        return len(BatchSampler(self.units, self.size, self.drop_last))

    @property
    def keeps_start(self) -> bool:
        """Whether the first units are needed at the end."""
        return self.of_batches or not self.drop_last

    def num_samples(self, units: Sequence[Any]) -> int:
        """Return how many samples these units have."""
        return sum(map(len, units)) if self.of_batches else len(units)


def _kept(batch: Any) -> Any:
    """Return a batch that stays as it is while further ones are taken: some samplers give one list, filled anew."""
    return list(batch) if isinstance(batch, list) or not hasattr(batch, "__len__") else batch


class RankPart(NamedTuple):
    """One rank's part of one global batch.

    Attributes:
        index: An index, or a batch of them.
        samples_before: Samples of the global batch before it, on the ranks below.
        num_samples: Samples of the whole global batch without what fills it up; None if nothing does.
    """

    index: Any
    samples_before: int
    num_samples: int | None


def rank_part(batches: GlobalBatches, units: list[Any], *, rank: int) -> RankPart:
    """Return a rank's part of a global batch, filled up to equal parts from the start of the epoch if it is short.

    Args:
        batches: What gave it.
        units: Its units, at least one.
        rank: This rank.
    """
    world_size, start = batches.world_size, batches.start or []
    share = -(-len(units) // world_size)
    missing = share * world_size - len(units)
    # fewer units in the epoch than ranks: several times round, as for an order
    filled = units + [start[number % len(start)] for number in range(missing)]
    part = filled[rank * share : (rank + 1) * share]
    return RankPart(
        index=part[0] if batches.of_batches or not batches.batched else part,
        samples_before=batches.num_samples(filled[: rank * share]),
        num_samples=batches.num_samples(units) if missing else None,
    )


def find_global_batches(sampler: Any, batch_sampler: Any, world_size: int) -> GlobalBatches | None:
    """Return the global batches that a user's sampler is cut from; None if it is taken as it is.

    Args:
        sampler: The loader's.
        batch_sampler: The loader's, or None.
        world_size: Number of ranks.
    """
    # beside a batch sampler the loader's sampler is only what it shows to Lightning
    given = (sampler,) if batch_sampler is None else (batch_sampler, getattr(batch_sampler, "sampler", None))
    if world_size == 1 or shards_itself(*given):
        return None
    if batch_sampler is None:
        return GlobalBatches(
            sampler, world_size, drop_last=False, world_size=world_size, of_batches=False, batched=False
        )
    if type(batch_sampler) is BatchSampler:  # torch's own cuts consecutive indices, like batch_size=
        return GlobalBatches(
            batch_sampler.sampler,
            batch_sampler.batch_size * world_size,
            drop_last=batch_sampler.drop_last,
            world_size=world_size,
            of_batches=False,
        )
    return GlobalBatches(batch_sampler, world_size, drop_last=False, world_size=world_size, of_batches=True)
