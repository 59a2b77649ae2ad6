"""The scheduler of one epoch: which task goes to the workers next, and which result is delivered next.

NOTE [Worker scheduling]
    any idle worker  Any free worker takes the next task. Every sample has a key, so the bits of a batch do not depend
                     on the worker.
    in turns         Worker after worker, as in torch. The worker that makes batch b does not depend on speed, and so
                     neither do its draws from its own generators.
    least busy       The worker with the fewest tasks takes the next one, ties to the lowest number, as in torch with
                     ``in_order=False``.

NOTE [Tasks in flight]
    At most ``ahead`` batches are in flight: tasks given to workers, and results not delivered yet. Each delivered batch
    sends one more task. When the epoch has no more tasks, a second scheduler sends the next epoch's until an
    iterator claims it. Both schedulers together hold no more than ``ahead``.

NOTE [Ready batches]
    How many batches are ready when the consumer asks for one cannot be seen at that time: results may wait in the
    pipes, and reading them early would cost a system call per batch. But each result has the time at which its batch
    was ready. So when a batch is delivered, the number of requests between these two times is added: it was ready at
    each of them. The sum over batches is the sum over requests.
"""

from __future__ import annotations

import abc
import os
import threading
import time
import weakref
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Literal, NoReturn, TypeAlias

from lit_loader.engine.spec import BatchTimeoutError, EndOfEpoch, Kind, Result, Task, WorkerSpec
from lit_loader.engine.stats import Counters

Dealing: TypeAlias = Literal["any", "turns", "least_busy"]


class Backend(abc.ABC):
    """Workers that make batches, threads or processes. They may serve several epochs at a time, each with a number.

    Args:
        spec: The same for all workers.

    Attributes:
        num_workers: Number of workers.
    """

    _close: weakref.finalize[..., Any]

    def __init__(self, spec: WorkerSpec) -> None:
        self.num_workers = spec.num_workers
        self._keyed = spec.keyed
        self._shared = spec.shared_tasks
        self._owner_pid = os.getpid()
        self._next_epoch = 0
        # Reentrant, because a signal handler may also begin an epoch.
        self._lock = threading.RLock()

    @property
    @abc.abstractmethod
    def workers(self) -> list[Any]:
        """The present worker processes or threads. Processes are gone after `close`."""

    @property
    def usable(self) -> bool:
        """True if an epoch can begin here."""
        try:
            self.check_usable()
        except RuntimeError:
            return False
        return True

    @abc.abstractmethod
    def check_usable(self, *, own_process: bool = False) -> None:
        """Raise if the workers cannot be used.

        Raises:
            WorkerDiedError: If a process ended and was not replaced.
            RuntimeError: If they were closed, belong to another process, or a thread failed. With ``own_process``
                only if they belong to another process.
        """

    def open_epoch(self, *, iterate: bool) -> int:
        """Return the number of a new epoch; with ``iterate`` every worker calls ``iter(dataset)`` now."""
        with self._lock:
            self.check_usable()
            epoch = self._next_epoch
            self._next_epoch += 1
            self._begin_epoch(epoch, iterate=iterate)
            return epoch

    @abc.abstractmethod
    def _begin_epoch(self, epoch: int, *, iterate: bool) -> None:
        """Prepare for the results of a new epoch."""

    @abc.abstractmethod
    def submit(self, epoch: int, number: int, task: Task, worker: int | None, *, is_measured: bool = False) -> None:
        """Give task ``number`` of an epoch to a worker, or to any idle one if ``worker`` is None.

        The answer to a measured task has the times of the worker.

        Raises:
            Exception: An error of pickling the task.
        """

    @abc.abstractmethod
    def poll(self, epoch: int, timeout_s: float | None, number: int | None = None) -> deque[Result]:
        """Return the finished results of an epoch, or wait for some.

        Args:
            epoch: Its number.
            timeout_s: How long to wait, or None for no limit. It may return earlier, with or without a result.
            number: Number of the task whose result is needed, or None for any. The backend may continue to wait while
                only others arrive.

        Returns:
            The backend's own queue. The caller stores each result before removing it, so that Ctrl-C in between loses
            none.

        Raises:
            WorkerDiedError: If a worker ended and is not replaced.
            RuntimeError: If the workers were closed, or belong to another process.
        """

    @abc.abstractmethod
    def open(self, result: Result) -> Any:
        """Return the batch in a result, or raise the worker's error."""

    @abc.abstractmethod
    def close_epoch(self, epoch: int) -> None:
        """Drop the tasks and results of an epoch, without a lock, because a finalizer may call this at any time."""

    def close(self) -> None:
        """End the workers. Each may finish its present sample within five seconds."""
        self._close()


