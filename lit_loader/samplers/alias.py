"""`AliasTable`: weighted draws in O(1) each, any of them computable without the ones before."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lit_loader.seeding import hash_u64
from lit_loader.types import IndexArray

__all__ = ["AliasTable", "weight_units"]

_LOW32 = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)
_CHUNK = 1 << 16  # draws at a time: what the arrays of one chunk need stays in cache


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
    scaled = weights / weights.max()
    scaled *= length / float(np.cumsum(scaled)[-1])
    units = np.floor(np.ldexp(scaled, bits)).astype(np.int64)
    units[(units == 0) & (weights > 0)] = 1
    takers = np.flatnonzero(units >= min(1 << bits, int(units.max())))
    each, left = divmod((length << bits) - int(units.sum()), len(takers))
    units[takers] += each
    units[takers[:left]] += 1
    return units, bits


class AliasTable:
    """Walker's alias table, built in linear time without a loop.

    Column i gives i for the first ``own[i]`` of its ``2**bits`` units and ``alias[i]`` for the rest. The
    columns with too few units (light) and those with too many (heavy) are laid along one line, by their
    deficits and excesses: a light column is filled by the heavy one in whose excess its deficit begins; a
    heavy one that runs out inside a deficit lends what is missing from the next heavy one. So two prefix
    sums and two binary searches do what Vose's two stacks do, and all of it in exact integers.

    Args:
        weights: As `weight_units` takes them.

    Source:
        Walker 1977, "An efficient method for generating discrete random variables with general
        distributions"; Vose 1991, "A linear algorithm for generating random numbers with a given
        distribution".
    """

    def __init__(self, weights: npt.NDArray[np.float64]) -> None:
        own, self.bits = weight_units(weights)
        column = 1 << self.bits
        light, heavy = np.flatnonzero(own < column), np.flatnonzero(own >= column)
        alias = np.arange(len(own), dtype=np.int32)
        deficits = np.zeros(len(light) + 1, dtype=np.int64)
        np.cumsum(column - own[light], out=deficits[1:])
        excesses = np.cumsum(own[heavy] - column)
        alias[light] = heavy[np.searchsorted(excesses, deficits[:-1], side="right")]
        # Both lines have the same length, so every excess ends within the deficits.
        own[heavy] = column - (deficits[np.searchsorted(deficits, excesses, side="left")] - excesses)
        alias[heavy[:-1]] = heavy[1:]
        self.own: npt.NDArray[np.int64] = own
        self.alias: npt.NDArray[np.int32] = alias

    def __len__(self) -> int:
        return len(self.own)

    def units(self) -> npt.NDArray[np.int64]:
        """Return what the table gives each index, in units of ``1 / (n * 2**bits)``: int64 ``(n,)``."""
        lent = (1 << self.bits) - self.own
        result = self.own.copy()
        np.add.at(result, self.alias, lent)
        return result

    def draw(self, key: int, start: int, stop: int) -> IndexArray:
        """Return draws number ``start`` to ``stop - 1``, independent of each other, int64.

        One 64-bit hash h of the draw's number is both column and place in it: h * n has 128 bits, the
        high 64 are the column (its bias is below n / 2**64), the low 64 the place.
        """
        result = np.empty(stop - start, dtype=np.int64)
        for begin in range(start, stop, _CHUNK):
            end = min(begin + _CHUNK, stop)
            result[begin - start : end - start] = self._draw_chunk(key, begin, end)
        return result

    def _draw_chunk(self, key: int, start: int, stop: int) -> IndexArray:
        length = np.uint64(len(self.own))
        hashes = hash_u64(key, np.arange(start, stop, dtype=np.int64))
        column = ((hashes & _LOW32) * length >> _32) + (hashes >> _32) * length
        column >>= _32
        place = hashes * length >> np.uint64(64 - self.bits)  # the product wraps: its low 64 bits
        columns = column.view(np.int64)
        return np.where(place.view(np.int64) < self.own[columns], columns, self.alias[columns])
