"""`WeightedRandomSampler`: draws in proportion to weights, with or without replacement, from an alias table."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.utils.data

from lit_loader.samplers.checks import Weights, checked_flag, checked_num_samples, checked_weights
from lit_loader.samplers.epoch_settings import EpochSetting, epoch_schedule
from lit_loader.samplers.order import OrderSampler, SizedSampler, SliceableOrder, array_order
from lit_loader.schedules import EpochSchedule
from lit_loader.seeding import hash_u64, key64
from lit_loader.types import IndexArray, Order

# An index takes 31 of a column's 63 bits, its units the other 32.
_MAX_WEIGHTS = 2**31 - 1
# Weights, columns or draws at a time, so that the arrays of a chunk fit in the cache.
_CHUNK = 1 << 16
_LOW32 = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)
_SQRT_HALF = 0.5**0.5


class WeightedRandomSampler(  # type: ignore[override] # num_samples: see OrderSampler
    SizedSampler, torch.utils.data.WeightedRandomSampler
):
    """Draws index i with probability ``weights[i] / sum(weights)``.

    With replacement the draws are independent. Each is computed from an alias table, without the draws before it; the
    table is built once in linear time (8 bytes a weight). Without replacement the indices are sorted by exponential
    keys, which has the same distribution as drawing from the remaining indices one by one; this takes O(n log n) for
    each order.

    The signature is torch's without ``generator``: an order is a function of (seed, epoch).

    Args:
        weights: One number an index, shape ``(n,)``: a list, array, memory map, tensor or Arrow column; they need not
            sum to one. They are copied once, to float64 (8 bytes a weight), so later changes by the caller have no
            effect, and a memory map or column is read only once. An `EpochSchedule` whose values are weights, such as
            ``FunctionSchedule(weights_of_epoch)``, changes them from epoch to epoch; they are computed for each order.
        num_samples: Positions in an epoch, or None for ``len(weights)``.
        replacement: Whether an index may come more than once in an epoch.
        seed: Seed of ``__iter__``; see `OrderSampler`.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If a weight is negative, infinite or NaN (the first is named), all weights are zero, the shape is
            wrong, ``num_samples`` is not positive or, without replacement, above the number of positive weights, or a
            schedule is drawn for every batch.

    Source:
        With replacement: see `AliasTable`. Without: Efraimidis and Spirakis 2006, "Weighted random
        sampling with a reservoir".
    """

    def __init__(
        self,
        weights: Weights | EpochSchedule,
        num_samples: int | None = None,
        replacement: bool = True,
        *,
        seed: int | None = None,
    ) -> None:
        OrderSampler.__init__(self, seed=seed)
        self.replacement = checked_flag("replacement", replacement)
        weights = epoch_schedule("weights", weights)
        # A list is converted and copied only once.
        checked = checked_weights("weights", weights.at(0) if isinstance(weights, EpochSchedule) else weights)
        if len(checked) > _MAX_WEIGHTS:
            raise ValueError(f"`weights` must have at most {_MAX_WEIGHTS} entries, got {len(checked)}")
        self._length = checked_num_samples(num_samples, len(checked))
        self._num_indices = len(checked)
        self.generator = None
        self._revision = 0
        self._use_weights(weights if isinstance(weights, EpochSchedule) else checked)

    def _use_weights(self, weights: EpochSchedule | npt.NDArray[np.float64]) -> None:
        """Replace the weights after a check that there are as many as before, and that enough of them are positive."""
        check = _checked_epoch_weights if isinstance(weights, EpochSchedule) else _checked_draws
        num_draws = None if self.replacement else self._length
        self._weights = EpochSetting("weights", weights, partial(check, self._num_indices, num_draws))
        # With the epoch of its weights.
        self._table: tuple[int, AliasTable] | None = None

    def set_weights(self, weights: Weights | EpochSchedule) -> None:
        """Replace the weights, or their schedule. Later orders use the new ones; existing orders do not change.

        Call it between two epochs, on all ranks, with the same weights. A `lit_loader.DataLoader` then drops batches of
        the next epoch that it has made ahead.

        Args:
            weights: As many weights as before, in any form that the constructor takes; they are copied.

        Raises:
            TypeError: As for the constructor.
            ValueError: As for the constructor, or if the number of weights differs. The sampler stays unchanged.
        """
        weights = epoch_schedule("weights", weights)
        self._use_weights(weights if isinstance(weights, EpochSchedule) else checked_weights("weights", weights))
        self._revision += 1

    @property
    def revision(self) -> int:
        """Number of calls of `set_weights`."""
        return self._revision

    @property
    def schedules(self) -> tuple[EpochSchedule, ...]:
        """Schedule of the weights."""
        return () if self._weights.schedule is None else (self._weights.schedule,)

    @property
    def weights(self) -> torch.Tensor:  # type: ignore[override] # a writeable attribute in torch
        """Copy of the weights, float64 ``(n,)``; with a schedule the weights of epoch 0."""
        return torch.tensor(self._weights.at(0))

    def weights_in(self, epoch: int) -> npt.NDArray[np.float64]:
        """Return the weights of an epoch, float64 ``(n,)``, read-only."""
        weights: npt.NDArray[np.float64] = self._weights.at(epoch)
        return weights

    def weights_epoch(self, epoch: int) -> int:
        """Return the earliest epoch that is known to have the weights of an epoch."""
        return self._weights.same_epoch(epoch)

    def order(self, *, seed: int, epoch: int) -> Order:
        """Return the epoch's draws."""
        if not self.replacement:
            key = key64(seed, "weighted without replacement", epoch)
            return array_order(exponential_order(self.weights_in(epoch), self._length, key=key))
        # The table is built at the first use: without replacement, and in workers, it is not needed.
        weights_epoch = self.weights_epoch(epoch)
        table = self._table
        if table is None or table[0] != weights_epoch:
            table = (weights_epoch, AliasTable(self.weights_in(epoch)))
            self._table = table
        key = key64(seed, "weighted", epoch)
        return SliceableOrder(self._length, partial(table[1].draw, key))

    def expected_visits(self, epoch: int = 0) -> npt.NDArray[np.float64]:
        """Return ``num_samples * weights / sum(weights)``; without replacement, 1 for every positive weight.

        Args:
            epoch: The epoch of the weights, from 0.

        Raises:
            ValueError: Without replacement, if there are fewer draws than positive weights: the expectation then has
                no closed form.
        """
        weights = self.weights_in(epoch)
        if self.replacement:
            # So that the sum does not overflow.
            scaled = weights / weights.max()
            result: npt.NDArray[np.float64] = scaled * (self._length / scaled.sum())
            return result
        num_positive = int(np.count_nonzero(weights))
        if self._length < num_positive:
            raise ValueError(
                f"the expected visits of {self._length} draws without replacement among "
                f"{num_positive} positive weights have no closed form; "
                "count them over orders of several seeds instead"
            )
        return (weights > 0).astype(np.float64)

    def _identity(self) -> tuple[Any, ...]:
        return self._length, self.replacement, *self._weights.identity()

    def __getstate__(self) -> dict[str, Any]:
        # Building the table again is cheaper than pickling it.
        return {**self.__dict__, "_table": None}


