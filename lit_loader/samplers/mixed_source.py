"""`MixedSourceSampler`: several sources of samples in one order, mixed in every batch or over the epoch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lit_loader.errors import SettingError
from lit_loader.samplers.checks import check_share, checked_int, checked_integers, refuse_first
from lit_loader.samplers.class_balanced import class_quotas
from lit_loader.samplers.epoch_settings import EpochQuotas, EpochSetting
from lit_loader.samplers.order import OrderSampler, SizedSampler, SliceableOrder, epoch_visits
from lit_loader.samplers.shuffle import cycles_order, epochs_order, permutation
from lit_loader.schedules import EpochSchedule, Schedule, Scheduled
from lit_loader.seeding import key64
from lit_loader.types import IndexArray, Order

# Of an epoch whose length is computed. An order takes 12 bytes a position, and a typing error could fill the memory.
_MAX_LENGTH: Final = 2**31


class MixedSourceSampler(SizedSampler):
    """Mixes sources: a fixed number of samples of each in every batch, or fixed shares of every epoch.

    With ``counts``, the order repeats one pattern: ``counts[0]`` samples of the first source, then ``counts[1]`` of the
    second, and so on. Batches and the parts of ranks are consecutive positions. So with ``batch_size=sum(counts)`` or a
    multiple of it every batch of every rank has the same mix, for any world size.

    Otherwise every epoch has an exact quota of positions for each source, in proportion to ``shares``, and the
    positions are permuted anew in every epoch. Without ``shares`` an epoch is one epoch of each source.

    The j-th visit to a source takes the j-th sample of the source's own stream, and streams continue from epoch to
    epoch. The stream of a length is shuffled cycles: no sample repeats before all of them were visited. The stream of a
    sampler is its epochs one after the other, so a source may be balanced within itself. A small source is repeated
    several times an epoch.

    A share may be a schedule of epochs, and may be 0 in some of them. The quotas of every epoch are exact then, too,
    and streams continue although quotas change. ``counts`` have no schedules, because they fix the size of a batch.

    Random access: with ``counts`` a slice costs its length, and an epoch of each source that it touches. Otherwise
    making an order takes O(num_samples log num_samples) and 12 bytes a position. The last two epochs of a source are
    cached.

    Args:
        sources: For each source its number of samples, or an `OrderSampler` over them, in the order in which
            ``torch.utils.data.ConcatDataset`` holds the sources. A sampler with a seed uses it; others get one each.
        counts: Samples of each source in a batch, or None for fixed shares of an epoch.
        shares: Numbers in proportion to which the sources share an epoch, or None for the lengths of their epochs. Each
            may be an `EpochSchedule`, or a mapping such as ``{"points": {0: 3, 10: 1}}``.
        num_samples: Positions in an epoch; with ``counts`` a multiple of ``sum(counts)``. None for the smallest number
            that gives every source at least one of its epochs, which schedules do not determine.
        seed: Seed of ``__iter__``; see `OrderSampler`.

    Attributes:
        sources: As given, as a tuple.
        lengths: Number of samples of each source, a tuple.
        counts: As given, as a tuple or None.
        quotas: int64 ``(num_sources,)``, positions of each source in every epoch; with schedules in epoch 0.

    Raises:
        TypeError: If an argument is of the wrong type, or a sampler composes batches itself.
        ValueError: If a source is empty, a count or share is not positive (it is named), there are more of one than of
            the other, both are given, ``num_samples`` is not a multiple of ``sum(counts)``, there are fewer positions
            than sources, a schedule is drawn for every batch or lacks ``num_samples``, or the sampler of a source has a
            schedule and an epoch of the mix is not one epoch of this sampler.
    """

    def __init__(
        self,
        sources: Sequence[int | OrderSampler],
        counts: Sequence[int] | None = None,
        *,
        shares: Sequence[Scheduled] | None = None,
        num_samples: int | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(seed=seed)
        self.sources = _checked_sources(sources)
        self.lengths = tuple(source if isinstance(source, int) else source.num_indices for source in self.sources)
        # Positions of one epoch of each source; a sampler may have more or fewer than it has indices.
        self._epoch_lengths = tuple(source if isinstance(source, int) else len(source) for source in self.sources)
        refuse_first(
            "sources",
            np.array(self._epoch_lengths),
            np.array(self._epoch_lengths) < 1,
            rule="have samples",
            remedy="leave out an empty source",
        )
        self._num_indices = sum(self.lengths)
        if counts is not None and shares is not None:
            raise ValueError(
                f"`counts` fixes each batch and `shares` the epoch, got {counts} and {shares}; give one of them"
            )
        self.counts: tuple[int, ...] | None = None
        self._shares: list[EpochSetting] = []
        if counts is not None:
            self.counts = _checked_counts(counts, len(self.sources))
            self._length = _length_of_pattern(self.counts, self._epoch_lengths, num_samples)
            self._quotas = EpochQuotas([], partial(_pattern_quotas, self.counts, self._length))
        else:
            self._shares = _checked_shares(self._epoch_lengths if shares is None else shares, len(self.sources))
            self._length = _length_of_shares(self._shares, self._epoch_lengths, num_samples)
            self._quotas = EpochQuotas(self._shares, partial(_share_quotas, self._length))
        self.quotas: IndexArray = self._quotas.at(0)
        self._check_schedules_of_sources()

    @property
    def batch_multiple(self) -> int:
        """Number of positions after which the pattern of sources repeats; 1 for shares of an epoch."""
        return 1 if self.counts is None else sum(self.counts)

    @property
    def schedules(self) -> tuple[EpochSchedule, ...]:
        """Schedules of the shares, then the schedules of the sources' samplers."""
        shares = [share.schedule for share in self._shares if share.schedule is not None]
        sources = [source for source in self.sources if not isinstance(source, int)]
        return *shares, *(schedule for source in sources for schedule in source.schedules)

    def quotas_of(self, epoch: int) -> IndexArray:
        """Return `quotas` of an epoch."""
        return self._quotas.at(epoch)

    @property
    def revision(self) -> int:
        """Sum of the revisions of the sources' samplers."""
        # Each of them only grows, so the sum changes whenever one of them does.
        return sum(source.revision for source in self.sources if not isinstance(source, int))

    def order(self, *, seed: int, epoch: int) -> Order:
        """Return the epoch's positions: a slice of an endless sequence of visits to the sources.

        Raises:
            ValueError: If the length of a source has changed.
        """
        self._check_lengths()
        # Again, because a sampler may have got a schedule of weights since.
        self._check_schedules_of_sources()
        streams = [self._stream(number, seed) for number in range(len(self.sources))]
        if self.counts is not None:
            # Of one repetition: the source at each place, and the earlier visits to it.
            counts = np.array(self.counts, dtype=np.int64)
            pattern = np.repeat(np.arange(len(counts)), counts)
            earlier = np.arange(len(pattern)) - (np.cumsum(counts) - counts)[pattern]
            locate = partial(_repeated, pattern, counts[pattern], earlier, epoch * len(self))
            return SliceableOrder(len(self), partial(self._positions, streams, locate))
        quotas = self._quotas.at(epoch)
        source_ids = np.repeat(np.arange(len(self.sources), dtype=np.int32), quotas)
        source_ids = source_ids[permutation(key64(seed, "sources", epoch), len(self))]
        # The stable sort keeps the visits to a source in their order.
        visits = np.empty(len(self), dtype=np.int64)
        visits[np.argsort(source_ids, kind="stable")] = np.arange(len(self))
        # From a position in the sorted epoch to a visit since the first epoch.
        visits += (self._quotas.before(epoch) - (np.cumsum(quotas) - quotas))[source_ids]
        return SliceableOrder(len(self), partial(self._positions, streams, partial(_sliced, source_ids, visits)))

    def _stream(self, number: int, seed: int) -> SliceableOrder:
        """Return the endless sequence of a source's samples."""
        source = self.sources[number]
        key = key64(seed, "source", number)
        if isinstance(source, int):
            return cycles_order(key, source)
        return epochs_order(partial(_epoch_of, source, key if source.seed is None else source.seed), len(source))

    def _positions(
        self,
        streams: list[SliceableOrder],
        locate: Callable[[int, int], tuple[npt.NDArray[Any], IndexArray]],
        start: int,
        stop: int,
    ) -> IndexArray:
        """Return the indices at positions of an epoch; ``locate`` returns the source and the visit of each."""
        source_ids, visits = locate(start, stop)
        indices = np.empty(stop - start, dtype=np.int64)
        # Index of the source's first sample.
        offset = 0
        for number, (length, stream) in enumerate(zip(self.lengths, streams, strict=True)):
            rows = np.flatnonzero(source_ids == number)
            if len(rows):
                # The visits to a source are in order along the sequence, and a slice has consecutive ones.
                visit = int(visits[rows[0]])
                indices[rows] = offset + stream[visit : visit + len(rows)]
            offset += length
        return indices

    def _check_lengths(self) -> None:
        """Refuse samplers whose length follows a data set that has grown or shrunk."""
        for number, source in enumerate(self.sources):
            expected = (self._epoch_lengths[number], self.lengths[number])
            if not isinstance(source, int) and (len(source), source.num_indices) != expected:
                raise ValueError(
                    f"sources[{number}] had {expected[0]} positions over {expected[1]} indices, and now has "
                    f"{len(source)} over {source.num_indices}; make a new MixedSourceSampler"
                )

    def _check_schedules_of_sources(self) -> None:
        """Refuse a sampler with a schedule if an epoch of the mix is not one epoch of the sampler."""
        shares_change = any(share.schedule is not None for share in self._shares)
        for number, (source, length) in enumerate(zip(self.sources, self._epoch_lengths, strict=True)):
            quota = int(self.quotas[number])
            if isinstance(source, int) or not source.schedules or (quota == length and not shares_change):
                continue
            positions = "a changing number" if shares_change else str(quota)
            remedy = "" if shares_change else f", or num_samples={quota}"
            raise ValueError(
                f"sources[{number}]: {type(source).__name__} has a setting that changes by epoch, and an epoch of the "
                f"mix takes {positions} of its {length} positions, so it would count other epochs than the run; give "
                f"this sampler constant settings{remedy}"
            )

    def _identity(self) -> tuple[Any, ...]:
        # The first three parts alone identify lengths with counts, so checkpoints of such samplers stay valid.
        identity: list[Any] = [self._length, np.array(self.lengths)]
        identity += ["shares", self.quotas] if self.counts is None else [np.array(self.counts)]
        if any(share.schedule is not None for share in self._shares):
            identity += [part for share in self._shares for part in share.identity()]
        for number, source in enumerate(self.sources):
            if not isinstance(source, int):
                identity += [number, source.seed, source.fingerprint()]
        return tuple(identity)

    def expected_visits(self, epoch: int = 0) -> npt.NDArray[np.float64]:
        """Return the expected visits of each sample, in the mean over seeds and over epochs with the same settings.

        Args:
            epoch: The epoch of the settings, from 0.

        Raises:
            ValueError: If the sampler of a source knows no closed form.
        """
        parts = []
        for source, length, quota in zip(self.sources, self._epoch_lengths, self._quotas.at(epoch), strict=True):
            visits = np.ones(source) if isinstance(source, int) else epoch_visits(source, epoch)
            # Visits of one of the source's epochs, times the number of its epochs in an epoch of the mix.
            parts.append(visits * (quota / length))
        return np.concatenate(parts)


