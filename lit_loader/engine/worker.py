"""The life of a worker process: take tasks, make batches, send them, and end when told or orphaned.

NOTE [Three threads of a worker]
    main     fetches and collates; nothing but the user's code can hold it up
    control  reads the pipe of tasks, so that STOP and END are heard while a sample is being made, and
             watches the main process: when that is gone, this process goes at once (os._exit), whatever
             the user's code is doing
    sender   writes results, so that a batch that the consumer has not yet taken does not keep the next
             one from being made
"""

from __future__ import annotations

import os
import queue
import select
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch.utils.data._utils import worker as torch_worker

from lit_loader.engine.fetch import Fetcher, IterableFetcher, make_fetcher
from lit_loader.engine.messages import Kind, pack_header, unpack_header
from lit_loader.engine.remote import RemoteError
from lit_loader.seeding import seed_worker
from lit_loader.transport import Buffer, Frame, FrameReader, FrameWriter, decode, encode
from lit_loader.types import CollateFn, WorkerInitFn

__all__ = ["WorkerSpec", "worker_main"]

_ORPHAN_EXIT_CODE = 1
_ORPHAN_POLL_MS = 500  # where the kernel has no pidfd


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """What all workers of a pool have in common.

    Attributes:
        dataset: The dataset; a worker works on its own copy.
        batched: Whether tasks name several samples.
        collate_fn: Makes a batch of samples.
        drop_last: Whether an iterable dataset's short last batch is dropped.
        worker_init_fn: Called once in each worker, after its seeding.
        base_seed: Worker w is seeded with ``base_seed + w``.
        num_workers: Size of the pool.
        main_pid: The process whose end ends the workers.
        forked_by_main: Whether that process is the parent (not so under forkserver).
    """

    dataset: Any
    batched: bool
    collate_fn: CollateFn
    drop_last: bool
    worker_init_fn: WorkerInitFn | None
    base_seed: int
    num_workers: int
    main_pid: int
    forked_by_main: bool


def worker_main(spec: WorkerSpec, worker_id: int, tasks: Connection, results: Connection) -> None:
    """Run a worker until it is told to stop.

    Runs in: a worker process, as its target.
    """
    # Handlers that the main process set (Lightning's among them) are not for this process: the terminal's
    # Ctrl-C is the main process's to handle, and it tells the workers; a SIGTERM ends this one.
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    outbox: queue.SimpleQueue[list[Buffer]] = queue.SimpleQueue()
    control = _Control(tasks.fileno(), spec)
    threading.Thread(target=control.listen, name="lit_loader-control", daemon=True).start()
    threading.Thread(
        target=_send, args=(FrameWriter(results.fileno()), outbox), name="lit_loader-sender", daemon=True
    ).start()
    seed = seed_worker(spec.base_seed, worker_id)
    torch_worker._worker_info = torch_worker.WorkerInfo(
        id=worker_id, num_workers=spec.num_workers, seed=seed, dataset=spec.dataset
    )
    _Worker(spec, worker_id, outbox.put).serve(control)


def _send(writer: FrameWriter, outbox: queue.SimpleQueue[list[Buffer]]) -> None:
    try:
        while True:
            writer.send(outbox.get())
    except BrokenPipeError:
        return  # the main process closed its end: nobody waits for results any more


