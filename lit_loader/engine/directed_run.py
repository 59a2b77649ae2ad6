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

from lit_loader.engine.messages import Header, Kind
from lit_loader.engine.pool import Pool
from lit_loader.engine.run import PoolRun
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
        self._ends: list[Any] = []
        with pool.lock:
            for _ in range(prefetch_factor * pool.num_workers):  # each batch delivered deals one more
                self._deal()

    def receive(self, worker: int, header: Header, payload: Any) -> None:
        """Take what the pool brings."""
        if header.number in self._pending:
            self._busy[worker] -= 1
        super().receive(worker, header, payload)

    def ends(self) -> list[Any]:
        """Return where the workers are that came to the end of their iterable dataset."""
        return [self._pool.open(payload, Kind.RESULT) for payload in self._ends]

    def _worker_ended(self, worker: int, payload: Any) -> None:
        """Forget the tasks that a worker, at the end of its iterable dataset, will not do."""
        self._ends.append(payload)
        self._active[worker] = False
        self._busy[worker] = 0
        undone = [n for n, batch in self._pending.items() if batch.worker == worker and batch.answer is None]
        for number in undone:
            del self._pending[number]
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
        if self._submit(self._num_sent, task, worker=worker):
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
