"""A pool of worker processes: starts them, carries messages, notices deaths, ends them.

The pool knows nothing of batches or their order; a run (`lit_loader.engine.run`) asks it to carry tasks
and is handed what comes back. Several runs may use one pool, each with a number of its own.

Owns: the processes and both ends of their pipes. They end when the pool is closed, when it is collected,
when the interpreter exits, and, by the workers' own watch, when this process is killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
import select
import signal
import time
import warnings
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

from lit_loader.engine.messages import Kind, pack_header, unpack_header
from lit_loader.engine.worker import WorkerSpec, worker_main
from lit_loader.errors import WorkerDiedError
from lit_loader.transport import Buffer, Frame, FrameReader, FrameWriter

__all__ = ["Receiver", "WorkerPool"]

_GRACE_S = 5.0  # for a worker to finish the sample in hand, as torch gives it
_TERMINATE_S = 1.0
_PIPE_BYTES = 1 << 20  # what Linux lets any user ask for


class Receiver(Protocol):
    """A run, as the pool sees it."""

    def receive(self, worker: int, kind: Kind, number: int, payload: Sequence[Buffer]) -> None:
        """Take what a worker sent for task ``number``."""


@dataclass(slots=True)
class _Worker:
    """A process and the main process's ends of its pipes."""

    process: BaseProcess
    tasks: Connection
    results: Connection
    writer: FrameWriter
    reader: FrameReader


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
        self._death: str | None = None
        self._runs: weakref.WeakValueDictionary[int, Receiver] = weakref.WeakValueDictionary()
        self._next_run = 0
        self._workers: list[_Worker] = []
        self._owner_pid = os.getpid()
        self._close = weakref.finalize(self, _end_workers, self._workers, self._owner_pid)
        try:
            for worker_id in range(spec.num_workers):
                self._workers.append(_start_worker(spec, worker_id, context))
        except (TypeError, AttributeError, pickle.PicklingError):
            self._close()
            warnings.warn(
                "Got pickle error when attempting to start a worker Process. This might be because the "
                "worker Process arguments are not picklable: define the dataset, collate_fn and "
                "worker_init_fn at the top level of a module, or pass multiprocessing_context='fork'.",
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
    def usable(self) -> bool:
        """Whether a run can begin here: not closed, and not in a fork of the process that owns the workers."""
        return not self.closed and self._owner_pid == os.getpid()

    @property
    def pids(self) -> list[int]:
        """The workers' process ids; empty once closed."""
        return [worker.process.pid for worker in self._workers if worker.process.pid is not None]

    def close(self) -> None:
        """End the workers: a sample in hand is finished if that takes under five seconds."""
        self._close()

    def begin(self, run: Receiver, *, eager: bool) -> int:
        """Announce a run to all workers and return its number.

        Args:
            run: Is handed what comes back, for as long as it lives.
            eager: Whether an iterable dataset is iterated at once.
        """
        self._check_usable()
        number = self._next_run
        self._next_run += 1
        self._runs[number] = run
        for worker in self._workers:
            self._post(worker, [pack_header(Kind.BEGIN, number, int(eager))])
        return number

    def end(self, number: int) -> None:
        """Tell the workers to drop what they hold of a run; what they still send is dropped here."""
        self._runs.pop(number, None)
        if not self.usable:
            return
        for worker in self._workers:
            with contextlib.suppress(BrokenPipeError):
                worker.writer.send([pack_header(Kind.END, number)])

    def submit(self, worker: int, run: int, number: int, task: Sequence[Buffer]) -> None:
        """Give a worker a task of a run."""
        self._check_usable()
        self._post(self._workers[worker], [pack_header(Kind.TASK, run, number), *task])

    def pump(self, timeout_s: float | None) -> bool:
        """Hand on what has come in; wait for something if nothing has.

        Args:
            timeout_s: How long to wait at most; None: for ever.

        Returns:
            Whether anything came.

        Raises:
            WorkerDiedError: If a worker ended; the pool is closed then.
        """
        self._check_usable()
        poller = select.poll()
        by_fd: dict[int, int] = {}
        for number, worker in enumerate(self._workers):
            poller.register(worker.reader.fd, select.POLLIN)
            by_fd[worker.reader.fd] = number
            if worker.writer.waiting:
                poller.register(worker.writer.fd, select.POLLOUT)
        events = poller.poll(None if timeout_s is None else max(0.0, timeout_s) * 1000)
        for fd, _ in events:
            if fd in by_fd:
                self._read(by_fd[fd])
        for worker in self._workers:
            if worker.writer.waiting:
                with contextlib.suppress(BrokenPipeError):  # its results pipe tells the death
                    worker.writer.flush()
        return bool(events)

    def _read(self, number: int) -> None:
        try:
            while (frame := self._workers[number].reader.receive()) is not None:
                self._hand_on(number, frame)
        except EOFError:
            self._break(number)

    def _hand_on(self, worker: int, frame: Frame) -> None:
        kind, run, number = unpack_header(frame[0])
        receiver = self._runs.get(run)
        if receiver is not None:
            receiver.receive(worker, kind, number, frame[1:])

    def _post(self, worker: _Worker, buffers: Sequence[Buffer]) -> None:
        # a dead worker's pipe is broken: pump tells the death, after the results it sent before
        with contextlib.suppress(BrokenPipeError):
            worker.writer.send(buffers)

    def _break(self, number: int) -> None:
        process = self._workers[number].process
        process.join(_TERMINATE_S)
        ending = _describe_exit(process.exitcode)
        self._death = f"DataLoader worker (pid(s) {process.pid}) exited unexpectedly: {ending}"
        self.close()
        raise WorkerDiedError(self._death)

    def _check_usable(self) -> None:
        if self._death is not None:
            raise WorkerDiedError(self._death)
        if self.closed:
            raise RuntimeError("the loader's workers were closed; call iter() on the loader for new ones")
        if self._owner_pid != os.getpid():
            raise RuntimeError(
                f"this iterator's workers belong to process {self._owner_pid} and cannot be used from its "
                f"fork {os.getpid()}; call iter() on the loader there"
            )


def _start_worker(spec: WorkerSpec, worker_id: int, context: Any) -> _Worker:
    their_tasks, tasks = context.Pipe(duplex=False)
    results, their_results = context.Pipe(duplex=False)
    try:
        process: BaseProcess = context.Process(
            target=worker_main,
            args=(spec, worker_id, their_tasks, their_results),
            name=f"lit_loader-worker-{worker_id}",
            daemon=True,
        )
        process.start()
    except BaseException:
        tasks.close()
        results.close()
        raise
    finally:
        their_tasks.close()
        their_results.close()
    _widen(results.fileno())
    os.set_blocking(tasks.fileno(), False)
    os.set_blocking(results.fileno(), False)
    return _Worker(process, tasks, results, FrameWriter(tasks.fileno()), FrameReader(results.fileno()))


def _widen(fd: int) -> None:
    """Ask for a larger pipe: fewer system calls for a large batch. Without one it works all the same."""
    with contextlib.suppress(OSError, AttributeError):  # over the user's limit; no such call on this platform
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


def _end_workers(workers: list[_Worker], owner_pid: int) -> None:
    """Tell all workers to stop, wait for them, end by force those that do not, close the pipes."""
    if os.getpid() != owner_pid:
        return  # a fork of the owner has copies of these objects; the workers are not its own
    for worker in workers:
        with contextlib.suppress(OSError):
            worker.writer.send([pack_header(Kind.STOP)])
    deadline = time.monotonic() + _GRACE_S
    for worker in workers:
        worker.process.join(max(0.0, deadline - time.monotonic()))
    for force in (BaseProcess.terminate, BaseProcess.kill):
        alive = [worker.process for worker in workers if worker.process.is_alive()]
        for process in alive:
            force(process)
        for process in alive:
            process.join(_TERMINATE_S)
    for worker in workers:
        worker.tasks.close()
        worker.results.close()
        with contextlib.suppress(ValueError):  # a process that not even SIGKILL has ended yet
            worker.process.close()
    workers.clear()


def _describe_exit(exitcode: int | None) -> str:
    if exitcode is None:
        return "its pipe was closed, but it is still running"
    if exitcode >= 0:
        return f"exit code {exitcode}"
    name = signal.Signals(-exitcode).name
    hint = "; was it out of memory? (see the kernel's log)" if -exitcode == signal.SIGKILL else ""
    return f"killed by signal {name}{hint}"
