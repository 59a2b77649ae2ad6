"""What goes to worker processes and comes back, and what becomes of the tasks of one that ended."""

from __future__ import annotations

import weakref
from collections.abc import Collection

from lit_loader.engine.hang_watch import HangWatch
from lit_loader.engine.messages import Header, Kind, pack_frame, unpack_frame
from lit_loader.engine.polling import News, Polling
from lit_loader.engine.pool import Receiver
from lit_loader.engine.post import Post
from lit_loader.engine.process import WorkerProcess, await_exit, describe_exit, flush, post
from lit_loader.engine.recovery import Recovery
from lit_loader.engine.task import Task
from lit_loader.engine.task_queue import MAX_TASK_BYTES, TaskQueue
from lit_loader.errors import WorkerDiedError

__all__ = ["Exchange"]

_DEATH_S = 1.0  # for the exit code of a worker that has ended


class Exchange:
    """Carries messages between the runs of a pool and its workers.

    Args:
        workers: The pool's; a worker that is replaced is replaced in this list.
        queue: What they take tasks from; None: each has its own.
        post: Packs tasks and opens results.
        recovery: Replaces workers; None: one that ends ends the pool.
        hang_watch: Finds workers that hang; None: nobody looks.

    Attributes:
        runs: Who gets what comes back, by number, for as long as it lives.

    Runs in: the main process, under the pool's lock.
    """

    def __init__(
        self,
        workers: list[WorkerProcess],
        queue: TaskQueue | None,
        post: Post,
        *,
        recovery: Recovery | None,
        hang_watch: HangWatch | None,
    ) -> None:
        self.runs: weakref.WeakValueDictionary[int, Receiver] = weakref.WeakValueDictionary()
        self._workers, self._queue, self._post = workers, queue, post
        self._recovery, self._hang_watch = recovery, hang_watch

    def submit(self, header: Header, task: Task, *, worker: int | None) -> None:
        """Give a task to a worker; None: to any that is idle."""
        frame = self._post.pack(header, task)
        if worker is not None:
            post(self._workers[worker], frame)
            return
        message = pack_frame(frame)
        if self._recovery is not None:
            self._recovery.tasks.give(header, message)
        self._send(header, message)

    def _send(self, header: Header, message: bytes) -> None:
        """Send a task that any worker may do."""
        if self._queue is not None and len(message) <= MAX_TASK_BYTES:
            self._queue.put(message)
        else:
            worker = header.number % len(self._workers)
            post(self._workers[worker], unpack_frame(message))

    def polling(self) -> tuple[Polling, float]:
        """Return what waits for news, and for how many seconds it may."""
        polling = Polling(self._workers, self._queue)
        if self._hang_watch is None:
            return polling, float("inf")
        self._hang_watch.look(self._silent())
        return polling, self._hang_watch.soonest_s()

    def serve(self, news: News) -> None:
        """Read what has come, write what was left over, and look who has ended or hangs.

        Raises:
            WorkerDiedError: If a worker has ended and is not replaced.
        """
        ended = list(news.ended)
        for number, worker in enumerate(self._workers):
            if worker in news.sent and not self._read(number):
                ended.append(worker)
        for worker in self._workers:
            flush(worker)
        if self._queue is not None:
            self._queue.flush()
        if self._hang_watch is not None:
            self._hang_watch.look(self._silent())
        for number, worker in enumerate(self._workers):
            if worker in ended:
                self._lose(number)
            elif self._hang_watch is not None and self._hang_watch.has_hung(number):
                self._lose(number, self._hang_watch.end(number, worker))

    def _silent(self) -> Collection[int]:
        return () if self._recovery is None else self._recovery.tasks.silent

    def _read(self, number: int) -> bool:
        """Take in what a worker has sent; return False if nothing more can come."""
        recovery = self._recovery
        try:
            while (frame := self._workers[number].reader.receive()) is not None:
                header, payload = self._post.unpack(frame)
                if header.kind is Kind.REPORTED:
                    if recovery is not None:
                        recovery.report(number, header)
                        self._give_lost(recovery)
                    continue
                if recovery is not None:
                    recovery.tasks.answer(header)
                receiver = self.runs.get(header.run)
                if receiver is not None and header.kind is not Kind.SKIPPED:
                    receiver.receive(number, header, payload)
        except EOFError:
            return False
        return True

    def _lose(self, number: int, ending: str | None = None) -> None:
        """Replace a worker that has ended.

        Raises:
            WorkerDiedError: If it is not replaced.
        """
        worker, recovery = self._workers[number], self._recovery
        self._read(number)  # what it sent before it ended
        await_exit([worker], _DEATH_S)
        ending = ending or describe_exit(worker.process.exitcode)
        if self._hang_watch is not None:
            self._hang_watch.forget(number)
        if recovery is not None:
            if recovery.replace(number, ending):
                self._give_lost(recovery)
                return
            ending += f"; max_worker_restarts={recovery.max_restarts} were used up in this epoch"
        raise WorkerDiedError(
            f"DataLoader worker (pid(s) {worker.process.pid}) exited unexpectedly: {ending}"
        )

    def _give_lost(self, recovery: Recovery) -> None:
        """Give out again what a worker took with it, as far as anybody wants it."""
        for header, message in recovery.lost():
            if header.run in self.runs:
                self._send(header, message)  # to the slot that it had
            else:
                recovery.tasks.answer(header)
                self._post.drop(header)
