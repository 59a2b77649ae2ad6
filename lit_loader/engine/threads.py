"""The backend of worker threads: batches are passed as objects, without a copy.

Samples are made in parallel where their code releases the GIL. Each thread has its own worker info, seed and, through a
`ThreadScope`, torch generator; intra-op parallelism is off in it, as in a worker process. All threads use the same
dataset object.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias

import torch
from torch.utils.data import IterableDataset

from lit_loader.collate.sample_stack import SampleStack, StackPool, stacks_samples
from lit_loader.engine.fetch import Fetcher, SeedFn, warn_of_dataset
from lit_loader.engine.scheduler import Backend, check_workers
from lit_loader.engine.spec import Kind, Message, Result, Task, WorkerSpec
from lit_loader.engine.worker import Worker
from lit_loader.engine.worker_process import WORKER_NAME, shortages_explained
from lit_loader.memory import batch_memory
from lit_loader.seeding import DrawCheck, ThreadScope, set_worker_info

_GRACE_S = 5.0

_Item: TypeAlias = tuple[Message, Task | None]


class EpochResults:
    """Results of one epoch, between the worker threads and its consumer.

    Attributes:
        found: Results that the consumer has not taken.
        signal: Wakes the consumer.
        is_awaited: Whether the consumer waits.
        wanted: Number of the task whose result the consumer waits for, or None for any.
    """

    def __init__(self) -> None:
        self.found: deque[Result] = deque()
        self.signal: SimpleQueue[None] = SimpleQueue()
        self.is_awaited = False
        self.wanted: int | None = None
        self._num_waits = 0  # more than one in a signal handler that asks for a batch

    def put(self, result: Result) -> None:
        """Add a result, and wake the consumer if it waits for this one."""
        self.found.append(result)
        if self.is_awaited and self._is_wanted(result):
            self.is_awaited = False
            self.signal.put(None)

    def _is_wanted(self, result: Result) -> bool:
        return self.wanted in (None, result.number) or result.kind is Kind.STREAM_ENDED

    def wait(self, timeout_s: float | None, wanted: int | None) -> None:
        """Wait until the wanted result may be there."""
        self._num_waits += 1
        try:
            self.wanted, self.is_awaited = wanted, True
            # Looked for after `is_awaited` was set: a thread that added one before that has not woken the consumer.
            if timeout_s != 0.0 and not any(map(self._is_wanted, tuple(self.found))):
                with contextlib.suppress(Empty):
                    self.signal.get(timeout=timeout_s)
        finally:
            self.is_awaited = False
            self._num_waits -= 1
            if self._num_waits > 0:
                self.signal.put(None)  # for the wait that a signal handler has interrupted by this one


class ThreadPoolState:
    """The state that the threads of a backend and its consumers share.

    Attributes:
        tasks: The queue of each thread; the same queue for all, if any thread may take any task.
        results: By epoch.
        num_waiting: How many consumers wait now; only roughly, as no lock guards it.
        started: Released once by each thread when it has set itself up.
        stopping: Whether the threads are to end.
        draw_check: Checks whether the dataset draws from generators that threads share, or None without a seed.
        failure: The exception that ended a worker unexpectedly, or None.
        has_noticed: Acquired for good by the thread that warns of the dataset.
        stacks: Memory of batches.
    """

    def __init__(self, spec: WorkerSpec) -> None:
        count = spec.num_workers
        self.tasks: list[SimpleQueue[_Item | None]] = (
            [SimpleQueue()] * count if spec.shared_tasks else [SimpleQueue() for _ in range(count)]
        )
        self.results: dict[int, EpochResults] = {}
        self.num_waiting = 0
        self.started = threading.Semaphore(0)
        self.stopping = False
        self.draw_check = DrawCheck(count, lambda: self.num_waiting > 0) if spec.keyed else None
        self.failure: BaseException | None = None
        self.has_noticed = threading.Lock()
        self.stacks = StackPool(count)

    def stop(self) -> None:
        """Let every thread end after the sample that it is making, and wake every consumer."""
        self.stopping = True
        for queue in self.tasks:
            queue.put(None)
        for results in list(self.results.values()):
            results.signal.put(None)


class ThreadLink:
    """The `WorkerLink` of a worker thread.

    Args:
        state: Shared by all threads of the backend.
        spec: The same for all workers.
        worker_id: Number of this worker.
        scope: Makes torch draw from this thread's generator.
    """

    # All that user code raises is sent to the consumer: an exception that only ends a thread would be lost.
    caught: type[BaseException] = BaseException

    def __init__(self, state: ThreadPoolState, spec: WorkerSpec, worker_id: int, scope: ThreadScope) -> None:
        self.where = f"in DataLoader worker thread {worker_id}"
        self._state, self._id, self._scope = state, worker_id, scope
        self._is_map = not isinstance(spec.fetch.dataset, IterableDataset)
        self._stacks = spec.fetch.batched and stacks_samples(spec.fetch.collate_fn)
        self.seed: SeedFn = scope.seed_for

    def receive(self) -> tuple[Message, Any] | None:
        """Wait for the next message and return it with its task, or None when the worker is to stop."""
        item = self._state.tasks[self._id].get()
        return None if self._state.stopping else item

    def has_ended(self, epoch: int) -> bool:
        """Whether the consumer has dropped an epoch."""
        return epoch not in self._state.results

    def user_code(self) -> AbstractContextManager[Any]:
        """Return the thread's scope."""
        return self._scope

    def ready(self) -> None:
        """Note that ``worker_init_fn`` is done."""
        if self._state.draw_check is not None:
            self._state.draw_check.worker_ready()

    def make(self, fetcher: Fetcher, message: Message, contents: Any) -> Any:
        """Return a task's batch."""
        check = self._state.draw_check
        if check is None or check.over:
            return self._fetch(fetcher, contents)
        return check.watch(partial(self._fetch, fetcher, contents))

    def _fetch(self, fetcher: Fetcher, task: Task) -> Any:
        stack = SampleStack(len(task.index), self._state.stacks) if self._stacks else None
        with self._scope:
            if stack is None:
                return fetcher.collate(fetcher.samples(task), task.key)
            # Not for an iterable dataset: the frame of its generator may keep the last sample, and so its row.
            with batch_memory.using(stack if self._is_map else None):
                samples = fetcher.samples(task, move=stack.moved)
            stack.end_samples()
            with batch_memory.using(stack):
                return fetcher.collate(samples, task.key)

    def warn(self, text: str) -> None:
        """Warn of a dataset that draws from a generator of its own."""
        if self._state.has_noticed.acquire(blocking=False):
            warn_of_dataset(text)

    def send(self, kind: Kind, message: Message, contents: Any = None) -> None:
        """Pass a result to the consumer."""
        results = self._state.results.get(message.epoch)
        if results is not None and kind is not Kind.SKIPPED:
            results.put(Result(kind, message.number, self._id, contents))


