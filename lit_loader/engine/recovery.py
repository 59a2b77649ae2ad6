"""Recovery from worker processes that end or hang: find lost tasks and hung workers.

Every sample has its own key, so a batch that is made again has the same bits.

NOTE [Lost tasks]
    Idle workers take tasks from a shared queue, so the main process cannot know which worker has which task. When a
    worker has died, all tasks without a result are suspects, except those that are still in the queue. A message asks
    each of the other workers for a report. A worker handles its messages in order, so when it reports, it has sent the
    results of all tasks that it took before. If a suspect has no result when all have reported, it was lost. The main
    process sends it again byte for byte, because a sampler may have changed its index meanwhile. So no task is done
    twice, and as long as no worker dies this costs one dict entry per task. If another worker dies, a new round begins.

NOTE [Hangs]
    A worker that hangs cannot report it. Each worker writes the time at which it began a sample into shared memory
    (`HeartbeatTable`), and a consumer that waits for a batch reads it. Python's own
    ``faulthandler.dump_traceback_later(exit=True)`` in the worker would take 50 us per sample instead of 0.1, kill
    every worker in the middle of a sample when a stopped job (Ctrl-Z, a debugger) continues, and miss a worker that is
    stopped itself.
    An idle worker that does not send a report hangs too (it was stopped, or was forked with a lock that no thread
    holds). It counts as hung after the same time, but not before a minute.
"""

from __future__ import annotations

import contextlib
import faulthandler
import mmap
import os
import select
import signal
import sys
import tempfile
import time
import warnings
from collections import deque
from collections.abc import Collection, Iterable
from multiprocessing import reduction
from typing import Any, Final

from lit_loader.errors import WorkerRestartWarning

_RESTING: Final = 0.0
_NOT_REPORTED: Final = -1.0  # idle, but without the report that it was asked for
_PRINTING_S = 1.0
_STEP_S = 0.05
# A writable pipe accepts 4096 bytes (PIPE_BUF) without blocking, and a character has at most 4.
_PRINTED_CHARACTERS = 1000
# The imports of a new worker process may take long.
_REPORT_S = 60.0
# Longer gaps do not count; a waiting consumer looks at least every second.
_MAX_LOOK_S = 3.0

TaskId = tuple[int, int]
"""Number of the epoch and of the task in it."""


class Recovery:
    """Count the restarts of an epoch and find lost tasks: see NOTE [Lost tasks].

    Args:
        max_restarts: Maximum number of workers that are replaced in an epoch.

    Attributes:
        num_restarts: Number of workers that were replaced in this epoch.
        warnings: Messages of restarts, for `warn`.

    Runs in: the main process, under the backend's lock; `warn` without it.
    """

    def __init__(self, max_restarts: int) -> None:
        self.max_restarts = max_restarts
        self.num_restarts = 0
        self.warnings: deque[str] = deque()
        self._suspects: set[TaskId] = set()
        self._unreported: set[int] = set()  # workers that owe the report of this round
        self._round = 0

    def begin_round(self, suspects: set[TaskId], *, survivors: Collection[int]) -> int:
        """Begin the search for the tasks of a worker that has died, and return the round's number.

        Args:
            suspects: Tasks that were sent, have no result and are not in the queue.
            survivors: The workers that were asked to report.
        """
        self._suspects = suspects
        self._unreported = set(survivors)
        self._round += 1
        return self._round

    @property
    def unreported(self) -> Collection[int]:
        """The workers that still owe a report."""
        return self._unreported if self._suspects else ()

    def report(self, worker: int, round_number: int) -> None:
        """Note that a worker has sent the results of all tasks that it had taken."""
        # A report of an earlier round came before the last death.
        if round_number == self._round:
            self._unreported.discard(worker)

    def take_lost(self, in_flight: Iterable[TaskId]) -> list[TaskId]:
        """Return the lost tasks, each only once; ``in_flight`` are all tasks without a result."""
        if self._unreported or not self._suspects:
            return []
        # Every worker has reported, so it has sent the results of all tasks that it took.
        lost = [task for task in in_flight if task in self._suspects]
        self._suspects = set()
        return lost

    def note_restart(self, worker: int, pid: int | None, ending: str) -> None:
        """Count a restart, and keep a message for `warn`."""
        self.num_restarts += 1
        self.warnings.append(
            f"DataLoader worker {worker} (pid {pid}) ended: {ending}. A new one does its work again, the same bits "
            f"(restart {self.num_restarts} of max_worker_restarts={self.max_restarts} in this epoch)."
        )

    def warn(self) -> None:
        """Warn of restarts. If the user turns a warning into an error, the next call warns of the others.

        Warnings wait for a later call while standard error is a full pipe, which would block this process.
        """
        while self.warnings and _stderr_accepts_text(0.0):
            # Another thread may take the message first.
            with contextlib.suppress(IndexError):
                warnings.warn(self.warnings.popleft(), WorkerRestartWarning, stacklevel=2)


