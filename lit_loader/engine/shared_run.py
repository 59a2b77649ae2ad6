"""A pass whose tasks any idle worker takes, whose batches several workers may share, and which the next follows.

NOTE [The bits do not care]
    Every sample has a key of its own, so who makes it, in which piece and in which order, is a matter of speed
    alone. A piece is a few samples, not collated; the batch is collated when all of its pieces are there.

NOTE [What is held]
    At most ``prefetch_factor`` batches a worker, and one in the hand of each, are out or wait to be delivered, of
    this pass and of the one that follows it together. When this one's plan has come to its end, each batch
    that is delivered deals one of the next pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from lit_loader import batch_memory
from lit_loader.engine.failures import Failure, Flawed
from lit_loader.engine.messages import Kind
from lit_loader.engine.pool import Pool, Unjoined
from lit_loader.engine.run import PoolRun, Slot
from lit_loader.engine.task import Task

__all__ = ["SharedRun"]


class SharedRun(PoolRun):
    """Makes one epoch's batches on whichever workers are idle.

    Args:
        pool, plan, in_order, timeout_s, owns_pool: As for `PoolRun`.
        prefetch_factor: See NOTE [What is held].
        share: Whether a batch may be cut into pieces: see `Pace.piece_size`.
        join: Collates the samples of a batch that was cut.
    """

    def __init__(
        self,
        pool: Pool,
        plan: Iterator[Task],
        *,
        prefetch_factor: int,
        share: bool | None,
        join: Callable[[Any], Any],
        **options: Any,
    ) -> None:
        super().__init__(pool, plan, **options)
        self._share, self._join = share, join
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
            while len(self._slots) + self._num_ahead < self._bound and self._deal_one():
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
        return 0 if successor is None or successor._claimed else len(successor._slots)

    def _deal(self) -> None:
        self._deal_one()

    def _deal_one(self) -> bool:
        """Give a batch of the plan to the workers, or one of the next pass; return whether there was one."""
        task = self._next_task()
        if task is None:
            return self._deal_ahead()
        tasks, sizes = [task], [0]
        if self._share is not False and task.key is not None:
            pool = self._pool
            # to collate what comes in pieces is worth a consumer's time only if it would have to wait
            spared = self._share is None and not pool.joins and pool.pace.keeps_up
            share = False if spared else self._share
            tasks = task.pieces(pool.pace.piece_size(len(task.index), pool.num_workers, share=share))
            sizes = [len(piece.index) for piece in tasks]
        self._submit(self._num_sent, Slot(None, task, sizes, [None] * len(tasks), len(tasks)), tasks)
        return True

    def _deal_ahead(self) -> bool:
        if self._following is not None and self._plan_error is None:
            following, self._following = self._following, None
            self._successor = following()
        successor = self._successor
        return successor is not None and not successor._claimed and successor._deal_one()

    def _all_here(self, number: int, slot: Slot) -> Unjoined | None:
        if len(slot.parts) > 1:
            error = next((part for part in slot.parts if part is not None and part[0] is Kind.ERROR), None)
            if error is not None:
                slot.parts = [error]  # the first of the batch, whichever came first
            elif self._pool.joins:
                return self._unjoined(slot)
        return super()._all_here(number, slot)

    def _unjoined(self, slot: Slot) -> Unjoined:
        samples: list[Any] = []
        failures: list[Failure] = []
        lost = False
        for part in slot.parts:
            assert part is not None
            kind, payload = part
            made = self._pool.open(payload, kind)
            if type(made) is Flawed:
                made, failed, gone = made
                failures, lost = failures + failed, lost or gone
            samples.extend(made)
        assert slot.task.key is not None
        return Unjoined(Flawed(samples, failures, lost) if failures else samples, slot.task.key)

    def _open(self, slot: Slot) -> Any:
        if len(slot.parts) > 1:
            samples = self._unjoined(slot).samples
            with batch_memory.using(self._pool.memory):
                return self._join(samples)
        return super()._open(slot)
