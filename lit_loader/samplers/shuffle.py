"""Shuffles: by sorting, by a Feistel network that computes any position by itself, and endless shuffled cycles."""

from __future__ import annotations

import math
import sys

import numpy as np
import numpy.typing as npt

from lit_loader.samplers.order import SliceableOrder, array_order
from lit_loader.seeding import hash_u64, key64
from lit_loader.types import IndexArray, Order

_MOST_SORTED = 1 << 20  # indices; a shuffle of more is not stored
_BLOCKS_KEPT = 2  # the present block of a loader, and the first one, which fills up its last batch

_ROUNDS = 8  # 6 and more could not be distinguished from a true shuffle in tests, 3 could easily
_SHORT, _ROUNDS_OF_SHORT = 1000, 24  # digits with few values need more rounds
_FEISTEL_BLOCK = 4096  # positions at a time; for fewer, the overhead of numpy's calls dominates
_MAX_LENGTH = 2**62  # both digits are below 2**32
_MIX1, _MIX2 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
_32, _29 = np.uint64(32), np.uint64(29)

_CYCLES_BLOCK = 1 << 14  # visits computed at a time, rounded up to whole cycles

_U64Array = npt.NDArray[np.uint64]


def permutation(key: int, length: int) -> IndexArray:
    """Return a random permutation of ``range(length)``, int64, in O(length log length).

    The indices sorted by 64 hashed bits each. `hash_u64` is a bijection of the position for a given key,
    so there are no ties to break, and sorting is exact: the same bits on any machine and numpy version.

    Args:
        key: A 64-bit key, as ``seeding.key64`` gives it.
        length: Number of indices.
    """
    hashes = hash_u64(key, np.arange(length, dtype=np.int64))
    return np.argsort(hashes, kind="stable").astype(np.int64, copy=False)


def shuffled(key: int, length: int) -> Order:
    """Return a shuffle of ``range(length)``: a `permutation` up to 2**20 indices, a `FeistelOrder` above."""
    return array_order(permutation(key, length)) if length <= _MOST_SORTED else FeistelOrder(key, length)


class _BlockOrder(SliceableOrder):
    """An order that is computed in blocks, of which the last ones are kept, so that consecutive slices are cheap.

    Args:
        length: Number of positions.
        block_size: Positions of a block.
    """

    def __init__(self, length: int, block_size: int) -> None:
        super().__init__(length)
        self._block_size = block_size
        self._kept: tuple[tuple[int, Order], ...] = ()

    def positions(self, start: int, stop: int) -> IndexArray:
        """Return the indices at these positions, from kept blocks if possible."""
        size = self._block_size
        pieces = [
            self._block(number)[max(start - number * size, 0) : stop - number * size]
            for number in range(start // size, (stop - 1) // size + 1)
        ]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _block(self, number: int) -> Order:
        kept = self._kept
        for kept_number, block in kept:
            if kept_number == number:
                return block
        block = self._make_block(number)
        # One assignment of a new tuple, so that threads which read the same order at worst make a block twice.
        self._kept = ((number, block), *kept[: _BLOCKS_KEPT - 1])
        return block

    def _make_block(self, number: int) -> Order:
        """Return the indices at positions ``number * block_size`` and following, read-only."""
        raise NotImplementedError


class FeistelOrder(_BlockOrder):
    """A pseudorandom permutation of ``range(length)``; any position costs the same and nothing is stored.

    A position is written as two digits, x in Z_a and y in Z_b with a * b >= length, a about the square root. Eight
    times (24 times for short lengths) a hash of one digit is added to the other one, modulo its base. Each step is
    invertible, so the result is a permutation of ``range(a * b)``. Results of ``length`` or more are permuted again
    until they are below (cycle walking); for lengths above a million that is fewer than one in a thousand.

    Of the length! permutations it reaches as many as there are keys, as any seeded shuffle does; positions, pairs,
    differences and epochs cannot be distinguished from those of a true one (`tests/samplers/test_feistel.py`).

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
        super().__init__(length, _FEISTEL_BLOCK)
        self._a = max(1, math.isqrt(max(length - 1, 0)) + 1)
        self._b = max(1, -(-length // self._a))
        rounds = _ROUNDS_OF_SHORT if length < _SHORT else _ROUNDS
        self._keys = hash_u64(key, np.arange(rounds, dtype=np.int64))

    def _make_block(self, number: int) -> IndexArray:
        start, length = number * _FEISTEL_BLOCK, np.uint64(len(self))
        values = self._mixed(np.arange(start, min(start + _FEISTEL_BLOCK, len(self)), dtype=np.uint64))
        outside = np.flatnonzero(values >= length)
        while len(outside):
            values[outside] = self._mixed(values[outside])
            outside = outside[values[outside] >= length]
        values.flags.writeable = False
        return values.view(np.int64)

    def _mixed(self, values: _U64Array) -> _U64Array:
        """Return the permutation of ``range(a * b)`` at these positions."""
        a, b = np.uint64(self._a), np.uint64(self._b)
        x, y = np.divmod(values, b)
        with np.errstate(over="ignore"):
            for number in range(0, len(self._keys), 2):
                x = _added(x, y, self._keys[number], a)
                y = _added(y, x, self._keys[number + 1], b)
            return x * b + y


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


def shuffled_cycles(key: int, count: int, start: int, stop: int) -> IndexArray:
    """Return visits ``start`` to ``stop - 1`` to the indices ``range(count)``.

    Visits ``k * count`` to ``(k + 1) * count - 1`` are cycle k: a random permutation of the indices, sorted
    by 64 hashed bits each; so a visit is a pure function of (key, count, its number). The cost is that of
    the whole cycles that the visits lie in.

    Args:
        key: A 64-bit key, as ``seeding.key64`` gives it.
        count: Number of indices, at least 1.
        start: First visit, from 0.
        stop: One past the last visit, above ``start``.

    Returns:
        int64 array, shape ``(stop - start,)``.
    """
    cycles = np.arange(start // count, (stop - 1) // count + 1)
    # Place p of cycle k hashes k * count + p, so each cycle is sorted by bits of its own.
    hashes = hash_u64(key, cycles[:, None] * count + np.arange(count))
    ranked = np.argsort(hashes, axis=1, kind="stable").reshape(-1)
    return ranked[start - int(cycles[0]) * count :][: stop - start].astype(np.int64, copy=False)


class ShuffledCycles(_BlockOrder):
    """An endless order: shuffled cycles of ``range(count)``, one after the other.

    A block is as many whole cycles as make 16,384 visits, or one cycle of more indices. It costs a sort and 8 bytes a
    visit, and the last two blocks are kept. With more than 2**20 indices a cycle is a `FeistelOrder` instead, which
    computes each visit by itself and stores nothing.

    Args:
        key: A 64-bit key.
        count: Number of indices, at least 1.
    """

    def __init__(self, key: int, count: int) -> None:
        super().__init__(sys.maxsize, -(-_CYCLES_BLOCK // count) * count)
        self._key, self._count = key, count

    def _make_block(self, number: int) -> Order:
        if self._count > _MOST_SORTED:
            return FeistelOrder(key64(self._key, number), self._count)
        first = number * self._block_size
        block = shuffled_cycles(self._key, self._count, first, first + self._block_size)
        block.flags.writeable = False
        return block
