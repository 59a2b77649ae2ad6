"""A pool of worker processes: starts them, waits for what they send, ends them.

The pool knows nothing of batches or their order; a run (`lit_loader.engine.run`) asks it to carry tasks
and is handed what comes back. Several runs may use one pool, each with a number of its own.

Owns: the processes, both ends of their pipes and the queue they share. They end when the pool is closed, when
it is collected, when the interpreter exits, and, by the workers' own watch, when this process is killed.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
import warnings
import weakref
from functools import partial
from typing import Any

from lit_loader.engine.desk import Desk
from lit_loader.engine.exchange import Exchange
from lit_loader.engine.forked import disown_workers_in_forks
from lit_loader.engine.hang_watch import HangWatch
from lit_loader.engine.messages import Header, Kind, pack_header
from lit_loader.engine.pool import Receiver
from lit_loader.engine.post import Post
from lit_loader.engine.process import (
    WorkerProcess,
    end_workers,
    interrupts_deferred,
    order,
    post,
    start_worker,
)
from lit_loader.engine.recovery import Recovery
from lit_loader.engine.remote import RemoteError
from lit_loader.engine.shortage import check_descriptors, shortages_explained
from lit_loader.engine.spec import WorkerSpec
from lit_loader.engine.task import Task
from lit_loader.engine.task_queue import TaskQueue
from lit_loader.errors import WorkerDiedError
from lit_loader.transport import PageLock, open_slots

__all__ = ["ProcessPool"]

_SHARED_POLL_S = 0.02  # how often a thread looks whether another one has read its results
_LOOK_UP_S = 1.0  # how often one looks whether another has ended the pass or the pool


class ProcessPool:
    """Worker processes that outlive a run if asked to.

    Args:
        spec: What the workers have in common.
        context: The multiprocessing context (or module) that makes processes.
        shared: Whether there is to be a queue that any idle worker takes tasks from.
        page_lock: Page-locks the memory that batches come in; None: it is not page-locked.
        max_restarts: How many workers that ended are replaced in an epoch; tasks must have keys.
        hang_timeout_s: How long a worker may be at one sample, or at one batch without a seed, before it is ended
            as hung; None: for ever.

    Raises:
        NotImplementedError: If the platform has no pipes that can be polled.
        OSError: If there are no descriptors, processes or memory for the workers; see `lit_loader.engine.shortage`.
        Exception: What pickling the spec raises, under a start method that pickles it.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        context: Any,
        *,
        shared: bool,
        page_lock: PageLock | None = None,
        max_restarts: int = 0,
        hang_timeout_s: float | None = None,
    ) -> None:
        self.num_workers = spec.num_workers
        self.lock = threading.RLock()  # guards the runs too: any thread may read another one's results
        self._queue: TaskQueue | None = None
        self._death: str | None = None
        self._next_run = 0
        self._claimed: set[int] = set()  # runs that are alive
        self._workers: list[WorkerProcess] = []
        self._owner_pid = os.getpid()
        if not hasattr(os, "readv"):  # Windows
            raise NotImplementedError(
                f"num_workers={spec.num_workers} processes need pipes that can be polled, which this platform does not "
                'have; use worker_method="thread" or num_workers=0'
            )
        check_descriptors(spec.num_workers)
        disown_workers_in_forks()
        if shared:
            with contextlib.suppress(NotImplementedError):
                self._queue = TaskQueue()
        self._post = Post(open_slots(page_lock))
        hang_watch = None if hang_timeout_s is None else HangWatch(spec.num_workers, hang_timeout_s)
        desk = None if hang_watch is None else hang_watch.desk
        self._close = weakref.finalize(
            self, _end, self._workers, self._queue, self._post, desk, self._owner_pid
        )
        theirs = None if self._queue is None else self._queue.theirs
        start = shortages_explained(spec.num_workers)(
            partial(start_worker, spec, context=context, queue=theirs, memory=self._post.file, desk=desk)
        )
        self._recovery: Recovery | None = None
        if max_restarts:
            self._recovery = Recovery(self._workers, self._queue, start, max_restarts=max_restarts)
        self._exchange = Exchange(
            self._workers, self._queue, self._post, recovery=self._recovery, hang_watch=hang_watch
        )
        try:
            for worker_id in range(spec.num_workers):
                with interrupts_deferred():
                    self._workers.append(start(worker_id))
        except (TypeError, AttributeError, pickle.PicklingError):
            self._close()
            warnings.warn(
                "Got pickle error when attempting to start a worker Process. This might be because the worker "
                "Process arguments are not picklable. Python 3.14+ changed the multiprocessing start method in "
                "non-Mac POSIX platforms to 'forkserver', which requires the worker Process arguments to be "
                "picklable. Define the dataset, collate_fn and worker_init_fn at the top level of a module, or "
                "try multiprocessing.set_start_method('fork').",
                stacklevel=2,
            )
            raise
        except BaseException:
            self._close()
            raise

    @property
    def workers(self) -> list[Any]:
        """The processes, as they are now; none after `close`."""
        return [worker.process for worker in list(self._workers)]

    @property
    def closed(self) -> bool:
        """Whether the workers were ended."""
        return not self._close.alive

    @property
    def owned(self) -> bool:
        """Whether this is the process that started the workers, and not a fork of it."""
        return self._owner_pid == os.getpid()

    @property
    def usable(self) -> bool:
        """Whether a run can begin here."""
        return self.owned and not self.closed

    def close(self) -> None:
        """End the workers: a sample in hand is finished if that takes under five seconds."""
        with self.lock:  # nobody reads a pipe meanwhile
            self._close()

    def begin(self, run: Receiver, *, eager: bool) -> int:
        """Announce a run to all workers and return its number.

        Args:
            run: Is handed what comes back, for as long as it lives.
            eager: Whether an iterable dataset is iterated at once.
        """
        with self.lock:
            self.check_usable()
            number = self._next_run
            self._next_run += 1
            self._exchange.runs[number] = run
            for worker in self._workers:
                post(worker, [pack_header(Kind.BEGIN, number, int(eager))])
            return number

    def claim(self, number: int) -> None:
        """Let the count of restarts begin anew, unless another claimed run is alive, whose restarts it counts too.

        Not when a run begins: the next epoch's first batches are made while this one's are delivered.
        """
        if self._recovery is not None and not self._claimed:
            self._recovery.begin_epoch()
        self._claimed.add(number)

    def end(self, number: int) -> None:
        """Tell the workers to drop what they hold of a run; what they still send is dropped here.

        A finalizer may call this at any moment, in the middle of another call too.
        """
        self._exchange.runs.pop(number, None)
        self._claimed.discard(number)
        if self.usable:
            for worker in list(self._workers):
                order(worker, [pack_header(Kind.END, number)])
                post(worker, [pack_header(Kind.END, number)])

    def submit(self, header: Header, task: Task, *, worker: int | None) -> None:
        """Give a task to a worker; None: to any that is idle."""
        with self.lock:
            self.check_usable()
            self._exchange.submit(header, task, worker=worker)

    def open(self, payload: Any, kind: Kind) -> Any:
        """Return what a worker made, or raise what it raised."""
        made = self._post.open(payload)
        if kind is Kind.ERROR:
            error: RemoteError = made
            error.reraise()
        return made

    def look(self, run: Receiver) -> None:
        """Take in what has come, without waiting for more; what is wrong is told by `wait`."""
        with contextlib.suppress(RuntimeError):
            self._wait(0.0)

    def wait(self, run: Receiver, timeout_s: float | None) -> bool:
        """Hand on what has come in; wait for something if nothing has.

        With several runs alive it comes back now and then, because another thread may have read what this
        one waits for.

        Args:
            run: Whose consumer waits; what comes for others is handed on too.
            timeout_s: How long to wait at most; None: for ever.

        Returns:
            Whether anything came.

        Raises:
            WorkerDiedError: If a worker ended; the pool is closed then.
            RuntimeError: If the pool was closed, or belongs to another process.
        """
        run.num_waiting = 0  # consumers look for themselves here
        try:
            return self._wait(timeout_s)
        finally:
            if self._recovery is not None:
                self._recovery.tell()

    def _wait(self, timeout_s: float | None) -> bool:
        with self.lock:
            self.check_usable()
            polling, longest_s = self._exchange.polling()
            longest_s = min(longest_s, _LOOK_UP_S if timeout_s is None else timeout_s)
            if len(self._exchange.runs) > 1:
                longest_s = min(longest_s, _SHARED_POLL_S)
        news = polling.wait(longest_s)
        with self.lock:
            self.check_usable()
            try:
                self._exchange.serve(news)
            except WorkerDiedError as error:
                self._death = str(error)
                self.close()
                raise
            except BaseException:
                self.close()  # Ctrl-C, say: a message may be half read, and all after it would be nonsense
                raise
        return news.any

    def check_usable(self) -> None:
        """Raise what is wrong with the workers."""
        if self._death is not None:
            raise WorkerDiedError(self._death)
        if self.closed:
            raise RuntimeError("the loader's workers were closed; call iter() on the loader for new ones")
        if not self.owned:
            raise RuntimeError(
                f"this iterator's workers belong to process {self._owner_pid} and cannot be used from its "
                f"fork {os.getpid()}; call iter() on the loader there"
            )


def _end(
    workers: list[WorkerProcess], queue: TaskQueue | None, post: Post, desk: Desk | None, owner_pid: int
) -> None:
    try:
        end_workers(workers, owner_pid)
    finally:
        if queue is not None:
            queue.close()
        if desk is not None:
            desk.close()
        if owner_pid == os.getpid():
            post.close()
