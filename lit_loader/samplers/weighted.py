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
from lit_loader.samplers.order import OrderSampler, SizedSampler, SliceableOrder, array_order
from lit_loader.seeding import hash_u64, key64
from lit_loader.types import IndexArray, Order

_MAX_WEIGHTS = 2**31 - 1  # an index takes 31 of a column's 63 bits, its units the other 32
_CHUNK = 1 << 16  # weights, columns or draws at a time: what the arrays of one chunk need stays in cache
_LOW32, _32 = np.uint64(0xFFFFFFFF), np.uint64(32)
_SQRT_HALF = 0.5**0.5


class WeightedRandomSampler(  # type: ignore[override] # num_samples: see OrderSampler
    SizedSampler, torch.utils.data.WeightedRandomSampler
):
    """Draws index i with probability ``weights[i] / sum(weights)``.

    With replacement the draws are independent, and each is computed by itself from an alias table that is built once in
    linear time (8 bytes a weight). Without replacement the indices are sorted by exponential keys, which gives the same
    distribution as drawing one after the other from those left; this costs O(n log n) whenever an order is made.

    The signature is torch's without ``generator``: an order is a function of (seed, epoch).

    Args:
        weights: One number an index, shape ``(n,)``: a list, array, memory map, tensor or Arrow column; they need not
            sum to one. They are copied once, to float64 (8 bytes a weight), so later changes by the caller have no
            effect on the sampler, and nothing is read from a file or a column after that.
        num_samples: Positions in an epoch, or None for ``len(weights)``.
        replacement: Whether an index may come more than once in an epoch.
        seed: Seed of ``__iter__``; see `OrderSampler`.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If a weight is negative, infinite or NaN (the first is named), all are zero, the shape
            is wrong, or ``num_samples`` is not positive or, without replacement, above the number of
            positive weights.

    Source:
        With replacement: see `AliasTable`. Without: Efraimidis and Spirakis 2006, "Weighted random
        sampling with a reservoir".
    """

    def __init__(
        self,
        weights: Weights,
        num_samples: int | None = None,
        replacement: bool = True,
        *,
        seed: int | None = None,
    ) -> None:
        OrderSampler.__init__(self, seed=seed)
        checked = checked_weights("weights", weights)
        if len(checked) > _MAX_WEIGHTS:
            raise ValueError(f"`weights` may have {_MAX_WEIGHTS} entries, got {len(checked)}")
        self._length, self._num_indices = checked_num_samples(num_samples, len(checked)), len(checked)
        self.replacement = checked_flag("replacement", replacement)
        self.generator = None
        self._revision = 0
        self._take(checked)

    def _take(self, weights: npt.NDArray[np.float64]) -> None:
        """Use these weights, if there are enough positive ones."""
        num_positive = int(np.count_nonzero(weights))
        if not self.replacement and self._length > num_positive:
            raise ValueError(
                f"num_samples={self._length} exceeds the {num_positive} positive weights, and "
                "without replacement each index comes at most once; lower num_samples or set replacement=True"
            )
        self._weights, self._num_positive = weights, num_positive
        self._table: AliasTable | None = None

    def set_weights(self, weights: Weights) -> None:
        """Set other weights: orders that are made after this call use them, those made before do not.

        Call it between two epochs, on all ranks, with the same weights. A `lit_loader.DataLoader` then drops batches of
        the next epoch that it has made ahead.

        Args:
            weights: As the constructor takes them, as many as there are; they are copied.

        Raises:
            TypeError: As the constructor does.
            ValueError: As the constructor does, or if there are more or fewer weights. The sampler is left as it was.
        """
        checked = checked_weights("weights", weights)
        if len(checked) != len(self._weights):
            raise ValueError(
                f"`weights` must stay {len(self._weights)}, one an index, got {len(checked)}; make a new sampler for "
                "a dataset of another length"
            )
        self._take(checked)
        self._revision += 1

    @property
    def revision(self) -> int:
        """How often `set_weights` was called."""
        return self._revision

    @property
    def weights(self) -> torch.Tensor:  # type: ignore[override] # a writeable attribute in torch
        """A copy of the weights, float64 ``(n,)``."""
        return torch.tensor(self._weights)

    def order(self, *, seed: int, epoch: int) -> Order:
        """Return the epoch's draws."""
        if not self.replacement:
            key = key64(seed, "weighted without replacement", epoch)
            return array_order(exponential_order(self._weights, self._length, key=key))
        if self._table is None:
            self._table = AliasTable(self._weights)
        key = key64(seed, "weighted", epoch)
        return SliceableOrder(self._length, partial(self._table.draw, key))

    def expected_visits(self) -> npt.NDArray[np.float64]:
        """Return ``num_samples * weights / sum(weights)``; without replacement, 1 for every positive weight.

        Raises:
            ValueError: Without replacement, if fewer are drawn than have a positive weight: the expectation
                then has no closed form.
        """
        if self.replacement:
            scaled = self._weights / self._weights.max()
            result: npt.NDArray[np.float64] = scaled * (self._length / scaled.sum())
            return result
        if self._length < self._num_positive:
            raise ValueError(
                f"the expected visits of {self._length} draws without replacement among "
                f"{self._num_positive} positive weights have no closed form; "
                "count them over orders of several seeds instead"
            )
        return (self._weights > 0).astype(np.float64)

    def _identity(self) -> tuple[Any, ...]:
        return self._length, self.replacement, self._weights

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_table": None}  # built again when needed, which is cheaper than pickling it