def _epoch_of(sampler: OrderSampler, seed: int, epoch: int) -> Order:
    # A module-level function, because an order can be pickled and a lambda cannot.
    return sampler.order(seed=seed, epoch=epoch)


# Functions of the module, because an order can be pickled.


def _repeated(
    pattern: IndexArray, counts: IndexArray, earlier: IndexArray, first: int, start: int, stop: int
) -> tuple[IndexArray, IndexArray]:
    """Return the sources, and the visits to them, at positions of an epoch that begins at ``first`` of the pattern."""
    repetitions, places = np.divmod(np.arange(first + start, first + stop), len(pattern))
    return pattern[places], repetitions * counts[places] + earlier[places]


def _sliced(
    source_ids: npt.NDArray[np.int32], visits: IndexArray, start: int, stop: int
) -> tuple[npt.NDArray[np.int32], IndexArray]:
    return source_ids[start:stop], visits[start:stop]


# -- checks and lengths ------------------------------------------------------------------------------------


def _checked_sources(sources: Sequence[int | OrderSampler]) -> tuple[int | OrderSampler, ...]:
    try:
        sources = list(sources)
    except TypeError:
        raise TypeError(
            f"`sources` must be a sequence of lengths and samplers, got {sources!r} of type {type(sources).__name__}"
        ) from None
    if len(sources) == 0:
        raise ValueError("`sources` is empty; give at least one source")
    checked: list[int | OrderSampler] = []
    for number, source in enumerate(sources):
        if not isinstance(source, OrderSampler):
            checked.append(checked_int(f"sources[{number}]", source))
            continue
        if type(source).batch_order is not OrderSampler.batch_order or source.batch_multiple > 1:
            raise TypeError(
                f"sources[{number}]: {type(source).__name__} composes every batch itself, and mixing would undo that; "
                "give a sampler of single samples"
            )
        checked.append(source)
    return tuple(checked)


