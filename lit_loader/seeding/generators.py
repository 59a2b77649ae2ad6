"""Generators for samples: of the process, seeded from keys, and of `sample_rng`."""

from __future__ import annotations

import gc
import operator
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import torch

# numpy imports this module at its first use: in every forked worker anew, or in a worker thread, where the import calls
# eval(), which makes CPython lose a Ctrl-C that is just ending the main thread. So import it here.
from numpy import random as numpy_random

from lit_loader.seeding.keys import EpochKeys, Key, RngPurpose, key64

KeyParts: TypeAlias = tuple[EpochKeys, RngPurpose, int, int]
"""The arguments of `EpochKeys.key`, which are stored for every sample; most samples never need the key."""


class SampleRng:
    """Generators of one sample, each created at its first use.

    Attributes:
        torch: A ``torch.Generator`` on the CPU.
        numpy: A ``numpy.random.Generator``.
        python: A ``random.Random``.
        key_parts: The object in `RngContext.key_parts` that the key was computed from, or None.
    """

    def __init__(self, key: Key, key_parts: KeyParts | None = None) -> None:
        self.key = key
        self.key_parts = key_parts

    @cached_property
    def torch(self) -> torch.Generator:
        """A torch generator on the CPU."""
        generator = torch.Generator()
        generator.manual_seed(key64(self.key.sample_rng, "torch"))
        return generator

    @cached_property
    def numpy(self) -> np.random.Generator:
        """A numpy generator."""
        return np.random.Generator(np.random.PCG64(key64(self.key.sample_rng, "numpy")))

    @cached_property
    def python(self) -> random.Random:
        """A generator with the methods of the ``random`` module."""
        return random.Random(key64(self.key.sample_rng, "python"))

    # The next two serve `WorkerRng`: they have the bits of ``random`` and ``numpy.random`` in a worker process.

    @cached_property
    def _process_python(self) -> random.Random:
        return random.Random(self.key.python)

    @cached_property
    def _process_numpy(self) -> np.random.Generator:
        # numpy's global generator seeds its MT19937 in a different way than ``MT19937(seed)``.
        bit_generator = np.random.MT19937()
        bit_generator.state = np.random.RandomState(self.key.numpy).get_state(legacy=False)  # type: ignore[assignment]
        return np.random.Generator(bit_generator)


class RngContext(threading.local):
    """The present key and generators of the calling thread.

    The key changes with every sample, but nothing is computed before something draws.

    Attributes:
        key_parts: The arguments for the key of the present sample, batch or stream, or None outside of a seeded loader.
        batch: Number of the present batch in its epoch, the same on all ranks, or None for an iterable dataset.
        rng: The generators that `present_rng` has returned last, perhaps for an earlier key.
        generator: The torch generator of this worker thread, or None if torch draws from its default generator here;
            see `present_generator`.
        seeded_for: The `rng` that ``generator`` was seeded for.
        worker_info: The result of ``get_worker_info()`` in this thread, or None if it is not a worker thread.
    """

    key_parts: KeyParts | None = None
    batch: int | None = None
    rng: SampleRng | None = None
    generator: torch.Generator | None = None
    seeded_for: SampleRng | None = None
    worker_info: Any = None

    def present_rng(self) -> SampleRng | None:
        """Return the generators of the present key, the same object for the same key, or None without a key."""
        parts = self.key_parts
        if parts is None:
            return None
        # Hashing the key takes longer than a small sample, so do it only for a draw. A new key is a new tuple, which is
        # noticed here, so that each sample costs no more than storing that tuple.
        if self.rng is None or self.rng.key_parts is not parts:
            keys, purpose, a, b = parts
            self.rng = SampleRng(keys.key(purpose, a, b), parts)
        return self.rng

    def present_generator(self) -> torch.Generator | None:
        """Return this thread's torch generator, seeded before the first draw from the present key, or None."""
        # Compared by identity: after a change of the key, `present_rng` returns a new object.
        if self.generator is None:
            return None
        rng = self.present_rng()
        if rng is not self.seeded_for:
            # Without a key the generator continues as a worker process of its seed would.
            if rng is not None:
                self.generator.manual_seed(rng.key.torch)
            self.seeded_for = rng
        return self.generator


