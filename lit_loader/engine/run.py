"""One pass over a pool: what every pass does, whichever way its tasks are dealt.

A pending batch was given to the workers; it is delivered when it came back and its turn has come.
"""

from __future__ import annotations

import abc
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, NoReturn

from lit_loader.engine.failures import stop_iteration_as_error
from lit_loader.engine.messages import Header, Kind
from lit_loader.engine.pool import Pool
from lit_loader.engine.task import BatchTimeoutError, EndOfPass, Task

__all__ = ["PendingBatch", "PoolRun"]


@dataclass(slots=True)
class PendingBatch:
    """A batch that was given to the workers.

    Attributes:
        worker: The worker that has its task, or None if any worker may take it.
        keyed: Whether its samples have keys.
        answer: What came back for it, kind and payload, or None before.
    """

    worker: int | None
    keyed: bool
    answer: tuple[Kind, Any] | None = None


class PoolRun(abc.ABC):
    """Makes one epoch's batches on a pool.

    Args:
        pool: The workers; closed by the run's last batch if ``owns_pool``.
        plan: The tasks, in order; asked for one at a time, no earlier than it can be dealt.
        in_order: Whether batches are delivered in the order of the plan.
        timeout_s: How long to wait for a batch; 0: for ever.
        owns_pool: Whether the pool serves this run alone.
        eager: Whether an iterable dataset is iterated at once.
    """

    def __init__(
        self,
        pool: Pool,
        plan: Iterator[Task],
        *,
        in_order: bool,
        timeout_s: float,
        owns_pool: bool,
        eager: bool = False,
    ) -> None:
        self._pool, self._plan = pool, plan
        self._in_order, self._timeout_s, self._owns_pool = in_order, timeout_s, owns_pool
        self._pending: dict[int, PendingBatch] = {}
        self._arrived: deque[int] = deque()  # what came back, in order of arrival, where that is their order
        self._num_sent = self._next = 0
        self._plan_error: Exception | None = None
        self.num_waiting = 0
        self.signal: SimpleQueue[None] = SimpleQueue()
        self._number = pool.begin(self, eager=eager)

    def next_batch(self) -> Any:
        """Return the next batch.

        Raises:
            EndOfPass: After the last one.
            BatchTimeoutError: If nothing came for ``timeout_s``; the iteration may go on.
            WorkerDiedError: If a worker ended.
            Exception: What the dataset or the collate function raised, with its own type.
        """
        pool, timeout_s = self._pool, self._timeout_s
        if not pool.owned:
            pool.check_usable()  # says why not; a thread that is not here may have held the lock at the fork
        last_news = time.monotonic() if timeout_s else 0.0
        while True:
            with pool.lock:
                if self._pending:
                    pool.check_usable()
                pending = self._take()
                waits = pending is None and len(self._pending) > 0
                self.num_waiting += waits
            if pending is not None:
                return self._open(pending)
            if not waits:
                self._end_of_plan()
            if pool.wait(self, timeout_s or None):
                last_news = time.monotonic() if timeout_s else 0.0
            elif timeout_s and time.monotonic() - last_news >= timeout_s:
                raise BatchTimeoutError(f"DataLoader timed out after {timeout_s} seconds")

    @property
    def workers(self) -> list[Any]:
        """The worker processes or threads."""
        return self._pool.workers

    def poll(self) -> bool:
        """Return whether `next_batch` would return or raise at once."""
        pool = self._pool
        if not pool.owned:
            return True
        pool.look(self)
        with pool.lock:
            return self.deliverable

    @property
    def deliverable(self) -> bool:
        """Whether the consumer can go on."""
        return not self._pending or self._ready() is not None

    def receive(self, worker: int, header: Header, payload: Any) -> None:
        """Take what the pool brings; called under the pool's lock, by whichever thread has it."""
        pending = self._pending.get(header.number)
        if pending is None or pending.answer is not None:
            return  # a worker that had ended its iterable dataset, or a batch that failed or was dropped
        if header.kind is Kind.ENDED:
            self._worker_ended(worker, payload)
        else:
            self._complete(header.number, header.kind, payload)

    def close(self) -> None:
        """Drop the pass; workers that serve it alone are ended.

        The iterator's finalizer calls this, in any thread and in the middle of anything, so it takes no lock: another
        thread finds the state of before or an empty one.
        """
        if not self._pool.owned:
            return  # a fork collects its copy
        self._plan, self._pending = iter(()), {}
        for _ in range(self.num_waiting):
            self.signal.put(None)
        if self._owns_pool:
            self._pool.close()
        else:
            self._pool.end(self._number)

    @abc.abstractmethod
    def _deal(self) -> None:
        """Give the next batch of the plan to the workers, if there is one."""

    def _open(self, pending: PendingBatch) -> Any:
        """Return a batch that came back, or raise what was raised instead."""
        assert pending.answer is not None
        (kind, payload), pending.answer = pending.answer, None
        if kind is Kind.ERROR and isinstance(payload, Exception):  # raised here, not in a worker
            try:
                raise payload
            finally:
                del payload  # see `RemoteError.reraise`
        try:
            return self._pool.open(payload, kind)
        except StopIteration as error:
            if not pending.keyed:
                raise
            # see NOTE [StopIteration] in `lit_loader.engine.fetch`
            raise stop_iteration_as_error(error, "code of a worker (its worker_init_fn, say)") from error

    def _submit(self, number: int, task: Task, *, worker: int | None) -> bool:
        """Give a task to the workers; return False if that fails, which is raised in the batch's turn."""
        self._pending[number] = PendingBatch(worker, task.key is not None)
        self._num_sent += 1
        try:
            self._pool.submit(Header(Kind.TASK, self._number, number), task, worker=worker)
        except Exception as error:  # an index that cannot be pickled, say
            self._complete(number, Kind.ERROR, error)
            return False
        return True

    def _complete(self, number: int, kind: Kind, payload: Any) -> None:
        self._pending[number].answer = kind, payload
        if not self._in_order:
            self._arrived.append(number)

    def _worker_ended(self, worker: int, payload: Any) -> None:
        """Note that a worker came to the end of its iterable dataset."""
        raise AssertionError("only a pass over an iterable dataset hears of its end")

    def _end_of_plan(self) -> NoReturn:
        error, self._plan_error = self._plan_error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # see `RemoteError.reraise`
        self.close()
        raise EndOfPass

    def _next_task(self) -> Task | None:
        """Return the next task of the plan; None if there is none."""
        try:
            return next(self._plan, None)
        except Exception as error:  # of the sampler: raised in its turn, after the batches before it
            self._plan, self._plan_error = iter(()), error
            return None

    def _ready(self) -> int | None:
        """Return the number of a batch that can be delivered now."""
        if not self._in_order:
            while self._arrived and self._arrived[0] not in self._pending:
                self._arrived.popleft()  # it was delivered, or dropped with the pass
            return self._arrived[0] if self._arrived else None
        while self._next < self._num_sent and self._next not in self._pending:
            self._next += 1  # it was delivered, or its worker's iterable dataset ended before it
        pending = self._pending.get(self._next)
        return self._next if pending is not None and pending.answer is not None else None

    def _take(self) -> PendingBatch | None:
        """Take the batch that can be delivered now, if there is one, and deal another task for it."""
        number = self._ready()
        pending = None if number is None else self._pending.pop(number, None)
        if pending is not None:
            self._deal()
        return pending
