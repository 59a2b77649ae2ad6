"""Waiting for a pool's workers: for what they send, for room in their pipes, and for their ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lit_loader.engine.process import WorkerProcess, is_running
from lit_loader.engine.task_queue import TaskQueue
from lit_loader.transport import READABLE, WRITABLE, new_poller

__all__ = ["News", "Polling"]

_UNWATCHED_POLL_S = 0.1  # how often a worker is looked at where the kernel cannot watch it


class News(NamedTuple):
    """What was found.

    Attributes:
        any: Whether there was anything.
        sent: Workers that have sent something.
        ended: Workers that have ended.
    """

    any: bool
    sent: list[WorkerProcess]
    ended: list[WorkerProcess]


class Polling:
    """The descriptors of a pool as they are now; made under the pool's lock, waited for without it.

    Another thread may replace a worker meanwhile, and the new one may have the same descriptors. So what is found is
    about workers, and not about numbers.
    """

    def __init__(self, workers: Sequence[WorkerProcess], queue: TaskQueue | None) -> None:
        self._poller = new_poller()
        self._senders: dict[int, WorkerProcess] = {}
        self._watched: dict[int, WorkerProcess] = {}
        self._unwatched = [worker for worker in workers if not worker.watch]
        for worker in workers:
            self._poller.register(worker.reader.fd, READABLE)
            self._senders[worker.reader.fd] = worker
            for fd in worker.watch:
                self._poller.register(fd, READABLE)
                self._watched[fd] = worker
            for writer in (worker.order_writer, worker.writer):
                if writer.waiting:
                    self._poller.register(writer.fd, WRITABLE)
        if queue is not None and queue.waiting:
            self._poller.register(queue.fd, WRITABLE)

    def wait(self, timeout_s: float) -> News:
        """Wait for something, at most so long."""
        longest_s = min(timeout_s, _UNWATCHED_POLL_S) if self._unwatched else timeout_s
        fds = [fd for fd, _ in self._poller.poll(longest_s * 1000)]
        ended = [self._watched[fd] for fd in fds if fd in self._watched]
        ended += [worker for worker in self._unwatched if not is_running(worker)]
        return News(bool(fds), [self._senders[fd] for fd in fds if fd in self._senders], ended)