def _work(state: ThreadPoolState, spec: WorkerSpec, worker_id: int) -> None:
    """Run a worker thread until it is to stop; its target."""
    try:
        try:
            torch.get_num_threads()  # makes torch set its default for this thread, which would undo the 1 later
            torch.set_num_threads(1)
            set_worker_info(worker_id, spec.num_workers, base_seed=spec.base_seed, dataset=spec.fetch.dataset)
            link = ThreadLink(state, spec, worker_id, ThreadScope(spec.base_seed + worker_id))
        finally:
            state.started.release()
        Worker(spec, worker_id, link).run()
    except BaseException as error:
        state.failure = error  # raised in the consumers, which would wait for ever otherwise
        state.stop()


class ThreadBackend(Backend):
    """Worker threads; see `lit_loader.engine.scheduler.Backend`.

    Args:
        spec: The same for all workers.

    Owns: the threads. They end when the backend is closed, when it is collected and at the interpreter's exit. A thread
        that does not finish its sample within five seconds is left behind, because threads cannot be killed.

    Raises:
        RuntimeError: If the system refuses as many threads.
    """

    def __init__(self, spec: WorkerSpec) -> None:
        super().__init__(spec)
        state = self._state = ThreadPoolState(spec)
        threads = self._threads = [
            threading.Thread(target=_work, args=(state, spec, n), name=f"{WORKER_NAME}-{n}", daemon=True)
            for n in range(spec.num_workers)
        ]
        self._close = weakref.finalize(self, _end, state, threads, self._owner_pid)
        # ``torch.set_num_threads`` sets both the calling thread's number of intra-op threads and that of new threads,
        # so the latter is asked for and restored in threads that are needed for nothing else.
        with _starting, shortages_explained(spec.num_workers):
            intra_op = _in_new_thread(torch.get_num_threads)
            try:
                for thread in threads:
                    thread.start()
                for _ in threads:
                    state.started.acquire()
            finally:
                _in_new_thread(partial(torch.set_num_threads, intra_op))

    @property
    def workers(self) -> list[Any]:
        """The threads."""
        return list(self._threads)

    def check_usable(self, *, own_process: bool = False) -> None:
        """Raise if the workers cannot be used: see `Backend.check_usable`."""
        failure = self._state.failure
        check_workers(self._owner_pid, are_open=own_process or failure is not None or self._close.alive)
        if failure is not None and not own_process:
            raise RuntimeError("a worker thread of the loader failed") from failure

    def _begin_epoch(self, epoch: int, *, iterate: bool) -> None:
        self._state.results[epoch] = EpochResults()
        if iterate:
            self._send_to_all(Message(Kind.ITERATE, epoch))

    def close_epoch(self, epoch: int) -> None:
        """Drop the tasks and results of an epoch."""
        results = self._state.results.pop(epoch, None)
        if results is not None and self.usable:
            results.signal.put(None)
            self._send_to_all(Message(Kind.END_EPOCH, epoch))

    def _send_to_all(self, message: Message) -> None:
        if not self._shared:  # an iterable dataset begins and ends in every worker; others need no message
            for queue in self._state.tasks:
                queue.put((message, None))

    def submit(self, epoch: int, number: int, task: Task, worker: int | None) -> None:
        """Give a task to a worker, or to any idle one."""
        self.check_usable()
        self._state.tasks[worker or 0].put((Message(Kind.TASK, epoch, number), task))

    def poll(self, epoch: int, timeout_s: float | None, wanted: int | None = None) -> deque[Result]:
        """Return the results of an epoch that are there when the wanted one is, or when the time is over.

        Raises:
            RuntimeError: If a worker failed, or if the workers were closed.
        """
        state = self._state
        results = state.results.get(epoch)
        if results is None:
            return deque()  # another thread has closed the epoch
        state.num_waiting += 1
        try:
            results.wait(timeout_s, wanted)
        finally:
            state.num_waiting -= 1
        self.check_usable()
        return results.found

    def open(self, result: Result) -> Any:
        """Return what a worker made, or raise what it raised."""
        if result.kind is Kind.ERROR:
            result.payload.reraise(keyed=self._keyed)
        return result.payload


def _in_new_thread(function: Callable[[], Any]) -> Any:
    """Return the result of a function in a new thread; pools of threads end with the main thread, and this does not."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(function()), daemon=True)
    thread.start()
    thread.join()
    return results[0]


def _end(state: ThreadPoolState, threads: list[threading.Thread], owner_pid: int) -> None:
    if os.getpid() != owner_pid:
        return
    state.stop()
    current = threading.current_thread()  # the main thread if this is a fork of a worker
    if current is not threading.main_thread() and current.name.startswith(WORKER_NAME):
        return  # collected in a worker: to join others, which may wait for this one, could be a deadlock
    deadline = time.monotonic() + _GRACE_S
    for thread in threads:
        if thread.ident is not None:
            thread.join(max(deadline - time.monotonic(), 0))


# Held while a backend starts: another one would take the 1 of its workers for the process's own setting.
_starting = threading.Lock()


def _after_fork() -> None:
    global _starting  # the thread that holds it may not exist here
    _starting = threading.Lock()


if hasattr(os, "register_at_fork"):  # a platform without it has no fork
    os.register_at_fork(after_in_child=_after_fork)
