"""`AliasTable`: weighted draws in O(1) each, any of them computable without the ones before."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from lit_loader.seeding import hash_u64
from lit_loader.types import IndexArray

__all__ = ["AliasTable", "weight_units"]

_LOW32 = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)
_CHUNK = 1 << 16  # columns or draws at a time: what the arrays of one chunk need stays in cache


def weight_units(weights: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.int64], int]:
    """Return the weights as whole units that sum to exactly ``n * 2**bits``, and ``bits``.

    Integers make the table exact and its bits the same everywhere; ``bits`` is 40, less above 2**23
    weights (36 for 1e8). A positive weight gets at least one unit. What rounding leaves over, at most a
    unit for each weight, is taken in equal parts by those of at least the mean; so a probability is off
    by less than ``2**(1 - bits)``, 2e-12.

    Args:
        weights: float64, shape ``(n,)``, finite, not negative, not all zero, n < 2**31.

    Returns:
        Units, int64 ``(n,)``; one column of the table holds ``2**bits`` of them.
    """
    length = len(weights)
    bits = min(40, 63 - length.bit_length())
    # Scaled first, so that neither the sum overflows nor the quotients become subnormal. The sum is a
    # cumulative one because its order of additions is defined, unlike that of np.sum.
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

    Column i gives i for the first ``own[i]`` of its ``2**bits`` units and ``alias[i]`` for the rest. The
    columns with too few units (light) and those with too many (heavy) are laid along one line, by their
    deficits and excesses: a light column is filled by the heavy one in whose excess its deficit begins; a
    heavy one that runs out inside a deficit lends what is missing from the next heavy one. So two prefix
    sums and two binary searches do what Vose's two stacks do, and all of it in exact integers. Both lines
    are walked side by side in chunks, and a column's result takes the place of its units: 8 bytes a weight
    from first to last.

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

    def __len__(self) -> int:
        return len(self._columns)

    @property
    def nbytes(self) -> int:
        """What the table takes, in bytes."""
        return self._columns.nbytes

    @property
    def own(self) -> npt.NDArray[np.int64]:
        """How many of its units each column gives to its own index, int64 ``(n,)``; 0 too where all of them are."""
        return self._columns & ((1 << self.bits) - 1)

    @property
    def alias(self) -> npt.NDArray[np.int64]:
        """The index that gets the rest of each column, int64 ``(n,)``."""
        return self._columns >> self.bits

    def units(self) -> npt.NDArray[np.int64]:
        """Return what the table gives each index, in units of ``1 / (n * 2**bits)``: int64 ``(n,)``."""
        result = self.own
        np.add.at(result, self.alias, (1 << self.bits) - self.own)
        return result

    def draw(self, key: int, start: int, stop: int) -> IndexArray:
        """Return draws number ``start`` to ``stop - 1``, independent of each other, int64.

        One 64-bit hash h of the draw's number is both column and place in it: h * n has 128 bits, the
        high 64 are the column (its bias is below n / 2**64), the low 64 the place.
        """
        result = np.empty(stop - start, dtype=np.int64)
        for begin in range(start, stop, _CHUNK):
            end = min(begin + _CHUNK, stop)
            self._draw_chunk(key, begin, end, out=result[begin - start : end - start])
        return result

    def _draw_chunk(self, key: int, start: int, stop: int, *, out: IndexArray) -> None:
        length = np.uint64(len(self._columns))
        hashes = hash_u64(key, np.arange(start, stop, dtype=np.int64))
        column = ((hashes & _LOW32) * length >> _32) + (hashes >> _32) * length
        column >>= _32
        place = hashes * length >> np.uint64(64 - self.bits)  # the product wraps: its low 64 bits
        columns = column.view(np.int64)
        found = self._columns[columns]
        np.right_shift(found, self.bits, out=out)
        found &= (1 << self.bits) - 1
        np.copyto(out, columns, where=place.view(np.int64) < found)


def _fill(columns: IndexArray, bits: int) -> None:
    """Turn the units of all columns into alias and own, in place.

    A column that is done is kept inverted, so below zero, until all are: neither line takes it up again.
    """
    column = 1 << bits
    lights, heavies = _unfilled(columns, column, heavy=False), _unfilled(columns, column, heavy=True)
    light, heavy = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    bounds = np.zeros(
        1, dtype=np.int64
    )  # light[k]'s deficit lies from bounds[k] to bounds[k + 1] of the line
    ends = np.zeros(0, dtype=np.int64)  # heavy[k]'s excess ends at ends[k]
    while True:
        if len(light) == 0:
            light, lacks = next(lights, (light, light))
            bounds = np.cumsum(np.append(bounds[-1:], lacks))
        while len(heavy) < 2:  # the last one stays until its successor is known
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
    """Yield the columns of one kind that are not done, chunk by chunk, with what they lack or have over."""
    for start in range(0, len(columns), _CHUNK):
        part = columns[start : start + _CHUNK]
        places = np.flatnonzero(part >= column if heavy else (part >= 0) & (part < column))
        if len(places):
            yield places + start, np.abs(part[places] - column)


def _chunks(array: IndexArray) -> Iterator[IndexArray]:
    return (array[start : start + _CHUNK] for start in range(0, len(array), _CHUNK))