class _Control:
    """The control thread: see NOTE [Three threads of a worker]."""

    def __init__(self, tasks_fd: int, spec: WorkerSpec) -> None:
        self._reader = FrameReader(tasks_fd)
        self._spec = spec
        self.inbox: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        self.stopping = False
        self.ended_runs: set[int] = set()

    def listen(self) -> None:
        """Sort what the main process says until it says STOP or is gone."""
        poller = select.poll()
        os.set_blocking(self._reader.fd, False)
        poller.register(self._reader.fd, select.POLLIN)
        orphaned = self._watch_main(poller)
        while not self.stopping:
            events = poller.poll(_ORPHAN_POLL_MS if orphaned is not None else None)
            if (orphaned is not None and orphaned()) or any(fd != self._reader.fd for fd, _ in events):
                os._exit(_ORPHAN_EXIT_CODE)
            try:
                while (frame := self._reader.receive()) is not None:
                    self._sort(frame)
            except EOFError:
                self._stop()

    def _watch_main(self, poller: select.poll) -> Callable[[], bool] | None:
        """Register the main process's end with the poller, or return a test of it where that cannot be."""
        pid = self._spec.main_pid
        if self._spec.forked_by_main and os.getppid() != pid:
            os._exit(_ORPHAN_EXIT_CODE)
        try:
            poller.register(os.pidfd_open(pid), select.POLLIN)
        except ProcessLookupError:
            os._exit(_ORPHAN_EXIT_CODE)
        except (AttributeError, OSError):
            parent = os.getppid()
            return lambda: os.getppid() != parent
        return None

    def _sort(self, frame: Frame) -> None:
        header = unpack_header(frame[0])
        if header.kind is Kind.STOP:
            self._stop()
            return
        if header.kind is Kind.END:
            self.ended_runs.add(header.run)
        self.inbox.put(frame)

    def _stop(self) -> None:
        self.stopping = True
        self.inbox.put(None)


class _Worker:
    """The main thread of a worker: see NOTE [Three threads of a worker]."""

    def __init__(self, spec: WorkerSpec, worker_id: int, send: Callable[[list[Buffer]], None]) -> None:
        self._spec, self._id, self._send = spec, worker_id, send
        self._where = f"in DataLoader worker process {worker_id}"
        self._fetchers: dict[int, Fetcher] = {}
        self._failed: dict[int, RemoteError] = {}
        self._finished: set[int] = set()  # runs whose iterable dataset has ended here
        self._init_error: RemoteError | None = None

    def serve(self, control: _Control) -> None:
        """Do what comes in until the control thread says that it is over."""
        if self._spec.worker_init_fn is not None:
            try:
                self._spec.worker_init_fn(self._id)
            except Exception as error:
                self._init_error = RemoteError.of(error, self._where)
        while (frame := control.inbox.get()) is not None and not control.stopping:
            kind, run, number = unpack_header(frame[0])
            if kind is Kind.BEGIN:
                self._begin(run, eager=bool(number))
            elif kind is Kind.END:
                self._fetchers.pop(run, None)
                self._failed.pop(run, None)
                self._finished.discard(run)
                control.ended_runs.discard(run)
            elif run not in control.ended_runs and run not in self._finished:
                self._work(run, number, frame)

    def _begin(self, run: int, *, eager: bool) -> None:
        """Make the fetcher of a run; ``eager``: an iterable dataset is iterated now, not at the first task."""
        spec = self._spec
        fetcher = make_fetcher(
            spec.dataset,
            batched=spec.batched,
            collate_fn=spec.collate_fn,
            drop_last=spec.drop_last,
            worker=self._id,
        )
        self._fetchers[run] = fetcher
        if eager and isinstance(fetcher, IterableFetcher) and self._init_error is None:
            try:
                fetcher.start(None)
            except Exception as error:
                self._failed[run] = RemoteError.of(error, self._where)

    def _work(self, run: int, number: int, frame: Frame) -> None:
        failed = self._init_error or self._failed.get(run)
        if failed is not None:
            self._send([pack_header(Kind.ERROR, run, number), *encode(failed)])
            return
        fetcher = self._fetchers[run]
        try:
            payload = [pack_header(Kind.RESULT, run, number), *encode(fetcher.fetch(decode(frame[1:])))]
        except StopIteration as error:
            if isinstance(fetcher, IterableFetcher):
                self._finished.add(run)
                payload = [pack_header(Kind.ENDED, run, number)]
            else:
                payload = self._error(error, run, number)
        except Exception as error:
            payload = self._error(error, run, number)
        self._send(payload)

    def _error(self, error: Exception, run: int, number: int) -> list[Buffer]:
        return [pack_header(Kind.ERROR, run, number), *encode(RemoteError.of(error, self._where))]
