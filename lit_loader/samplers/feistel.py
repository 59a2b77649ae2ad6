"""A shuffle of any length that is evaluated at any position, in memory that does not depend on the length."""

from __future__ import annotations

import contextlib
import math
from collections import OrderedDict
from typing import Any

import numpy as np
import numpy.typing as npt

from lit_loader.samplers.orders import SliceableOrder
from lit_loader.seeding import hash_u64
from lit_loader.types import IndexArray

__all__ = ["FeistelOrder"]

_ROUNDS = 8  # 6 and more cannot be told from a true shuffle; 3 can easily
_SHORT, _ROUNDS_OF_SHORT = 1000, 24  # digits of a few values mix slowly
_BLOCK = 4096  # positions at a time: calls of numpy cost more than what they do for fewer
_CHUNK = 1 << 15  # what the arrays of one chunk need stays in cache
_BLOCKS_KEPT = 4
_MAX_LENGTH = 2**62  # halves below 2**32
_MIX1, _MIX2 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
_32, _29 = np.uint64(32), np.uint64(29)

_U64Array = npt.NDArray[np.uint64]


class FeistelOrder(SliceableOrder):
    """A pseudorandom permutation of ``range(length)``; any position costs the same and nothing is stored.

    A position is written as two digits, x in Z_a and y in Z_b with a * b >= length, a about the square root. Eight
    times (24 for short lengths) a hash of one digit is added to the other one, modulo its base. Each step can be
    undone, so all together are a permutation of ``range(a * b)``. A result of ``length`` and more is put in again
    until it is below; fewer than one in a thousand are, for lengths above a million.

    Of the length! permutations it reaches as many as there are keys, as any seeded shuffle does; positions, pairs,
    differences and epochs cannot be told from those of a true shuffle (`tests/samplers/test_feistel.py`).

    Args:
        key: A 64-bit key, as ``seeding.key64`` gives it.
        length: Number of indices, up to 2**62.

    Source:
        Black and Rogaway 2002, "Ciphers with arbitrary finite domains": the generalised Feistel construction and
        cycle walking.
    """

    def __init__(self, key: int, length: int) -> None:
        if not 0 <= length <= _MAX_LENGTH:
            raise ValueError(f"length={length} must lie in [0, {_MAX_LENGTH}]")
        super().__init__(length)
        self._a = max(1, math.isqrt(max(length - 1, 0)) + 1)
        self._b = max(1, -(-length // self._a))
        rounds = _ROUNDS_OF_SHORT if length < _SHORT else _ROUNDS
        self._keys = hash_u64(key, np.arange(rounds, dtype=np.int64))
        self._blocks: OrderedDict[int, IndexArray] = OrderedDict()

    def positions(self, start: int, stop: int) -> IndexArray:
        """Return the indices at these positions; short slices come from blocks that are kept."""
        if stop - start >= _BLOCK:
            result = np.empty(stop - start, dtype=np.int64)
            for begin in range(start, stop, _CHUNK):
                end = min(begin + _CHUNK, stop)
                result[begin - start : end - start] = self._shuffled(begin, end)
            return result
        first, last = start // _BLOCK, (stop - 1) // _BLOCK
        low = self._block(first)[start - first * _BLOCK : stop - first * _BLOCK]
        if first == last:
            return low
        return np.concatenate([low, self._block(last)[: stop - last * _BLOCK]])

    def _block(self, number: int) -> IndexArray:
        blocks = self._blocks
        try:
            blocks.move_to_end(number)
            return blocks[number]
        except KeyError:  # never made, or let go of by another thread meanwhile
            block = self._shuffled(number * _BLOCK, min((number + 1) * _BLOCK, len(self)))
        block.flags.writeable = False
        blocks[number] = block
        if len(blocks) > _BLOCKS_KEPT:
            with contextlib.suppress(KeyError):  # another thread was faster
                blocks.popitem(last=False)
        return block

    def _shuffled(self, start: int, stop: int) -> IndexArray:
        values = self._once(np.arange(start, stop, dtype=np.uint64))
        outside = np.flatnonzero(values >= np.uint64(len(self)))
        while len(outside):
            values[outside] = self._once(values[outside])
            outside = outside[values[outside] >= np.uint64(len(self))]
        return values.view(np.int64)

    def _once(self, values: _U64Array) -> _U64Array:
        a, b = np.uint64(self._a), np.uint64(self._b)
        x, y = np.divmod(values, b)
        with np.errstate(over="ignore"):
            for number in range(0, len(self._keys), 2):
                x = _added(x, y, self._keys[number], a)
                y = _added(y, x, self._keys[number + 1], b)
            return x * b + y

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_blocks": OrderedDict()}


def _added(digit: _U64Array, other: _U64Array, key: np.uint64, base: np.uint64) -> _U64Array:
    """Return ``(digit + hash(key, other)) % base``, all below 2**32."""
    mixed = other * _MIX1
    mixed += key
    mixed ^= mixed >> _29
    mixed *= _MIX2
    mixed >>= _32
    mixed *= base
    mixed >>= _32
    mixed += digit
    added: _U64Array = np.minimum(mixed, mixed - base)  # below the base the difference wraps, and is larger
    return added
