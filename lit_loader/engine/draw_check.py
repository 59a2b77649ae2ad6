"""Whether a dataset draws from generators that worker threads share: looked for in a pool's first tasks.

Best effort, and said to be: a dataset that draws seldom, or in a process whose other threads never rest, is not
found. What is found is certain (`SharedDraws`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from lit_loader.errors import SharedGeneratorError
from lit_loader.seeding import SharedDraws, cpu_times_of_others, others_want_to_run

__all__ = ["DrawCheck"]

_T = TypeVar("_T")

_NUM_TASKS = 32  # looked at, which costs about 0.2 ms each
_WAIT_S = 0.1  # how long the first task waits for other threads to rest, and the other workers for it
_NUM_WAITS = 5
_REST_S = 0.0005


class DrawCheck:
    """Looks at a pool's first tasks.

    The first one waits a moment until the consumer waits too, and the other workers wait for it, so that a dataset
    that draws is refused before a batch is delivered. A later one waits like that if the one before left it open who
    drew. No wait is longer than 0.1 s, as workers may need each other, and there are five at most.

    Args:
        num_workers: Workers of the pool.
        is_awaited: Whether a consumer waits for a batch.

    Attributes:
        over: Whether nothing more is to be looked at.
    """

    def __init__(self, num_workers: int, is_awaited: Callable[[], bool]) -> None:
        self._num_workers, self._is_awaited = num_workers, is_awaited
        self._ours: set[int] = set()
        self._left = _NUM_TASKS
        self._first = threading.Lock()
        self._first_done = threading.Event()
        self._open, self._waits_left = False, _NUM_WAITS - 1
        self._refused: str | None = None  # why; an error would keep its frames alive

    @property
    def over(self) -> bool:
        """Whether nothing more is to be looked at."""
        return self._left <= 0 and self._refused is None

    def worker_ready(self) -> None:
        """Count the calling worker among those whose draws are the dataset's: its ``worker_init_fn`` is done."""
        self._ours.add(threading.get_native_id())

    def watch(self, work: Callable[[], _T]) -> _T:
        """Do a worker's task and return what it made.

        Raises:
            SharedGeneratorError: If the dataset draws from a process-wide generator.
        """
        if self._first.acquire(blocking=False) or self._take_a_wait():
            self._wait_for_rest()
        else:
            self._first_done.wait(_WAIT_S)
        if self._refused is not None:
            raise SharedGeneratorError(self._refused)
        try:
            draws = SharedDraws(self._ours) if len(self._ours) == self._num_workers else None
            made = work()
            self._open = draws is not None and not draws.check()
            return made
        except SharedGeneratorError as error:
            self._refused = str(error)
            raise
        finally:
            self._left -= 1
            self._first_done.set()

    def _take_a_wait(self) -> bool:
        """Whether to wait for rest because the question is open, which is asked for a few times."""
        if not self._open or not self._first_done.is_set() or self._waits_left <= 0:
            return False
        self._open, self._waits_left = False, self._waits_left - 1
        return True

    def _wait_for_rest(self) -> None:
        """Wait until all workers are ready, the consumer waits and no other thread runs; not for long."""
        deadline = time.monotonic() + _WAIT_S
        while time.monotonic() < deadline:
            before = cpu_times_of_others(self._ours)
            time.sleep(_REST_S)
            ready = len(self._ours) == self._num_workers and self._is_awaited()
            rests = before is not None and before == cpu_times_of_others(self._ours)
            if ready and rests and not others_want_to_run(self._ours):
                return
