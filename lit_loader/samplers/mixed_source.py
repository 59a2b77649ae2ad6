"""`MixedSourceSampler`: several datasets in one, with a fixed number of samples of each in every batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lit_loader.samplers.base import OrderSampler
from lit_loader.samplers.checks import checked_int
from lit_loader.samplers.cycles import ShuffledCycles
from lit_loader.samplers.orders import SliceableOrder
from lit_loader.seeding import key64
from lit_loader.types import IndexArray

__all__ = ["MixedSourceSampler"]


class MixedSourceSampler(OrderSampler):
    """Repeats one pattern: ``counts[0]`` samples of the first source, then ``counts[1]`` of the second, and so on.

    Batches and ranks' parts are consecutive positions, so where ``batch_size`` is ``sum(counts)`` every batch of
    every rank is one repetition, whatever the world size, and where it is a multiple of that, several; then only a
    last, partial batch that several ranks share can have another mix, and ``drop_last`` leaves that out.

    A source's samples come in shuffled cycles that go on from epoch to epoch: none comes twice before all of them
    came. A small source is gone through several times an epoch.

    Random access: a slice costs its own length and, once for each cycle of a source that it meets, a shuffle of
    that source, of which the last two are kept (8 bytes a sample; see `ShuffledCycles`, also for very large ones).

    Args:
        lengths: Number of samples of each source, in the order in which ``torch.utils.data.ConcatDataset`` holds them.
        counts: Samples of each source in a batch.
        num_samples: Positions in an epoch, a multiple of ``sum(counts)``; None: as many as it takes until every
            source was gone through at least once, that is, until the source that is largest for its count was.
        seed: Seed of ``__iter__``; see `OrderSampler`.

    Attributes:
        lengths, counts: As given, tuples.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If a length or a count is not positive (it is named), there are not as many of one as of the
            other, or ``num_samples`` is no multiple of ``sum(counts)``.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        counts: Sequence[int],
        *,
        num_samples: int | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(seed=seed)
        self.lengths = _checked_positive(
            "lengths", lengths, remedy="leave an empty source out of the ConcatDataset"
        )
        self.counts = _checked_positive("counts", counts, remedy="leave a source that is not wanted out")
        if len(self.lengths) != len(self.counts):
            raise ValueError(
                f"`lengths` names {len(self.lengths)} sources and `counts` {len(self.counts)}: "
                f"{self.lengths} and {self.counts}; give one count for each source"
            )
        size = sum(self.counts)
        if num_samples is None:
            longest = max(
                -(-length // count) for length, count in zip(self.lengths, self.counts, strict=True)
            )
            self._num_samples = longest * size
        else:
            self._num_samples = checked_int("num_samples", num_samples, minimum=1)
            if self._num_samples % size:
                raise ValueError(
                    f"num_samples={num_samples} is no multiple of sum(counts)={size}, and the last batch would have "
                    f"another mix; give {-(-self._num_samples // size) * size}"
                )

    def __len__(self) -> int:
        return self._num_samples

    @property
    def num_indices(self) -> int:
        """The number of samples of all sources."""
        return sum(self.lengths)

    def order(self, *, seed: int, epoch: int) -> SliceableOrder:
        """Return the epoch's repetitions of the pattern."""
        return _MixedSourceOrder(self.lengths, self.counts, self._num_samples, seed=seed, epoch=epoch)

    def _identity(self) -> tuple[Any, ...]:
        return self._num_samples, self.lengths, self.counts

    def expected_visits(self) -> npt.NDArray[np.float64]:
        """Return for a sample of source s how many positions the source has, over its length."""
        repetitions = self._num_samples // sum(self.counts)
        rates = [
            repetitions * count / length for length, count in zip(self.lengths, self.counts, strict=True)
        ]
        return np.repeat(rates, self.lengths)


class _MixedSourceOrder(SliceableOrder):
    """One epoch of a row of repetitions that has no end."""

    def __init__(
        self, lengths: tuple[int, ...], counts: tuple[int, ...], length: int, *, seed: int, epoch: int
    ) -> None:
        super().__init__(length)
        self._counts = counts
        self._first = epoch * length  # the epoch's first place in the row, which begins a repetition
        self._offsets = np.cumsum((0, *lengths)).tolist()
        self._begins = np.cumsum((0, *counts)).tolist()
        self._cycles = [ShuffledCycles(key64(seed, "source", s), n) for s, n in enumerate(lengths)]

    def positions(self, start: int, stop: int) -> IndexArray:
        repetition, place = np.divmod(np.arange(self._first + start, self._first + stop), self._begins[-1])
        result = np.empty(stop - start, dtype=np.int64)
        for count, begin, offset, cycles in zip(
            self._counts, self._begins, self._offsets, self._cycles, strict=False
        ):
            here = np.flatnonzero((place >= begin) & (place < begin + count))
            if len(here):
                # A source's visits follow each other along the row, so those of a slice are consecutive.
                first = int(repetition[here[0]]) * count + int(place[here[0]]) - begin
                result[here] = offset + cycles.visits(first, first + len(here))
        return result


def _checked_positive(name: str, values: Sequence[int], *, remedy: str) -> tuple[int, ...]:
    try:
        numbers = list(values)
    except TypeError:
        raise TypeError(
            f"`{name}` must be one int for each source, got {values!r} of type {type(values).__name__}"
        ) from None
    if not numbers:
        raise ValueError(f"`{name}` is empty, and there must be at least one source")
    result = tuple(checked_int(f"{name}[{s}]", value) for s, value in enumerate(numbers))
    for s, number in enumerate(result):
        if number < 1:
            raise ValueError(f"`{name}` must be positive, got {name}[{s}]={number}; {remedy}")
    return result
