"""A pool of worker threads: nothing is copied or sent, and decoding runs beside Python where it lets go of the GIL.

Each thread has a worker info, a seed and, through a `ThreadScope`, a torch generator of its own; intra-op
parallelism is off in it, as in a worker process. All work on the same dataset object.

Owns: the threads. They end when the pool is closed, when it is collected and at the interpreter's exit; a thread
that does not come back from a sample within five seconds is left behind, as threads cannot be killed.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from functools import cache
from queue import Empty
from typing import Any

import torch

from lit_loader.engine.forked import WORKER_NAME
from lit_loader.engine.messages import Header, Kind
from lit_loader.engine.pool import Receiver
from lit_loader.engine.remote import RemoteError
from lit_loader.engine.spec import WorkerSpec
from lit_loader.engine.task import Task
from lit_loader.engine.thread_worker import Shop, work

__all__ = ["ThreadPool"]

_GRACE_S = 5.0


class ThreadPool:
    """Worker threads that outlive a run if asked to; see `lit_loader.engine.pool.Pool`.

    Args:
        spec: What the workers have in common.
        shared: Whether any idle worker takes the next task; else each is given its own.
        keyed: Whether tasks have keys, so that drawing from generators that threads share is refused.
    """

    def __init__(self, spec: WorkerSpec, *, shared: bool, keyed: bool) -> None:
        self.num_workers = spec.num_workers
        self._shared = shared
        self._shop = Shop(spec.num_workers, shared=shared, check_draws=keyed)
        self.lock = self._shop.lock
        self._next_run = 0
        self._owner_pid = os.getpid()
        threads = self._threads = [
            threading.Thread(
                target=work, args=(self._shop, spec, number), name=f"{WORKER_NAME}-{number}", daemon=True
            )
            for number in range(spec.num_workers)
        ]
        self._close = weakref.finalize(self, _end, self._shop, threads, self._owner_pid)
        _forget_at_fork(self)
        with _starting:
            for thread in threads:
                thread.start()
            for _ in threads:
                self._shop.started.acquire()
            _restore_intra_op(self._shop.intra_op)

    @property
    def workers(self) -> list[Any]:
        """The threads."""
        return list(self._threads)

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
        return self.owned and not self.closed and self._shop.failure is None

    def close(self) -> None:
        """End the workers: a sample in hand is finished if that takes under five seconds."""
        self._close()

    def begin(self, run: Receiver, *, eager: bool) -> int:
        """Announce a run and return its number; ``eager``: an iterable dataset is iterated at once."""
        with self.lock:
            self.check_usable()
            number = self._next_run
            self._next_run += 1
            self._shop.runs[number] = run
            if eager:
                self._tell_all(Header(Kind.BEGIN, number))
            return number

    def claim(self, number: int) -> None:
        """Do nothing: threads cannot be replaced, so nothing is counted by epoch."""

    def end(self, number: int) -> None:
        """Drop what is held of a run; a finalizer may call this at any moment."""
        self._shop.runs.pop(number, None)
        if self.usable:
            self._tell_all(Header(Kind.END, number))

    def _tell_all(self, header: Header) -> None:
        if (
            not self._shared
        ):  # an iterable dataset's pass begins and ends in every worker; others need no word
            for queue in self._shop.queues:
                queue.put((header, None))

    def submit(self, header: Header, task: Task, *, worker: int | None) -> None:
        """Give a task to a worker; None: to any that is idle."""
        self.check_usable()
        self._shop.queues[worker or 0].put((header, task))

    def wait(self, run: Receiver, timeout_s: float | None) -> bool:
        """Wait for something to come in; return whether it did."""
        self.check_usable()
        shop = self._shop
        shop.num_waiting += 1
        try:
            run.signal.get(timeout=timeout_s)
            came = True
        except Empty:
            came = False
            with self.lock:
                run.num_waiting = max(run.num_waiting - 1, 0)
        finally:
            shop.num_waiting -= 1
        self.check_usable()
        return came

    def look(self, run: Receiver) -> None:
        """Do nothing: the threads bring what they make."""

    def open(self, payload: Any, kind: Kind) -> Any:
        """Return what a worker made, or raise what it raised."""
        if kind is Kind.ERROR:
            error: RemoteError = payload
            error.reraise()
        return payload

    def check_usable(self) -> None:
        """Raise what is wrong with the workers."""
        if self._shop.failure is not None:
            raise RuntimeError("a worker thread of the loader failed") from self._shop.failure
        if self.closed:
            raise RuntimeError("the loader's workers were closed; call iter() on the loader for new ones")
        if not self.owned:
            raise RuntimeError(
                f"this iterator's worker threads belong to process {self._owner_pid} and did not come along to its "
                f"fork {os.getpid()}; call iter() on the loader there"
            )


def _end(shop: Shop, threads: list[threading.Thread], owner_pid: int) -> None:
    if os.getpid() != owner_pid:
        return
    shop.stop()
    current = threading.current_thread()
    if any(current in workers for workers in (threads, *(pool._threads for pool in _pools if pool.owned))):
        return  # collected in a worker, for which other workers may be waiting
    deadline = time.monotonic() + _GRACE_S
    for thread in threads:
        if thread.ident is not None:
            thread.join(max(deadline - time.monotonic(), 0))


def _restore_intra_op(num_threads: int | None) -> None:
    """Let threads to come begin with this many, which the workers' own setting has changed for them.

    torch sets both at once, a thread's own number and the one that threads to come begin with, so a thread that
    needs neither sets it.
    """
    setting = threading.Thread(target=torch.set_num_threads, args=(num_threads,), daemon=True)
    setting.start()
    setting.join()


_starting = threading.Lock()  # one pool at a time: another would take its workers' setting for the process's
_pools: weakref.WeakSet[ThreadPool] = weakref.WeakSet()


def _forget_at_fork(pool: ThreadPool) -> None:
    """See to it that a fork of the process finds no lock held by a thread that did not come along."""
    _register()
    _pools.add(pool)


@cache
def _register() -> None:
    if hasattr(os, "register_at_fork"):  # else there is no fork
        os.register_at_fork(after_in_child=_after_fork)


def _after_fork() -> None:
    global _starting
    _starting = threading.Lock()
    for pool in list(_pools):
        pool.lock = pool._shop.lock = threading.RLock()
