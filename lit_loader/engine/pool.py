"""What a run asks of its workers, processes or threads."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import Any, Protocol

from lit_loader.engine.messages import Header, Kind
from lit_loader.engine.task import Task

__all__ = ["Pool", "Receiver"]


class Receiver(Protocol):
    """A run, as a pool sees it; everything is called under the pool's lock.

    Attributes:
        num_waiting: Consumers that wait for something to come, to be told once each.
        signal: Where they are told.
    """

    num_waiting: int
    signal: SimpleQueue[None]

    @property
    def deliverable(self) -> bool:
        """Whether its consumer can go on: with a batch, or because there are no more."""

    def receive(self, worker: int, header: Header, payload: Any) -> None:
        """Take what a worker made."""


class Pool(Protocol):
    """Workers that make batches.

    Attributes:
        num_workers: How many.
        lock: Guards the runs: any thread may bring what another one waits for.
    """

    num_workers: int
    lock: threading.RLock

    @property
    def workers(self) -> list[Any]:
        """The processes or threads, as they are now."""

    @property
    def owned(self) -> bool:
        """Whether this is the process that started the workers, and not a fork of it."""

    @property
    def usable(self) -> bool:
        """Whether a run can begin here."""

    def check_usable(self) -> None:
        """Raise what is wrong with the workers.

        Raises:
            WorkerDiedError: If one ended.
            RuntimeError: If they were closed, or belong to another process.
        """

    def begin(self, run: Receiver, *, eager: bool) -> int:
        """Announce a run and return its number; ``eager``: an iterable dataset is iterated at once."""

    def claim(self, number: int) -> None:
        """Note that a consumer has claimed a run: what is counted by epoch begins anew, if no other one is alive."""

    def end(self, number: int) -> None:
        """Drop what is held of a run; a finalizer may call this at any moment."""

    def submit(self, header: Header, task: Task, *, worker: int | None) -> None:
        """Give a task to a worker; None: to any that is idle."""

    def wait(self, run: Receiver, timeout_s: float | None) -> bool:
        """Wait for something to come in; return whether it did.

        Args:
            run: Whose consumer waits; it has counted itself in ``num_waiting``.
            timeout_s: How long to wait at most; None: for ever.
        """

    def look(self, run: Receiver) -> None:
        """Take in what has come, without waiting for more; what is wrong is told by `wait`."""

    def open(self, payload: Any, kind: Kind) -> Any:
        """Return what a worker made, or raise what it raised."""

    def close(self) -> None:
        """End the workers: a sample in hand is finished if that takes under five seconds."""
