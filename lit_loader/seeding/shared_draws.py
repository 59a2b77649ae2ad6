"""A check of the first batch of worker threads: does the dataset draw from generators of the process?

Problem: threads share the process-wide generators of ``random``, numpy and torch, so a seed cannot fix the draws of a
dataset from them. Mechanism: the states before the first task of a loader's worker threads are compared with those
after its first batch, while the consumer waits. The check is best effort, so it warns and refuses nothing: another
thread of the program may have drawn meanwhile. Not covered: a dataset that draws only now and then, and one that always
seeds a generator with the same number, which leaves its state unchanged.
"""

from __future__ import annotations

import pickle
import random
import warnings
from typing import Any

import numpy as np
import torch

from lit_loader.errors import SharedGeneratorWarning
from lit_loader.seeding.generators import call_uncollected


class SharedDrawCheck:
    """Compare the process-wide generators before and after the first batch.

    Runs in: the consumer's thread.
    """

    def __init__(self) -> None:
        self._states_before = _generator_states()

    def warn(self) -> None:
        """Warn if the state of a generator has changed."""
        states = _generator_states()
        changed = [name for name, state in self._states_before.items() if state != states[name]]
        if changed:
            warnings.warn(
                f"while the first batch was made, the process-wide generator of {' and '.join(changed)} changed: the "
                "dataset (or collate_fn) seems to draw from it; worker threads share it, so the seed does not fix "
                'these draws; draw from lit_loader.sample_rng(), or use worker_method="multiprocessing"',
                SharedGeneratorWarning,
                stacklevel=2,
            )


def _generator_states() -> dict[str, Any]:
    return {
        "random": random.getstate(),
        # As bytes, because ``==`` does not compare the arrays in the state.
        "numpy": pickle.dumps(np.random.get_state(legacy=False)),
        # Devices have generators of their own, which no sample on the CPU uses.
        "torch": call_uncollected(torch.default_generator.get_state).numpy().tobytes(),
    }
