"""Worker processes that ended are replaced, and what they had taken is given out again.

Samples have keys of their own, so whoever makes them makes the same bits; see `lit_loader.engine.outstanding`.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections import deque
from collections.abc import Callable

from lit_loader.engine.messages import Header, Kind, pack_header, unpack_frame, unpack_header
from lit_loader.engine.outstanding import Outstanding, name_of
from lit_loader.engine.process import (
    WorkerProcess,
    end_workers,
    interrupts_deferred,
    is_running,
    post,
)
from lit_loader.engine.task_queue import TaskQueue
from lit_loader.errors import WorkerRestartWarning

__all__ = ["Recovery"]


class Recovery:
    """Replaces workers of a pool, a bounded number of times an epoch.

    Args:
        workers: The pool's; changed in place.
        queue: What they take tasks from; None: each has its own.
        start: Starts the worker of a number.
        max_restarts: How many in an epoch.

    Attributes:
        tasks: What is out.
        max_restarts: As given.

    Runs in: the main process, under the pool's lock; `tell` without it.
    """

    def __init__(
        self,
        workers: list[WorkerProcess],
        queue: TaskQueue | None,
        start: Callable[[int], WorkerProcess],
        *,
        max_restarts: int,
    ) -> None:
        self._workers, self._queue, self._start = workers, queue, start
        self.max_restarts = max_restarts
        self.tasks = Outstanding()
        self._num_restarts = 0
        self._notices: deque[str] = deque()

    def begin_epoch(self) -> None:
        """Let the count of restarts begin anew."""
        self._num_restarts = 0

    def replace(self, number: int, ending: str) -> bool:
        """Replace a worker that has ended, and begin to find out what it had taken; return False if it is one too many.

        Args:
            number: The worker's.
            ending: How it ended, in words.

        Raises:
            OSError: If no process can be started.
        """
        if self._num_restarts == self.max_restarts:
            return False
        self._num_restarts += 1
        worker = self._workers[number]
        pid = worker.process.pid
        if is_running(worker):  # it closed its pipe, and what it would still do is not wanted
            worker.process.kill()
        end_workers([worker], os.getpid())
        messages = [] if self._queue is None else self._queue.queued()
        queued = {name_of(unpack_header(unpack_frame(message)[0])) for message in messages}
        with interrupts_deferred():
            self._workers[number] = self._start(number)
        living = [other for other in range(len(self._workers)) if other != number]
        this_round = self.tasks.begin_round(queued=queued, living=living)
        for other in living:
            post(self._workers[other], [pack_header(Kind.REPORT, number=this_round)])
        self._notices.append(
            f"DataLoader worker {number} (pid {pid}) ended: {ending}. A new one does its work again, the same bits "
            f"(restart {self._num_restarts} of max_worker_restarts={self.max_restarts} in this epoch)."
        )
        return True

    def report(self, worker: int, header: Header) -> None:
        """Take a worker's word that it has answered all it had taken."""
        self.tasks.report(worker, header.number)

    def lost(self) -> list[tuple[Header, bytes]]:
        """Return the tasks that are to be given out again, as they were."""
        return self.tasks.lost()

    def tell(self) -> None:
        """Warn of what was replaced; of the rest the next time if a warning is raised as an error."""
        while self._notices:
            with contextlib.suppress(IndexError):  # another thread has told it
                warnings.warn(self._notices.popleft(), WorkerRestartWarning, stacklevel=2)
