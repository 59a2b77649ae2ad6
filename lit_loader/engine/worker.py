"""The life of a worker process: take tasks, make batches, send them, and end when told or orphaned.

NOTE [Three threads of a worker]
    main     takes tasks, fetches and collates; nothing but the user's code can hold it up
    control  reads a pipe of its own, so that STOP and END are heard while a sample is being made, and
             watches the main process: when that is gone, this process goes at once (os._exit), whatever
             the user's code is doing
    sender   writes what the pipe of results did not take at once, so that a batch that the consumer has not
             yet taken does not keep the next one from being made
"""

from __future__ import annotations

import faulthandler
import signal
import socket
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch.utils.data import IterableDataset
from torch.utils.data._utils import worker as torch_worker

from lit_loader import batch_memory
from lit_loader.engine.control import Control, MainProcess
from lit_loader.engine.desk import Desk
from lit_loader.engine.fetch import Fetcher, IterableFetcher
from lit_loader.engine.inbox import Inbox
from lit_loader.engine.messages import Header, Kind, pack_header, unpack_header, unpack_task
from lit_loader.engine.outbox import Outbox
from lit_loader.engine.remote import RemoteError
from lit_loader.engine.spec import WorkerSpec
from lit_loader.engine.task import Task
from lit_loader.engine.unsendable import not_sent
from lit_loader.engine.worker_memory import keep_freed_memory, leave_inherited_memory
from lit_loader.seeding import EpochKeys, Moment, seed_process, seed_worker
from lit_loader.transport import Buffer, Frame, MemoryFile, Place, Placing, SlotKeptError, SlotWriter, encode

__all__ = ["worker_main"]


def worker_main(
    spec: WorkerSpec,
    worker_id: int,
    main: MainProcess,
    orders: Connection,
    tasks: Connection,
    results: Connection,
    queue: socket.socket | None,
    memory: MemoryFile | None,
    desk: Desk | None,
) -> None:
    """Run a worker until it is told to stop.

    Args:
        spec: What all workers have in common.
        worker_id: This one's number.
        main: Whose end is this one's.
        orders: Where the main process says STOP, and END of what this worker may be busy with.
        tasks: Where it gives this worker tasks of its own.
        results: Where this worker answers.
        queue: Where any idle worker takes tasks; None: there is no such place.
        memory: Where batches go; None: by pipe.
        desk: Where it notes since when it has been at a sample; None: nobody looks.

    Runs in: a worker process, as its target.
    """
    # Handlers that the main process set (Lightning's among them) are not for this process: the terminal's
    # Ctrl-C is the main process's to handle, and it tells the workers; a SIGTERM ends this one.
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if desk is not None:
        _write_stacks_on_request(desk.stacks_fd)
        desk.begin(worker_id)  # with the user's worker_init_fn
    torch.set_num_threads(1)
    keep_freed_memory()
    leave_inherited_memory()
    control = Control(orders.fileno(), main, Inbox(tasks.fileno(), queue))
    threading.Thread(target=control.listen, name="lit_loader-control", daemon=True).start()
    outbox = Outbox(results.fileno())
    seed = seed_worker(spec.base_seed, worker_id)
    torch_worker._worker_info = torch_worker.WorkerInfo(
        id=worker_id, num_workers=spec.num_workers, seed=seed, dataset=spec.dataset
    )
    _Worker(spec, worker_id, outbox.send, memory, desk).serve(control)


def _write_stacks_on_request(fd: int) -> None:
    """Let faulthandler write the stacks of all threads at SIGUSR2: in C, whatever holds the interpreter up."""
    if hasattr(faulthandler, "register"):
        faulthandler.register(signal.SIGUSR2, file=fd, all_threads=True)