class HeartbeatTable:
    """Shared memory with the time at which each worker began its sample, and a file for the workers' stacks.

    The file begins with one float64 per worker, because a write of an aligned word of eight bytes is atomic. After them
    faulthandler writes the stacks of a worker, which may not have the main process's standard error. The table can be
    pickled only while a process is started.

    Args:
        num_workers: Number of workers.
        duplicate: The descriptor of the file, in a worker, or None for a new file.

    Attributes:
        since: When each worker began to run user code (its ``time.monotonic()``), or 0 if it runs none.

    Owns: a file without a name, and a mapping of its beginning, until `close`.
    """

    def __init__(self, num_workers: int, duplicate: Any = None) -> None:
        self._fd: int = _nameless_file(num_workers * 8) if duplicate is None else duplicate.detach()
        self._memory = mmap.mmap(self._fd, num_workers * 8)
        self.since = memoryview(self._memory).cast("d")

    def __reduce__(self) -> tuple[type[HeartbeatTable], tuple[int, Any]]:
        return HeartbeatTable, (len(self.since), reduction.DupFd(self._fd))

    def write_stacks_on_request(self) -> None:
        """Let faulthandler write the stacks of this process's threads at SIGUSR2, even if Python code is stuck."""
        faulthandler.register(signal.SIGUSR2, file=self._fd, all_threads=True)

    def begin(self, worker: int) -> None:
        """Note that a worker begins to run user code."""
        self.since[worker] = time.monotonic()

    def rest(self, worker: int) -> None:
        """Note that a worker runs no user code."""
        self.since[worker] = _RESTING

    def request_stacks(self, pid: int | None) -> str:
        """Make a worker process write its stacks, and return them when it has finished."""
        if pid is None:
            return ""
        begin = len(self._memory)
        os.ftruncate(self._fd, begin)
        # The workers have the same open file, so this also moves their position.
        os.lseek(self._fd, begin, os.SEEK_SET)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR2)
        stacks = b""
        deadline = time.monotonic() + _PRINTING_S
        while time.monotonic() < deadline:
            time.sleep(_STEP_S)
            previous = stacks
            stacks = os.pread(self._fd, os.fstat(self._fd).st_size, begin)
            # No more bytes since the last look: the worker has finished writing.
            if stacks and stacks == previous:
                break
        return stacks.decode(errors="replace")

    def close(self) -> None:
        """Unmap the memory and close the files."""
        fd = self._fd
        self._fd = -1
        if fd >= 0:
            self.since.release()
            self._memory.close()
            os.close(fd)


def _nameless_file(num_bytes: int) -> int:
    try:
        fd = os.memfd_create("lit_loader heartbeats", os.MFD_CLOEXEC)
    except (AttributeError, OSError):
        # The platform has no memfd, or the kernel or a sandbox refuses it (ENOSYS).
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, num_bytes)
    # Anybody may send the signal, and stacks must not overwrite the times.
    os.lseek(fd, num_bytes, os.SEEK_SET)
    return fd


class HangWatch:
    """Find workers that take too long for one sample: see NOTE [Hangs].

    Args:
        num_workers: Number of workers.
        timeout_s: Maximum time for a sample, or for a batch without a seed.

    Attributes:
        table: The heartbeats of the workers.

    Runs in: the main process, under the backend's lock.
    """

    def __init__(self, num_workers: int, timeout_s: float) -> None:
        self.table = HeartbeatTable(num_workers)
        self._timeout_s = timeout_s
        self._began = [_RESTING] * num_workers  # at the last look
        self._busy_s = [0.0] * num_workers
        self._last_look = 0.0

    def look(self, unreported: Collection[int] = ()) -> None:
        """Update how long each worker has been busy; ``unreported`` are workers that owe a report."""
        now = time.monotonic()
        elapsed_s = now - self._last_look
        self._last_look = now
        for worker, previous in enumerate(self._began):
            resting = _NOT_REPORTED if worker in unreported else _RESTING
            began = self.table.since[worker] or resting
            self._began[worker] = began
            if began == _RESTING or began != previous:
                self._busy_s[worker] = 0.0
            # A longer gap means that the main process was stopped, and its workers probably with it.
            elif elapsed_s <= _MAX_LOOK_S:
                self._busy_s[worker] += elapsed_s

    def seconds_left(self) -> float:
        """Return how many seconds remain before a worker may count as hung."""
        return max(min(self._limit_s(worker) - busy_s for worker, busy_s in enumerate(self._busy_s)), 0.0)

    def has_hung(self, worker: int) -> bool:
        """Return True if a worker hangs."""
        return self._busy_s[worker] >= self._limit_s(worker)

    def _limit_s(self, worker: int) -> float:
        return max(self._timeout_s, _REPORT_S) if self._began[worker] == _NOT_REPORTED else self._timeout_s

    def forget(self, worker: int) -> None:
        """Forget a worker that is being replaced."""
        self.table.rest(worker)
        self._began[worker] = _RESTING
        self._busy_s[worker] = 0.0

    def print_stacks(self, worker: int, pid: int | None) -> str:
        """Print a worker's stacks to standard error, and return a description of the hang."""
        was_idle = self._began[worker] == _NOT_REPORTED
        activity = "did not report" if was_idle else "was at one sample (or unseeded batch)"
        ending = f"hung: it {activity} for longer than hang_timeout_s={self._timeout_s:g}"
        stacks = self.table.request_stacks(pid) or "  (it printed none: stopped, or not started yet)\n"
        _print_error(f"DataLoader worker {worker} (pid {pid}) {ending}. Its stacks:\n{stacks}")
        return f"{ending}, and was killed"


def _print_error(text: str) -> None:
    """Print to standard error, or only the beginning of the text if that is a full pipe without a reader."""
    # Standard error may be missing or closed.
    with contextlib.suppress(AttributeError, OSError, ValueError):
        for start in range(0, len(text), _PRINTED_CHARACTERS):
            if not _stderr_accepts_text(_PRINTING_S):
                return
            sys.stderr.write(text[start : start + _PRINTED_CHARACTERS])
            sys.stderr.flush()


def _stderr_accepts_text(timeout_s: float) -> bool:
    """Return True if standard error accepts `_PRINTED_CHARACTERS` within a time."""
    try:
        poller = select.poll()
        poller.register(sys.stderr.fileno(), select.POLLOUT)
        return bool(poller.poll(timeout_s * 1000))
    except (AttributeError, OSError, ValueError):
        # Standard error is missing, or not a file (in a notebook).
        return True
