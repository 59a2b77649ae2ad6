"""Sketch of a set of keys: 672 bytes, from which the difference of two large sets can be computed.

Two sketches of a hundred thousand keys that differ in a few keys give exactly these keys; sketches that differ in many
keys give an estimate of their number. The size of a sketch does not depend on the number of keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from lit_loader.seeding import hash_u64, key64

__all__ = ["KeyDifference", "KeySketch", "SKETCH_BYTES"]

_ROWS: Final = 4  # two keys share a cell in all rows, which cannot be undone, with a probability of 1 in 20,736
_CELLS: Final = 12  # per row; 48 cells decode nearly all differences of up to 20 keys
_U64: Final = np.uint64
_Words = npt.NDArray[np.uint64]
_DTYPE: Final = np.dtype([("count", "<u2"), ("key", "<u8"), ("value", "<u4")])

SKETCH_BYTES: Final = _ROWS * _CELLS * _DTYPE.itemsize
"""Length of a sketch as bytes."""


@dataclass(frozen=True, kw_only=True)
class KeyDifference:
    """Difference of two sets of keys with values.

    Attributes:
        added: Values of the keys that only the newer set has; their number is exact, the values only if
            ``values_changed`` is false.
        removed: As ``added``, of the keys that only the older set has.
        values_changed: True if the values of other keys differ; these differences are mixed into the values above.
    """

    added: list[int]
    removed: list[int]
    values_changed: bool


class KeySketch:
    """Invertible Bloom lookup table of a set of 64-bit keys with 32-bit values.

    Each key is added to one cell of every row. After subtraction of another sketch, a cell with a single key reveals
    it; that key is removed from its other cells, which reveals further keys.

    Args:
        counts: int64 ``(4, 12)``, number of keys in each cell, possibly modulo 2**16.
        keys: uint64 ``(4, 12)``, sum of the keys modulo 2**64.
        values: uint64 ``(4, 12)``, sum of the values modulo 2**32.

    Source:
        Eppstein et al. 2011, "What's the Difference? Efficient Set Reconciliation without Prior Context".
    """

    def __init__(self, counts: npt.NDArray[np.int64], keys: _Words, values: _Words) -> None:
        self._counts = counts
        self._keys = keys
        self._values = values

    @classmethod
    def of(cls, hashes: _Words, values: _Words) -> Self:
        """Return the sketch of a set.

        Args:
            hashes: uint64 ``(n,)``, a hash of each key; its upper 48 bits identify the key.
            values: uint64 ``(n,)``, a hash of each value; its lower 32 bits are used.
        """
        keys = _with_check(hashes)
        counts = np.zeros((_ROWS, _CELLS), np.int64)
        key_sums = np.zeros((_ROWS, _CELLS), _U64)
        value_sums = np.zeros((_ROWS, _CELLS), _U64)
        for row, cells in enumerate(_cells(keys)):
            counts[row] = np.bincount(cells, minlength=_CELLS)
            np.add.at(key_sums[row], cells, keys)
            np.add.at(value_sums[row], cells, values)
        return cls(counts, key_sums, value_sums & _U64(0xFFFFFFFF))

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return the sketch that `to_bytes` wrote.

        Raises:
            ValueError: If the data has another length than `SKETCH_BYTES`.
        """
        if len(data) != SKETCH_BYTES:
            raise ValueError(f"expected {SKETCH_BYTES} bytes, got {len(data)}")
        cells = np.frombuffer(data, _DTYPE).reshape(_ROWS, _CELLS)
        return cls(cells["count"].astype(np.int64), cells["key"].astype(_U64), cells["value"].astype(_U64))

    def to_bytes(self) -> bytes:
        """Return the sketch as `SKETCH_BYTES` bytes."""
        cells = np.zeros((_ROWS, _CELLS), _DTYPE)
        cells["count"] = self._counts % 2**16
        cells["key"] = self._keys
        cells["value"] = self._values
        return cells.tobytes()

    def difference(self, older: KeySketch) -> KeyDifference | None:
        """Return the exact difference from an older sketch, or None if the sets differ in too many keys."""
        # Python's integers, because numpy warns about scalars that wrap around.
        counts: list[int] = self._count_differences(older).ravel().tolist()
        keys: list[int] = (self._keys - older._keys).ravel().tolist()
        values: list[int] = (self._values - older._values).ravel().tolist()
        added: list[int] = []
        removed: list[int] = []
        # A sketch from a file may be anything, so the number of steps is limited.
        for _ in range(2 * _ROWS * _CELLS):
            pure = next((cell for cell in range(_ROWS * _CELLS) if _is_pure(cell, counts[cell], keys[cell])), None)
            if pure is None:
                break
            sign = counts[pure]
            key = keys[pure] * sign % 2**64
            value = values[pure] * sign % 2**32
            (added if sign > 0 else removed).append(value)
            for cell in _flat_cells(key):
                counts[cell] -= sign
                keys[cell] = (keys[cell] - sign * key) % 2**64
                values[cell] -= sign * value
        if any(counts) or any(keys):
            return None
        return KeyDifference(added=added, removed=removed, values_changed=any(value % 2**32 for value in values))

    def estimated_difference(self, older: KeySketch) -> float:
        """Return an estimate of the number of keys that only one of the two sets has, with an error of about 25 %.

        In each row, the keys of the difference are thrown into cells at random, so the variance of the counts is
        proportional to their number.
        """
        counts = self._count_differences(older).astype(np.float64)
        spread = np.square(counts - counts.mean(axis=1, keepdims=True)).sum(axis=1)
        return float(spread.mean()) * _CELLS / (_CELLS - 1)

    def _count_differences(self, older: KeySketch) -> npt.NDArray[np.int64]:
        # Bytes hold counts modulo 2**16, which is enough for differences of half a million keys.
        return (self._counts - older._counts + 2**15) % 2**16 - 2**15


def _with_check(hashes: _Words) -> _Words:
    """Return hashes whose lower 16 bits are a hash of the upper 48; a sum of several keys rarely has this property."""
    upper = hashes & _U64(0xFFFFFFFFFFFF0000)
    return upper | (hash_u64(key64("sketch check"), upper) & _U64(0xFFFF))


def _cells(keys: _Words) -> list[npt.NDArray[np.int64]]:
    """Return the cell of each key in every row."""
    return [(hash_u64(key64("sketch row", row), keys) % _U64(_CELLS)).astype(np.int64) for row in range(_ROWS)]


def _flat_cells(key: int) -> list[int]:
    return [row * _CELLS + int(cells[0]) for row, cells in enumerate(_cells(np.array([key], _U64)))]


def _is_pure(cell: int, count: int, key_sum: int) -> bool:
    """Return True if a cell of a difference contains exactly one key."""
    if count not in (1, -1):
        return False
    key = np.array([key_sum * count % 2**64], _U64)
    return bool(_with_check(key)[0] == key[0]) and cell in _flat_cells(int(key[0]))
