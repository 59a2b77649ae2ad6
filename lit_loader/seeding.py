"""Randomness by key: every sample, batch and worker gets its generators from a hash, never from a stream.

Problem: a worker that seeds once and then draws gives a sample random bits that depend on which worker
took it and on what that worker did before. Mechanism: the generators are seeded anew for every sample,
from a hash of (seed, epoch, position in the global order), so any worker computes the same bits.
Not covered: generators that a dataset owns privately; they can be had from `sample_rng` instead.
"""

from __future__ import annotations

import random
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b

import numpy as np
import numpy.typing as npt
import torch

__all__ = [
    "EpochKeys",
    "Key",
    "SampleRng",
    "hash_u64",
    "key64",
    "preserved_generators",
    "sample_rng",
    "seed_generators",
    "seed_worker",
    "uniform",
]

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


@dataclass(frozen=True, slots=True)
class Key:
    """What the generators of one sample (or batch) are seeded with: 64 bits each, 32 for numpy's.

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
    """

    def __init__(self, seed: int, epoch: int) -> None:
        self.seed, self.epoch = seed, epoch
        self._hasher = blake2b(key64(seed, epoch).to_bytes(8, "little"), digest_size=28)

    def _key(self, kind: int, a: int, b: int = 0) -> Key:
        hasher = self._hasher.copy()
        hasher.update(struct.pack("<Bqq", kind, a, b))
        return Key(*struct.unpack("<QQQI", hasher.digest()))

    def sample(self, position: int) -> Key:
        """Return the key of the sample at a position of the global order."""
        return self._key(0, position)

    def batch(self, number: int) -> Key:
        """Return the key of a batch, for its collate function or its ``__getitems__``."""
        return self._key(1, number)

    def stream(self, worker: int, count: int) -> Key:
        """Return the key of sample number ``count`` of a worker's pass over an iterable dataset."""
        return self._key(2, worker, count)

    def stream_start(self, worker: int) -> Key:
        """Return the key of the ``__iter__`` of a worker's pass over an iterable dataset."""
        return self._key(3, worker)

    def stream_batch(self, worker: int, count: int) -> Key:
        """Return the key of the collate function of batch number ``count`` of such a pass."""
        return self._key(4, worker, count)


class _Current(threading.local):
    """The sample being made in this thread: its key, and its own generators once they were asked for."""

    key: Key | None = None
    rng: SampleRng | None = None


_current = _Current()


def seed_generators(key: Key) -> None:
    """Seed the process-wide generators of torch (CPU), numpy and random, and `sample_rng`, from a key."""
    torch.default_generator.manual_seed(key.torch)
    np.random.seed(key.numpy)
    random.seed(key.python)
    _current.key, _current.rng = key, None


@contextmanager
def preserved_generators() -> Iterator[None]:
    """Give the process-wide generators back as they were: seeding samples must not touch the model's draws."""
    torch_state = torch.default_generator.get_state()
    numpy_state = np.random.get_state()
    python_state = random.getstate()
    outer = _current.key, _current.rng
    try:
        yield
    finally:
        torch.default_generator.set_state(torch_state)
        np.random.set_state(numpy_state)
        random.setstate(python_state)
        _current.key, _current.rng = outer


class SampleRng:
    """Generators that belong to one sample, made when first asked for.

    Attributes:
        torch: A ``torch.Generator`` on the CPU.
        numpy: A ``numpy.random.Generator``.
        python: A ``random.Random``.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    @cached_property
    def torch(self) -> torch.Generator:
        """A torch generator on the CPU."""
        generator = torch.Generator()
        generator.manual_seed(key64(self._seed, "torch"))
        return generator

    @cached_property
    def numpy(self) -> np.random.Generator:
        """A numpy generator."""
        return np.random.Generator(np.random.PCG64(key64(self._seed, "numpy")))

    @cached_property
    def python(self) -> random.Random:
        """A generator with the methods of the ``random`` module."""
        return random.Random(key64(self._seed, "python"))


def sample_rng() -> SampleRng:
    """Return generators of the sample being made, for a dataset that wants its own.

    Under ``DataLoader(seed=int)`` they depend on (seed, epoch, position) alone, and go on from where they
    were when asked for again within the sample. Elsewhere each call seeds new ones by a draw from torch's
    default generator.
    """
    if _current.key is None:
        return SampleRng(int(torch.empty((), dtype=torch.int64).random_().item()))
    if _current.rng is None:
        _current.rng = SampleRng(_current.key.own)
    return _current.rng


def seed_worker(base_seed: int, worker_id: int) -> int:
    """Seed a worker's process-wide generators as torch's loader does and return the worker's seed.

    torch and random get ``base_seed + worker_id``; numpy gets four words mixed from both
    (``numpy.random.SeedSequence``, as torch has it).
    """
    seed = base_seed + worker_id
    random.seed(seed)
    torch.manual_seed(seed)
    entropy = [worker_id, base_seed & 0xFFFFFFFF, base_seed >> 32, 0]
    np.random.seed(np.random.SeedSequence(entropy).generate_state(4))
    _current.key = _current.rng = None
    return seed