context = RngContext()


class WorkerRng:
    """The ``rng`` of a worker thread's info, with the generators that torch declares there.

    For a sample with a key they are the generators of that key, so a sample that draws from them has the same bits on
    every thread. Do not store them: the next sample has others.

    Args:
        key: The worker's key, for draws outside of samples with a key.

    Runs in: a worker thread, inside or outside of its scope.
    """

    def __init__(self, key: Key) -> None:
        self._rng = SampleRng(key)

    @property
    def torch_generator(self) -> torch.Generator:
        """The torch generator of this thread."""
        return context.present_generator() or torch.default_generator

    @property
    def random_generator(self) -> random.Random:
        """A generator with the bits of ``random`` in a worker process."""
        return (context.present_rng() or self._rng)._process_python

    @property
    def numpy_generator(self) -> np.random.Generator:
        """A generator with the bits of ``numpy.random`` in a worker process."""
        return (context.present_rng() or self._rng)._process_numpy


def sample_rng() -> SampleRng:
    """Return the generators of the present sample, for datasets that do not draw from the global generators.

    Under ``DataLoader(seed=int)`` they depend on (seed, epoch, position) alone, in every backend, and later calls in
    the same sample return the same objects. Elsewhere each call returns new ones, seeded by a draw from torch's default
    generator.
    """
    rng = context.present_rng()
    if rng is None:
        # Outside of a seeded loader a seed of torch's default generator still fixes the draws.
        rng = SampleRng(Key(0, 0, int(torch.empty((), dtype=torch.int64).random_().item()), 0))
    return rng


def is_duplicate(row: int = 0) -> bool:
    """Return True if the present sample is a duplicate that only fills up the last batches of several ranks.

    A dataset calls it while it makes a sample and stores the result in the sample, so that metrics can ignore
    duplicates and an evaluation on several ranks is exact. Over all ranks, there is one sample that is not a duplicate
    for each position of the sampler's order. The result is always False without ``DataLoader(seed=int)``, for a sampler
    that splits itself over the ranks, for an iterable dataset, and in a collate function.

    Args:
        row: In ``__getitems__``, which makes a batch at once: the sample's row in the batch.
    """
    if context.key_parts is None:
        return False
    keys, purpose, position, part = context.key_parts
    end = keys.num_positions
    # The sample's own image is part 0 of a mixed sample.
    is_sample = purpose is RngPurpose.SAMPLE or (purpose is RngPurpose.PARTNER and part == 0)
    return is_sample and end is not None and position + row >= end


_NO_KEY = (
    "needs a sample of lit_loader.DataLoader(seed=...), which knows its epoch; pass a seed to the loader, or call "
    "dataset[i] within `with lit_loader.sample_key(epoch=0):`"
)


def current_epoch() -> int:
    """Return the epoch of the present sample or batch, from 0, for datasets and transforms that change over a run.

    The epoch is part of the key of every sample. So persistent workers, an epoch that is prepared ahead and a resumed
    run all see the epoch that the sample belongs to.

    Raises:
        RuntimeError: Outside of ``DataLoader(seed=int)`` and of `sample_key`, where the epoch is unknown.
    """
    if context.key_parts is None:
        raise RuntimeError(f"current_epoch() {_NO_KEY}")
    return context.key_parts[0].epoch


def current_batch() -> int:
    """Return the number of the present batch in its epoch, from 0: the same for all samples of a global batch.

    Raises:
        RuntimeError: Outside of ``DataLoader(seed=int)`` over a map dataset and of `sample_key`.
    """
    if context.key_parts is None or context.batch is None:
        raise RuntimeError(f"current_batch() {_NO_KEY}")
    return context.batch


@contextmanager
def sample_key(*, epoch: int = 0, seed: int = 0, position: int = 0, batch: int = 0) -> Iterator[None]:
    """Make ``dataset[i]`` the sample that a seeded loader makes of index ``i`` at this position, bit for bit.

    The generators of the process are seeded within the context, and get their earlier states back after it.

    Args:
        epoch: The epoch, from 0.
        seed: The loader's seed.
        position: Position of the sample in the epoch's global order.
        batch: Number of the sample's batch in the epoch.
    """
    with preserved_generators():
        context.batch = batch
        seed_process(EpochKeys(seed, epoch), RngPurpose.SAMPLE, position)
        yield


