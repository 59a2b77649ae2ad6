"""The main process's side of a worker process: it is started with its pipes, watched and ended.

If the system lacks descriptors, processes or memory for workers, the error says how many were needed.

NOTE [Descriptors of workers]
    A worker costs the main process six descriptors: its ends of three pipes, two of multiprocessing and a pidfd. The
    backend has five of its own. While a worker is started, both ends of its pipes are open here, and under fork those
    that the worker opens count in addition. As many are opened and closed before the first worker is started, because
    multiprocessing does not close all of its own when it fails halfway.

    When ``os.fork`` itself fails, CPython leaves up to four open, of ``popen_fork.Popen._launch``. They are not closed
    here: their numbers are only in local variables of CPython's frames, and could be those of another thread's files by
    then. A program hardly continues to start workers after that.

NOTE [Workers in forks]
    After a fork by other means than multiprocessing, the fork has multiprocessing's list of children too, and at its
    exit multiprocessing would terminate those that are daemons. So a fork removes lit_loader's workers from that list.

Owns: nothing; the backend owns what `start_worker` returns and gives it to `end_workers`.
"""

from __future__ import annotations

import contextlib
import errno
import multiprocessing.popen_fork  # at the first fork it may be unreadable: the program may have given up its rights
import multiprocessing.process
import os
import select
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from lit_loader.engine.channels import (
    FrameReader,
    FrameWriter,
)
from lit_loader.engine.spec import Kind, Message, WorkerSpec
from lit_loader.engine.worker import (
    NO_THREADS_EXIT_CODE,
    WorkerEnds,
    is_thread_shortage,
    pack_message,
    worker_main,
)
from lit_loader.foundation.host import read_resources
from lit_loader.memory import Buffer

WORKER_NAME = "lit_loader-worker"

_GRACE_S = 5.0  # for a worker to finish the sample that it is making, the same as in torch
_TERMINATE_S = 1.0
_POLL_S = 0.002
_UNKNOWN_EXIT_CODE = 255  # CPython's asyncio reports this one too
_FDS_OF_A_WORKER, _FDS_OF_A_BACKEND = 6, 24


def _is_readable(fd: int) -> bool:
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(0))


@dataclass(slots=True)
class WorkerProcess:
    """A process and the main process's ends of its pipes."""

    process: BaseProcess
    pipes: tuple[Connection, Connection, Connection]  # control, tasks, results
    control: FrameWriter
    tasks: FrameWriter
    results: FrameReader
    watch: tuple[int, ...]  # a pidfd, where the kernel has them

    def send(self, buffers: Sequence[Buffer]) -> None:
        """Send a frame, now or when the pipe accepts it."""
        # The pipe of a dead worker is broken. Its death is handled after the results that it has sent.
        with contextlib.suppress(OSError):
            self.tasks.send(buffers)

    def send_control(self, message: Message) -> None:
        """Send a message that the worker's control thread reads, even while a sample is being made."""
        with contextlib.suppress(OSError):
            self.control.send([pack_message(message)])

    def flush(self) -> None:
        """Write what the pipes did not accept yet."""
        for writer in (self.control, self.tasks):
            if writer.waiting:
                with contextlib.suppress(OSError):  # a worker that has died has closed its end
                    writer.flush()

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        if self.process.exitcode is not None:
            return False
        popen: Any = self.process._popen  # type: ignore[attr-defined] # no public access
        # The exit code of a fork server's child comes later, by pipe.
        if popen is None or popen.method == "forkserver" or not any(map(_is_readable, self.watch)):
            return True
        if self.process.exitcode is None:
            # The program ignores SIGCHLD, or a thread of it waits for all children and took the exit code.
            popen.returncode = _UNKNOWN_EXIT_CODE
        return False


def start_worker(
    spec: WorkerSpec, worker_id: int, *, context: Any, make_ends: Callable[..., WorkerEnds]
) -> WorkerProcess:
    """Start a worker process; `interrupts_deferred` is around the call.

    Raises:
        Exception: What pickling the spec raises, under a start method that pickles it.
    """
    their_control, control = context.Pipe(duplex=False)
    their_tasks, tasks = context.Pipe(duplex=False)
    results, their_results = context.Pipe(duplex=False)
    main_pid = os.getpid()
    from_main_thread = threading.get_native_id() == main_pid
    args = spec, worker_id, main_pid, from_main_thread, make_ends(their_control, their_tasks, their_results)
    name = f"{WORKER_NAME}-{worker_id}"
    try:
        process: BaseProcess = context.Process(target=worker_main, args=args, name=name, daemon=True)
        process.start()
    except BaseException:
        for end in (control, tasks, results):
            end.close()
        raise
    finally:
        for end in (their_control, their_tasks, their_results):
            end.close()
    for end in (control, tasks, results):
        os.set_blocking(end.fileno(), False)
    # The end of the worker does not always close the pipe of results: a process that the worker forked keeps it open.
    watch: tuple[int, ...] = ()
    with contextlib.suppress(AttributeError, OSError):
        watch = (os.pidfd_open(process.pid),) if process.pid is not None else ()
    frames = FrameWriter(control.fileno()), FrameWriter(tasks.fileno()), FrameReader(results.fileno())
    return WorkerProcess(process, (control, tasks, results), *frames, watch)


