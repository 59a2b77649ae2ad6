"""A pool of worker processes: starts them, carries messages, notices deaths, ends them.

The pool knows nothing of batches or their order; a run (`lit_loader.engine.run`) asks it to carry tasks
and is handed what comes back. Several runs may use one pool, each with a number of its own.

Owns: the processes, both ends of their pipes and the queue they share. They end when the pool is closed, when
it is collected, when the interpreter exits, and, by the workers' own watch, when this process is killed.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import threading
import time
import warnings
import weakref
from typing import Any, NoReturn

from lit_loader.batch_memory import BatchMemory
from lit_loader.engine.messages import Header, Kind, pack_frame, pack_header
from lit_loader.engine.pace import Pace
from lit_loader.engine.pool import Receiver
from lit_loader.engine.post import Post
from lit_loader.engine.process import (
    WorkerProcess,
    await_exit,
    describe_exit,
    end_workers,
    flush,
    order,
    post,
    start_worker,
)
from lit_loader.engine.remote import RemoteError
from lit_loader.engine.spec import WorkerSpec
from lit_loader.engine.task import Task
from lit_loader.engine.task_queue import MAX_TASK_BYTES, TaskQueue
from lit_loader.errors import WorkerDiedError
from lit_loader.transport import PageLock, open_slots

__all__ = ["ProcessPool"]

_SHARED_POLL_S = 0.02  # how often a thread looks whether another one has read its results
_WAIT_S = 0.001  # less than that is not waiting for a batch, but for the rest of one that is being read
_LOOK_UP_S = 1.0  # how often one looks whether another has ended the pass or the pool
_DEATH_S = 1.0  # for the exit code of a worker that has ended
_UNWATCHED_POLL_S = 0.1  # how often a worker is looked at where the kernel cannot watch it


class ProcessPool:
    """Worker processes that outlive a run if asked to.

    Args:
        spec: What the workers have in common.
        context: The multiprocessing context (or module) that makes processes.
        shared: Whether there is to be a queue that any idle worker takes tasks from.

        page_lock: Page-locks the memory that batches come in; None: it is not page-locked.

    Raises:
        Exception: What pickling the spec raises, under a start method that pickles it.
    """

    def __init__(
        self, spec: WorkerSpec, context: Any, *, shared: bool, page_lock: PageLock | None = None
    ) -> None:
        self.num_workers = spec.num_workers
        self.lock = threading.RLock()  # guards the runs too: any thread may read another one's results
        self.pace, self.joins = Pace(), False
        self._queue: TaskQueue | None = None
        self._death: str | None = None
        self._runs: weakref.WeakValueDictionary[int, Receiver] = weakref.WeakValueDictionary()
        self._next_run = 0
        self._workers: list[WorkerProcess] = []
        self._owner_pid = os.getpid()
        if shared:
            with contextlib.suppress(NotImplementedError):
                self._queue = TaskQueue()
        self._post = Post(open_slots(page_lock))
        self._close = weakref.finalize(self, _end, self._workers, self._queue, self._post, self._owner_pid)
        theirs = None if self._queue is None else self._queue.theirs
        try:
            for worker_id in range(spec.num_workers):
                self._workers.append(start_worker(spec, worker_id, context, theirs, self._post.file))
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
            self._runs[number] = run
            for worker in self._workers:
                post(worker, [pack_header(Kind.BEGIN, number, int(eager))])
            return number

    def end(self, number: int) -> None:
        """Tell the workers to drop what they hold of a run; what they still send is dropped here.

        A finalizer may call this at any moment, in the middle of another call too.
        """
        self._runs.pop(number, None)
        if self.usable:
            for worker in list(self._workers):
                order(worker, [pack_header(Kind.END, number)])
                post(worker, [pack_header(Kind.END, number)])

    def submit(self, header: Header, task: Task, *, worker: int | None) -> None:
        """Give a task to a worker; None: to any that is idle."""
        with self.lock:
            self.check_usable()
            frame = self._post.pack(header, task)
            if worker is None:
                if self._queue is not None:
                    message = pack_frame(frame)
                    if len(message) <= MAX_TASK_BYTES:
                        self._queue.put(message)
                        return
                worker = (header.number + header.piece) % self.num_workers
            post(self._workers[worker], frame)

    def open(self, payload: Any, kind: Kind) -> Any:
        """Return what a worker made, or raise what it raised."""
        made = self._post.open(payload)
        if kind is Kind.ERROR:
            error: RemoteError = made
            error.reraise()
        return made

    @property
    def memory(self) -> BatchMemory | None:
        """Where the pieces lie that the consumer puts together."""
        return self._post.slots

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
        return self._wait(timeout_s)

    def _wait(self, timeout_s: float | None) -> bool:
        with self.lock:
            self.check_usable()
            poller, by_fd = select.poll(), {}
            for number, worker in enumerate(self._workers):
                for fd in (worker.reader.fd, *worker.watch):
                    poller.register(fd, select.POLLIN)
                    by_fd[fd] = number
                for writer in (worker.order_writer, worker.writer):
                    if writer.waiting:
                        poller.register(writer.fd, select.POLLOUT)
            if self._queue is not None and self._queue.waiting:
                poller.register(self._queue.fd, select.POLLOUT)
            longest_s = _LOOK_UP_S if timeout_s is None else min(timeout_s, _LOOK_UP_S)
            if len(self._runs) > 1:
                longest_s = min(longest_s, _SHARED_POLL_S)
            if not all(worker.watch for worker in self._workers):
                longest_s = min(longest_s, _UNWATCHED_POLL_S)
        start = time.perf_counter()
        events = poller.poll(longest_s * 1000)
        if time.perf_counter() - start > _WAIT_S:
            self.pace.note_wait()
        with self.lock:
            self.check_usable()
            try:
                self._serve(events, by_fd)
            except WorkerDiedError:
                raise
            except BaseException:
                self.close()  # Ctrl-C, say: a message may be half read, and all after it would be nonsense
                raise
        return bool(events)

    def _serve(self, events: list[tuple[int, int]], by_fd: dict[int, int]) -> None:
        """Read what has come, write what was left over, and look who has ended."""
        for number in {by_fd[fd] for fd, _ in events if fd in by_fd}:
            self._read(number)
        for worker in self._workers:
            flush(worker)
        if self._queue is not None:
            self._queue.flush()
        for number, worker in enumerate(self._workers):
            if any(fd in worker.watch for fd, _ in events) or not (worker.watch or worker.process.is_alive()):
                self._read(number)  # what it sent before it ended
                self._break(number)

    def _read(self, number: int) -> None:
        try:
            while (frame := self._workers[number].reader.receive()) is not None:
                header, payload = self._post.unpack(frame)
                receiver = self._runs.get(header.run)
                if receiver is not None and header.kind is not Kind.SKIPPED:
                    receiver.receive(number, header, payload)
        except EOFError:
            self._break(number)

    def _break(self, number: int) -> NoReturn:
        process = self._workers[number].process
        await_exit([self._workers[number]], _DEATH_S)
        ending = describe_exit(process.exitcode)
        self._death = f"DataLoader worker (pid(s) {process.pid}) exited unexpectedly: {ending}"
        self.close()
        raise WorkerDiedError(self._death)

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


def _end(workers: list[WorkerProcess], queue: TaskQueue | None, post: Post, owner_pid: int) -> None:
    try:
        end_workers(workers, owner_pid)
    finally:
        if queue is not None:
            queue.close()
        if owner_pid == os.getpid():
            post.close()
