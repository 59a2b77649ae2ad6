"""A pass whose tasks are dealt to a worker by name: torch's way, and the only one for iterable datasets.

NOTE [Dealing]
    in turns     worker after worker, as torch does: which worker makes batch b does not depend on speed,
                 and neither do the bits that a worker's own generators give it
    least busy   the worker with the fewest tasks out takes the next one (ties to the lowest number, so
                 that each worker has one before any has two): torch's ``in_order=False``
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lit_loader.engine.messages import Header
from lit_loader.engine.pool import Pool, Unjoined
from lit_loader.engine.run import PoolRun, Slot
from lit_loader.engine.task import Task

__all__ = ["DirectedRun"]


class DirectedRun(PoolRun):
    """Makes one epoch's batches, each on the worker that NOTE [Dealing] says.

    Args:
        pool, plan, in_order, timeout_s, owns_pool, eager: As for `PoolRun`.
        prefetch_factor: Batches out at a time, for each worker.
        in_turns: See NOTE [Dealing].
        turn: The worker whose turn is first.
    """

    def __init__(
        self,
        pool: Pool,
        plan: Iterator[Task],
        *,
        prefetch_factor: int,
        in_turns: bool,
        turn: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(pool, plan, **options)
        self._in_turns = in_turns
        self._busy = [0] * pool.num_workers
        self._active = [True] * pool.num_workers  # not yet at the end of its iterable dataset
        self._turn = turn
        with pool.lock:
            for _ in range(prefetch_factor * pool.num_workers):  # each batch delivered deals one more
                self._deal()

    def receive(self, worker: int, header: Header, payload: Any) -> Unjoined | None:
        """Take what the pool brings."""
        if header.number in self._slots:
            self._busy[worker] -= 1
        return super().receive(worker, header, payload)

    def _worker_ended(self, worker: int) -> None:
        """Forget the tasks that a worker, at the end of its iterable dataset, will not do."""
        self._active[worker] = False
        self._busy[worker] = 0
        undone = [n for n, slot in self._slots.items() if slot.worker == worker and not slot.complete]
        for number in undone:
            del self._slots[number]
        for _ in undone:
            self._deal()

    def _deal(self) -> None:
        """Give the next task of the plan to a worker, if there is a task and a worker for it."""
        worker = self._choose_worker()
        if worker is None:
            return
        task = self._next_task()
        if task is None:
            return
        if self._submit(self._num_sent, Slot(worker, task), [task]):
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
