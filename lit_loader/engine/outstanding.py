"""Which tasks a dead worker took with it.

NOTE [What was lost]
    Idle workers take tasks from a queue by themselves, so nobody knows who has which. When a worker has died, all
    tasks that were given out and not answered are suspects, but for those that still lie in the queue. Each of the
    others that live is asked to report when it comes to it: what it had taken by then it has answered. A suspect
    that nobody has answered when all have reported was lost, and is given out again, byte for byte: a sampler may have
    changed its index since. So no task is made twice, and none costs a word more while nobody dies. A worker that dies
    meanwhile makes a new round of it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeAlias

from lit_loader.engine.messages import Header

__all__ = ["Outstanding", "TaskName", "name_of"]

TaskName: TypeAlias = tuple[int, int]
"""Run and number."""


def name_of(header: Header) -> TaskName:
    """Return which task a message is about."""
    return header.run, header.number


class Outstanding:
    """Tasks that were given out and not answered; see NOTE [What was lost].

    Runs in: the main process, under the pool's lock.
    """

    def __init__(self) -> None:
        self._tasks: dict[TaskName, tuple[Header, bytes]] = {}
        self._suspects: set[TaskName] = set()
        self._silent: set[int] = set()  # workers that have not reported in this round
        self._round = 0

    def give(self, header: Header, message: bytes) -> None:
        """Note that a task is given to the workers, in these words."""
        self._tasks[name_of(header)] = header, message

    def answer(self, header: Header) -> None:
        """Note that a task was answered, or could not be given."""
        self._tasks.pop(name_of(header), None)

    def begin_round(self, *, queued: Collection[TaskName], living: Collection[int]) -> int:
        """Begin to find out what a worker that has just died had taken.

        Args:
            queued: Tasks that lie in the queue.
            living: The workers that are asked to report.

        Returns:
            The round's number, for `report`.
        """
        self._suspects = set(self._tasks).difference(queued)
        self._silent = set(living)
        self._round += 1
        return self._round

    @property
    def silent(self) -> Collection[int]:
        """The workers whose report is waited for."""
        return self._silent if self._suspects else ()

    def report(self, worker: int, round_number: int) -> None:
        """Note that a worker has answered all that it had taken."""
        if round_number == self._round:
            self._silent.discard(worker)

    def lost(self) -> list[tuple[Header, bytes]]:
        """Return the tasks that are known to be lost, once; in the order in which they were given out."""
        if self._silent or not self._suspects:
            return []
        found = [given for name, given in self._tasks.items() if name in self._suspects]
        self._suspects = set()
        return found
