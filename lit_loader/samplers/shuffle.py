"""Shuffles: by sorting, by a Feistel network that computes any position by itself, and endless shuffled cycles."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

from lit_loader.samplers.order import SliceableOrder, array_order
from lit_loader.seeding import hash_u64, key64
from lit_loader.types import IndexArray, Order

_MOST_SORTED = 1 << 20  # indices; a shuffle of more is not stored
_BLOCKS_KEPT = 2  # the present block of a loader, and the first one, which fills up its last batch

_ROUNDS = 8  # 6 and more could not be distinguished from a true shuffle in tests, 3 could easily
_FEISTEL_BLOCK = 4096  # positions at a time; for fewer, the overhead of numpy's calls dominates
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
    """Return a shuffle of ``range(length)``: a `permutation` up to 2**20 indices, a `feistel_order` above."""
    return array_order(permutation(key, length)) if length <= _MOST_SORTED else feistel_order(key, length)


class _Blocks:
    """The positions of an order, computed in blocks. The last ones are kept, so that consecutive slices are cheap.

    Args:
        size: Positions of a block.
        make_block: Returns the indices of the block of a number, at positions ``number * size`` and following.
    """

    def __init__(self, size: int, make_block: Callable[[int], Order]) -> None:
        self._size, self._make_block = size, make_block
        self._kept: tuple[tuple[int, Order], ...] = ()

    def positions(self, start: int, stop: int) -> IndexArray:
        """Return a copy of the indices at these positions."""
        size = self._size
        return np.concatenate(
            [
                self._block(number)[max(start - number * size, 0) : stop - number * size]
                for number in range(start // size, (stop - 1) // size + 1)
            ]
        )

    def _block(self, number: int) -> Order:
        for kept_number, block in self._kept:
            if kept_number == number:
                return block
        block = self._make_block(number)
        # One assignment of a new tuple, so that threads which read the same order at worst make a block twice.
        self._kept = ((number, block), *self._kept[: _BLOCKS_KEPT - 1])
        return block


def feistel_order(key: int, length: int) -> SliceableOrder:
    """Return a pseudorandom permutation of ``range(length)``; any position costs the same and nothing is stored.

    A position is written as two digits, x in Z_a and y in Z_b with a * b >= length, a about the square root. Eight
    times a hash of one digit is added to the other one, modulo its base. Each step is invertible, so the result is a
    permutation of ``range(a * b)``. Results of ``length`` or more are permuted again until they are below (cycle
    walking); for lengths above a million that is fewer than one in a thousand.

    Of the length! permutations it reaches as many as there are keys, as any seeded shuffle does; positions, pairs,
    differences and epochs cannot be distinguished from those of a true one (`tests/samplers/test_feistel.py`). It is
    for lengths above 2**20: digits with few values would need more rounds.

    Args:
        key: A 64-bit key, as ``seeding.key64`` gives it.
        length: Number of indices, at least 1.

    Source:
        Black and Rogaway 2002, "Ciphers with arbitrary finite domains": the generalised Feistel construction and
        cycle walking.
    """
    keys = hash_u64(key, np.arange(_ROUNDS, dtype=np.int64))
    return SliceableOrder(length, _Blocks(_FEISTEL_BLOCK, partial(_feistel_block, keys, length)).positions)


def _feistel_block(keys: _U64Array, length: int, number: int) -> IndexArray:
    """Return the indices at positions ``number * 4096`` and following, up to the length."""
    start = number * _FEISTEL_BLOCK
    values = _mixed(np.arange(start, min(start + _FEISTEL_BLOCK, length), dtype=np.uint64), keys, length)
    outside = np.flatnonzero(values >= length)
    while len(outside):
        values[outside] = _mixed(values[outside], keys, length)
        outside = outside[values[outside] >= length]
    return values.view(np.int64)


def _mixed(values: _U64Array, keys: _U64Array, length: int) -> _U64Array:
    """Return the permutation of ``range(a * b)`` at these positions."""
    root = math.isqrt(length - 1) + 1
    a, b = np.uint64(root), np.uint64(-(-length // root))
    x, y = np.divmod(values, b)
    with np.errstate(over="ignore"):
        for number in range(0, len(keys), 2):
            x = _added(x, y, keys[number], a)
            y = _added(y, x, keys[number + 1], b)
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


def cycles_order(key: int, count: int) -> SliceableOrder:
    """Return an endless order: shuffled cycles of ``range(count)``, one after the other.

    A block is as many whole cycles as make 16,384 visits, or one cycle of more indices. It costs a sort and 8 bytes a
    visit, and the last two blocks are kept. With more than 2**20 indices a cycle is a `feistel_order` instead, which
    computes each visit by itself and stores nothing.

    Args:
        key: A 64-bit key.
        count: Number of indices, at least 1.
    """
    size = -(-_CYCLES_BLOCK // count) * count
    return SliceableOrder(sys.maxsize, _Blocks(size, partial(_cycles_block, key, count, size)).positions)


def _cycles_block(key: int, count: int, size: int, number: int) -> Order:
    if count > _MOST_SORTED:
        return feistel_order(key64(key, number), count)
    return shuffled_cycles(key, count, number * size, (number + 1) * size)
