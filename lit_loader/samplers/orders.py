"""Orders: the dataset indices of one epoch as random-access sequences, and the shuffle they share."""

from __future__ import annotations

from typing import Any

import numpy as np

from lit_loader.seeding import hash_u64
from lit_loader.types import IndexArray

__all__ = ["ArrayOrder", "SequentialOrder", "SliceableOrder", "permutation"]


class SliceableOrder:
    """Base of the orders: slices clamp as a list's do, a subclass computes the positions.

    Determinism: ``positions(a, b)`` depends on what the order was made with alone, never on what was
    asked before.

    Args:
        length: Number of positions.
    """

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, positions: slice, /) -> IndexArray:
        if not isinstance(positions, slice):
            raise TypeError(f"an order is read by slices, got order[{positions!r}]; use order[i : i + 1]")
        if positions.step not in (None, 1):
            raise ValueError(f"an order has no steps, got step={positions.step}; slice and take every k-th")
        start, stop, _ = positions.indices(self._length)
        if stop <= start:
            return np.empty(0, dtype=np.int64)
        return self.positions(start, stop)

    def positions(self, start: int, stop: int) -> IndexArray:
        """Return the indices at positions ``0 <= start < stop <= len(self)``, int64 ``(stop - start,)``."""
        raise NotImplementedError


class SequentialOrder(SliceableOrder):
    """The indices 0, 1, 2, ...; no memory."""

    def positions(self, start: int, stop: int) -> IndexArray:
        """Return ``start, ..., stop - 1``."""
        return np.arange(start, stop, dtype=np.int64)


class ArrayOrder(SliceableOrder):
    """An order that was computed whole; slices are read-only views.

    Args:
        indices: int64 array, shape ``(length,)``; it is made read-only, so hand over one of your own.
    """

    def __init__(self, indices: IndexArray) -> None:
        if indices.ndim != 1 or indices.dtype != np.int64:
            raise ValueError(f"`indices` must be int64 of shape (n,), got {indices.dtype} {indices.shape}")
        super().__init__(len(indices))
        indices.flags.writeable = False
        self._indices = indices

    def positions(self, start: int, stop: int) -> IndexArray:
        """Return a view."""
        return self._indices[start:stop]

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._indices.flags.writeable = False  # numpy's pickles and deep copies come back writeable


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
