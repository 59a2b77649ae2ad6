"""The backend of worker threads: batches are passed as objects, without a copy.

Samples are made in parallel while their code releases the GIL. Each thread has a worker info, a seed and, through a
`ThreadScope`, a torch generator of its own. Intra-op parallelism is off in it, as in a worker process. All threads use
the same dataset object.
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
from lit_loader.engine.fetch import Fetcher, warn_of_dataset
from lit_loader.engine.parts import SeedFn
from lit_loader.engine.scheduler import Backend, check_workers
from lit_loader.engine.spec import Kind, Message, Result, Task, WorkerSpec
from lit_loader.engine.worker import Worker
from lit_loader.engine.worker_process import WORKER_NAME, shortages_explained
from lit_loader.foundation.stage_times import StageClock, WorkTimes
from lit_loader.memory import batch_memory
from lit_loader.seeding import SharedDrawCheck, ThreadScope, set_worker_info

_GRACE_S = 5.0
_READY_S = 1.0  # how long the first task waits for every worker's ``worker_init_fn``, which may draw

_Item: TypeAlias = tuple[Message, Task | None]


class EpochResults:
    """Results of one epoch, between the worker threads and its consumer.

    Attributes:
        queue: Results that the consumer has not taken.
        signal: Wakes the consumer.
        is_awaited: True while the consumer waits.
        awaited_task: Number of the task whose result the consumer waits for, or None for any.
    """

    def __init__(self) -> None:
        self.queue: deque[Result] = deque()
        self.signal: SimpleQueue[None] = SimpleQueue()
        self.is_awaited = False
        self.awaited_task: int | None = None
        # More than one if a signal handler asks for a batch during a wait.
        self._num_waits = 0

    def put(self, result: Result) -> None:
        """Add a result, and wake the consumer if it waits for this one."""
        self.queue.append(result)
        if self.is_awaited and self._ends_wait(result):
            self.is_awaited = False
            self.signal.put(None)

    def _ends_wait(self, result: Result) -> bool:
        return self.awaited_task in (None, result.number) or result.kind is Kind.STREAM_ENDED

    def wait(self, timeout_s: float | None, task_number: int | None) -> None:
        """Wait until the result of a task may be there."""
        self._num_waits += 1
        try:
            self.awaited_task = task_number
            self.is_awaited = True
            # Look after setting `is_awaited`: a thread that added the result before that has not woken the consumer.
            if timeout_s != 0.0 and not any(map(self._ends_wait, tuple(self.queue))):
                with contextlib.suppress(Empty):
                    self.signal.get(timeout=timeout_s)
        finally:
            self.is_awaited = False
            self._num_waits -= 1
            if self._num_waits > 0:
                # This wait was in a signal handler and has interrupted another one, which must look again.
                self.signal.put(None)


class ThreadPoolState:
    """The state that the threads of a backend and its consumers share.

    Attributes:
        tasks: The queue of each thread; the same queue for all, if any thread may take any task.
        results: By epoch.
        started: Released once by each thread when it has set itself up.
        ready: Released once by each thread after its ``worker_init_fn``.
        stopping: True when the threads are to end.
        num_submitted: How many tasks the threads were given.
        num_answered: How many tasks the threads have finished.
        failure: The exception that ended a worker unexpectedly, or None.
        warned: Acquired for good by the thread that warns of the dataset.
        stacks: Memory of batches.
    """

    def __init__(self, spec: WorkerSpec) -> None:
        count = spec.num_workers
        self.tasks: list[SimpleQueue[_Item | None]] = (
            [SimpleQueue()] * count if spec.shared_tasks else [SimpleQueue() for _ in range(count)]
        )
        self.results: dict[int, EpochResults] = {}
        self.started = threading.Semaphore(0)
        self.ready = threading.Semaphore(0)
        self.stopping = False
        self.num_submitted = 0
        self.num_answered = 0
        self.failure: BaseException | None = None
        self.warned = threading.Lock()
        self.stacks = StackPool(count)

    def stop(self) -> None:
        """Let every thread end after its present sample, and wake every consumer."""
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
        scope: Context around a task's samples, in which torch draws from this thread's generator.
    """

    # Send every exception of user code to the consumer: one that only ends a thread would be lost.
    caught: type[BaseException] = BaseException

    def __init__(
        self, state: ThreadPoolState, spec: WorkerSpec, worker_id: int, scope: AbstractContextManager[Any]
    ) -> None:
        self.where = f"in DataLoader worker thread {worker_id}"
        self.seed: SeedFn = ThreadScope.seed_for
        self._state = state
        self._id = worker_id
        self._scope = scope
        self._builtin_collate = spec.fetch.builtin_collate
        self._checked_epoch = spec.fetch.checked_epoch
        self._is_map = not isinstance(spec.fetch.dataset, IterableDataset)
        self._stacks = spec.fetch.batched and stacks_samples(spec.fetch.collate_fn)

    def receive(self) -> tuple[Message, Any] | None:
        """Wait for the next message and return it with its task, or None when the worker is to stop."""
        item = self._state.tasks[self._id].get()
        return None if self._state.stopping else item

    def has_ended(self, epoch: int) -> bool:
        """Return True if the consumer has dropped an epoch."""
        return epoch not in self._state.results

    def user_code(self) -> AbstractContextManager[Any]:
        """Return the context around a task's samples."""
        return self._scope

    def ready(self) -> None:
        """Note that ``worker_init_fn`` is done."""
        self._state.ready.release()

    def make(self, fetcher: Fetcher, message: Message, contents: Any, clock: StageClock | None) -> Any:
        """Return a task's batch."""
        task: Task = contents
        if not self._stacks:
            with self._scope:
                samples = fetcher.samples(task)
            if clock is not None:
                clock.start_collating(task.number, fetcher.count(samples, task))
            with self._collate_scope(task):
                return fetcher.collate(samples, task.key)
        stack = SampleStack(len(task.index), self._state.stacks)
        # Not for an iterable dataset: the frame of its generator may keep the last sample, and so its row.
        with self._scope, batch_memory.using(stack if self._is_map else None):
            samples = fetcher.samples(task, move=stack.moved)
        stack.end_samples()
        if clock is not None:
            clock.start_collating(task.number, fetcher.count(samples, task))
        with self._collate_scope(task), batch_memory.using(stack):
            return fetcher.collate(samples, task.key)

    def _collate_scope(self, task: Task) -> AbstractContextManager[Any]:
        """Return the context for collating: none if nothing can draw, because the scope makes torch calls slower."""
        # The fetcher makes the samples of that epoch again to check them.
        checks_samples = task.key is not None and task.key.epoch == self._checked_epoch
        return contextlib.nullcontext() if self._builtin_collate and not checks_samples else self._scope

    def warn(self, text: str) -> None:
        """Warn of a dataset that draws from a generator of its own."""
        if self._state.warned.acquire(blocking=False):
            warn_of_dataset(text)

    def send(self, kind: Kind, message: Message, contents: Any = None, times: WorkTimes | None = None) -> None:
        """Pass a result to the consumer."""
        self._state.num_answered += 1
        results = self._state.results.get(message.epoch)
        if results is not None and kind is not Kind.SKIPPED:
            results.put(Result(kind, message.number, self._id, contents, times))