def exponential_order(weights: npt.NDArray[np.float64], num_samples: int, *, key: int) -> IndexArray:
    """Return ``num_samples`` indices drawn one after the other without replacement.

    Index i gets the key ``-log(u_i) / w_i``, u_i uniform in (0, 1); the smallest keys are drawn, in their order.
    (Efraimidis and Spirakis take the largest ``u ** (1 / w)``, whose logarithm this is, negated.)

    Args:
        weights: float64, shape ``(n,)``, finite, not negative.
        num_samples: At most the number of positive weights.
        key: A 64-bit key.
    """
    bits = hash_u64(key, np.arange(len(weights), dtype=np.int64)) >> np.uint64(12)
    numbers = _minus_log((bits.astype(np.float64) + 0.5) * 2.0**-52)  # exact, and neither 0 nor 1
    with np.errstate(divide="ignore", over="ignore"):  # inf for weights of 0 or 1e-308 of the largest
        keys = numbers / (weights / weights.max())
    keys[weights == 0] = np.nan  # sorts last, after inf
    last = np.partition(keys, num_samples - 1)[num_samples - 1]
    drawn = np.flatnonzero(keys <= last)  # more than ``num_samples`` only if keys are equal
    return drawn[np.argsort(keys[drawn], kind="stable")[:num_samples]].astype(np.int64, copy=False)


