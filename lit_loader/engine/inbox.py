"""Where a worker process's main thread finds its next task: its own pipe first, then the queue that all share."""

from __future__ import annotations

import contextlib
import os
import select
import socket
from collections import deque

from lit_loader.engine.messages import unpack_frame
from lit_loader.engine.task_queue import take
from lit_loader.transport import Frame

__all__ = ["Inbox"]


class Inbox:
    """Frames for one worker.

    Args:
        queue: The workers' end of the queue they share; None: there is none.

    Runs in: a worker process; `put` and `stop` in its control thread, `get` in its main thread.
    """

    def __init__(self, queue: socket.socket | None) -> None:
        self._frames: deque[Frame] = deque()
        self._queue = queue
        self._awake, self._wake = os.pipe()
        os.set_blocking(self._awake, False)
        os.set_blocking(self._wake, False)
        self._poller = select.poll()
        self._poller.register(self._awake, select.POLLIN)
        if queue is not None:
            self._poller.register(queue.fileno(), select.POLLIN)
        self.stopping = False

    def put(self, frame: Frame) -> None:
        """Add a frame of the worker's own."""
        self._frames.append(frame)
        self._ring()

    def stop(self) -> None:
        """Let `get` return None from now on."""
        self.stopping = True
        self._ring()

    def _ring(self) -> None:
        with contextlib.suppress(BlockingIOError):  # full: it will wake up as it is
            os.write(self._wake, b"\0")

    def get(self) -> Frame | None:
        """Wait for the next frame and return it; None when it is time to stop."""
        while not self.stopping:
            if self._frames:
                return self._frames.popleft()
            if self._queue is not None and (message := take(self._queue)) is not None:
                return unpack_frame(message)
            self._poller.poll()
            with contextlib.suppress(BlockingIOError):
                os.read(self._awake, 4096)
        return None
