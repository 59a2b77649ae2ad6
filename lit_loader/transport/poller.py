"""Waiting for descriptors: ``select.poll``, or the same by ``select.select`` where the platform has no poll."""

from __future__ import annotations

import select
from typing import Final, Protocol

__all__ = ["Poller", "READABLE", "WRITABLE", "new_poller"]


class Poller(Protocol):
    """What is used of a ``select.poll`` object."""

    def register(self, fd: int, events: int, /) -> None:
        """Wait for these events of a descriptor, and for its end."""

    def poll(self, timeout_ms: float | None = None, /) -> list[tuple[int, int]]:
        """Return the descriptors that are ready, and their events; wait until there is one, or so long."""


class _SelectPoller:
    """A `Poller` by ``select.select``, whose descriptors must have numbers below 1024."""

    def __init__(self) -> None:
        self._events: dict[int, int] = {}

    def register(self, fd: int, events: int, /) -> None:
        self._events[fd] = events

    def poll(self, timeout_ms: float | None = None, /) -> list[tuple[int, int]]:
        readers, writers = (
            [fd for fd, events in self._events.items() if events & event] for event in (READABLE, WRITABLE)
        )
        # a closed pipe counts as readable, or as writable at its other end: read and write then tell that it is closed
        found = select.select(readers, writers, [], None if timeout_ms is None else timeout_ms / 1000)
        ready = dict.fromkeys(found[0], READABLE)
        for fd in found[1]:
            ready[fd] = ready.get(fd, 0) | WRITABLE
        return list(ready.items())


READABLE: Final[int] = getattr(select, "POLLIN", 1)
WRITABLE: Final[int] = getattr(select, "POLLOUT", 4)
new_poller: type[Poller] = getattr(select, "poll", _SelectPoller)
"""Returns a new `Poller`: ``select.poll`` itself where there is one, as the workers wait for every batch by it."""