def seed_generators(key: Key) -> None:
    """Seed the process-wide generators of torch (CPU), numpy and random from a key."""
    torch.default_generator.manual_seed(key.torch)
    numpy_random.seed(key.numpy)
    random.seed(key.python)


def seed_process(keys: EpochKeys, purpose: RngPurpose, a: int, b: int = 0) -> None:
    """Seed the generators of a process, which makes one sample at a time, for a purpose."""
    context.key_parts = (keys, purpose, a, b)
    # In a worker thread, where a sample may iterate a loader, the thread's generator is seeded at its first draw, and
    # other threads share the process-wide ones.
    if context.generator is None:
        seed_generators(keys.key(purpose, a, b))


def seed_worker(base_seed: int, worker_id: int) -> int:
    """Seed a worker process's generators as torch's loader does and return the worker's seed."""
    key = worker_key(base_seed, worker_id)
    seed_generators(key)
    # Seeds the generators of devices too, as torch's loader does.
    torch.manual_seed(key.torch)
    context.key_parts = None
    return key.torch


def worker_key(base_seed: int, worker_id: int) -> Key:
    """Return the seeds of a worker of torch's loader: ``base_seed + worker_id``, and for numpy four 32-bit words."""
    seed = base_seed + worker_id
    sequence = numpy_random.SeedSequence([worker_id, base_seed & 0xFFFFFFFF, base_seed >> 32, 0])
    return Key(seed, seed, seed, sequence.generate_state(4).tolist())


def call_uncollected(function: Callable[[], Any]) -> Any:
    """Call a C function with the garbage collector off, and return its result, which must not be None.

    ``torch.Generator.get_state`` holds the generator's lock while it creates objects. If the collector runs then and
    frees a tensor, another thread may run, and wait for that lock while this one waits for the interpreter: a deadlock.
    No other thread finds the collector off.
    """
    # One `map` is one step for the interpreter, which switches threads only between bytecodes.
    calls = (gc.disable, function, gc.enable) if gc.isenabled() else (function,)
    return next(result for result in list(map(operator.call, calls)) if result is not None)


def _process_states() -> tuple[Any, Any, Any]:
    torch_state = call_uncollected(torch.default_generator.get_state)
    return torch_state, numpy_random.get_state(legacy=False), random.getstate()


def _set_process_states(states: tuple[Any, Any, Any]) -> None:
    torch.default_generator.set_state(states[0])
    numpy_random.set_state(states[1])
    random.setstate(states[2])


@contextmanager
def preserved_generators() -> Iterator[None]:
    """Restore the process-wide generators afterwards, so that seeded samples do not change the model's draws.

    In a worker thread, where samples do not change them, restore the thread's own generator.
    """
    outer_context = (context.key_parts, context.batch, context.rng, context.seeded_for)
    generator = context.generator
    states: Any = _process_states() if generator is None else generator.get_state()
    try:
        yield
    finally:
        if generator is None:
            _set_process_states(states)
        else:
            generator.set_state(states)
        context.key_parts, context.batch, context.rng, context.seeded_for = outer_context


class KeyedGenerators:
    """Let the process-wide generators draw from a stream of their own, for a sampler's draws.

    Args:
        key: Seeds the generators when they are first exchanged.
    """

    def __init__(self, key: Key) -> None:
        self._key = key
        self._states: tuple[Any, Any, Any] | None = None

    @contextmanager
    def exchanged(self) -> Iterator[None]:
        """Draw from the stream within the context. Later contexts continue where the last one stopped.

        In a worker thread nothing is exchanged, because the thread's generator is keyed already.
        """
        if context.generator is not None:
            yield
            return
        with preserved_generators():
            # Only the first context seeds; later ones continue.
            if self._states is None:
                seed_generators(self._key)
            else:
                _set_process_states(self._states)
            try:
                yield
            finally:
                # Even after an error: a sampler may be iterated further.
                self._states = _process_states()