def _work(state: ThreadPoolState, spec: WorkerSpec, worker_id: int) -> None:
    """Run a worker thread until it is to stop; its target."""
    try:
        try:
            # torch sets its default number for a thread at the first call, which would undo the 1 later.
            torch.get_num_threads()
            torch.set_num_threads(1)
            set_worker_info(worker_id, spec.num_workers, base_seed=spec.base_seed, dataset=spec.fetch.dataset)
            scope = ThreadScope(spec.base_seed + worker_id)
            is_map = not isinstance(spec.fetch.dataset, IterableDataset)
        finally:
            state.started.release()
        if is_map:
            Worker(spec, worker_id, ThreadLink(state, spec, worker_id, scope)).run()
            return
        # A stream may hold a mode of torch's across its samples. The scope stays below it, because leaving the scope
        # after a sample would end the stream's mode instead.
        with scope:
            Worker(spec, worker_id, ThreadLink(state, spec, worker_id, contextlib.nullcontext())).run()
    except BaseException as error:
        # The consumers raise this; otherwise they would never stop waiting.
        state.failure = error
        state.stop()


class ThreadBackend(Backend):
    """Worker threads; see `lit_loader.engine.scheduler.Backend`.

    Args:
        spec: The same for all workers.

    Owns: the threads. They end when the backend is closed, when it is collected and at the interpreter's exit. A thread
        that does not finish its sample within five seconds continues alone, because threads cannot be killed.

    Raises:
        RuntimeError: If the system refuses to start so many threads.
    """

    def __init__(self, spec: WorkerSpec) -> None:
        super().__init__(spec)
        state = ThreadPoolState(spec)
        threads = [
            threading.Thread(target=_work, args=(state, spec, n), name=f"{WORKER_NAME}-{n}", daemon=True)
            for n in range(spec.num_workers)
        ]
        self._state = state
        self._threads = threads
        self._draw_check: SharedDrawCheck | None = None
        self._tasks_elsewhere: int | None = None
        self._close = weakref.finalize(self, _end, state, threads, self._owner_pid)
        # ``torch.set_num_threads`` sets the number of intra-op threads both of the calling thread and of new threads.
        # Threads that serve no other purpose read the latter number and restore it.
        with _starting, shortages_explained(spec.num_workers):
            intra_op = _in_new_thread(torch.get_num_threads)
            try:
                for thread in threads:
                    thread.start()
                for _ in threads:
                    state.started.acquire()
            finally:
                _in_new_thread(partial(torch.set_num_threads, intra_op))
        global _pools
        _pools = [*(reference for reference in _pools if reference() is not None), weakref.ref(state)]

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
        # Only an iterable dataset begins and ends in every worker.
        if not self._shared:
            for queue in self._state.tasks:
                queue.put((message, None))

    def submit(self, epoch: int, number: int, task: Task, worker: int | None, *, is_measured: bool = False) -> None:
        """Give a task to a worker, or to any idle one."""
        if self._state.num_submitted == 0 and self._keyed:
            self._begin_draw_check()
        self._state.num_submitted += 1
        kind = Kind.MEASURED_TASK if is_measured else Kind.TASK
        self._state.tasks[worker or 0].put((Message(kind, epoch, number), task))

    def poll(self, epoch: int, timeout_s: float | None, number: int | None = None) -> deque[Result]:
        """Return the finished results of an epoch when task ``number`` is among them, or after the timeout.

        Raises:
            RuntimeError: If a worker failed, or if the workers were closed.
        """
        results = self._state.results.get(epoch)
        if results is None:
            # Another thread has closed the epoch.
            return deque()
        results.wait(timeout_s, number)
        self.check_usable()
        if self._draw_check is not None and results.queue and timeout_s != 0.0:
            self._end_draw_check()
        return results.queue

    def _begin_draw_check(self) -> None:
        """Note the states of the process-wide generators before the first task, unless something else may draw."""
        deadline = time.monotonic() + _READY_S
        for _ in range(self.num_workers):
            if not self._state.ready.acquire(timeout=max(deadline - time.monotonic(), 0)):
                # A ``worker_init_fn`` is still running, and may draw as it likes.
                return
        tasks = _count_other_tasks(self._state)
        if tasks is not None:
            self._tasks_elsewhere = tasks
            self._draw_check = SharedDrawCheck()

    def _end_draw_check(self) -> None:
        """Warn if a generator has changed and no worker thread of another loader can have drawn."""
        check = self._draw_check
        self._draw_check = None
        if check is not None and _count_other_tasks(self._state) == self._tasks_elsewhere:
            check.warn()

    def open(self, result: Result) -> Any:
        """Return the batch in a result, or raise the worker's error."""
        if result.kind is Kind.ERROR:
            result.payload.reraise(keyed=self._keyed)
        return result.payload


