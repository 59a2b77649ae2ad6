"""How results leave a worker process: at once if the pipe takes them, else while the next batch is made."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Sequence

from lit_loader.transport import WRITABLE, Buffer, FrameWriter, new_poller

__all__ = ["Outbox"]


class Outbox:
    """Writes frames without holding up the thread that makes batches.

    Args:
        fd: The pipe to the main process.

    Runs in: a worker process; `send` in its main thread, the rest in a thread of its own.
    """

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._writer = FrameWriter(fd)
        self._left = threading.Semaphore(0)
        threading.Thread(target=self._write_rest, name="lit_loader-sender", daemon=True).start()

    def send(self, buffers: Sequence[Buffer]) -> None:
        """Write a frame; what the pipe does not take now follows by itself."""
        with contextlib.suppress(
            BrokenPipeError
        ):  # nobody waits for results any more; the control thread ends us
            self._writer.send(buffers)
        if self._writer.waiting:
            self._left.release()

    def _write_rest(self) -> None:
        poller = new_poller()
        poller.register(self._writer.fd, WRITABLE)
        with contextlib.suppress(BrokenPipeError):
            while True:
                self._left.acquire()
                while self._writer.waiting:
                    poller.poll()
                    self._writer.flush()
