"""Keys: hashes that seed generators, and random bits by position; the same on every machine."""

from __future__ import annotations

import struct
from enum import IntEnum
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_U64 = np.uint64
# Constants of SplitMix64: the step of the state, and the multipliers of the output function.
_GOLDEN = _U64(0x9E3779B97F4A7C15)
_MIX1 = _U64(0xBF58476D1CE4E5B9)
_MIX2 = _U64(0x94D049BB133111EB)


def key64(*parts: int | str) -> int:
    """Return a 64-bit key of the parts; their order, number and types all matter.

    Returns:
        An int in [0, 2**64).

    """
    hasher = blake2b(digest_size=8)
    for part in parts:
        if isinstance(part, str):
            data = part.encode()
            tag = b"s"
        else:
            data = part.to_bytes(part.bit_length() // 8 + 1, "little", signed=True)
            tag = b"i"
        # Type and length come first, so that different parts never give the same bytes: not even two short parts and
        # a long one.
        hasher.update(tag + len(data).to_bytes(8, "little") + data)
    return int.from_bytes(hasher.digest(), "little")


def hash_u64(key: int, positions: npt.NDArray[np.uint64] | npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """Return 64 random bits for every position, the same on every machine and numpy version.

    Args:
        key: A 64-bit key, such as a result of `key64`.
        positions: Integers of any shape, not negative.

    Returns:
        uint64 array of the same shape.

    Source:
        SplitMix64, Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators".
    """
    # The state of SplitMix64 after as many steps as the position says, from the key on.
    x = positions.astype(_U64, copy=True)
    x += _U64(1)
    x *= _GOLDEN
    x += _U64(key)
    # Its output function.
    x ^= x >> _U64(30)
    x *= _MIX1
    x ^= x >> _U64(27)
    x *= _MIX2
    x ^= x >> _U64(31)
    return x


class RngPurpose(IntEnum):
    """The purpose of a key; two numbers ``a`` and ``b`` distinguish the keys of one purpose."""

    SAMPLE = 0
    """A sample of a map dataset, or a batch of its ``__getitems__``; ``a`` is the (first) position in the order."""
    BATCH = 1
    """The collate function of a batch; ``a`` is the number of the batch."""
    STREAM = 2
    """A sample of an iterable dataset; ``a`` is the worker, ``b`` the number of its earlier samples."""
    STREAM_START = 3
    """The ``__iter__`` of an iterable dataset; ``a`` is the worker."""
    STREAM_BATCH = 4
    """The collate function of an iterable dataset; ``a`` is the worker, ``b`` the number of its earlier batches."""
    SAMPLER = 5
    """The draws of a custom sampler in an epoch."""
    PARTNER = 6
    """Reading of one part of a mixed sample; ``a`` is the sample's position, ``b`` is 0 for its own image."""


class Key(NamedTuple):
    """The seeds of one sample, batch or stream: 64 bits each, but 32 for numpy.

    numpy's global generator takes five times as long to seed from more than 32 bits. Samples whose 32 bits are equal by
    chance still differ in the other seeds.

    Attributes:
        torch: For torch's generator on the CPU.
        python: For the generator of ``random``.
        sample_rng: For the generators of `SampleRng`.
        numpy: For numpy's global generator; in an unseeded worker, torch's four words.
    """

    torch: int
    python: int
    sample_rng: int
    numpy: int | list[int]


class EpochKeys:
    """The keys of one epoch.

    Args:
        seed: The loader's seed.
        epoch: The epoch, from 0.
        num_positions: Number of positions in the epoch's global order, or None if it has none. No key depends on it.
    """

    def __init__(self, seed: int, epoch: int, num_positions: int | None = None) -> None:
        self.seed = seed
        self.epoch = epoch
        self.num_positions = num_positions
        self._hasher = blake2b(key64(seed, epoch).to_bytes(8, "little"), digest_size=28)

    def key(self, purpose: RngPurpose, a: int, b: int = 0) -> Key:
        """Return the key for a purpose; `RngPurpose` explains the numbers ``a`` and ``b``."""
        # The copy saves hashing seed and epoch for every sample.
        hasher = self._hasher.copy()
        hasher.update(_PARTS.pack(purpose, a, b))
        return Key(*_KEY.unpack(hasher.digest()))


# Fixed sizes and byte order give the same keys on every machine.
_PARTS = struct.Struct("<Bqq")
_KEY = struct.Struct("<QQQI")