def _checked_counts(counts: Sequence[int], num_sources: int) -> tuple[int, ...]:
    for number, count in enumerate(counts):
        if isinstance(count, Schedule | Mapping):
            rule = "is a schedule, and counts fix the size and the mix of every batch of a run"
            raise SettingError(f"counts[{number}]", count, rule, "give numbers that change by epoch as `shares`")
    numbers = checked_integers("counts", counts)
    if len(numbers) != num_sources:
        raise ValueError(
            f"`sources` has {num_sources} entries and `counts` has {len(numbers)}: {tuple(numbers.tolist())}; give one "
            "count for each source"
        )
    refuse_first("counts", numbers, numbers < 1, rule="be positive", remedy="leave out a source that you do not want")
    return tuple(numbers.tolist())


def _checked_shares(shares: Sequence[Scheduled], num_sources: int) -> list[EpochSetting]:
    if len(shares) != num_sources:
        raise ValueError(
            f"`sources` has {num_sources} entries and `shares` has {len(shares)}: {shares}; give one share for each "
            "source"
        )
    return [EpochSetting(f"shares[{number}]", share, share_check(share)) for number, share in enumerate(shares)]


def share_check(share: Scheduled) -> Callable[[str, Any], Fraction]:
    """Return the check of a share: a constant must be positive, and a schedule may be 0 in some epochs."""
    return partial(_checked_share, isinstance(share, Schedule | Mapping))