class _Worker:
    """The main thread of a worker: see NOTE [Three threads of a worker]."""

    def __init__(
        self,
        spec: WorkerSpec,
        worker_id: int,
        send: Callable[[list[Buffer]], None],
        memory: MemoryFile | None,
        desk: Desk | None,
    ) -> None:
        self._spec, self._id, self._send, self._desk = spec, worker_id, send, desk
        self._where = f"in DataLoader worker process {worker_id}"
        self._writer = None if memory is None else SlotWriter(memory, joins=spec.own_collate)
        self._placing = None if self._writer is None else Placing(self._writer)
        self._map_fetcher = None if isinstance(spec.dataset, IterableDataset) else self._new_fetcher()
        self._streams: dict[int, IterableFetcher] = {}  # one for each pass over an iterable dataset
        self._failed: dict[int, RemoteError] = {}  # passes whose ``iter(dataset)`` failed
        self._finished: set[int] = set()  # runs whose iterable dataset has ended here
        self._init_error: RemoteError | None = None

    def serve(self, control: Control) -> None:
        """Do what comes in until the control thread says that it is over."""
        if self._spec.worker_init_fn is not None:
            try:
                self._spec.worker_init_fn(self._id)
            except Exception as error:
                self._init_error = RemoteError.of(error, self._where)
        self._rest()
        while (frame := control.inbox.get()) is not None:
            header = unpack_header(frame[0])
            if header.kind is Kind.BEGIN:
                self._begin(header.run, eager=bool(header.number))
                self._rest()
            elif header.kind is Kind.END:
                self._streams.pop(header.run, None)
                self._failed.pop(header.run, None)
                self._finished.discard(header.run)
            elif header.kind is Kind.REPORT:  # all that was taken before is answered
                self._send([pack_header(Kind.REPORTED, *header[1:])])
            elif control.has_ended(header.run) or header.run in self._finished:
                self._send([pack_header(Kind.SKIPPED, *header[1:])])
            else:
                if self._desk is not None:
                    self._desk.begin(self._id)
                self._send(self._answer(header, frame))
                self._rest()
                del frame  # the next one may be long in coming

    def _rest(self) -> None:
        if self._desk is not None:
            self._desk.rest(self._id)

    def _aim(self, keys: EpochKeys, moment: Moment, a: int, b: int = 0) -> None:
        """Seed this process for a sample, which it begins with."""
        assert self._desk is not None
        self._desk.begin(self._id)
        seed_process(keys, moment, a, b)

    def _new_fetcher(self) -> Fetcher:
        settings: dict[str, Any] = {} if self._placing is None else {"place": self._placing}
        if self._desk is not None:
            settings["aim"] = self._aim
        return self._spec.fetcher(self._id, **settings)

    def _begin(self, run: int, *, eager: bool) -> None:
        """Begin a pass; ``eager``: an iterable dataset is iterated now, not at the first task."""
        if self._map_fetcher is not None:
            return
        fetcher = self._new_fetcher()
        assert isinstance(fetcher, IterableFetcher)
        self._streams[run] = fetcher
        if eager and self._init_error is None:
            if self._desk is not None:
                self._desk.begin(self._id)
            try:
                fetcher.start(None)
            except Exception as error:
                self._failed[run] = RemoteError.of(error, self._where)

    def _answer(self, header: Header, frame: Frame) -> list[Buffer]:
        """Return the answer to a task."""
        failed = self._init_error or self._failed.get(header.run)
        if failed is not None:
            return _error(header, failed)
        try:
            task = unpack_task(frame)
            if header.slot < 0 or self._writer is None or self._placing is None:
                return self._make(header, task)
            try:
                rows = task.index
                num_rows = len(rows) if isinstance(rows, (list, tuple, range)) else 0
                self._placing.open(Place(header.slot, num_rows))
                with batch_memory.using(self._writer):
                    return self._make(header, task)
            finally:
                self._placing.close()
        except SlotKeptError as error:
            return _error(
                header._replace(slot=-1), RemoteError.of(error, self._where)
            )  # it is not given back
        except StopIteration as error:
            if self._map_fetcher is None:
                self._finished.add(header.run)
                return [pack_header(Kind.ENDED, *header[1:]), *encode(self._streams[header.run].end())]
            return _error(header, RemoteError.of(error, self._where))
        except Exception as error:
            return _error(header, RemoteError.of(error, self._where))

    def _make(self, header: Header, task: Task) -> list[Buffer]:
        """Return the answer to a task that has a result."""
        fetcher: Fetcher = self._map_fetcher or self._streams[header.run]
        with batch_memory.using(None if self._map_fetcher is None else batch_memory.current()):
            # a generator would hold on to its last sample, and so to the slot
            samples = fetcher.samples(task)
        made = fetcher.collate(samples, task.key)
        del samples
        try:
            answer = encode(made, None if header.slot < 0 or self._writer is None else self._writer.name)
        except MemoryError:
            raise
        except Exception as error:
            raise not_sent(made, header, error) from error
        return [pack_header(Kind.RESULT, *header[1:]), *answer]


def _error(header: Header, error: RemoteError) -> list[Buffer]:
    return [pack_header(Kind.ERROR, *header[1:]), *encode(error)]
