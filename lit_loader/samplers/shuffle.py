"""Shuffles: a sort, a Feistel network that computes each position independently, and endless shuffled cycles."""

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

# Indices; a shuffle of more is not stored.
_MOST_SORTED = 1 << 20
# Blocks: the current one, and the first one, whose indices fill up the last batch of an epoch.
_NUM_CACHED = 2

# Tests could not distinguish 6 or more rounds from a true shuffle, and easily distinguished 3.
_ROUNDS = 8
# Positions at a time; for fewer, the overhead of numpy's calls dominates.
_FEISTEL_BLOCK = 4096
_MIX1 = np.uint64(0x9E3779B97F4A7C15)
_MIX2 = np.uint64(0xD6E8FEB86659FD93)
_29 = np.uint64(29)
_32 = np.uint64(32)

# Visits computed at a time, rounded up to whole cycles.
_CYCLES_BLOCK = 1 << 14

_U64Array = npt.NDArray[np.uint64]


def permutation(key: int, length: int) -> IndexArray:
    """Return a random permutation of ``range(length)``, int64, in O(length log length).

    The indices are sorted by a 64-bit hash of each. For a given key `hash_u64` is a bijection, so all hashes differ and
    the result is the same on any machine and numpy version.

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
    """Positions of an order, computed in blocks; the last blocks are cached, so that consecutive slices are cheap.

    Args:
        size: Positions in a block.
        make_block: Returns the indices of block ``number``, which begins at position ``number * size``.
    """

    def __init__(self, size: int, make_block: Callable[[int], Order]) -> None:
        self._size = size
        self._make_block = make_block
        self._cache: tuple[tuple[int, Order], ...] = ()

    def positions(self, start: int, stop: int) -> IndexArray:
        """Return a copy of the indices at these positions."""
        size = self._size
        return np.concatenate(
            [
                # A user's order may not clamp its slices.
                self._block(number)[max(start - number * size, 0) : min(stop - number * size, size)]
                for number in range(start // size, (stop - 1) // size + 1)
            ]
        )

    def _block(self, number: int) -> Order:
        for cached_number, block in self._cache:
            if cached_number == number:
                return block
        block = self._make_block(number)
        # Several threads may read the same order. The assignment of a new tuple is atomic, so the worst case is that
        # two threads compute the same block.
        self._cache = ((number, block), *self._cache[: _NUM_CACHED - 1])
        return block


def feistel_order(key: int, length: int) -> SliceableOrder:
    """Return a pseudorandom permutation of ``range(length)``; any position costs the same and nothing is stored.

    A position is written as two digits, x in Z_a and y in Z_b with a * b >= length, where a is about the square root.
    Each of eight rounds adds a hash of one digit to the other one, modulo its base. A round is invertible, so the
    result is a permutation of ``range(a * b)``. Results of ``length`` or more are permuted again until they are smaller
    (cycle walking); for lengths above a million this concerns fewer than one in a thousand.

    Like any seeded shuffle it reaches only as many of the length! permutations as there are keys. Tests could not
    distinguish its positions, pairs, differences and epochs from a true shuffle (`tests/samplers/test_feistel.py`). Use
    it for lengths above 2**20: digits with few values would need more rounds.

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
    """Return the indices of one block of 4096 positions; the last block of an order may be shorter."""
    start = number * _FEISTEL_BLOCK
    stop = min(start + _FEISTEL_BLOCK, length)
    values = _permuted(np.arange(start, stop, dtype=np.uint64), keys, length)
    # Cycle walking: the network permutes range(a * b), which is slightly more than range(length).
    outside = np.flatnonzero(values >= length)
    while len(outside):
        values[outside] = _permuted(values[outside], keys, length)
        outside = outside[values[outside] >= length]
    return values.view(np.int64)


def _permuted(values: _U64Array, keys: _U64Array, length: int) -> _U64Array:
    """Return the permutation of ``range(a * b)`` at these positions."""
    root = math.isqrt(length - 1) + 1
    a = np.uint64(root)
    b = np.uint64(-(-length // root))
    x, y = np.divmod(values, b)
    with np.errstate(over="ignore"):  # hashes wrap on purpose
        for number in range(0, len(keys), 2):
            x = _add_hash(x, y, keys[number], a)
            y = _add_hash(y, x, keys[number + 1], b)
        return x * b + y


def _add_hash(digit: _U64Array, other: _U64Array, key: np.uint64, base: np.uint64) -> _U64Array:
    """Return ``(digit + hash(key, other)) % base``, all below 2**32."""
    mixed = other * _MIX1
    mixed += key
    mixed ^= mixed >> _29
    mixed *= _MIX2
    mixed >>= _32
    # The high half of a 32-bit hash times the base is uniform in [0, base), again without a division.
    mixed *= base
    mixed >>= _32
    mixed += digit
    # Modulo without a division: where mixed is below the base, the unsigned difference wraps and is larger.
    result: _U64Array = np.minimum(mixed, mixed - base)
    return result


def shuffled_cycles(key: int, count: int, start: int, stop: int) -> IndexArray:
    """Return visits ``start`` to ``stop - 1`` to the indices ``range(count)``.

    Visits ``k * count`` to ``(k + 1) * count - 1`` are cycle k, a random permutation of the indices, sorted by a
    64-bit hash of each. So a visit is a pure function of (key, count, its number). Every cycle that contains one of the
    visits is computed as a whole.

    Args:
        key: A 64-bit key, as ``seeding.key64`` gives it.
        count: Number of indices, at least 1.
        start: First visit, from 0.
        stop: One past the last visit, above ``start``.

    Returns:
        int64 array, shape ``(stop - start,)``.
    """
    cycles = np.arange(start // count, (stop - 1) // count + 1)
    # Place p of cycle k hashes k * count + p, so that each cycle is sorted by different hashes.
    hashes = hash_u64(key, cycles[:, None] * count + np.arange(count))
    ranked = np.argsort(hashes, axis=1, kind="stable").reshape(-1)
    return ranked[start - int(cycles[0]) * count :][: stop - start].astype(np.int64, copy=False)


def cycles_order(key: int, count: int) -> SliceableOrder:
    """Return an endless order: shuffled cycles of ``range(count)``, one after the other.

    A block holds whole cycles: as many as make 16,384 visits, or one cycle of more indices. It costs a sort and 8 bytes
    a visit, and the last two blocks are cached. With more than 2**20 indices a cycle is a `feistel_order` instead,
    which computes each visit independently and stores nothing.

    Args:
        key: A 64-bit key.
        count: Number of indices, at least 1.
    """
    # Whole cycles, because a cycle is sorted as a whole.
    size = -(-_CYCLES_BLOCK // count) * count
    return SliceableOrder(sys.maxsize, _Blocks(size, partial(_cycles_block, key, count, size)).positions)


def _cycles_block(key: int, count: int, size: int, number: int) -> Order:
    if count > _MOST_SORTED:
        return feistel_order(key64(key, number), count)
    return shuffled_cycles(key, count, number * size, (number + 1) * size)


def epochs_order(make_epoch: Callable[[int], Order], length: int) -> SliceableOrder:
    """Return an endless order: epochs of one length, one after the other. The last two epochs are cached.

    Args:
        make_epoch: Returns the order of an epoch, from 0.
        length: Number of positions in every epoch, at least 1.
    """
    return SliceableOrder(sys.maxsize, _Blocks(length, make_epoch).positions)
