"""The life of a worker thread: take tasks, make batches, hand them over, end when told."""

from __future__ import annotations

import threading
import weakref
from contextlib import ExitStack
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeAlias

import torch
from torch.utils.data import IterableDataset

from lit_loader.engine.draw_check import DrawCheck
from lit_loader.engine.fetch import Fetcher, IterableFetcher
from lit_loader.engine.messages import Header, Kind
from lit_loader.engine.pool import Receiver
from lit_loader.engine.remote import RemoteError
from lit_loader.engine.spec import WorkerSpec
from lit_loader.engine.task import Task
from lit_loader.seeding import ThreadScope, WorkerRng, functions_answer_for_threads, set_worker_info

__all__ = ["Shop", "work"]

_Item: TypeAlias = tuple[Header, Any]


class Shop:
    """What the threads of a pool and their consumers share.

    Attributes:
        queues: Where each thread finds its tasks; the same queue for all, if any may take any.
        lock: Guards the runs.
        runs: The passes that are alive, by number.
        num_waiting: Consumers that wait now; roughly, as nobody guards it.
        started: Released once by each thread when it has set itself up.
        check: Looks whether the dataset draws from generators that threads share; None: that does no harm.
        intra_op: With how many threads torch's operators work in threads to come.
        failure: What ended a worker that was not to end.
    """

    def __init__(self, num_workers: int, *, shared: bool, check_draws: bool) -> None:
        if shared:
            self.queues: list[SimpleQueue[_Item | None]] = [SimpleQueue()] * num_workers
        else:
            self.queues = [SimpleQueue() for _ in range(num_workers)]
        self.lock = threading.RLock()
        self.runs: weakref.WeakValueDictionary[int, Receiver] = weakref.WeakValueDictionary()
        self.num_waiting = 0
        self.started = threading.Semaphore(0)
        self.stopping = False
        self.check = DrawCheck(num_workers, lambda: self.num_waiting > 0) if check_draws else None
        self.intra_op: int | None = None
        self.failure: BaseException | None = None

    def stop(self) -> None:
        """Let every thread end after the sample in hand, and every consumer look up."""
        self.stopping = True
        for queue in self.queues:
            queue.put(None)
        for run in list(self.runs.values()):
            wake(run)

    def fail(self, error: BaseException) -> None:
        """A worker cannot go on: let the consumers know, who would wait for ever."""
        self.failure = error
        self.stop()


def wake(run: Receiver) -> None:
    """Let the consumers that wait for a pass look again."""
    for _ in range(run.num_waiting):
        run.signal.put(None)
    run.num_waiting = 0


def work(shop: Shop, spec: WorkerSpec, worker_id: int) -> None:
    """Run a worker until it is told to stop.

    Runs in: a worker thread, as its target.
    """
    try:
        with ExitStack() as until_the_end:
            try:
                until_the_end.enter_context(functions_answer_for_threads())
                scope = _set_up(shop, spec, worker_id)
            finally:
                shop.started.release()
            _ThreadWorker(shop, spec, worker_id, scope).serve()
    except BaseException as error:
        shop.fail(error)


def _set_up(shop: Shop, spec: WorkerSpec, worker_id: int) -> ThreadScope:
    """Make this thread a worker; return the scope of its draws."""
    with shop.lock:
        intra_op = (
            torch.get_num_threads()
        )  # also makes what torch would otherwise make later, over our setting
        if shop.intra_op is None:
            shop.intra_op = intra_op  # the others may find what the first one sets
    torch.set_num_threads(1)
    seed = spec.base_seed + worker_id
    scope = ThreadScope(seed)
    set_worker_info(
        id=worker_id,
        num_workers=spec.num_workers,
        seed=seed,
        dataset=spec.dataset,
        rng=WorkerRng(scope, spec.base_seed, worker_id),
        worker_method="thread",
    )
    return scope


class _ThreadWorker:
    def __init__(self, shop: Shop, spec: WorkerSpec, worker_id: int, scope: ThreadScope) -> None:
        self._shop, self._spec, self._id, self._scope = shop, spec, worker_id, scope
        self._where = f"in DataLoader worker thread {worker_id}"
        self._queue = shop.queues[worker_id]
        self._map_fetcher = None if isinstance(spec.dataset, IterableDataset) else self._new_fetcher()
        self._streams: dict[int, Fetcher] = {}
        self._failed: dict[int, RemoteError] = {}  # passes whose ``iter(dataset)`` failed
        self._finished: set[int] = set()  # passes whose iterable dataset has ended here
        self._init_error: RemoteError | None = None

    def _new_fetcher(self) -> Fetcher:
        return self._spec.fetcher(self._id, aim=self._scope.aim)

    def serve(self) -> None:
        """Do what comes in until it is over."""
        shop = self._shop
        if self._spec.worker_init_fn is not None:
            try:
                with self._scope:
                    self._spec.worker_init_fn(self._id)
            except BaseException as error:
                self._init_error = RemoteError.of(error, self._where)
        if shop.check is not None:
            shop.check.worker_ready()
        while (item := self._queue.get()) is not None and not shop.stopping:
            header, task = item
            if header.kind is Kind.BEGIN:
                self._begin(header.run)
            elif header.kind is Kind.END:
                self._streams.pop(header.run, None)
                self._failed.pop(header.run, None)
                self._finished.discard(header.run)
            elif header.run in shop.runs and header.run not in self._finished:
                self._work(header, task)
            del item, task  # the next one may be long in coming

    def _begin(self, run: int) -> None:
        """Iterate an iterable dataset now, not at the first task."""
        if self._map_fetcher is not None or self._init_error is not None:
            return
        fetcher = self._streams[run] = self._new_fetcher()
        assert isinstance(fetcher, IterableFetcher)
        try:
            with self._scope:
                fetcher.start(None)
        except BaseException as error:
            self._failed[run] = RemoteError.of(error, self._where)

    def _fetcher(self, run: int) -> Fetcher:
        if self._map_fetcher is not None:
            return self._map_fetcher
        if run not in self._streams:
            self._streams[run] = self._new_fetcher()
        return self._streams[run]

    def _work(self, header: Header, task: Task) -> None:
        shop, fetcher = self._shop, self._fetcher(header.run)
        failed = self._init_error or self._failed.get(header.run)
        if failed is not None:
            self._hand_over(header._replace(kind=Kind.ERROR), failed)
            return
        make = partial(self._make, fetcher, task)
        try:
            check = shop.check
            made = make() if check is None or check.over else check.watch(make)
            kind = Kind.RESULT
        except BaseException as error:
            if isinstance(error, StopIteration) and self._map_fetcher is None:
                self._finished.add(header.run)
                assert isinstance(fetcher, IterableFetcher)
                kind, made = Kind.ENDED, fetcher.end()
            else:
                kind, made = Kind.ERROR, RemoteError.of(error, self._where)
        self._hand_over(header._replace(kind=kind), made)

    def _make(self, fetcher: Fetcher, task: Task) -> Any:
        """Return a task's batch."""
        with self._scope:
            samples = fetcher.samples(task)
            if not self._spec.own_collate:
                return fetcher.collate(samples, task.key)
        return fetcher.collate(samples, task.key)  # draws nothing, and is slower under the scope

    def _hand_over(self, header: Header, made: Any) -> None:
        """Give the pass what was made of a task."""
        shop = self._shop
        with shop.lock:
            run = shop.runs.get(header.run)
            if run is None:
                return
            run.receive(self._id, header, made)
            if run.num_waiting and run.deliverable:
                wake(run)
