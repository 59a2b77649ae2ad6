"""A pool without workers: the test says which task is done when, so that every order of events can be had."""

from __future__ import annotations

import threading
from typing import Any

from lit_loader.engine import BatchKey, DirectedRun, EndOfPass, SharedRun, Task
from lit_loader.engine.messages import Header, Kind


class Failure:
    """What a worker raised."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class FakePool:
    """Tasks lie in `tasks` until `do` does one; a consumer that has to wait has the oldest one done."""

    def __init__(self, num_workers: int = 2, *, bad: dict[Any, Exception] | None = None):
        self.num_workers, self.bad = num_workers, bad or {}
        self.lock = threading.RLock()
        self.owned, self.death = True, None
        self.tasks: list[tuple[Header, Any, int | None]] = []
        self.runs: dict[int, Any] = {}
        self.ended: list[int] = []
        self.num_claims = 0
        self.closed = False

    @property
    def usable(self) -> bool:
        return self.owned and not self.closed and self.death is None

    def check_usable(self) -> None:
        if self.death is not None:
            raise self.death
        if not self.usable:
            raise RuntimeError("closed")

    def begin(self, run: Any, *, eager: bool) -> int:
        self.runs[len(self.runs)] = run
        return len(self.runs) - 1

    def claim(self, number: int) -> None:
        self.num_claims += 1

    def end(self, number: int) -> None:
        self.ended.append(number)

    def submit(self, header: Header, task: Any, *, worker: int | None) -> None:
        self.check_usable()
        if task.index == "unpicklable" or (isinstance(task.index, list) and "unpicklable" in task.index):
            raise TypeError("cannot pickle")
        self.tasks.append((header, task, worker))

    def wait(self, run: Any, timeout_s: float | None) -> bool:
        run.num_waiting = 0
        self.check_usable()
        assert self.tasks, "the consumer would wait for ever"
        self.do()
        return True

    def open(self, payload: Any, kind: Kind) -> Any:
        if kind is Kind.ERROR:
            raise payload.error
        return payload

    def close(self) -> None:
        self.closed = True

    def do(self, at: int = 0, *, kind: Kind | None = None) -> None:
        """Do a task: samples are their indices, and a batch is a tuple of them."""
        header, task, worker = self.tasks.pop(at)
        indices = task.index if isinstance(task.index, list) else [task.index]
        error = next((self.bad[i] for i in indices if i in self.bad), None)
        if error is not None:
            kind, made = Kind.ERROR, Failure(error)
        else:
            kind, made = kind or Kind.RESULT, tuple(indices)
        self.runs[header.run].receive(worker or 0, header._replace(kind=kind), made)


def plan(num_batches, size=4, *, epoch=0):
    for n in range(num_batches):
        yield Task(list(range(n * size, (n + 1) * size)), BatchKey(0, epoch, n, first=n * size))


def shared(pool, tasks, *, prefetch_factor=2, in_order=True, claim=True, following=None, **options):
    run = SharedRun(
        pool,
        iter(tasks),
        prefetch_factor=prefetch_factor,
        in_order=in_order,
        timeout_s=0,
        owns_pool=False,
        **options,
    )
    if claim:
        assert run.claim(following)
    return run


def directed(pool, tasks, *, in_turns=True, in_order=True, prefetch_factor=2):
    return DirectedRun(
        pool,
        iter(tasks),
        prefetch_factor=prefetch_factor,
        in_turns=in_turns,
        in_order=in_order,
        timeout_s=0,
        owns_pool=False,
    )


def numbers(pool):
    return [header.number for header, _, _ in pool.tasks]


def rest(run):
    found = []
    while True:
        try:
            found.append(run.next_batch())
        except EndOfPass:
            return found


def batch(n, size=4):
    return tuple(range(n * size, (n + 1) * size))
