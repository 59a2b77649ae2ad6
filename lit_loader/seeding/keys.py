"""The keys of an epoch: one for every sample, batch and stream, each a hash and never a draw from a stream."""

from __future__ import annotations

import struct
from enum import IntEnum
from hashlib import blake2b
from typing import NamedTuple

from lit_loader.seeding.hashing import key64

__all__ = ["EpochKeys", "Key", "Moment"]


class Moment(IntEnum):
    """What a key is for; the numbers after it say which one."""

    SAMPLE = 0
    """A sample of a map dataset: its position in the global order."""
    BATCH = 1
    """The collate function of a batch, or its ``__getitems__``: the batch's number."""
    STREAM = 2
    """A sample of an iterable dataset: the worker, and how many it gave before."""
    STREAM_START = 3
    """The ``__iter__`` of an iterable dataset: the worker."""
    STREAM_BATCH = 4
    """The collate function of an iterable dataset's batch: the worker, and how many it made before."""
    SAMPLER = 5
    """What a user's own sampler draws in an epoch."""


class Key(NamedTuple):
    """What the generators of one moment are seeded with: 64 bits each, 32 for numpy's.

    numpy's global generator takes five times longer to seed from more than 32 bits; the other two keep
    samples apart that would share numpy's seed.
    """

    torch: int
    python: int
    own: int
    numpy: int


class EpochKeys:
    """The keys of one epoch.

    Args:
        seed: The loader's seed.
        epoch: The epoch, from 0.
        num_positions: Positions in the epoch's global order; None: not known. No key depends on it.
    """

    def __init__(self, seed: int, epoch: int, num_positions: int | None = None) -> None:
        self.seed, self.epoch, self.num_positions = seed, epoch, num_positions
        self._hasher = blake2b(key64(seed, epoch).to_bytes(8, "little"), digest_size=28)

    def key(self, moment: Moment, a: int, b: int = 0) -> Key:
        """Return the key of a moment; ``a`` and ``b`` are the numbers that `Moment` speaks of."""
        hasher = self._hasher.copy()
        hasher.update(_PARTS.pack(moment, a, b))
        return Key(*_KEY.unpack(hasher.digest()))


_PARTS = struct.Struct("<Bqq")
_KEY = struct.Struct("<QQQI")