def _checked_draws(
    num_indices: int, num_draws: int | None, name: str, weights: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return weights after a check that the sampler can draw with them.

    Args:
        num_indices: Number of weights.
        num_draws: Number of draws without replacement, or None with replacement.
        name: The argument's name.
        weights: Result of `checked_weights`.
    """
    if len(weights) != num_indices:
        raise ValueError(
            f"`{name}` must have {num_indices} entries, one an index, got {len(weights)}; make a new sampler for a "
            "dataset of another length"
        )
    num_positive = int(np.count_nonzero(weights))
    if num_draws is not None and num_draws > num_positive:
        raise ValueError(
            f"num_samples={num_draws} exceeds the {num_positive} positive weights, and "
            "without replacement each index comes at most once; lower num_samples or set replacement=True"
        )
    return weights


def _checked_epoch_weights(
    num_indices: int, num_draws: int | None, name: str, weights: Weights
) -> npt.NDArray[np.float64]:
    """Return the weights that a schedule has in an epoch as a read-only copy; see `_checked_draws`."""
    return _checked_draws(num_indices, num_draws, name, checked_weights(name, weights))


def exponential_order(weights: npt.NDArray[np.float64], num_samples: int, *, key: int) -> IndexArray:
    """Return ``num_samples`` indices drawn one after the other without replacement.

    Index i gets the key ``-log(u_i) / w_i``, u_i uniform in (0, 1); the smallest keys are drawn, in ascending order.
    (The key is the negated logarithm of ``u ** (1 / w)``, whose largest values Efraimidis and Spirakis take.)

    Args:
        weights: float64, shape ``(n,)``, finite, not negative.
        num_samples: At most the number of positive weights.
        key: A 64-bit key.
    """
    bits = hash_u64(key, np.arange(len(weights), dtype=np.int64)) >> np.uint64(12)
    # Of exact numbers, neither 0 nor 1.
    exponentials = _minus_log((bits.astype(np.float64) + 0.5) * 2.0**-52)
    # Inf for weights of 0 or 1e-308 of the largest.
    with np.errstate(divide="ignore", over="ignore"):
        keys = exponentials / (weights / weights.max())
    keys[weights == 0] = np.nan  # sorts last, after inf
    # Select before sorting: only the drawn keys need an order.
    last = np.partition(keys, num_samples - 1)[num_samples - 1]
    # More than ``num_samples`` only if keys are equal.
    drawn = np.flatnonzero(keys <= last)
    return drawn[np.argsort(keys[drawn], kind="stable")[:num_samples]].astype(np.int64, copy=False)


def _minus_log(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return -log(x), x > 0, computed with exactly rounded operations only.

    numpy's log differs in the last bit between processors, and an order must not. log(m * 2**e) is
    e * log(2) + 2 * atanh((m - 1) / (m + 1)); the series ends where its terms fall below 2**-53.
    """
    mantissa, exponent = np.frexp(x)
    small = mantissa < _SQRT_HALF
    mantissa[small] *= 2.0
    exponent[small] -= 1
    ratio = (mantissa - 1.0) / (mantissa + 1.0)  # |ratio| < 0.172
    square = ratio * ratio
    series = np.zeros_like(x)
    for term in range(21, 0, -2):
        series *= square
        series += 1.0 / term
    result: npt.NDArray[np.float64] = -2.0 * ratio * series - exponent * 0.6931471805599453
    return result


# -- the alias table ---------------------------------------------------------------------------------------


def weight_units(weights: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.int64], int]:
    """Return the weights as integer units that sum to exactly ``n * 2**bits``, and ``bits``.

    With integers the table is exact and the same on every machine. ``bits`` is 40, fewer above 2**23 weights (36 for
    1e8). A positive weight gets at least one unit. Rounding leaves over at most one unit for each weight; these are
    divided equally among the weights of at least the mean. So the error of a probability is below ``2**(1 - bits)``,
    which is 2e-12 for 40 bits.

    Args:
        weights: float64, shape ``(n,)``, finite, not negative, not all zero, n < 2**31.

    Returns:
        Units, int64 ``(n,)``; one column of the table holds ``2**bits`` of them.
    """
    length = len(weights)
    bits = min(40, 63 - length.bit_length())
    # Weights are scaled first, so that the sum does not overflow and the quotients are not subnormal. The order of
    # additions is defined for np.cumsum, but not for np.sum.
    largest = weights.max()
    total = 0.0
    for start in range(0, length, _CHUNK):
        scaled = weights[start : start + _CHUNK] / largest
        scaled[0] += total
        total = float(np.cumsum(scaled)[-1])
    units = np.empty(length, dtype=np.int64)
    for start in range(0, length, _CHUNK):
        weight_chunk = weights[start : start + _CHUNK]
        unit_chunk = units[start : start + _CHUNK]
        scaled = weight_chunk / largest
        scaled *= length / total
        # Exact, as a power of two.
        scaled *= 2.0**bits
        unit_chunk[:] = scaled
        unit_chunk[(unit_chunk == 0) & (weight_chunk > 0)] = 1
    # Weights below the mean would get a larger relative error.
    threshold = min(1 << bits, int(units.max()))
    num_takers = sum(int(np.count_nonzero(chunk >= threshold)) for chunk in _chunks(units))
    share, remainder = divmod((length << bits) - int(units.sum()), num_takers)
    for chunk in _chunks(units):
        takers = np.flatnonzero(chunk >= threshold)
        chunk[takers] += share
        chunk[takers[:remainder]] += 1
        remainder -= min(remainder, len(takers))
    return units, bits


