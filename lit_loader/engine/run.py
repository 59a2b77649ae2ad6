"""One pass over a pool: deals tasks to workers, keeps a bounded number out, delivers in order.

NOTE [Dealing]
    in turns     worker after worker, as torch does: which worker makes batch b does not depend on speed,
                 and neither do the bits that a worker's own generators give it
    least busy   the worker with the fewest tasks out takes the next one (ties to the lowest number, so
                 that each worker has one before any has two); for tasks with keys, whose bits do not
                 depend on the worker
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from lit_loader.engine.messages import Kind
from lit_loader.engine.pool import WorkerPool
from lit_loader.engine.remote import RemoteError
from lit_loader.engine.task import EndOfPass, Task
from lit_loader.transport import Buffer, decode, encode

__all__ = ["PoolRun"]


@dataclass(slots=True)
class _Slot:
    """A task that is out, and what came back for it."""

    worker: int
    kind: Kind | None = None
    payload: Sequence[Buffer] = ()


class PoolRun:
    """Makes one epoch's batches on a pool.

    Args:
        pool: The workers; closed by the run's last batch if ``owns_pool``.
        plan: The tasks, in order; asked for one at a time, no earlier than it can be dealt.
        prefetch_factor: Tasks out at a time, for each worker.
        in_order: Whether batches are delivered in the order of the plan.
        in_turns: See NOTE [Dealing].
        eager: Whether an iterable dataset is iterated at once.
        timeout_s: How long to wait for a batch; 0: for ever.
        owns_pool: Whether the pool serves this run alone.
    """

    def __init__(
        self,
        pool: WorkerPool,
        plan: Iterator[Task],
        *,
        prefetch_factor: int,
        in_order: bool,
        in_turns: bool,
        eager: bool,
        timeout_s: float,
        owns_pool: bool,
    ) -> None:
        self._pool, self._plan = pool, plan
        self._in_order, self._in_turns = in_order, in_turns
        self._timeout_s, self._owns_pool = timeout_s, owns_pool
        self._slots: dict[int, _Slot] = {}
        self._arrived: list[int] = []  # numbers in order of arrival
        self._num_sent = self._next = 0
        self._busy = [0] * pool.num_workers
        self._active = [True] * pool.num_workers  # not yet at the end of its iterable dataset
        self._turn = 0
        self._plan_error: Exception | None = None
        self._number = pool.begin(self, eager=eager)
        for _ in range(prefetch_factor * pool.num_workers):  # each batch delivered deals one more
            self._deal()

    def next_batch(self) -> Any:
        """Return the next batch.

        Raises:
            EndOfPass: After the last one.
            RuntimeError: If nothing came for ``timeout_s``; the iteration may go on.
            WorkerDiedError: If a worker ended.
            Exception: What the dataset or the collate function raised, with its own type.
        """
        last_news = time.monotonic()
        while True:
            with self._pool.lock:
                slot = self._take()
                if slot is None and not self._slots:
                    self._end_of_plan()
            if slot is not None:
                return _open(slot)
            if self._pool.pump(self._timeout_s or None):
                last_news = time.monotonic()
            elif self._timeout_s and time.monotonic() - last_news >= self._timeout_s:
                raise RuntimeError(f"DataLoader timed out after {self._timeout_s} seconds")

    def receive(self, worker: int, kind: Kind, number: int, payload: Sequence[Buffer]) -> None:
        """Take what the pool brings; called under the pool's lock, by whichever thread read it."""
        slot = self._slots.get(number)
        if slot is None:
            return  # of a worker that had ended its iterable dataset, or a pass that was closed
        self._busy[worker] -= 1
        if kind is Kind.ENDED:
            self._worker_ended(worker)
            return
        slot.kind, slot.payload = kind, payload
        self._arrived.append(number)

    def close(self) -> None:
        """Drop the pass; workers that serve it alone are ended."""
        if not self._pool.owned:
            return  # a fork collects its copy; another thread may have held the lock when it was forked
        with self._pool.lock:
            self._plan = iter(())
            self._slots.clear()
            self._arrived.clear()
        if self._owns_pool:
            self._pool.close()
        else:
            self._pool.end(self._number)

    def _end_of_plan(self) -> NoReturn:
        error, self._plan_error = self._plan_error, None
        if error is not None:
            raise error
        if not self._pool.closed:
            self.close()
        raise EndOfPass

    def _ready(self) -> int | None:
        """Return the number of a batch that can be delivered now."""
        if not self._in_order:
            return self._arrived[0] if self._arrived else None
        while self._next < self._num_sent and self._next not in self._slots:
            self._next += 1  # its worker's iterable dataset ended before it
        slot = self._slots.get(self._next)
        return self._next if slot is not None and slot.kind is not None else None

    def _take(self) -> _Slot | None:
        """Take the batch that can be delivered now, if there is one, and deal another task for it."""
        number = self._ready()
        if number is None:
            return None
        slot = self._slots.pop(number)
        self._arrived.remove(number)
        self._deal()
        return slot

    def _worker_ended(self, worker: int) -> None:
        """Forget the tasks that a worker, at the end of its iterable dataset, will not do."""
        self._active[worker] = False
        self._busy[worker] = 0
        undone = [n for n, slot in self._slots.items() if slot.worker == worker and slot.kind is None]
        for number in undone:
            del self._slots[number]
        for _ in undone:
            self._deal()

    def _deal(self) -> None:
        """Give the next task of the plan to a worker, if there is a task and a worker for it."""
        worker = self._choose_worker()
        if worker is None:
            return
        try:
            task = encode(next(self._plan))
        except StopIteration:
            return
        except Exception as error:  # of the sampler: raised in its turn, after the batches before it
            self._plan, self._plan_error = iter(()), error
            return
        number = self._num_sent
        self._pool.submit(worker, self._number, number, task)
        self._slots[number] = _Slot(worker)
        self._num_sent += 1
        self._busy[worker] += 1
        if self._in_turns:
            self._turn = (worker + 1) % len(self._active)

    def _choose_worker(self) -> int | None:
        """Return the worker that takes the next task: see NOTE [Dealing]."""
        count = len(self._active)
        if self._in_turns:
            turns = ((self._turn + k) % count for k in range(count))
            return next((worker for worker in turns if self._active[worker]), None)
        free = [worker for worker in range(count) if self._active[worker]]
        return min(free, key=self._busy.__getitem__, default=None)


def _open(slot: _Slot) -> Any:
    data = decode(slot.payload)
    if slot.kind is Kind.ERROR:
        error: RemoteError = data
        error.reraise()
    return data
