"""The generators that a worker thread's info offers, as torch's to-be thread workers have them: one of each kind.

At a moment they are the moment's, so that a sample which draws from them keeps its bits whichever thread makes it.
"""

from __future__ import annotations

import random
from functools import cached_property
from typing import Any

import numpy as np
import torch

from lit_loader.seeding.current import current
from lit_loader.seeding.keys import Key
from lit_loader.seeding.process import worker_words
from lit_loader.seeding.scope import ThreadScope

__all__ = ["WorkerRng"]


class _Pair:
    """A generator of ``random``'s kind and one of numpy's, made when first asked for."""

    def __init__(self, python_seed: int, numpy_seed: int | list[int]) -> None:
        self._python_seed, self._numpy_seed = python_seed, numpy_seed

    @cached_property
    def python(self) -> random.Random:
        return random.Random(self._python_seed)

    @cached_property
    def numpy(self) -> np.random.Generator:
        bits = np.random.MT19937()  # with the bits that np.random has when it is seeded so
        state: Any = np.random.RandomState(self._numpy_seed).get_state(legacy=False)
        bits.state = state
        return np.random.Generator(bits)


class WorkerRng:
    """Generators of a worker thread; ask it for one when you draw, and keep none.

    Args:
        scope: Whose torch generator it is.
        base_seed: The workers' seed.
        worker_id: The worker's number.

    Runs in: the thread whose scope it has.
    """

    def __init__(self, scope: ThreadScope, base_seed: int, worker_id: int) -> None:
        self._scope = scope
        self._own = _Pair(base_seed + worker_id, worker_words(base_seed, worker_id))
        self._of: tuple[Any, _Pair] = (None, self._own)  # a moment and its generators

    @property
    def torch_generator(self) -> torch.Generator:
        """What torch draws from in this thread."""
        return self._scope.generator

    @property
    def random_generator(self) -> random.Random:
        """Draws what ``random`` would in a worker process."""
        return self._pair().python

    @property
    def numpy_generator(self) -> np.random.Generator:
        """Has the bits of ``numpy.random`` in a worker process."""
        return self._pair().numpy

    def _pair(self) -> _Pair:
        key: Key | None = current.key()
        if key is None:
            return self._own
        if self._of[0] is not current.moment:
            self._of = (current.moment, _Pair(key.python, key.numpy))
        return self._of[1]
