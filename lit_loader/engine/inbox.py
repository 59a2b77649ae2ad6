"""Where a worker process's main thread finds its next task: the queue that all share, and its own pipe."""

from __future__ import annotations

import contextlib
import os
import socket

from lit_loader.engine.messages import unpack_frame
from lit_loader.engine.task_queue import take
from lit_loader.transport import READABLE, Frame, FrameReader, new_poller

__all__ = ["Inbox"]


class Inbox:
    """Frames for one worker.

    Args:
        tasks_fd: The worker's own pipe.
        queue: The workers' end of the queue they share; None: there is none.

    Runs in: a worker process; `stop` in its control thread, `get` in its main thread.
    """

    def __init__(self, tasks_fd: int, queue: socket.socket | None) -> None:
        os.set_blocking(tasks_fd, False)
        self._reader, self._queue = FrameReader(tasks_fd), queue
        self._awake, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        self._poller = new_poller()
        for fd in (tasks_fd, self._awake, *(() if queue is None else (queue.fileno(),))):
            self._poller.register(fd, READABLE)
        self.stopping = False

    def stop(self) -> None:
        """Let `get` return None from now on."""
        self.stopping = True
        with contextlib.suppress(BlockingIOError):  # full: it will wake up as it is
            os.write(self._wake, b"\0")

    def get(self) -> Frame | None:
        """Wait for the next frame and return it; None when it is time to stop."""
        while not self.stopping:
            try:  # first: what is said to this worker alone is waited for
                if (frame := self._reader.receive()) is not None:
                    return frame
            except EOFError:
                return None
            if self._queue is not None and (message := take(self._queue)) is not None:
                return unpack_frame(message)
            self._poller.poll()
        return None
