"""Shuffled cycles: every index once, then every index once in another order, and so on without end."""

from __future__ import annotations

from typing import Any

import numpy as np

from lit_loader.samplers.feistel import FeistelOrder
from lit_loader.seeding import hash_u64, key64
from lit_loader.types import IndexArray

__all__ = ["ShuffledCycles", "shuffled_cycles"]

_BLOCK = 1 << 14  # visits computed at a time, rounded up to whole cycles
_MOST_SORTED = 1 << 20  # indices; the cycles of more are not stored


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
    shuffled = np.argsort(hashes, axis=1, kind="stable").reshape(-1)
    return shuffled[start - int(cycles[0]) * count :][: stop - start].astype(np.int64, copy=False)


class ShuffledCycles:
    """`shuffled_cycles` for those who read on: the two blocks read last are kept.

    A block is as many whole cycles as make 16,384 visits or, of more indices, one cycle; it costs its sort and
    8 bytes a visit. Of more than 2**20 indices a cycle is a `FeistelOrder` instead, of which any visit is
    evaluated alone, and nothing is stored.

    Args:
        key: A 64-bit key.
        count: Number of indices, at least 1.
    """

    def __init__(self, key: int, count: int) -> None:
        self._key, self._count = key, count
        self._size = -(-_BLOCK // count) * count
        self._kept: tuple[tuple[int, IndexArray | FeistelOrder], ...] = ()

    def visits(self, start: int, stop: int) -> IndexArray:
        """Return visits ``start`` to ``stop - 1``, int64 ``(stop - start,)``."""
        size = self._size
        return np.concatenate(
            [
                self._block(number)[max(start - number * size, 0) : stop - number * size]
                for number in range(start // size, (stop - 1) // size + 1)
            ]
        )

    def _block(self, number: int) -> IndexArray | FeistelOrder:
        for kept, block in self._kept:
            if kept == number:
                return block
        made = self._made(number)
        self._kept = ((number, made), *self._kept[:1])
        return made

    def _made(self, number: int) -> IndexArray | FeistelOrder:
        if self._count > _MOST_SORTED:
            return FeistelOrder(key64(self._key, number), self._count)
        return shuffled_cycles(self._key, self._count, number * self._size, (number + 1) * self._size)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": ()}
