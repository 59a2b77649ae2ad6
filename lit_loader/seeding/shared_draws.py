"""Whether the generators that threads share were drawn from, and whether it was these threads that did it.

Problem: a dataset that draws from ``random`` in worker threads must be refused, but the generators do not say who
drew, and the main thread or another loader's threads may. Mechanism: they are compared before and after, and so
is the CPU time of every other thread: one that has not run has not drawn.
Not covered, so that nothing is said: what draws only now and then; what leaves a generator as it found it, because
it seeds it with one number each time; threads that never rest; platforms without a clock for each thread.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Set
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lit_loader.errors import SharedGeneratorError

__all__ = ["SharedDraws", "cpu_times_of_others", "others_want_to_run"]


class SharedDraws:
    """Tells whether certain threads drew from a process-wide generator since this was made.

    Args:
        ours: ``threading.get_native_id()`` of the threads in question.
    """

    def __init__(self, ours: Set[int]) -> None:
        self._ours = ours
        self._clocks = cpu_times_of_others(ours)
        self._before = _states()

    def check(self) -> bool:
        """Compare the generators with what they were; return whether the answer is certain.

        Raises:
            SharedGeneratorError: If one changed, and no other thread has run meanwhile.
        """
        after = _states()
        changed = [name for name, state in self._before.items() if state != after[name]]
        if not changed:
            return True
        if self._clocks is None or cpu_times_of_others(self._ours) != self._clocks:
            return False
        raise SharedGeneratorError(
            f"the dataset (or collate_fn) draws from the process-wide generator of {' and '.join(changed)}; worker "
            "threads share it, so their numbers would depend on timing although seed= promises they do not. Draw "
            'from lit_loader.sample_rng() (.python, .numpy, .torch) or use worker_method="multiprocessing"'
        )


def _states() -> dict[str, Any]:
    return {
        "random": random.getstate(),
        "numpy": _comparable(np.random.get_state(legacy=False)),
        "torch": torch.default_generator.get_state().numpy().tobytes(),
    }


def _comparable(state: Any) -> Any:
    """Return a state of numpy's, a dict that holds arrays, so that ``==`` says whether two are equal."""
    if isinstance(state, dict):
        return {name: _comparable(part) for name, part in state.items()}
    return state.tobytes() if isinstance(state, np.ndarray) else state


def cpu_times_of_others(ours: Set[int]) -> dict[int, int] | None:
    """Return the CPU time of every other Python thread, in nanoseconds by its native id; None if one is unknown."""
    threads = threading.enumerate()
    if not sys._current_frames().keys() <= {thread.ident for thread in threads}:
        return None  # a thread that Python's threading does not know
    clocks = {}
    for thread in threads:
        number = thread.native_id
        if number is None:
            return None  # it is just starting
        if number not in ours:
            try:
                clocks[number] = time.clock_gettime_ns(_clock_of(number))
            except (OSError, AttributeError):
                return None
    return clocks


def others_want_to_run(ours: Set[int]) -> bool:
    """Whether another Python thread could run now if it were given a core."""
    numbers = {thread.native_id for thread in threading.enumerate()} - ours
    return any(_state_of(number) == "R" for number in numbers)


def _state_of(native_id: int | None) -> str:
    try:
        return Path(f"/proc/self/task/{native_id}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def _clock_of(native_id: int) -> int:
    """Return Linux's clock of one thread's CPU time, as `clock_getcpuclockid(3)` builds it.

    ``time.pthread_getcpuclockid`` may crash for a thread that has ended; a wrong number here is an OSError.
    """
    return (~native_id << 3) | 6
