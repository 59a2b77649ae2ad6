"""The life of a worker process: take tasks, make batches, send them, and end when told or orphaned.

NOTE [Three threads of a worker]
    main     fetches and collates; nothing but the user's code can hold it up
    control  reads the pipe of tasks, so that STOP and END are heard while a sample is being made, and
             watches the main process: when that is gone, this process goes at once (os._exit), whatever
             the user's code is doing
    sender   writes what the pipe of results did not take at once, so that a batch that the consumer has not
             yet taken does not keep the next one from being made
"""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import NamedTuple

import torch
from torch.utils.data import IterableDataset
from torch.utils.data._utils import worker as torch_worker

from lit_loader.engine.fetch import Fetcher, IterableFetcher
from lit_loader.engine.inbox import Inbox
from lit_loader.engine.messages import Header, Kind, pack_header, unpack_header, unpack_task
from lit_loader.engine.outbox import Outbox
from lit_loader.engine.remote import RemoteError
from lit_loader.engine.spec import WorkerSpec
from lit_loader.seeding import seed_worker
from lit_loader.transport import Buffer, Frame, FrameReader, encode

__all__ = ["MainProcess", "worker_main"]

_ORPHAN_EXIT_CODE = 1
_ORPHAN_POLL_MS = 500  # where the kernel has no pidfd


class MainProcess(NamedTuple):
    """The process whose end ends the workers.

    Attributes:
        pid: Its number.
        is_parent: Whether it started the workers itself (not so under forkserver).
    """

    pid: int
    is_parent: bool


def worker_main(
    spec: WorkerSpec,
    worker_id: int,
    main: MainProcess,
    tasks: Connection,
    results: Connection,
    queue: socket.socket | None,
) -> None:
    """Run a worker until it is told to stop.

    Args:
        spec: What all workers have in common.
        worker_id: This one's number.
        main: Whose end is this one's.
        tasks: Where the main process speaks to this worker.
        results: Where this worker answers.
        queue: Where any idle worker takes tasks; None: there is no such place.

    Runs in: a worker process, as its target.
    """
    # Handlers that the main process set (Lightning's among them) are not for this process: the terminal's
    # Ctrl-C is the main process's to handle, and it tells the workers; a SIGTERM ends this one.
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    control = _Control(tasks.fileno(), main, Inbox(queue))
    threading.Thread(target=control.listen, name="lit_loader-control", daemon=True).start()
    outbox = Outbox(results.fileno())
    seed = seed_worker(spec.base_seed, worker_id)
    torch_worker._worker_info = torch_worker.WorkerInfo(
        id=worker_id, num_workers=spec.num_workers, seed=seed, dataset=spec.dataset
    )
    _Worker(spec, worker_id, outbox.send).serve(control)


class _Control:
    """The control thread: see NOTE [Three threads of a worker]."""

    def __init__(self, tasks_fd: int, main: MainProcess, inbox: Inbox) -> None:
        self._reader = FrameReader(tasks_fd)
        self._main, self.inbox = main, inbox
        self._live: set[int] = set()
        self._last_begun = -1

    def has_ended(self, run: int) -> bool:
        """Whether a run is over; a task of one that has not begun was faster than the word that it begins."""
        return run <= self._last_begun and run not in self._live

    def listen(self) -> None:
        """Sort what the main process says until it says STOP or is gone."""
        poller = select.poll()
        os.set_blocking(self._reader.fd, False)
        poller.register(self._reader.fd, select.POLLIN)
        orphaned = self._watch_main(poller)
        while not self.inbox.stopping:
            events = poller.poll(_ORPHAN_POLL_MS if orphaned is not None else None)
            if (orphaned is not None and orphaned()) or any(fd != self._reader.fd for fd, _ in events):
                os._exit(_ORPHAN_EXIT_CODE)
            try:
                while (frame := self._reader.receive()) is not None:
                    self._sort(frame)
            except EOFError:
                self.inbox.stop()

    def _watch_main(self, poller: select.poll) -> Callable[[], bool] | None:
        """Register the main process's end with the poller, or return a test of it where that cannot be."""
        pid = self._main.pid
        if self._main.is_parent and os.getppid() != pid:
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
            self.inbox.stop()
            return
        if header.kind is Kind.BEGIN:
            self._live.add(header.run)
            self._last_begun = header.run  # runs are numbered in the order in which they begin
        elif header.kind is Kind.END:
            self._live.discard(header.run)
        self.inbox.put(frame)


class _Worker:
    """The main thread of a worker: see NOTE [Three threads of a worker]."""

    def __init__(self, spec: WorkerSpec, worker_id: int, send: Callable[[list[Buffer]], None]) -> None:
        self._spec, self._id, self._send = spec, worker_id, send
        self._where = f"in DataLoader worker process {worker_id}"
        self._map_fetcher = None if isinstance(spec.dataset, IterableDataset) else spec.fetcher(worker_id)
        self._streams: dict[int, IterableFetcher] = {}  # one for each pass over an iterable dataset
        self._failed: dict[int, RemoteError] = {}  # passes whose ``iter(dataset)`` failed
        self._finished: set[int] = set()  # runs whose iterable dataset has ended here
        self._init_error: RemoteError | None = None

    def serve(self, control: _Control) -> None:
        """Do what comes in until the control thread says that it is over."""
        if self._spec.worker_init_fn is not None:
            try:
                self._spec.worker_init_fn(self._id)
            except Exception as error:
                self._init_error = RemoteError.of(error, self._where)
        while (frame := control.inbox.get()) is not None:
            header = unpack_header(frame[0])
            if header.kind is Kind.BEGIN:
                self._begin(header.run, eager=bool(header.number))
            elif header.kind is Kind.END:
                self._streams.pop(header.run, None)
                self._failed.pop(header.run, None)
                self._finished.discard(header.run)
            elif not control.has_ended(header.run) and header.run not in self._finished:
                self._work(header, frame)

    def _begin(self, run: int, *, eager: bool) -> None:
        """Begin a pass; ``eager``: an iterable dataset is iterated now, not at the first task."""
        if self._map_fetcher is not None:
            return
        fetcher = self._spec.fetcher(self._id)
        assert isinstance(fetcher, IterableFetcher)
        self._streams[run] = fetcher
        if eager and self._init_error is None:
            try:
                fetcher.start(None)
            except Exception as error:
                self._failed[run] = RemoteError.of(error, self._where)

    def _work(self, header: Header, frame: Frame) -> None:
        _, run, number, piece, _ = header
        failed = self._init_error or self._failed.get(run)
        if failed is not None:
            self._send([pack_header(Kind.ERROR, run, number, piece), *encode(failed)])
            return
        fetcher: Fetcher = self._map_fetcher or self._streams[run]
        start = time.perf_counter()
        try:
            task = unpack_task(frame)
            samples = fetcher.samples(task)
            seconds = time.perf_counter() - start
            made = fetcher.collate(samples, task.key) if task.whole else samples
            answer = [pack_header(Kind.RESULT, run, number, piece, seconds), *encode(made)]
        except StopIteration as error:
            if isinstance(fetcher, IterableFetcher):
                self._finished.add(run)
                answer = [pack_header(Kind.ENDED, run, number, piece)]
            else:
                answer = self._error(error, run, number, piece)
        except Exception as error:
            answer = self._error(error, run, number, piece)
        self._send(answer)

    def _error(self, error: Exception, run: int, number: int, piece: int) -> list[Buffer]:
        return [pack_header(Kind.ERROR, run, number, piece), *encode(RemoteError.of(error, self._where))]
