"""A pass whose tasks any idle worker takes, and which the next one follows.

Every sample has a key of its own, so which worker makes a batch changes none of its bits.

NOTE [What is held]
    At most ``prefetch_factor`` batches a worker, and one in the hand of each, are out or wait to be delivered, of
    this pass and of the one that follows it together. When this one's plan has come to its end, each batch
    that is delivered deals one of the next pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from lit_loader.engine.pool import Pool
from lit_loader.engine.run import PoolRun
from lit_loader.engine.task import Task

__all__ = ["SharedRun"]


class SharedRun(PoolRun):
    """Makes one epoch's batches on whichever workers are idle.

    Args:
        pool, plan, in_order, timeout_s, owns_pool: As for `PoolRun`.
        prefetch_factor: See NOTE [What is held].
    """

    def __init__(self, pool: Pool, plan: Iterator[Task], *, prefetch_factor: int, **options: Any) -> None:
        super().__init__(pool, plan, **options)
        self._bound = (prefetch_factor + 1) * pool.num_workers
        self._following: Callable[[], SharedRun | None] | None = None
        self._successor: SharedRun | None = None
        self._claimed = False

    def claim(self, following: Callable[[], SharedRun | None] | None) -> bool:
        """Serve an iterator from now on, and fill up what is held; return False if it serves another one.

        Args:
            following: Makes the next pass, when this one's plan has come to its end; None: none follows.

        Raises:
            RuntimeError: If the workers were closed meanwhile.
        """
        with self._pool.lock:
            self._pool.check_usable()
            if self._claimed:
                return False
            self._claimed, self._following = True, following
            self._pool.claim(self._number)
            while len(self._pending) + self._num_ahead < self._bound and self._deal_one():
                pass
            return True

    def close(self) -> None:
        """Drop the pass; the one that follows it stays, for whoever claims it."""
        super().close()
        self._following = self._successor = None

    @property
    def _num_ahead(self) -> int:
        """Batches of the next pass that this one has dealt."""
        successor = self._successor
        return 0 if successor is None or successor._claimed else len(successor._pending)

    def _deal(self) -> None:
        self._deal_one()

    def _deal_one(self) -> bool:
        """Give a batch of the plan to the workers, or one of the next pass; return whether there was one."""
        task = self._next_task()
        if task is None:
            return self._deal_ahead()
        self._submit(self._num_sent, task, worker=None)
        return True

    def _deal_ahead(self) -> bool:
        if self._following is not None and self._plan_error is None:
            following, self._following = self._following, None
            self._successor = following()
        successor = self._successor
        return successor is not None and not successor._claimed and successor._deal_one()