@contextlib.contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Delay Ctrl-C until the context is left.

    In one of Python's own hooks around a fork it would be printed and lost. Before a new worker is in its backend's
    list, it would leave a worker that is never ended.
    """
    # a handler that was installed outside of Python (None) could not be restored
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is None:
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


def end_workers(workers: list[WorkerProcess], owner_pid: int) -> None:
    """Send STOP to all workers, wait for them, terminate or kill those that do not end, and close the pipes.

    Workers that have ended already may be among them.
    """
    if os.getpid() != owner_pid:
        return  # in a fork, which has copies of these objects, and no such children
    try:
        for worker in workers:
            worker.send_control(Message(Kind.STOP))
        await_exit(workers, _GRACE_S)
    finally:  # also after Ctrl-C during the wait
        for force in (BaseProcess.terminate, BaseProcess.kill):
            alive = [worker for worker in workers if worker.is_running]
            for worker in alive:
                force(worker.process)
            await_exit(alive, _TERMINATE_S)
        for worker in workers:
            # An epoch that is being collected may still send to the worker. It must not write to a file that has the
            # same descriptor by now.
            worker.control.fd = worker.tasks.fd = -1
            for pipe in worker.pipes:
                pipe.close()
            watch, worker.watch = worker.watch, ()
            for fd in watch:
                os.close(fd)
            # Not `Process.close`: a user may still read the exit code of a process. Its descriptors are closed
            # nevertheless, because an error that is kept would keep the process and them.
            worker.process.join(0)
            if worker.process.exitcode is not None:
                popen: Any = worker.process._popen  # type: ignore[attr-defined] # no public access
                popen.close()
        workers.clear()


def await_exit(workers: Sequence[WorkerProcess], timeout_s: float) -> None:
    """Wait until the processes have ended, and write what their pipes had not accepted yet (STOP)."""
    deadline = time.monotonic() + timeout_s
    while any(worker.is_running for worker in workers) and time.monotonic() < deadline:
        for worker in workers:
            worker.flush()
        time.sleep(_POLL_S)


def describe_exit(exitcode: int | None) -> str:
    """Return a text on how a process has ended."""
    if exitcode is None:
        return "its pipe was closed, but it is still running"
    if exitcode == _UNKNOWN_EXIT_CODE:
        return (
            f"exit code {exitcode}, or it is not known: this program ignores SIGCHLD, or waits for "
            "all children itself"
        )
    if exitcode == NO_THREADS_EXIT_CODE:
        return f"exit code {exitcode}: it could not start its threads, {_TOO_MANY}; {_FEWER}"
    if exitcode >= 0:
        return f"exit code {exitcode}"
    name = signal.Signals(-exitcode).name
    hint = "; was it out of memory? (see the kernel's log)" if -exitcode == signal.SIGKILL else ""
    return f"killed by signal {name}{hint}"


def _disown_workers() -> None:
    """Remove lit_loader's workers from a fork's list of children: see NOTE [Workers in forks]."""
    children: set[BaseProcess] = getattr(multiprocessing.process, "_children", set())
    children -= {child for child in children if child.name.startswith(WORKER_NAME)}


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown_workers)


# -- shortages ---------------------------------------------------------------------------------------------

_TOO_MANY = "more than this user or control group may have (ulimit -u, pids.max)"
_FEWER = "end some processes, raise the limit, or lower num_workers"


def count_descriptors(num_workers: int) -> int:
    """Return how many descriptors must be free for workers to be started; see NOTE [Descriptors of workers]."""
    return _FDS_OF_A_WORKER * num_workers + _FDS_OF_A_BACKEND


def check_descriptors(num_workers: int) -> None:
    """Raise an error if this process cannot open as many descriptors as the workers need, by opening them.

    Raises:
        OSError: EMFILE or ENFILE, with what is needed and the remedy.
    """
    opened: list[int] = []
    closing = map(os.close, opened)
    with shortages_explained(num_workers):
        try:  # Python looks for signals after a call: with one call in each block, Ctrl-C leaves none open
            names = repeat(os.devnull, count_descriptors(num_workers))
            opened.extend(map(os.open, names, repeat(os.O_RDONLY)))
        finally:
            deque(closing, maxlen=0)


@contextlib.contextmanager
def shortages_explained(num_workers: int) -> Iterator[None]:
    """Raise an error of starting workers again, with what was needed and the remedy."""
    needs = f"num_workers={num_workers} needs"
    try:
        yield
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            text = (
                f"{needs} {count_descriptors(num_workers)} free file descriptors, more than this process (ulimit -n) "
                "or this machine (sysctl fs.file-max) allows; raise the limit, close files, or lower num_workers"
            )
        elif error.errno == errno.EAGAIN:
            text = f"{needs} as many processes, of three threads each, {_TOO_MANY}; {_FEWER}"
        elif error.errno in (errno.ENOMEM, errno.ENOSPC):
            text = (
                f"{needs} more memory than the {read_resources().available_bytes} bytes that are available (ulimit -v "
                "may allow less): under fork as much as this process has mapped; lower num_workers, make the dataset "
                'smaller, or use multiprocessing_context="forkserver", whose workers start small'
            )
        else:
            raise
        raise OSError(error.errno, text) from error
    except RuntimeError as error:
        if not is_thread_shortage(error):
            raise
        raise RuntimeError(f"{needs} as many threads, {_TOO_MANY}; {_FEWER}") from error
    except EOFError as error:
        error.add_note(
            f"the fork server ended while it started one of num_workers={num_workers} workers (its own message is on "
            "the standard error): was it killed, or is there no room for another process?"
        )
        raise
