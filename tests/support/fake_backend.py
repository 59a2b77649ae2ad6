"""A backend without workers: the test decides the order of events."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from lit_loader.engine import BatchKey, EndOfEpoch, Scheduler, Task
from lit_loader.engine.spec import Kind, Result


class Submitted(NamedTuple):
    epoch: int
    number: int
    task: Task
    worker: int | None


class FakeBackend:
    """Holds tasks in `tasks` until `do` does one. If the consumer has to wait, the oldest task is done."""

    def __init__(self, num_workers: int = 2, *, bad: dict[Any, Exception] | None = None):
        self.num_workers = num_workers
        self.bad = bad or {}
        self.is_own_process = True
        self.death = None
        self.tasks: list[Submitted] = []
        self.results: dict[int, deque[Result]] = {}
        self.ended: list[int] = []
        self.iterated: list[int] = []
        self.closed = False

    @property
    def workers(self) -> list[Any]:
        return []

    def check_usable(self, *, own_process: bool = False) -> None:
        if not self.is_own_process:
            raise RuntimeError("of another process")
        if own_process:
            return
        if self.death is not None:
            raise self.death
        if self.closed:
            raise RuntimeError("closed")

    def open_epoch(self, *, iterate: bool) -> int:
        epoch = len(self.results)
        self.results[epoch] = deque()
        if iterate:
            self.iterated.append(epoch)
        return epoch

    def close_epoch(self, epoch: int) -> None:
        self.ended.append(epoch)

    def submit(self, epoch: int, number: int, task: Task, worker: int | None, *, is_measured: bool = False) -> None:
        self.check_usable()
        if task.index == "unpicklable" or (isinstance(task.index, list) and "unpicklable" in task.index):
            raise TypeError("cannot pickle")
        self.tasks.append(Submitted(epoch, number, task, worker))

    def poll(self, epoch: int, timeout_s: float | None, number: int | None = None) -> deque[Result]:
        self.check_usable()
        if timeout_s != 0.0 and not self.results[epoch]:
            assert self.tasks, "the consumer would never stop waiting"
            self.do()
        return self.results[epoch]

    def open(self, result: Result) -> Any:
        if result.kind is Kind.ERROR:
            raise result.payload
        return result.payload

    def close(self) -> None:
        self.closed = True

    def do(self, at: int = 0, *, kind: Kind = Kind.RESULT) -> None:
        """Do a task: samples are their indices, and a batch is a tuple of them."""
        epoch, number, task, worker = self.tasks.pop(at)
        indices = task.index if isinstance(task.index, list) else [task.index]
        answer: Any = next((self.bad[i] for i in indices if i in self.bad), None)
        if answer is not None:
            kind = Kind.ERROR
        elif kind is Kind.STREAM_ENDED:
            answer = f"end of {worker}"
        else:
            answer = tuple(indices)
        self.results[epoch].append(Result(kind, number, worker or 0, answer))


def plan(num_batches, size=4, *, epoch=0):
    for n in range(num_batches):
        yield Task(list(range(n * size, (n + 1) * size)), BatchKey(0, epoch, n, first=n * size))


def schedule(backend, tasks, *, claim=True, begin_next=None, **options):
    """Return a scheduler, by default with tasks for any worker and three per worker in flight."""
    defaults = {
        "ahead": 3 * backend.num_workers,
        "dealing": "any",
        "in_order": True,
        "timeout_s": 0,
        "owns_backend": False,
    }
    scheduler = Scheduler(iter(tasks), backend, **{**defaults, **options})
    if claim:
        assert scheduler.claim(begin_next)
    return scheduler


def numbers(backend):
    return [submitted.number for submitted in backend.tasks]


def rest(scheduler):
    batches = []
    while True:
        try:
            batches.append(scheduler.next_batch())
        except EndOfEpoch:
            return batches


def batch(n, size=4):
    return tuple(range(n * size, (n + 1) * size))
