"""A check of the first tasks of worker threads: does the dataset draw from generators that the threads share?

Problem: a dataset that draws from ``random`` in worker threads does not repeat, but a generator does not record which
thread drew, and the main thread or another loader's threads may draw too. Mechanism: the generators are compared before
and after a task, and so is the CPU time of every other thread: a thread that has not run has not drawn.
The check is best effort, and so it warns and refuses nothing: where a virtual machine takes stolen time off a thread's,
or where the clock is coarse, a thread that has drawn may seem to have rested. Not covered: a dataset that draws only
now and then; one that leaves a generator as it was, because it always seeds it with the same number; other threads that
run all the time; platforms without a CPU clock for each thread.
"""

from __future__ import annotations

import pickle
import random
import sys
import threading
import time
import warnings
from collections.abc import Callable, Set
from typing import Any, TypeVar

import numpy as np
import torch

from lit_loader.errors import SharedGeneratorWarning
from lit_loader.seeding.generators import call_uncollected

_T = TypeVar("_T")

_NUM_TASKS = 32  # tasks that are checked, at about 0.2 ms each
_WAIT_S = 0.1  # how long a task waits until no other thread runs
_NUM_WAITS = 5  # the most waits for each worker
_REST_S = 0.0005


class DrawCheck:
    """Checks the first tasks of a backend's worker threads.

    As long as the result is uncertain, a task waits until the consumer waits too and no other thread runs, so that the
    check after the task is certain. This is so at the beginning, so that the warning comes before the first batch, and
    after an uncertain check. No wait is longer than 0.1 s, because workers may need each other.

    Args:
        num_workers: Number of worker threads.
        is_awaited: Returns whether a consumer waits for a batch.

    Attributes:
        over: Whether no more tasks are checked.
    """

    def __init__(self, num_workers: int, is_awaited: Callable[[], bool]) -> None:
        self._num_workers, self._is_awaited = num_workers, is_awaited
        self._workers: set[int] = set()
        self._tasks_left, self._waits_left = _NUM_TASKS, _NUM_WAITS * num_workers
        self._is_open = True
        self._warning = threading.Lock()  # acquired for good by the thread that warns

    @property
    def over(self) -> bool:
        """Whether no more tasks are checked."""
        return self._tasks_left <= 0

    def worker_ready(self) -> None:
        """Add the calling worker. Its ``worker_init_fn``, which may draw, is done."""
        self._workers.add(threading.get_native_id())

    def watch(self, work: Callable[[], _T]) -> _T:
        """Do a worker's task and return its result; warn once if the dataset draws from a process-wide generator."""
        if self._is_open and self._waits_left > 0:
            self._waits_left -= 1
            self._wait_for_rest()
        self._tasks_left -= 1
        if len(self._workers) < self._num_workers:
            return work()
        # The times are read before the generators, and after the work after them.
        cpu_times = _cpu_times_of_others(self._workers)
        before = _states()
        made = work()
        after = _states()
        changed = [name for name, state in before.items() if state != after[name]]
        # If another thread has run meanwhile, it may have drawn.
        others_rested = cpu_times is not None and cpu_times == _cpu_times_of_others(self._workers)
        self._is_open = bool(changed) and not others_rested
        if changed and not self._is_open and self._warning.acquire(blocking=False):
            self._tasks_left = 0
            warnings.warn(
                "the dataset (or collate_fn) seems to draw from the process-wide generator of "
                f"{' and '.join(changed)}; worker threads share it, so the seed does not fix these draws; draw from "
                'lit_loader.sample_rng(), or use worker_method="multiprocessing"',
                SharedGeneratorWarning,
                stacklevel=2,
            )
        return made

    def _wait_for_rest(self) -> None:
        """Wait until all workers are ready, the consumer waits and no other thread runs.

        It ends early when the check of another worker's task was certain.
        """
        deadline = time.monotonic() + _WAIT_S
        while self._is_open and time.monotonic() < deadline:
            before = _cpu_times_of_others(self._workers)
            time.sleep(_REST_S)
            rests = before is not None and before == _cpu_times_of_others(self._workers)
            if rests and len(self._workers) == self._num_workers and self._is_awaited():
                return


def _states() -> dict[str, Any]:
    return {
        "random": random.getstate(),
        "numpy": pickle.dumps(np.random.get_state(legacy=False)),  # == does not compare its arrays
        "torch": call_uncollected(torch.default_generator.get_state).numpy().tobytes(),
    }


def _cpu_times_of_others(threads: Set[int]) -> dict[int, int] | None:
    """Return the CPU time of every other Python thread (nanoseconds by native id), or None if it cannot be read."""
    all_threads = threading.enumerate()
    if not call_uncollected(sys._current_frames).keys() <= {thread.ident for thread in all_threads}:
        return None  # a thread that was not started by Python's threading
    # Linux's clock of one thread's CPU time, as `clock_getcpuclockid(3)` builds it; `time.pthread_getcpuclockid` may
    # crash for a thread that has ended, and a wrong number here is an OSError.
    numbers: list[Any] = [thread.native_id for thread in all_threads if thread.native_id not in threads]
    try:
        return {number: time.clock_gettime_ns((~number << 3) | 6) for number in numbers}
    # no such clock, or the id of a thread that is starting is still None
    except (OSError, AttributeError, TypeError):
        return None
