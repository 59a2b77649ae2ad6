"""The processes of a pool: started with their pipes, watched, ended.

Owns: nothing; the pool owns what `start_worker` returns and gives it to `end_workers`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from lit_loader.engine.control import MainProcess
from lit_loader.engine.desk import Desk
from lit_loader.engine.forked import WORKER_NAME
from lit_loader.engine.messages import Kind, pack_header
from lit_loader.engine.spec import WorkerSpec
from lit_loader.engine.worker import worker_main
from lit_loader.transport import READABLE, WRITABLE, Buffer, FrameReader, FrameWriter, MemoryFile, new_poller

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment] # a module elsewhere

__all__ = [
    "WorkerProcess",
    "await_exit",
    "describe_exit",
    "end_workers",
    "flush",
    "interrupts_deferred",
    "is_running",
    "order",
    "post",
    "start_worker",
]

_GRACE_S = 5.0  # for a worker to finish the sample in hand, as torch gives it
_TERMINATE_S = 1.0
_POLL_S = 0.1
_PIPE_BYTES = 1 << 20  # what Linux lets any user ask for


@dataclass(slots=True)
class WorkerProcess:
    """A process and the main process's ends of its pipes."""

    process: BaseProcess
    orders: Connection
    tasks: Connection
    results: Connection
    order_writer: FrameWriter
    writer: FrameWriter
    reader: FrameReader
    watch: tuple[int, ...]  # a pidfd, where the kernel has them


def post(worker: WorkerProcess, buffers: Sequence[Buffer]) -> None:
    """Send a frame to a worker, now or when its pipe takes it."""
    # a dead worker's pipe is broken: pump tells the death, after the results it sent before
    with contextlib.suppress(OSError):
        worker.writer.send(buffers)


def order(worker: WorkerProcess, buffers: Sequence[Buffer]) -> None:
    """Send a frame to a worker that hears it whatever it is doing."""
    with contextlib.suppress(OSError):
        worker.order_writer.send(buffers)


def flush(worker: WorkerProcess) -> None:
    """Write what a worker's pipes did not take before."""
    with contextlib.suppress(OSError):
        worker.writer.flush()
        worker.order_writer.flush()


def start_worker(
    spec: WorkerSpec,
    worker_id: int,
    context: Any,
    queue: socket.socket | None,
    memory: MemoryFile | None,
    desk: Desk | None = None,
) -> WorkerProcess:
    """Start a worker process.

    Raises:
        Exception: What pickling the spec raises, under a start method that pickles it.
    """
    their_orders, orders = context.Pipe(duplex=False)
    their_tasks, tasks = context.Pipe(duplex=False)
    results, their_results = context.Pipe(duplex=False)
    main = MainProcess(os.getpid(), context.get_start_method() != "forkserver")
    try:
        process: BaseProcess = context.Process(
            target=worker_main,
            args=(spec, worker_id, main, their_orders, their_tasks, their_results, queue, memory, desk),
            name=f"{WORKER_NAME}-{worker_id}",
            daemon=True,
        )
        with interrupts_deferred():
            process.start()
    except BaseException:
        orders.close()
        tasks.close()
        results.close()
        raise
    finally:
        their_orders.close()
        their_tasks.close()
        their_results.close()
    for end in (orders, tasks, results):
        if end is not orders:
            _widen(end.fileno())
        os.set_blocking(end.fileno(), False)
    watch = _watch(process.pid)
    return WorkerProcess(
        process,
        orders,
        tasks,
        results,
        FrameWriter(orders.fileno()),
        FrameWriter(tasks.fileno()),
        FrameReader(results.fileno()),
        watch,
    )


@contextlib.contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Hold back Ctrl-C.

    Raised in one of Python's own hooks around a fork it would be printed and lost; and before a new worker stands in
    its pool's list, nobody would end that worker.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if signal.getsignal(signal.SIGINT) is None:  # set outside of Python, which cannot set it back
        yield
        return
    came: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            signal.raise_signal(signal.SIGINT)


def _watch(pid: int | None) -> tuple[int, ...]:
    """Return a descriptor that becomes readable when the process ends; none where the kernel has no such thing.

    The results pipe does not do: a process that the worker forked holds it open.
    """
    try:
        return (os.pidfd_open(pid),) if pid is not None else ()
    except (AttributeError, OSError):
        return ()


def _widen(fd: int) -> None:
    """Ask for a larger pipe: fewer system calls for a large batch. Without one it works all the same."""
    with contextlib.suppress(OSError, AttributeError):  # over the user's limit; no such call on this platform
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


def end_workers(workers: list[WorkerProcess], owner_pid: int) -> None:
    """Tell all workers to stop, wait for them, end by force those that do not, close the pipes.

    Those that were ended before, or halfway, may be among them.
    """
    if os.getpid() != owner_pid:
        return  # a fork of the owner has copies of these objects; the workers are not its own
    try:
        for worker in workers:
            order(worker, [pack_header(Kind.STOP)])
        await_exit(workers, _GRACE_S)
    finally:  # Ctrl-C in the time of grace too
        for force in (BaseProcess.terminate, BaseProcess.kill):
            alive = [worker for worker in workers if is_running(worker)]
            for worker in alive:
                force(worker.process)
            await_exit(alive, _TERMINATE_S)
        for worker in workers:
            # whoever has the worker still, a run that is being collected say, is not to write to another's file
            worker.order_writer.fd = worker.writer.fd = -1
            worker.orders.close()
            worker.tasks.close()
            worker.results.close()
            watch, worker.watch = worker.watch, ()
            for fd in watch:
                os.close(fd)
            # Not `Process.close`: who was shown the process may still read its exit code. Its descriptors are closed
            # all the same: an error that is kept would keep the process and them.
            worker.process.join(0)
            if worker.process.exitcode is not None:
                popen: Any = worker.process._popen  # type: ignore[attr-defined] # there is no other way to them
                popen.close()
        workers.clear()


def is_running(worker: WorkerProcess) -> bool:
    """Whether a worker has not ended."""
    return worker.process.exitcode is None


def await_exit(workers: Sequence[WorkerProcess], timeout_s: float) -> None:
    """Wait until the processes have ended, writing what their pipes had not taken (the word to stop)."""
    deadline = time.monotonic() + timeout_s
    while True:
        alive = [worker for worker in workers if is_running(worker)]
        left = deadline - time.monotonic()
        if not alive or left <= 0:
            return
        poller = new_poller()
        for worker in alive:
            for fd in worker.watch:
                poller.register(fd, READABLE)
            for writer in (worker.order_writer, worker.writer):
                if writer.waiting:
                    poller.register(writer.fd, WRITABLE)
        poller.poll(min(left, _POLL_S) * 1000)
        for worker in alive:
            flush(worker)
        time.sleep(0.001)  # a process may have ended before its exit code is known


def describe_exit(exitcode: int | None) -> str:
    """Return how a process ended, in words."""
    if exitcode is None:
        return "its pipe was closed, but it is still running"
    if exitcode >= 0:
        return f"exit code {exitcode}"
    name = signal.Signals(-exitcode).name
    hint = "; was it out of memory? (see the kernel's log)" if -exitcode == signal.SIGKILL else ""
    return f"killed by signal {name}{hint}"
