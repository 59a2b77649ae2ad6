"""One pass over a pool: what every pass does, whichever way its tasks are dealt.

A batch that is out is a slot; it is delivered when it is complete and its turn has come.
"""

from __future__ import annotations

import abc
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, Final, NoReturn

from lit_loader.engine.messages import Header, Kind
from lit_loader.engine.pool import Pool, Unjoined
from lit_loader.engine.task import EndOfPass, Task

__all__ = ["PoolRun", "Slot", "TIMED_OUT"]

TIMED_OUT: Final = "DataLoader timed out after"
"""How the message of an error begins after which the same batch may still come; torch's words, and its type."""


@dataclass(slots=True)
class Slot:
    """A batch that is out, and what came back for it.

    Attributes:
        worker: Whose task it is; None: anybody's.
        task: The batch.
        sizes: Samples in each piece.
        parts: What came back for each piece: kind and payload.
        missing: Pieces that have not come back.
        complete: Whether it can be delivered.
    """

    worker: int | None
    task: Task
    sizes: list[int] = field(default_factory=lambda: [0])
    parts: list[tuple[Kind, Any] | None] = field(default_factory=lambda: [None])
    missing: int = 1
    complete: bool = False


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
        self._slots: dict[int, Slot] = {}
        self._arrived: deque[int] = deque()  # complete batches in order of arrival, where that is their order
        self._num_sent = self._next = 0
        self._plan_error: Exception | None = None
        self.num_waiting = 0
        self.signal: SimpleQueue[None] = SimpleQueue()
        self._number = pool.begin(self, eager=eager)

    def next_batch(self) -> Any:
        """Return the next batch.

        Raises:
            EndOfPass: After the last one.
            RuntimeError: If nothing came for ``timeout_s``; the iteration may go on.
            WorkerDiedError: If a worker ended.
            Exception: What the dataset or the collate function raised, with its own type.
        """
        pool, timeout_s = self._pool, self._timeout_s
        if not pool.owned:
            pool.check_usable()  # says why not; a thread that is not here may have held the lock at the fork
        last_news = time.monotonic() if timeout_s else 0.0
        while True:
            with pool.lock:
                if self._slots:
                    pool.check_usable()
                slot = self._take()
                waits = slot is None and len(self._slots) > 0
                self.num_waiting += waits
                if slot is not None:
                    pool.pace.note_delivery()
            if slot is not None:
                return self._open(slot)
            if not waits:
                self._end_of_plan()
            if pool.wait(self, timeout_s or None):
                last_news = time.monotonic() if timeout_s else 0.0
            elif timeout_s and time.monotonic() - last_news >= timeout_s:
                raise RuntimeError(f"{TIMED_OUT} {timeout_s} seconds")

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
        return not self._slots or self._ready() is not None

    def receive(self, worker: int, header: Header, payload: Any) -> Unjoined | None:
        """Take what the pool brings; called under the pool's lock, by whichever thread has it."""
        slot = self._slots.get(header.number)
        if slot is None or slot.complete:
            return None  # a worker that had ended its iterable dataset, or a batch that failed or was dropped
        if header.kind is Kind.ENDED:
            self._worker_ended(worker)
            return None
        if slot.parts[header.piece] is not None:
            return None
        if header.kind is Kind.RESULT:
            self._pool.pace.note(slot.sizes[header.piece], header.seconds)
        slot.parts[header.piece] = (header.kind, payload)
        slot.missing -= 1
        return None if slot.missing else self._all_here(header.number, slot)

    def joined(self, number: int, kind: Kind, payload: Any) -> None:
        """Take the batch that a worker put together; called under the pool's lock."""
        slot = self._slots.get(number)
        if slot is not None:
            slot.parts = [(kind, payload)]
            self._complete(number, slot)

    def close(self) -> None:
        """Drop the pass; workers that serve it alone are ended.

        The iterator's finalizer calls this, in any thread and in the middle of anything, so it takes no lock: another
        thread finds the state of before or an empty one.
        """
        if not self._pool.owned:
            return  # a fork collects its copy
        self._plan, self._slots = iter(()), {}
        for _ in range(self.num_waiting):
            self.signal.put(None)
        if self._owns_pool:
            self._pool.close()
        else:
            self._pool.end(self._number)

    @abc.abstractmethod
    def _deal(self) -> None:
        """Give the next batch of the plan to the workers, if there is one."""

    def _open(self, slot: Slot) -> Any:
        """Return the batch of a complete slot, or raise what was raised instead."""
        part = slot.parts.pop()
        assert part is not None
        kind, payload = part
        if kind is Kind.ERROR and isinstance(payload, Exception):  # raised here, not in a worker
            try:
                raise payload
            finally:
                del part, payload  # see `RemoteError.reraise`
        return self._pool.open(payload, kind)

    def _submit(self, number: int, slot: Slot, tasks: Sequence[Task]) -> bool:
        """Give a batch's tasks to the workers; return False if that fails, which is raised in the batch's turn."""
        self._slots[number] = slot
        self._num_sent += 1
        try:
            for piece, task in enumerate(tasks):
                self._pool.submit(
                    Header(Kind.TASK, self._number, number, piece, len(tasks)), task, worker=slot.worker
                )
        except Exception as error:  # an index that cannot be pickled, say
            slot.parts = [(Kind.ERROR, error)]
            self._complete(number, slot)
            return False
        return True

    def _all_here(self, number: int, slot: Slot) -> Unjoined | None:
        """Note that a batch can be delivered, or return what is to be collated first."""
        self._complete(number, slot)
        return None

    def _complete(self, number: int, slot: Slot) -> None:
        slot.complete = True
        if not self._in_order:
            self._arrived.append(number)

    def _worker_ended(self, worker: int) -> None:
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
            while self._arrived and self._arrived[0] not in self._slots:
                self._arrived.popleft()  # it was delivered, or dropped with the pass
            return self._arrived[0] if self._arrived else None
        while self._next < self._num_sent and self._next not in self._slots:
            self._next += 1  # it was delivered, or its worker's iterable dataset ended before it
        slot = self._slots.get(self._next)
        return self._next if slot is not None and slot.complete else None

    def _take(self) -> Slot | None:
        """Take the batch that can be delivered now, if there is one, and deal another task for it."""
        number = self._ready()
        slot = None if number is None else self._slots.pop(number, None)
        if slot is not None:
            self._deal()
        return slot
