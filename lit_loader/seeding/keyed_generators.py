"""Streams of the process-wide generators that are left and come back to: a sampler's own, from batch to batch."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from lit_loader.seeding.current import current
from lit_loader.seeding.keys import Key
from lit_loader.seeding.process import preserved_generators, seed_generators

__all__ = ["KeyedGenerators"]


class KeyedGenerators:
    """While entered, the generators of torch (CPU), numpy and random are at a place of their own, seeded from a key.

    Entered again, they go on from where they were left; outside they are as they were before. In a worker thread, whose
    generator is keyed as it is, nothing is done.

    Args:
        key: What they are seeded from when they are entered first.
    """

    def __init__(self, key: Key) -> None:
        self._key = key
        self._saved: tuple[Any, Any, Any] | None = None
        self._outer: Any = None

    def __enter__(self) -> None:
        if current.scope is not None:
            return
        self._outer = preserved_generators()
        self._outer.__enter__()
        if self._saved is None:
            seed_generators(self._key)
            return
        torch_state, numpy_state, python_state = self._saved
        torch.default_generator.set_state(torch_state)
        np.random.set_state(numpy_state)
        random.setstate(python_state)

    def __exit__(self, *exc_info: object) -> None:
        if self._outer is None:
            return
        self._saved = (torch.default_generator.get_state(), np.random.get_state(), random.getstate())
        outer, self._outer = self._outer, None
        outer.__exit__(None, None, None)