def check_workers(owner_pid: int, *, are_open: bool) -> None:
    """Raise a RuntimeError if this process is a fork of the one that started the workers, or they were closed."""
    if owner_pid != os.getpid():
        raise RuntimeError(
            f"this iterator's workers belong to process {owner_pid} and cannot be used from its fork {os.getpid()}; "
            "call iter() on the loader there"
        )
    if not are_open:
        raise RuntimeError("the loader's workers were closed; call iter() on the loader for new ones")


class Scheduler:
    """Deliver the batches of one epoch: see NOTE [Worker scheduling] and NOTE [Tasks in flight].

    Args:
        tasks: The epoch's tasks in order. The next one is taken only when it can be sent.
        backend: Makes the batches; closed at the epoch's end if ``owns_backend``.
        ahead: Maximum number of batches in flight.
        dealing: See NOTE [Worker scheduling].
        in_order: If True, deliver batches in the order of the tasks.
        timeout_s: How long to wait for a batch, or 0 for no limit.
        owns_backend: True if the backend serves this epoch alone.
        turn: The worker that takes the first task, in turns.
        iterate: If True, iterate an iterable dataset at once.
        counters: The loader's counters, or None for new ones.

    Runs in: the consumer's thread; several threads may share it, one at a time.
    """

    def __init__(
        self,
        tasks: Iterator[Task],
        backend: Backend,
        *,
        ahead: int,
        dealing: Dealing,
        in_order: bool,
        timeout_s: float,
        owns_backend: bool,
        turn: int = 0,
        iterate: bool = False,
        counters: Counters | None = None,
    ) -> None:
        self._tasks = tasks
        self._counters = counters or Counters()
        # Times at which the consumer asked for the last batches.
        self._asked_s: deque[float] = deque(maxlen=ahead)
        self._backend = backend
        self._ahead = ahead
        self._dealing = dealing
        self._in_order = in_order
        self._timeout_s = timeout_s
        self._owns_backend = owns_backend
        # Task number to worker, until the result arrives.
        self._in_flight: dict[int, int | None] = {}
        # Not delivered yet, in order of arrival.
        self._results: dict[int, Result | Exception] = {}
        self._num_sent = 0
        self._next = 0
        # An error of the sampler, delivered after the batches before it.
        self._task_error: Exception | None = None
        self._turn = turn
        self._busy = [0] * backend.num_workers  # number of tasks of each worker
        self._stream_ends: dict[int, Result] = {}  # by worker, of an iterable dataset
        self._begin_next: Callable[[], Scheduler | None] | None = None
        self._next_epoch: Scheduler | None = None
        self._claimed = False
        self._closed = False
        # Reentrant, because a signal handler may ask for a batch while this thread holds it.
        self._lock = threading.RLock()
        self._epoch = backend.open_epoch(iterate=iterate)
        # Ctrl-C may arrive before an iterator holds a reference, and persistent workers would never drop the epoch.
        self._closer = weakref.finalize(self, backend.close_epoch, self._epoch)
        self._closer.atexit = False

    def claim(self, begin_next: Callable[[], Scheduler | None] | None = None) -> bool:
        """Serve an iterator from now on and send the first tasks; return False if another iterator was faster.

        Args:
            begin_next: Returns the scheduler of the next epoch, called when this one has no more tasks, or None to
                prefetch nothing of the next epoch.

        Raises:
            RuntimeError: If the workers were closed meanwhile.
        """
        with self._lock:
            self._backend.check_usable()
            if self._claimed:
                return False
            self._claimed = True
            self._begin_next = begin_next
            while self._num_ahead < self._ahead and self._send():
                pass
            return True

    @property
    def _num_ahead(self) -> int:
        """Number of batches in flight, of this epoch and of the next one until that is claimed."""
        following = self._unclaimed_epoch()
        num_following = 0 if following is None else following._num_ahead
        return num_following + len(self._in_flight) + len(self._results)

    def _unclaimed_epoch(self) -> Scheduler | None:
        """Return the scheduler of the prefetched next epoch, or None if there is none or an iterator has it."""
        following = self._next_epoch
        return None if following is None or following._claimed else following

    def next_batch(self) -> Any:
        """Return the next batch.

        Raises:
            EndOfEpoch: After the last one.
            BatchTimeoutError: If no batch arrived within ``timeout_s``. The iteration may continue.
            WorkerDiedError: If a worker ended and is not replaced.
            StopIteration: Without a key, if user code raises it. It ends the loop, as in torch.
            Exception: An error of the dataset, the collate function or the sampler, with its own type.
        """
        # Before the lock: in a fork, a thread that exists only in the parent may hold it, and would never release it.
        self._backend.check_usable(own_process=True)
        counters = self._counters
        with self._lock:
            if counters.is_measuring and not counters.is_holding:
                self._asked_s.append(time.perf_counter())
                counters.capacity += len(self._in_flight) + len(self._results)
            number, result = self._wait()
            try:
                self._send()
            except BaseException:
                # After Ctrl-C in the sampler, for example, the next call delivers this batch.
                self._results = {number: result, **self._results}
                raise
        if isinstance(result, Exception):
            try:
                raise result
            finally:
                # The error's traceback holds this frame, a reference cycle.
                del result
        if counters.is_measuring:
            asked_s = self._asked_s
            if result.times is None:
                # Its task was sent before measuring began, so when it was ready is unknown.
                counters.capacity -= len(asked_s)
            else:
                # See NOTE [Ready batches].
                counters.ready_batches += len(asked_s) - bisect_left(asked_s, result.times.end_s)
        return self._backend.open(result)

    def _wait(self) -> tuple[int, Result | Exception]:
        """Wait for the result that is delivered next, and return it with its number."""
        backend = self._backend
        timeout_s = self._timeout_s
        left_s: float | None = None
        deadline = 0.0
        if timeout_s:
            left_s = timeout_s
            deadline = time.monotonic() + timeout_s
        # Once, because `poll` checks again after it has waited.
        if self._in_flight or self._results:
            backend.check_usable()
        while True:
            number = self._deliverable()
            # A signal handler, or `close` in another thread, may have removed it from the dict.
            if number is not None and (result := self._results.pop(number, None)) is not None:
                # Ctrl-C in `_receive` may have left it in both dicts, and it must not be delivered twice.
                self._in_flight.pop(number, None)
                return number, result
            if not self._in_flight or self._closed:
                self._end()
            # With a timeout any result counts, as in torch.
            awaited = self._next if self._in_order and not timeout_s else None
            received_any = self._receive_all(backend.poll(self._epoch, left_s, awaited))
            if timeout_s:
                now = time.monotonic()
                deadline = now + timeout_s if received_any else deadline
                left_s = deadline - now
                if left_s <= 0:
                    raise BatchTimeoutError(f"DataLoader timed out after {timeout_s} seconds")

    def poll(self) -> bool:
        """Return True if `next_batch` would return or raise at once."""
        if self._closed:
            return True
        try:
            self._backend.check_usable()
            with self._lock:
                self._receive_all(self._backend.poll(self._epoch, 0.0))
                return not self._in_flight or self._deliverable() is not None
        except RuntimeError:
            # `next_batch` raises the same error.
            return True

    def wait_until_idle(self) -> None:
        """Wait until every task in flight has a result, including tasks of a prefetched next epoch.

        With ``timeout_s`` it returns if no result arrives in that time, and `next_batch` waits once more.
        """
        longest_s = self._timeout_s or None
        try:
            while True:
                self._backend.check_usable()
                with self._lock:
                    # In the lock, since another thread may receive the last result while this one waits for the lock.
                    if not self._in_flight or self._closed:
                        break
                    received_any = self._receive_all(self._backend.poll(self._epoch, longest_s))
                if not received_any and longest_s is not None:
                    return
        except RuntimeError:
            # `next_batch` raises the same error.
            return
        following = self._unclaimed_epoch()
        if following is not None:
            following.wait_until_idle()

    def _deliverable(self) -> int | None:
        """Return the number of the batch that can be delivered now, or None if there is none yet."""
        if not self._in_order:
            return next(iter(self._results), None)
        while self._next < self._num_sent and self._next not in self._results:
            if self._next in self._in_flight:
                return None
            # It was delivered already, or its worker's iterable dataset had ended.
            self._next += 1
        return self._next if self._next < self._num_sent else None

    def _receive_all(self, results: deque[Result]) -> bool:
        """Store results for delivery; return False if there were none."""
        received_any = bool(results)
        while results:
            result = results[0]
            self._receive(result)
            # Remove it only when it is stored, so that Ctrl-C in between does not lose it. A signal handler that asks
            # for a batch may have removed it, and others, in between.
            if results and results[0] is result:
                results.popleft()
        return received_any

    def _receive(self, result: Result) -> None:
        """Store a result for delivery."""
        number = result.number
        # `close` in another thread may replace the attribute.
        in_flight = self._in_flight
        if number not in in_flight:
            # The worker's iterable dataset had ended before this task.
            return
        self._busy[result.worker] -= 1
        if result.kind is not Kind.STREAM_ENDED:
            # In this order, so that Ctrl-C in between does not lose the result.
            self._results[number] = result
            del in_flight[number]
            if result.times is not None:
                self._counters.add(result.worker, result.times, result.kind is Kind.RESULT)
            return
        self._stream_ends[result.worker] = result
        unanswered = [task for task, worker in in_flight.items() if worker == result.worker]
        for task in unanswered:
            del in_flight[task]
        # Give the other workers as many new tasks.
        for _ in unanswered:
            self._send()

    def _send(self) -> bool:
        """Send the next task of this epoch or else of the next one; return False if there is none."""
        worker = self._choose_worker()
        if (worker is None and self._dealing != "any") or self._task_error is not None:
            return False
        try:
            task = next(self._tasks, None)
        except Exception as error:
            self._task_error = error
            return False
        if task is None:
            return self._send_next_epoch()
        number = self._num_sent
        try:
            self._num_sent += 1
            self._in_flight[number] = worker
            if worker is not None:
                self._turn = (worker + 1) % len(self._busy)
            self._backend.submit(self._epoch, number, task, worker, is_measured=self._counters.is_measuring)
        except BaseException as error:
            self._in_flight.pop(number, None)
            if not isinstance(error, Exception):
                # The task may have been sent or not, so continuing might leave out its batch.
                self._task_error = RuntimeError(
                    "this epoch was interrupted while a task was given to a worker; call iter() on the loader to "
                    "begin another one"
                )
                raise
            # The index cannot be pickled, for example. The consumer gets the error instead of the batch.
            self._results[number] = error
            return True
        if worker is not None:
            self._busy[worker] += 1
        return True

    def _choose_worker(self) -> int | None:
        """Return the worker for the next task, or None for any idle one, or if all streams have ended."""
        if self._dealing == "any":
            return None
        active = [worker for worker in range(len(self._busy)) if worker not in self._stream_ends]
        if self._dealing == "turns":
            # After the last worker it is the first one's turn again.
            return next((worker for worker in active if worker >= self._turn), min(active, default=None))
        return min(active, key=self._busy.__getitem__, default=None)

    def _send_next_epoch(self) -> bool:
        begin_next = self._begin_next
        if begin_next is not None:
            self._begin_next = None
            self._next_epoch = begin_next()
        # Look before taking its lock, which an iterator in another thread may hold for a long time.
        following = self._unclaimed_epoch()
        if following is None:
            return False
        with following._lock:
            return not following._claimed and following._send()

    def _end(self) -> NoReturn:
        error = self._task_error
        self._task_error = None
        if error is not None:
            try:
                raise error
            finally:
                # Its traceback holds this frame, a reference cycle.
                del error
        self.close()
        raise EndOfEpoch

    def stream_ends(self) -> list[Any]:
        """Return the workers' positions at the end of their iterable dataset."""
        return [self._backend.open(result) for result in self._stream_ends.values()]

    @property
    def workers(self) -> list[Any]:
        """The worker processes or threads."""
        return self._backend.workers

    def close(self) -> None:
        """Drop the epoch, and end workers that serve it alone; a next epoch that has begun stays.

        It takes no lock, because an iterator's finalizer calls it in any thread and at any time, even while that thread
        holds one. Other threads see either the old dicts or empty ones.
        """
        self._closed = True
        self._tasks = iter(())
        self._in_flight = {}
        self._results = {}
        self._begin_next = None
        self._next_epoch = None
        if self._owns_backend:
            self._closer.detach()
            self._backend.close()
        else:
            self._closer()