# A list that is replaced and never changed, so that any thread may read it.
_pools: list[weakref.ref[ThreadPoolState]] = []


def _count_other_tasks(state: ThreadPoolState) -> int | None:
    """Return how many tasks other worker threads have ever had, or None if one may be at work now."""
    pools = [reference() for reference in _pools]
    other_pools = [pool for pool in pools if pool is not None and pool is not state and not pool.stopping]
    if any(pool.num_submitted != pool.num_answered for pool in other_pools):
        return None
    return sum(pool.num_submitted for pool in other_pools)


def _in_new_thread(function: Callable[[], Any]) -> Any:
    """Call a function in a new thread and return its result; unlike a thread pool, this works at interpreter exit."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(function()), daemon=True)
    thread.start()
    thread.join()
    return results[0]


def _end(state: ThreadPoolState, threads: list[threading.Thread], owner_pid: int) -> None:
    if os.getpid() != owner_pid:
        return
    state.stop()
    # In a fork of a worker this is the main thread.
    current = threading.current_thread()
    if current is not threading.main_thread() and current.name.startswith(WORKER_NAME):
        # Collected in a worker: joining others, which may wait for this one, could be a deadlock.
        return
    deadline = time.monotonic() + _GRACE_S
    for thread in threads:
        if thread.ident is not None:
            thread.join(max(deadline - time.monotonic(), 0))


# Held while a backend starts: another backend would mistake the 1 of its workers for the setting of the process.
_starting = threading.Lock()


def _after_fork() -> None:
    global _starting, _pools
    # The threads of the parent, which may hold the lock, do not exist here.
    _starting = threading.Lock()
    _pools = []


if hasattr(os, "register_at_fork"):  # a platform without it has no fork
    os.register_at_fork(after_in_child=_after_fork)
