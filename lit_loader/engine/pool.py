"""A pool of worker processes: starts them, carries messages, notices deaths, ends them.

The pool knows nothing of batches or their order; a run (`lit_loader.engine.run`) asks it to carry tasks
and is handed what comes back. Several runs may use one pool, each with a number of its own.

Owns: the processes and both ends of their pipes. They end when the pool is closed, when it is collected,
when the interpreter exits, and, by the workers' own watch, when this process is killed.
"""

from __future__ import annotations

import os
import pickle
import select
import threading
import warnings
import weakref
from collections.abc import Sequence
from typing import Any, NoReturn, Protocol

from lit_loader.engine.messages import Kind, pack_header, unpack_header
from lit_loader.engine.process import (
    WorkerProcess,
    await_exit,
    describe_exit,
    end_workers,
    flush,
    post,
    start_worker,
)
from lit_loader.engine.worker import WorkerSpec
from lit_loader.errors import WorkerDiedError
from lit_loader.transport import Buffer

__all__ = ["Receiver", "WorkerPool"]

_SHARED_POLL_S = 0.02  # how often a thread looks whether another one has read its results
_DEATH_S = 1.0  # for the exit code of a worker that has ended
_UNWATCHED_POLL_S = 0.1  # how often a worker is looked at where the kernel cannot watch it


class Receiver(Protocol):
    """A run, as the pool sees it."""

    def receive(self, worker: int, kind: Kind, number: int, payload: Sequence[Buffer]) -> None:
        """Take what a worker sent for task ``number``."""


class WorkerPool:
    """Worker processes that outlive a run if asked to.

    Args:
        spec: What the workers have in common.
        context: The multiprocessing context (or module) that makes processes.

    Raises:
        Exception: What pickling the spec raises, under a start method that pickles it.
    """

    def __init__(self, spec: WorkerSpec, context: Any) -> None:
        self.num_workers = spec.num_workers
        self.lock = threading.RLock()  # guards the runs too: any thread may read another one's results
        self._death: str | None = None
        self._runs: weakref.WeakValueDictionary[int, Receiver] = weakref.WeakValueDictionary()
        self._next_run = 0
        self._workers: list[WorkerProcess] = []
        self._owner_pid = os.getpid()
        self._close = weakref.finalize(self, end_workers, self._workers, self._owner_pid)
        try:
            for worker_id in range(spec.num_workers):
                self._workers.append(start_worker(spec, worker_id, context))
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
        self._close()

    def begin(self, run: Receiver, *, eager: bool) -> int:
        """Announce a run to all workers and return its number.

        Args:
            run: Is handed what comes back, for as long as it lives.
            eager: Whether an iterable dataset is iterated at once.
        """
        with self.lock:
            self._check_usable()
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
                post(worker, [pack_header(Kind.END, number)])

    def submit(self, worker: int, run: int, number: int, task: Sequence[Buffer]) -> None:
        """Give a worker a task of a run."""
        with self.lock:
            self._check_usable()
            post(self._workers[worker], [pack_header(Kind.TASK, run, number), *task])

    def pump(self, timeout_s: float | None) -> bool:
        """Hand on what has come in; wait for something if nothing has.

        With several runs alive it comes back now and then, because another thread may have read what this
        one waits for.

        Args:
            timeout_s: How long to wait at most; None: for ever.

        Returns:
            Whether anything came.

        Raises:
            WorkerDiedError: If a worker ended; the pool is closed then.
            RuntimeError: If the pool was closed, or belongs to another process.
        """
        with self.lock:
            self._check_usable()
            poller, by_fd = select.poll(), {}
            for number, worker in enumerate(self._workers):
                for fd in (worker.reader.fd, *worker.watch):
                    poller.register(fd, select.POLLIN)
                    by_fd[fd] = number
                if worker.writer.waiting:
                    poller.register(worker.writer.fd, select.POLLOUT)
            waits = [timeout_s] if timeout_s is not None else []
            if len(self._runs) > 1:
                waits.append(_SHARED_POLL_S)
            if not all(worker.watch for worker in self._workers):
                waits.append(_UNWATCHED_POLL_S)
        events = poller.poll(min(waits) * 1000 if waits else None)
        with self.lock:
            self._check_usable()
            for number in {by_fd[fd] for fd, _ in events if fd in by_fd}:
                self._read(number)
            for worker in self._workers:
                flush(worker)
            for number, worker in enumerate(self._workers):
                if any(fd in worker.watch for fd, _ in events) or not (
                    worker.watch or worker.process.is_alive()
                ):
                    self._read(number)  # what it sent before it ended
                    self._break(number)
        return bool(events)

    def _read(self, number: int) -> None:
        try:
            while (frame := self._workers[number].reader.receive()) is not None:
                kind, run, task = unpack_header(frame[0])
                receiver = self._runs.get(run)
                if receiver is not None:
                    receiver.receive(number, kind, task, frame[1:])
        except EOFError:
            self._break(number)

    def _break(self, number: int) -> NoReturn:
        process = self._workers[number].process
        await_exit([self._workers[number]], _DEATH_S)
        ending = describe_exit(process.exitcode)
        self._death = f"DataLoader worker (pid(s) {process.pid}) exited unexpectedly: {ending}"
        self.close()
        raise WorkerDiedError(self._death)

    def _check_usable(self) -> None:
        if self._death is not None:
            raise WorkerDiedError(self._death)
        if self.closed:
            raise RuntimeError("the loader's workers were closed; call iter() on the loader for new ones")
        if not self.owned:
            raise RuntimeError(
                f"this iterator's workers belong to process {self._owner_pid} and cannot be used from its "
                f"fork {os.getpid()}; call iter() on the loader there"
            )
