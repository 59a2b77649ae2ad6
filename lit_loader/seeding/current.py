"""Which moment a thread is at: what `sample_rng` and the thread-local scope draw their seeds from."""

from __future__ import annotations

import random
import threading
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch

from lit_loader.seeding.hashing import key64
from lit_loader.seeding.keys import EpochKeys, Key, Moment

__all__ = ["Current", "SampleRng", "Scope", "current", "is_duplicate", "sample_rng"]


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


class Scope(Protocol):
    """A thread's own torch generator, as the modules that ask `current` need to know it."""

    @property
    def generator(self) -> torch.Generator:
        """The generator."""

    def save(self) -> Any:
        """Return where it is in its stream."""

    def restore(self, saved: Any) -> None:
        """Go back there."""


class Current(threading.local):
    """The moment this thread is at: set for every sample, looked at only by those that draw.

    Attributes:
        moment: Keys of the epoch, kind of moment and its two numbers; None: at none.
        scope: What torch's draws in this thread come from; None: torch's default generator.
        worker_info: What ``get_worker_info()`` returns in this thread, or None if it is no worker thread.
    """

    moment: tuple[EpochKeys, Moment, int, int] | None = None
    scope: Scope | None = None
    worker_info: Any = None
    _keyed: tuple[Any, Key] = (None, Key(0, 0, 0, 0))  # the moment whose key was computed last, and that key
    _drawn: tuple[Any, SampleRng | None] = (None, None)

    def key(self) -> Key | None:
        """Return the key of the moment; None at none."""
        moment = self.moment
        if moment is None:
            return None
        if self._keyed[0] is not moment:
            keys, kind, a, b = moment
            self._keyed = (moment, keys.key(kind, a, b))
        return self._keyed[1]

    def rng(self) -> SampleRng | None:
        """Return generators of the moment, which go on from where they were; None at none."""
        key = self.key()
        if key is None:
            return None
        if self._drawn[0] is not self.moment:
            self._drawn = (self.moment, SampleRng(key.own))
        return self._drawn[1]

    def is_duplicate(self, row: int) -> bool:
        """Whether the sample being made, or one ``row`` positions behind it, lies behind the end of its order."""
        moment = self.moment
        if moment is None or moment[1] is not Moment.SAMPLE:
            return False
        num_positions = moment[0].num_positions
        return num_positions is not None and moment[2] + row >= num_positions

    def save(self) -> Any:
        """Return the moment and how far its streams have come, to come back to after other moments."""
        return self.moment, self._drawn, None if self.scope is None else self.scope.save()

    def restore(self, saved: Any) -> None:
        """Come back to what `save` gave."""
        self.moment, self._drawn, stream = saved
        if self.scope is not None and stream is not None:
            self.scope.restore(stream)


current = Current()


def sample_rng() -> SampleRng:
    """Return generators of the sample being made, for a dataset that wants its own.

    Under ``DataLoader(seed=int)`` they depend on (seed, epoch, position) alone, in every backend, and go on
    from where they were when asked for again within the sample. Elsewhere each call seeds new ones by a draw
    from torch's default generator.
    """
    rng = current.rng()
    return SampleRng(int(torch.empty((), dtype=torch.int64).random_().item())) if rng is None else rng


def is_duplicate(row: int = 0) -> bool:
    """Whether the sample being made fills up the last batches so that all ranks have as many, and is a duplicate.

    The dataset asks while it makes the sample, and puts the answer into it: an evaluation on several ranks is exact if
    its metrics leave duplicates out. Of all samples that are none, over all ranks, there is one for each position of
    the sampler's order. Known under ``DataLoader(seed=int)`` with a sampler of ours, in every backend; False without a
    seed, for a foreign sampler, for an iterable dataset, in a collate function and elsewhere.

    Args:
        row: In ``__getitems__``, which makes a batch at once: which of its samples is meant.
    """
    return current.is_duplicate(row)