def _minus_log(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return -log(x), x > 0, from exactly rounded operations alone.

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

    Integers make the table exact and the same on every machine; ``bits`` is 40, fewer above 2**23 weights (36 for 1e8).
    A positive weight gets at least one unit. The units that rounding leaves, at most one for each weight, are divided
    equally among the weights of at least the mean, so the error of a probability is below ``2**(1 - bits)``, 2e-12.

    Args:
        weights: float64, shape ``(n,)``, finite, not negative, not all zero, n < 2**31.

    Returns:
        Units, int64 ``(n,)``; one column of the table holds ``2**bits`` of them.
    """
    length = len(weights)
    bits = min(40, 63 - length.bit_length())
    # Scaled first, so that the sum does not overflow and the quotients are not subnormal. The sum is cumulative,
    # because its order of additions is defined, unlike that of np.sum.
    largest, total = weights.max(), 0.0
    for start in range(0, length, _CHUNK):
        scaled = weights[start : start + _CHUNK] / largest
        scaled[0] += total
        total = float(np.cumsum(scaled)[-1])
    units = np.empty(length, dtype=np.int64)
    for start in range(0, length, _CHUNK):
        given, filled = weights[start : start + _CHUNK], units[start : start + _CHUNK]
        scaled = given / largest
        scaled *= length / total
        scaled *= 2.0**bits  # exact, as a power of two
        filled[:] = scaled
        filled[(filled == 0) & (given > 0)] = 1
    takes = min(1 << bits, int(units.max()))
    num_takers = sum(int(np.count_nonzero(part >= takes)) for part in _chunks(units))
    each, left = divmod((length << bits) - int(units.sum()), num_takers)
    for part in _chunks(units):
        takers = np.flatnonzero(part >= takes)
        part[takers] += each
        part[takers[:left]] += 1
        left -= min(left, len(takers))
    return units, bits


class AliasTable:
    """Walker's alias table, built in linear time without a loop over the weights.

    Column i gives i for the first ``own[i]`` of its ``2**bits`` units and ``alias[i]`` for the rest. The deficits of
    the columns with too few units (light) are laid along one line, the excesses of those with too many (heavy) along
    another. A light column is filled by the heavy one in whose excess its deficit begins. A heavy column whose excess
    ends inside a deficit gets the missing units from the next heavy one. So two prefix sums and two binary searches
    replace Vose's two stacks, in exact integers. Both lines are processed in chunks, and a column's result is stored in
    the place of its units, so 8 bytes a weight are enough.

    Args:
        weights: As `weight_units` takes them.

    Source:
        Walker 1977, "An efficient method for generating discrete random variables with general
        distributions"; Vose 1991, "A linear algorithm for generating random numbers with a given
        distribution".
    """

    def __init__(self, weights: npt.NDArray[np.float64]) -> None:
        self._columns, self.bits = weight_units(weights)  # alias in the high bits, own in the low ones
        _fill(self._columns, self.bits)
        self._columns.flags.writeable = False

    def draw(self, key: int, start: int, stop: int) -> IndexArray:
        """Return draws number ``start`` to ``stop - 1``, independent of each other, int64.

        One 64-bit hash h of the draw's number gives both the column and the place in it: h * n has 128 bits, the high
        64 are the column (with a bias below n / 2**64), the low 64 the place.
        """
        result, length = np.arange(start, stop, dtype=np.int64), np.uint64(len(self._columns))
        for drawn in _chunks(result):
            hashes = hash_u64(key, drawn)
            column = ((hashes & _LOW32) * length >> _32) + (hashes >> _32) * length
            column >>= _32
            place = hashes * length >> np.uint64(64 - self.bits)  # the product wraps: its low 64 bits
            columns = column.view(np.int64)
            found = self._columns[columns]
            np.right_shift(found, self.bits, out=drawn)
            found &= (1 << self.bits) - 1
            np.copyto(drawn, columns, where=place.view(np.int64) < found)
        return result


def _fill(columns: IndexArray, bits: int) -> None:
    """Turn the units of all columns into alias and own, in place.

    A finished column is stored inverted, so below zero, until all are finished, so that it is not processed again.
    """
    column = 1 << bits
    lights, heavies = _unfilled(columns, column, heavy=False), _unfilled(columns, column, heavy=True)
    light, heavy = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    bounds = np.zeros(1, dtype=np.int64)  # light[k]'s deficit lies from bounds[k] to bounds[k + 1]
    ends = np.zeros(0, dtype=np.int64)  # heavy[k]'s excess ends at ends[k]
    while True:
        if len(light) == 0:
            light, lacks = next(lights, (light, light))
            bounds = np.cumsum(np.append(bounds[-1:], lacks))
        while len(heavy) < 2:  # the last one stays until its successor is found
            more, over = next(heavies, (heavy[:0], heavy[:0]))
            if len(more) == 0:
                break
            heavy = np.append(heavy, more)
            ends = np.append(ends, ends.max(initial=0) + np.cumsum(over))
        if len(light) == 0 and len(heavy) == 1:
            break
        num_light = int(np.searchsorted(bounds[:-1], ends[-1], side="left"))
        num_heavy = min(int(np.searchsorted(ends, bounds[-1], side="right")), len(heavy) - 1)
        givers = heavy[np.searchsorted(ends, bounds[:num_light], side="right")]
        columns[light[:num_light]] = ~(givers << bits | columns[light[:num_light]])
        # Both lines have the same length, so every excess ends within the deficits.
        done, end = heavy[:num_heavy], ends[:num_heavy]
        own = column - (bounds[np.searchsorted(bounds, end, side="left")] - end)
        full = own == column  # one unit too many for the low bits: as its own alias it needs none
        own[full] = 0
        columns[done] = ~(np.where(full, done, heavy[1 : num_heavy + 1]) << bits | own)
        light, bounds = light[num_light:], bounds[num_light:]
        heavy, ends = heavy[num_heavy:], ends[num_heavy:]
    columns[heavy] = ~(heavy << bits)  # the last is full
    np.invert(columns, out=columns)


def _unfilled(columns: IndexArray, column: int, *, heavy: bool) -> Iterator[tuple[IndexArray, IndexArray]]:
    """Yield the unfinished columns of one kind, chunk by chunk, with their deficits or excesses."""
    for start in range(0, len(columns), _CHUNK):
        part = columns[start : start + _CHUNK]
        places = np.flatnonzero(part >= column if heavy else (part >= 0) & (part < column))
        if len(places):
            yield places + start, np.abs(part[places] - column)


def _chunks(array: IndexArray) -> Iterator[IndexArray]:
    return (array[start : start + _CHUNK] for start in range(0, len(array), _CHUNK))
