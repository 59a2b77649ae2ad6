"""Hashes: from parts to a key, from a key and positions to random bits; the same on every machine."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import numpy.typing as npt

__all__ = ["hash_u64", "key64", "uniform"]

_U64 = np.uint64
_GOLDEN = _U64(0x9E3779B97F4A7C15)
_MIX1 = _U64(0xBF58476D1CE4E5B9)
_MIX2 = _U64(0x94D049BB133111EB)


def key64(*parts: int | str) -> int:
    """Return a 64-bit key of the parts; their order, number and types all matter.

    Returns:
        An int in [0, 2**64).

    Raises:
        TypeError: If a part is neither an int nor a str.
    """
    hasher = blake2b(digest_size=8)
    for part in parts:
        if isinstance(part, str):
            data, tag = part.encode(), b"s"
        elif isinstance(part, int):
            data, tag = part.to_bytes(part.bit_length() // 8 + 1, "little", signed=True), b"i"
        else:
            raise TypeError(f"a key is made of int and str, got {part!r} of type {type(part).__name__}")
        hasher.update(tag + len(data).to_bytes(8, "little") + data)
    return int.from_bytes(hasher.digest(), "little")


def hash_u64(key: int, positions: npt.NDArray[np.uint64] | npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """Return 64 random bits for every position, the same on every machine and numpy version.

    Args:
        key: A 64-bit key, as `key64` gives it.
        positions: Integers of any shape, not negative.

    Returns:
        uint64 array of the same shape.

    Source:
        SplitMix64, Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators".
    """
    with np.errstate(over="ignore"):
        x = positions.astype(_U64, copy=True)
        x += _U64(1)
        x *= _GOLDEN
        x += _U64(key)
        x ^= x >> _U64(30)
        x *= _MIX1
        x ^= x >> _U64(27)
        x *= _MIX2
        x ^= x >> _U64(31)
    return x


def uniform(key: int, positions: npt.NDArray[np.uint64] | npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return a float64 in [0, 1) for every position, with 53 random bits."""
    bits = hash_u64(key, positions)
    bits >>= _U64(11)
    return bits.astype(np.float64) * 2.0**-53