class AliasTable:
    """Walker's alias table, built in linear time without a loop over the weights.

    Column i gives i for the first ``own_units[i]`` of its ``2**bits`` units and ``alias[i]`` for the others. The
    deficits of the columns with too few units (light) are laid along one line, the excesses of the columns with too
    many units (heavy) along another. A light column is filled by the heavy column in whose excess its deficit begins. A
    heavy column whose excess ends inside a deficit gets the missing units from the next heavy column. So two prefix
    sums and two binary searches replace Vose's two stacks, in exact integers. Both lines are processed in chunks, and
    a column's result overwrites its units, so the table needs only 8 bytes a weight.

    Args:
        weights: As `weight_units` takes them.

    Attributes:
        columns: int64 ``(n,)``, read-only: ``alias << bits | own_units`` of each column.
        bits: Number of low bits; a column has ``2**bits`` units.

    Source:
        Walker 1977, "An efficient method for generating discrete random variables with general
        distributions"; Vose 1991, "A linear algorithm for generating random numbers with a given
        distribution".
    """

    def __init__(self, weights: npt.NDArray[np.float64]) -> None:
        # _fill() replaces the units of each column in place, so that the table needs no second array.
        self.columns, self.bits = weight_units(weights)
        _fill(self.columns, self.bits)
        self.columns.flags.writeable = False

    def draw(self, key: int, start: int, stop: int) -> IndexArray:
        """Return draws number ``start`` to ``stop - 1``, independent of each other, int64.

        One 64-bit hash h of the draw's number gives both the column and the place in the column: h * n has 128 bits;
        the high 64 bits are the column (with a bias below n / 2**64), the low 64 bits are the place.
        """
        result = np.arange(start, stop, dtype=np.int64)
        length = np.uint64(len(self.columns))
        for chunk in _chunks(result):
            hashes = hash_u64(key, chunk)
            # The high 64 bits of the product, from products of 32-bit halves that do not overflow.
            column = ((hashes & _LOW32) * length >> _32) + (hashes >> _32) * length
            column >>= _32
            # The product wraps to its low 64 bits.
            place = hashes * length >> np.uint64(64 - self.bits)
            columns = column.view(np.int64)
            values = self.columns[columns]
            np.right_shift(values, self.bits, out=chunk)  # the alias
            values &= (1 << self.bits) - 1  # own_units
            np.copyto(chunk, columns, where=place.view(np.int64) < values)
        return result


