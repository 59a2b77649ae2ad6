"""The main process's side of a worker process: start it with its pipes, watch it and end it.

If the system lacks descriptors, processes or memory for workers, the error says how many were needed.

NOTE [Descriptors of workers]
    A worker costs the main process six descriptors: its ends of three pipes, two of multiprocessing and a pidfd. The
    backend has five of its own. During the start of a worker both ends of its pipes are open here, and under fork those
    that the worker opens count in addition. Before the first worker starts, `check_descriptors` opens and closes as
    many, because multiprocessing does not close all of its own when it fails halfway.

    When ``os.fork`` itself fails, ``popen_fork.Popen._launch`` of CPython leaves up to four open. They stay open: only
    local variables of CPython's frames hold their numbers, which could belong to another thread's files by now. A
    program hardly continues to start workers after that.

NOTE [Workers in forks]
    A fork that multiprocessing did not make inherits multiprocessing's list of children, and at its exit
    multiprocessing would terminate those that are daemons. So a fork removes lit_loader's workers from that list.

Owns: nothing; the backend owns what `start_worker` returns and gives it to `end_workers`.
"""

from __future__ import annotations

import contextlib
import errno

# A program that drops its rights could not read this module at its first fork.
import multiprocessing.popen_fork
import multiprocessing.process
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from lit_loader.engine.channels import FrameReader, FrameWriter
from lit_loader.engine.spec import Kind, Message, WorkerSpec
from lit_loader.engine.worker import NO_THREADS_EXIT_CODE, WorkerEnds, is_thread_shortage, pack_message, worker_main
from lit_loader.foundation.host import read_resources
from lit_loader.memory import Buffer

WORKER_NAME = "lit_loader-worker"

_GRACE_S = 5.0  # for a worker to finish its present sample, as in torch
_TERMINATE_S = 1.0
_POLL_S = 0.002
_UNKNOWN_EXIT_CODE = 255  # the same as in CPython's asyncio
_WORKER_FDS = 6
_BACKEND_FDS = 24


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
        # The pipe of a dead worker is broken. The backend handles the death after reading the worker's last results.
        with contextlib.suppress(OSError):
            self.tasks.send(buffers)

    def send_control(self, message: Message) -> None:
        """Send a message that the worker's control thread reads, even while a sample is being made."""
        with contextlib.suppress(OSError):
            self.control.send([pack_message(message)])

    def flush(self) -> None:
        """Write the rest of frames that the pipes have not accepted yet."""
        for writer in (self.control, self.tasks):
            if writer.waiting:
                # A dead worker has closed its end.
                with contextlib.suppress(OSError):
                    writer.flush()

    @property
    def is_running(self) -> bool:
        """True if the process has not ended."""
        if self.process.exitcode is not None:
            return False
        popen: Any = self.process._popen  # type: ignore[attr-defined] # no public access
        # The exit code of a fork server's child comes later, by pipe.
        if popen is None or popen.method == "forkserver" or not wait(self.watch, timeout=0):
            return True
        if self.process.exitcode is None:
            # The program ignores SIGCHLD, or one of its threads waits for all children and took the exit code.
            popen.returncode = _UNKNOWN_EXIT_CODE
        return False


def start_worker(
    spec: WorkerSpec, worker_id: int, *, context: Any, make_ends: Callable[..., WorkerEnds]
) -> WorkerProcess:
    """Start a worker process. Callers wrap the call in `defer_interrupts`.

    Raises:
        Exception: An error of pickling the spec, under a start method that pickles it.
    """
    their_control, control = context.Pipe(duplex=False)
    their_tasks, tasks = context.Pipe(duplex=False)
    results, their_results = context.Pipe(duplex=False)
    main_pid = os.getpid()
    from_main_thread = threading.get_native_id() == main_pid
    ends = make_ends(their_control, their_tasks, their_results)
    args = (spec, worker_id, main_pid, from_main_thread, ends)
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
    return WorkerProcess(
        process,
        pipes=(control, tasks, results),
        control=FrameWriter(control.fileno()),
        tasks=FrameWriter(tasks.fileno()),
        results=FrameReader(results.fileno()),
        watch=watch,
    )


def end_workers(workers: list[WorkerProcess], owner_pid: int) -> None:
    """Send STOP to all workers, wait for them, terminate or kill those that do not end, and close the pipes.

    Workers that have ended already may be among them.
    """
    if os.getpid() != owner_pid:
        # A fork has copies of these objects, but not the children.
        return
    try:
        for worker in workers:
            worker.send_control(Message(Kind.STOP))
        await_exit(workers, _GRACE_S)
    finally:
        # Force the rest to end, even after Ctrl-C during the wait.
        for force in (BaseProcess.terminate, BaseProcess.kill):
            alive = [worker for worker in workers if worker.is_running]
            for worker in alive:
                force(worker.process)
            await_exit(alive, _TERMINATE_S)
        for worker in workers:
            # The finalizer of an epoch may still send to the worker, but another file may get the same descriptor.
            worker.control.fd = -1
            worker.tasks.fd = -1
            for pipe in worker.pipes:
                pipe.close()
            watch = worker.watch
            worker.watch = ()
            for fd in watch:
                os.close(fd)
            # Not `Process.close`, because a user may still read the exit code. Close the descriptors nevertheless: an
            # error whose traceback holds the process would keep them open.
            worker.process.join(0)
            if worker.process.exitcode is not None:
                popen: Any = worker.process._popen  # type: ignore[attr-defined] # no public access
                popen.close()
        workers.clear()


def await_exit(workers: Sequence[WorkerProcess], timeout_s: float) -> None:
    """Wait until the processes have ended, and write messages that their pipes had not accepted yet (STOP)."""
    deadline = time.monotonic() + timeout_s
    while any(worker.is_running for worker in workers) and time.monotonic() < deadline:
        for worker in workers:
            worker.flush()
        time.sleep(_POLL_S)


def describe_exit(exitcode: int | None) -> str:
    """Describe how a process has ended."""
    if exitcode is None:
        return "its pipe was closed, but it is still running"
    if exitcode == _UNKNOWN_EXIT_CODE:
        return f"exit code {exitcode}, or an unknown one: this program ignores SIGCHLD or waits for all children itself"
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
    """Return how many free descriptors the start of workers needs: see NOTE [Descriptors of workers]."""
    return _WORKER_FDS * num_workers + _BACKEND_FDS


def check_descriptors(num_workers: int) -> None:
    """Open and close as many descriptors as the workers need.

    Raises:
        OSError: EMFILE or ENFILE, with the number of descriptors and the remedy.
    """
    # Each object owns a descriptor, and closes it when it is freed. So none stays open, wherever a signal handler
    # raises.
    poller: Callable[[], object] = select.epoll if hasattr(select, "epoll") else getattr(select, "kqueue")  # noqa: B009
    with shortages_explained(num_workers):
        pollers = [poller() for _ in range(count_descriptors(num_workers))]
        del pollers


@contextlib.contextmanager
def shortages_explained(num_workers: int) -> Iterator[None]:
    """Add the needs of the workers and the remedy to an error of starting them."""
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
            f"the fork server ended while it started one of num_workers={num_workers} workers (standard error has its "
            "own message): was it killed, or is there no room for another process?"
        )
        raise
