"""What a worker process hears whatever it is doing: STOP, END, and that its main process is gone."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

from lit_loader.engine.inbox import Inbox
from lit_loader.engine.messages import Header, Kind, unpack_header
from lit_loader.transport import READABLE, FrameReader, Poller, new_poller

__all__ = ["Control", "MainProcess"]

_ORPHAN_EXIT_CODE = 1
_ORPHAN_POLL_MS = 500  # where the kernel has no pidfd
_MOST_ENDED = 1000  # runs; tasks of earlier ones are not about any more


class MainProcess(NamedTuple):
    """The process whose end ends the workers.

    Attributes:
        pid: Its number.
        is_parent: Whether it started the workers itself (not so under forkserver).
    """

    pid: int
    is_parent: bool


class Control:
    """Reads the pipe of orders.

    Args:
        orders_fd: The pipe.
        main: The process that it ends with.
        inbox: What STOP stops.

    Runs in: a worker process; `listen` in its control thread, `has_ended` in its main thread.
    """

    def __init__(self, orders_fd: int, main: MainProcess, inbox: Inbox) -> None:
        self._reader = FrameReader(orders_fd)
        self._main, self.inbox = main, inbox
        self._ended: set[int] = set()

    def has_ended(self, run: int) -> bool:
        """Whether a run is over."""
        return run in self._ended

    def listen(self) -> None:
        """Do what the main process says until it says STOP or is gone."""
        poller = new_poller()
        os.set_blocking(self._reader.fd, False)
        poller.register(self._reader.fd, READABLE)
        orphaned = self._watch_main(poller)
        while not self.inbox.stopping:
            events = poller.poll(_ORPHAN_POLL_MS if orphaned is not None else None)
            if (orphaned is not None and orphaned()) or any(fd != self._reader.fd for fd, _ in events):
                os._exit(_ORPHAN_EXIT_CODE)
            try:
                while (frame := self._reader.receive()) is not None:
                    self._do(unpack_header(frame[0]))
            except EOFError:
                self.inbox.stop()

    def _watch_main(self, poller: Poller) -> Callable[[], bool] | None:
        """Register the main process's end with the poller, or return a test of it where that cannot be."""
        pid = self._main.pid
        if self._main.is_parent and os.getppid() != pid:
            os._exit(_ORPHAN_EXIT_CODE)
        try:
            poller.register(os.pidfd_open(pid), READABLE)
        except ProcessLookupError:
            os._exit(_ORPHAN_EXIT_CODE)
        except (AttributeError, OSError):
            parent = os.getppid()
            return lambda: os.getppid() != parent
        return None

    def _do(self, order: Header) -> None:
        if order.kind is Kind.STOP:
            self.inbox.stop()
        else:
            self._ended.add(order.run)
            if len(self._ended) > 2 * _MOST_ENDED:  # runs are numbered as they begin
                self._ended = {run for run in self._ended if run > order.run - _MOST_ENDED}
