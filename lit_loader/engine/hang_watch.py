"""Worker processes that hang: found, made to print their Python stacks, and killed."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import time
from collections.abc import Collection
from typing import Final

from lit_loader.engine.desk import Desk
from lit_loader.engine.process import WorkerProcess

__all__ = ["HangWatch"]

_SIGNAL: Final = getattr(signal, "SIGUSR2", None)
_AWAITED: Final = -1.0  # since when: it is at nothing, and its report is waited for
_PRINTING_S, _STEP_S = 1.0, 0.05
_SILENT_S = 60.0  # a worker process that is being started may take long to import what it needs
_LONGEST_LOOK_S = 3.0  # a waiting consumer looks at least every second


class HangWatch:
    """Looks at how long the workers of a pool are at what they do while a batch is waited for.

    One that is at nothing, but does not report when another's tasks are sought, hangs too (it was stopped, or came out
    of a fork with a lock that nobody holds): after the same time, though not before a minute has passed.

    Only time is counted in which it looked every now and then: a process that was stopped (Ctrl-Z, a debugger, a
    laptop's lid) and goes on finds workers that were stopped as well.

    Args:
        num_workers: How many workers.
        timeout_s: How long one may be at a sample, or at a batch without a seed.

    Attributes:
        desk: Where the workers note it.

    Runs in: the main process, under the pool's lock.
    """

    def __init__(self, num_workers: int, timeout_s: float) -> None:
        self.desk = Desk(num_workers)
        self._timeout_s = timeout_s
        self._began = [0.0] * num_workers  # as last seen
        self._seconds = [0.0] * num_workers
        self._looked = 0.0

    def look(self, silent: Collection[int] = ()) -> None:
        """Take down what the workers are at; ``silent``: those whose report is waited for."""
        now = time.monotonic()
        passed, self._looked = now - self._looked, now
        for worker, before in enumerate(self._began):
            began = self._began[worker] = self.desk.since(worker) or (_AWAITED if worker in silent else 0.0)
            if not began or began != before:
                self._seconds[worker] = 0.0
            elif passed <= _LONGEST_LOOK_S:
                self._seconds[worker] += passed

    def soonest_s(self) -> float:
        """Return how many seconds remain before a worker may be said to hang."""
        left = [self._limit_s(worker) - seconds for worker, seconds in enumerate(self._seconds)]
        return max(min(left), 0.0)

    def has_hung(self, worker: int) -> bool:
        """Whether a worker hangs."""
        return self._seconds[worker] >= self._limit_s(worker)

    def _limit_s(self, worker: int) -> float:
        return max(self._timeout_s, _SILENT_S) if self._began[worker] == _AWAITED else self._timeout_s

    def forget(self, worker: int) -> None:
        """Begin anew: the worker is being replaced."""
        self.desk.rest(worker)
        self._began[worker] = self._seconds[worker] = 0.0

    def end(self, number: int, worker: WorkerProcess) -> str:
        """Print a worker's stacks to standard error, and kill it; return what happened, in words."""
        at = (
            "did not report"
            if self._began[number] == _AWAITED
            else "was at one sample (without a seed: one batch)"
        )
        what = f"hung: it {at} for longer than hang_timeout_s={self._timeout_s:g}"
        stacks = self._stacks(worker) or "  (it printed none: stopped, or not started yet)\n"
        with contextlib.suppress(
            AttributeError, OSError, ValueError
        ):  # there is no standard error, or it was closed
            sys.stderr.write(
                f"DataLoader worker {number} (pid {worker.process.pid}) {what}. Its stacks:\n{stacks}"
            )
            sys.stderr.flush()
        worker.process.kill()
        return f"{what}, and was killed"

    def _stacks(self, worker: WorkerProcess) -> str:
        """Ask a worker for its stacks, and return what it has written when it writes no more."""
        if worker.process.pid is None or _SIGNAL is None or not hasattr(faulthandler, "register"):
            return ""
        self.desk.clear_stacks()
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker.process.pid, _SIGNAL)
        written, deadline = "", time.monotonic() + _PRINTING_S
        while time.monotonic() < deadline:
            time.sleep(_STEP_S)
            before, written = written, self.desk.read_stacks()
            if written and written == before:
                break
        return written
