"""The generators that a whole process shares: seeded from keys, and given back as they were."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import torch

# Here, or numpy would import it at its first use: in every forked worker anew, and in a worker thread, where its import
# calls eval(), by which CPython forgets a Ctrl-C that is just ending the main thread.
from numpy import random as numpy_random

from lit_loader.seeding.current import current
from lit_loader.seeding.keys import EpochKeys, Key, Moment

__all__ = ["preserved_generators", "seed_generators", "seed_process", "seed_worker", "worker_words"]


def seed_generators(key: Key) -> None:
    """Seed the process-wide generators of torch (CPU), numpy and random from a key."""
    torch.default_generator.manual_seed(key.torch)
    numpy_random.seed(key.numpy)
    random.seed(key.python)


def seed_process(keys: EpochKeys, moment: Moment, a: int, b: int = 0) -> None:
    """Come to a moment in a process that makes one sample at a time: seed what it shares."""
    current.moment = (keys, moment, a, b)
    if (
        current.scope is None
    ):  # a loader inside of a worker thread's sample has the thread's generator instead
        key = current.key()
        assert key is not None
        seed_generators(key)


@contextmanager
def preserved_generators() -> Iterator[None]:
    """Give the process-wide generators back as they were: seeding samples must not touch the model's draws.

    In a worker thread they belong to others and are not touched; there it is the thread's own that goes back.
    """
    outer = current.save()
    if current.scope is not None:
        try:
            yield
        finally:
            current.restore(outer)
        return
    torch_state = torch.default_generator.get_state()
    numpy_state = numpy_random.get_state()
    python_state = random.getstate()
    try:
        yield
    finally:
        torch.default_generator.set_state(torch_state)
        numpy_random.set_state(numpy_state)
        random.setstate(python_state)
        current.restore(outer)


def worker_words(base_seed: int, worker_id: int) -> list[int]:
    """Return the four 32-bit words that seed numpy's generator in a worker (``SeedSequence``, as torch has it)."""
    entropy = [worker_id, base_seed & 0xFFFFFFFF, base_seed >> 32, 0]
    words: list[int] = numpy_random.SeedSequence(entropy).generate_state(4).tolist()
    return words


def seed_worker(base_seed: int, worker_id: int) -> int:
    """Seed a worker's process-wide generators as torch's loader does and return the worker's seed.

    torch and random get ``base_seed + worker_id``; numpy gets `worker_words`.
    """
    seed = base_seed + worker_id
    random.seed(seed)
    torch.manual_seed(seed)
    numpy_random.seed(worker_words(base_seed, worker_id))
    current.moment = None
    return seed
