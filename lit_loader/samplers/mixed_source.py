"""`MixedSourceSampler`: several datasets in one, with a fixed number of samples of each in every batch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from lit_loader.samplers.checks import checked_int, checked_integers, refuse_first
from lit_loader.samplers.order import SizedSampler, SliceableOrder
from lit_loader.samplers.shuffle import cycles_order
from lit_loader.seeding import key64
from lit_loader.types import IndexArray, Order


class MixedSourceSampler(SizedSampler):
    """Repeats one pattern: ``counts[0]`` samples of the first source, then ``counts[1]`` of the second, and so on.

    Batches and the parts of ranks are consecutive positions. So with ``batch_size=sum(counts)`` every batch of every
    rank is one repetition, for any world size; with a multiple of ``sum(counts)`` it is several. Only the last, partial
    batch that several ranks share can have another mix; ``drop_last`` drops it.

    The samples of a source come in shuffled cycles that continue from epoch to epoch: no sample repeats before all of
    them were visited. A small source is repeated several times an epoch.

    Random access: a slice costs its length, and a shuffle for each cycle of a source that it touches. The last two
    shuffles of a source are cached (8 bytes a sample; nothing is stored for a source of more than 2**20).

    Args:
        lengths: Number of samples of each source, in the order in which ``torch.utils.data.ConcatDataset`` holds them.
        counts: Samples of each source in a batch.
        num_samples: Positions in an epoch, a multiple of ``sum(counts)``, or None for the smallest number that visits
            every sample of every source.
        seed: Seed of ``__iter__``; see `OrderSampler`.

    Attributes:
        lengths, counts: The arguments, as tuples.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If a length or a count is not positive (it is named), there are more of one than of the other, or
            ``num_samples`` is not a multiple of ``sum(counts)``.
    """

    def __init__(
        self, lengths: Sequence[int], counts: Sequence[int], *, num_samples: int | None = None, seed: int | None = None
    ) -> None:
        super().__init__(seed=seed)
        self.lengths = _checked_positive("lengths", lengths, remedy="leave out an empty source")
        self.counts = _checked_positive("counts", counts, remedy="leave out a source that you do not want")
        if len(self.lengths) != len(self.counts):
            raise ValueError(
                f"`lengths` has {len(self.lengths)} sources and `counts` has {len(self.counts)}: "
                f"{self.lengths} and {self.counts}; give one count for each source"
            )
        size = sum(self.counts)
        if num_samples is None:
            # The source with the largest ratio of length to count needs the most repetitions.
            num_samples = size * max(-(-n // k) for n, k in zip(self.lengths, self.counts, strict=True))
        self._length = checked_int("num_samples", num_samples, minimum=1)
        self._num_indices = sum(self.lengths)
        # A partial repetition at the end would also shift the pattern of the next epoch.
        if self._length % size:
            raise ValueError(
                f"num_samples={num_samples} is not a multiple of sum(counts)={size}, and the last batch would have "
                f"another mix; give {-(-self._length // size) * size}"
            )

    def order(self, *, seed: int, epoch: int) -> Order:
        """Return the epoch's repetitions of the pattern: a slice of an endless sequence of them."""
        cycles = [cycles_order(key64(seed, "source", s), length) for s, length in enumerate(self.lengths)]
        return SliceableOrder(len(self), partial(self._positions, cycles, epoch * len(self)))

    def _positions(self, cycles: list[SliceableOrder], first: int, start: int, stop: int) -> IndexArray:
        """Return the indices at positions of an epoch that begins at ``first`` of the sequence."""
        indices = np.arange(first + start, first + stop)
        repetitions, places = np.divmod(indices, sum(self.counts))
        # Place of the source's first sample in the pattern.
        begin = 0
        # Index of the source's first sample.
        offset = 0
        for length, count, visits in zip(self.lengths, self.counts, cycles, strict=True):
            rows = np.flatnonzero((begin <= places) & (places < begin + count))
            if len(rows):
                # The visits of a source are in order along the sequence, so the visits of a slice are consecutive.
                visit = int(repetitions[rows[0]]) * count + int(places[rows[0]]) - begin
                indices[rows] = offset + visits[visit : visit + len(rows)]
            begin += count
            offset += length
        return indices

    def _identity(self) -> tuple[Any, ...]:
        return self._length, np.array(self.lengths), np.array(self.counts)

    def expected_visits(self) -> npt.NDArray[np.float64]:
        """Return for each sample the number of positions of its source, divided by the source's length."""
        repetitions = self._length // sum(self.counts)
        return np.repeat(repetitions * np.array(self.counts) / self.lengths, self.lengths)


def _checked_positive(name: str, values: Sequence[int], *, remedy: str) -> tuple[int, ...]:
    numbers = checked_integers(name, values)
    if len(numbers) == 0:
        raise ValueError(f"`{name}` is empty; give at least one source")
    refuse_first(name, numbers, numbers < 1, rule="be positive", remedy=remedy)
    return tuple(numbers.tolist())