def _fill(columns: IndexArray, bits: int) -> None:
    """Turn the units of all columns into alias and own_units, in place.

    A finished column is stored inverted, as a negative number, until all are finished, so that it is not processed
    twice.
    """
    column = 1 << bits
    light_chunks = _unfilled(columns, column, heavy=False)
    heavy_chunks = _unfilled(columns, column, heavy=True)
    light = np.empty(0, dtype=np.int64)
    heavy = np.empty(0, dtype=np.int64)
    # The deficit of light[k] is from bounds[k] to bounds[k + 1].
    bounds = np.zeros(1, dtype=np.int64)
    # The excess of heavy[k] ends at ends[k].
    ends = np.zeros(0, dtype=np.int64)
    while True:
        if len(light) == 0:
            light, deficits = next(light_chunks, (light, light))
            bounds = np.cumsum(np.append(bounds[-1:], deficits))
        # A heavy column is finished by its successor, so the last one must wait.
        while len(heavy) < 2:
            next_heavy, excesses = next(heavy_chunks, (heavy[:0], heavy[:0]))
            if len(next_heavy) == 0:
                break
            heavy = np.append(heavy, next_heavy)
            ends = np.append(ends, ends.max(initial=0) + np.cumsum(excesses))
        if len(light) == 0 and len(heavy) == 1:
            break
        num_light = int(np.searchsorted(bounds[:-1], ends[-1], side="left"))
        num_heavy = min(int(np.searchsorted(ends, bounds[-1], side="right")), len(heavy) - 1)
        givers = heavy[np.searchsorted(ends, bounds[:num_light], side="right")]
        columns[light[:num_light]] = ~(givers << bits | columns[light[:num_light]])
        # Both lines have the same length, so every excess ends within the deficits.
        finished = heavy[:num_heavy]
        finished_ends = ends[:num_heavy]
        own_units = column - (bounds[np.searchsorted(bounds, finished_ends, side="left")] - finished_ends)
        # A full column has one unit too many for the low bits. As its own alias it needs none.
        full = own_units == column
        own_units[full] = 0
        columns[finished] = ~(np.where(full, finished, heavy[1 : num_heavy + 1]) << bits | own_units)
        light = light[num_light:]
        bounds = bounds[num_light:]
        heavy = heavy[num_heavy:]
        ends = ends[num_heavy:]
    # The last column is full.
    columns[heavy] = ~(heavy << bits)
    np.invert(columns, out=columns)


def _unfilled(columns: IndexArray, column: int, *, heavy: bool) -> Iterator[tuple[IndexArray, IndexArray]]:
    """Yield the unfinished columns of one kind, chunk by chunk, with their deficits or excesses."""
    for start in range(0, len(columns), _CHUNK):
        chunk = columns[start : start + _CHUNK]
        places = np.flatnonzero(chunk >= column if heavy else (chunk >= 0) & (chunk < column))
        if len(places):
            yield places + start, np.abs(chunk[places] - column)


def _chunks(array: IndexArray) -> Iterator[IndexArray]:
    return (array[start : start + _CHUNK] for start in range(0, len(array), _CHUNK))
