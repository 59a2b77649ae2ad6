"""Worker processes that end or hang: lost tasks are found and sent again, hung workers are found.

Every sample has its own key, so a batch that is made again has the same bits.

NOTE [Lost tasks]
    Idle workers take tasks from a shared queue, so the main process cannot know which worker has which task. When a
    worker has died, all tasks that were sent and have no result are suspects, except those that are still in the queue.
    A message asks each of the other workers for a report. A worker handles its messages in order, so when it reports,
    it has sent the results of all tasks that it took before. A suspect without a result when all have reported was lost
    and is sent again, byte for byte, because a sampler may have changed its index meanwhile. So no task is made twice,
    and as long as no worker dies this costs one dict entry for each task. If another worker dies, a new round begins.

NOTE [Hangs]
    A worker that hangs cannot report it. Each worker writes the time at which it began a sample into shared memory
    (`HeartbeatTable`), and a consumer that waits for a batch reads it. Python's own
    ``faulthandler.dump_traceback_later(exit=True)`` in the worker takes 50 us a sample instead of 0.1, kills every
    worker that was in the middle of a sample when a stopped job (Ctrl-Z, a debugger) goes on, and does not find a
    worker that is stopped itself.
    An idle worker that does not send a report hangs too (it was stopped, or was forked with a lock that no thread
    holds): after the same time, but at least a minute.
    Time counts only while the consumer looks regularly: if the main process was stopped, its workers were stopped too.
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
_NOT_REPORTED: Final = -1.0  # idle, and its report has not come
_PRINTING_S, _STEP_S = 1.0, 0.05
# Of at most 4 bytes: a pipe that is reported as writable accepts 4096 bytes (PIPE_BUF) without blocking.
_PRINTED_CHARACTERS = 1000
_REPORT_S = 60.0  # a worker process that is being started may take long to import what it needs
_MAX_LOOK_S = 3.0  # longer gaps do not count; a waiting consumer looks at least every second

TaskId = tuple[int, int]
"""Number of the epoch and of the task in it."""


class Recovery:
    """Counts the restarts of an epoch and finds lost tasks: see NOTE [Lost tasks].

    Args:
        max_restarts: How many workers are replaced in an epoch.

    Attributes:
        num_restarts: How many were replaced in this epoch.
        warnings: Messages of restarts, for `warn`.

    Runs in: the main process, under the backend's lock; `warn` without it.
    """

    def __init__(self, max_restarts: int) -> None:
        self.max_restarts, self.num_restarts = max_restarts, 0
        self.warnings: deque[str] = deque()
        self._suspects: set[TaskId] = set()
        self._unreported: set[int] = set()  # workers whose report of this round has not come
        self._round = 0

    def begin_round(self, suspects: set[TaskId], *, living: Collection[int]) -> int:
        """Begin to look for the tasks of a worker that has died, and return the round's number.

        Args:
            suspects: Tasks that were sent, have no result and are not in the queue.
            living: The workers that are asked to report.
        """
        self._suspects, self._unreported = suspects, set(living)
        self._round += 1
        return self._round

    @property
    def unreported(self) -> Collection[int]:
        """The workers whose report has not come."""
        return self._unreported if self._suspects else ()

    def report(self, worker: int, round_number: int) -> None:
        """Note that a worker has sent the results of all tasks that it had taken."""
        if round_number == self._round:
            self._unreported.discard(worker)

    def take_lost(self, in_flight: Iterable[TaskId]) -> list[TaskId]:
        """Return the tasks of ``in_flight``, which have no result, that were lost; each is returned once."""
        if self._unreported or not self._suspects:
            return []
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
        """Warn of restarts; if a warning is raised as an error, the next call warns of the others.

        Warnings wait for a later call while standard error is a full pipe, which would block this process.
        """
        while self.warnings and _stderr_accepts_text(0.0):
            with contextlib.suppress(IndexError):  # another thread was faster
                warnings.warn(self.warnings.popleft(), WorkerRestartWarning, stacklevel=2)


class HeartbeatTable:
    """The time at which each worker began its sample, in shared memory, and a file for workers' stacks.

    The file begins with one float64 for each worker: an aligned word of eight bytes is written atomically. The stacks
    are written behind them by faulthandler in the worker, which may not have the main process's standard error. It can
    be pickled only while a process is started.

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
        os.lseek(self._fd, begin, os.SEEK_SET)  # the workers' position too: they have the same open file
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR2)
        written, deadline = b"", time.monotonic() + _PRINTING_S
        while time.monotonic() < deadline:
            time.sleep(_STEP_S)
            before, written = written, os.pread(self._fd, os.fstat(self._fd).st_size, begin)
            if written and written == before:
                break
        return written.decode(errors="replace")

    def close(self) -> None:
        """Unmap the memory and close the files."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self.since.release()
            self._memory.close()
            os.close(fd)


def _nameless_file(num_bytes: int) -> int:
    try:
        fd = os.memfd_create("lit_loader heartbeats", os.MFD_CLOEXEC)
    except (AttributeError, OSError):  # the platform has none, or the kernel or a sandbox refuses it (ENOSYS)
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, num_bytes)
    os.lseek(fd, num_bytes, os.SEEK_SET)  # where stacks are written, whoever sends the signal
    return fd


class HangWatch:
    """Finds workers that take too long for one sample: see NOTE [Hangs].

    Args:
        num_workers: Number of workers.
        timeout_s: How long one may take for a sample, or for a batch without a seed.

    Attributes:
        table: The heartbeats of the workers.

    Runs in: the main process, under the backend's lock.
    """

    def __init__(self, num_workers: int, timeout_s: float) -> None:
        self.table = HeartbeatTable(num_workers)
        self._timeout_s = timeout_s
        self._began = [_RESTING] * num_workers  # as last seen
        self._seconds = [0.0] * num_workers
        self._looked = 0.0

    def look(self, unreported: Collection[int] = ()) -> None:
        """Update how long each worker has been busy; ``unreported`` are workers whose report has not come."""
        now = time.monotonic()
        passed, self._looked = now - self._looked, now
        for worker, before in enumerate(self._began):
            resting = _NOT_REPORTED if worker in unreported else _RESTING
            began = self._began[worker] = self.table.since[worker] or resting
            if began == _RESTING or began != before:
                self._seconds[worker] = 0.0
            elif passed <= _MAX_LOOK_S:
                self._seconds[worker] += passed

    def seconds_left(self) -> float:
        """Return how many seconds remain before a worker may count as hung."""
        left = [self._limit_s(worker) - seconds for worker, seconds in enumerate(self._seconds)]
        return max(min(left), 0.0)

    def has_hung(self, worker: int) -> bool:
        """Whether a worker hangs."""
        return self._seconds[worker] >= self._limit_s(worker)

    def _limit_s(self, worker: int) -> float:
        return max(self._timeout_s, _REPORT_S) if self._began[worker] == _NOT_REPORTED else self._timeout_s

    def forget(self, worker: int) -> None:
        """Forget a worker that is being replaced."""
        self.table.rest(worker)
        self._began[worker], self._seconds[worker] = _RESTING, 0.0

    def print_stacks(self, worker: int, pid: int | None) -> str:
        """Print a worker's stacks to standard error, and return what happened, in words."""
        was_idle = self._began[worker] == _NOT_REPORTED
        at = "did not report" if was_idle else "was at one sample (or unseeded batch)"
        what = f"hung: it {at} for longer than hang_timeout_s={self._timeout_s:g}"
        stacks = self.table.request_stacks(pid) or "  (it printed none: stopped, or not started yet)\n"
        _print_error(f"DataLoader worker {worker} (pid {pid}) {what}. Its stacks:\n{stacks}")
        return f"{what}, and was killed"


def _print_error(text: str) -> None:
    """Print to standard error, or only the beginning if that is a full pipe without a reader."""
    with contextlib.suppress(AttributeError, OSError, ValueError):  # no standard error, or it was closed
        for start in range(0, len(text), _PRINTED_CHARACTERS):
            if not _stderr_accepts_text(_PRINTING_S):
                return
            sys.stderr.write(text[start : start + _PRINTED_CHARACTERS])
            sys.stderr.flush()


def _stderr_accepts_text(timeout_s: float) -> bool:
    """Whether `_PRINTED_CHARACTERS` can be written to standard error at once, or will be within a time."""
    try:
        poller = select.poll()
        poller.register(sys.stderr.fileno(), select.POLLOUT)
        return bool(poller.poll(timeout_s * 1000))
    except (AttributeError, OSError, ValueError):
        return True  # no standard error, or one that is not a file (a notebook's)