def _checked_share(may_be_zero: bool, name: str, share: Any) -> Fraction:
    check_share(name, share, may_be_zero=may_be_zero)
    # By the decimal text: the float 0.7 is slightly less than 7/10, and would lengthen an epoch by one position.
    return Fraction(str(share))


def _pattern_quotas(counts: tuple[int, ...], num_samples: int) -> IndexArray:
    return num_samples // sum(counts) * np.array(counts)


def _share_quotas(num_samples: int, *shares: Fraction) -> IndexArray:
    if not any(shares):
        raise ValueError("`shares` are 0 for all sources in the same epoch; give at least one of them samples there")
    return class_quotas(shares, num_samples)


def _length_of_pattern(counts: tuple[int, ...], epoch_lengths: tuple[int, ...], num_samples: int | None) -> int:
    size = sum(counts)
    if num_samples is None:
        # The source with the largest ratio of length to count needs the most repetitions.
        return size * max(-(-n // k) for n, k in zip(epoch_lengths, counts, strict=True))
    length = checked_int("num_samples", num_samples, minimum=1)
    # A partial repetition at the end would also shift the pattern of the next epoch.
    if length % size:
        raise ValueError(
            f"num_samples={num_samples} is not a multiple of sum(counts)={size}, and the last batch would have "
            f"another mix; give {-(-length // size) * size}"
        )
    return length


def _length_of_shares(shares: list[EpochSetting], epoch_lengths: tuple[int, ...], num_samples: int | None) -> int:
    if num_samples is not None:
        length = checked_int("num_samples", num_samples, minimum=1)
        if length < len(shares):
            raise ValueError(
                f"num_samples={num_samples} is less than the {len(shares)} sources; give at least that many"
            )
        return length
    if any(share.schedule is not None for share in shares):
        rule = "leaves the length of an epoch open, because shares change and the length must not"
        raise SettingError("num_samples", None, rule, settings={"num_samples": sum(epoch_lengths)})
    fractions = [share.at(0) for share in shares]
    total = sum(fractions, Fraction(0))
    # The largest remainder method never rounds a quota below its integer part, so no source gets less.
    longest = max(-int(-n * total // share) for n, share in zip(epoch_lengths, fractions, strict=True))
    if longest > _MAX_LENGTH:
        rule = f"is an epoch of {longest:.2g} positions, so that the source with the smallest share comes in full"
        raise SettingError("num_samples", None, rule, settings={"num_samples": ...})
    return longest
