"""A queue that any idle worker process takes from: the kernel hands each message to exactly one of them.

Problem: the main process is in its training step when a worker has finished, and cannot deal. Mechanism: tasks
wait in a socket that keeps messages apart (``SOCK_SEQPACKET``), whose other end all workers share.
Not covered: platforms without such sockets, and tasks larger than a message may be; the main process deals
those to a worker itself.

Owns: both ends; a worker has a copy of the second.
"""

from __future__ import annotations

import contextlib
import socket
from collections import deque

__all__ = ["MAX_TASK_BYTES", "TaskQueue", "take"]

MAX_TASK_BYTES = 1 << 16
_BUFFER_BYTES = 1 << 20  # asked for; the kernel gives what it allows


class TaskQueue:
    """The main process's end.

    Attributes:
        theirs: The workers' end.

    Raises:
        NotImplementedError: If the platform has no such sockets.
    """

    def __init__(self) -> None:
        try:
            self._ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except (AttributeError, OSError) as error:  # macOS has the name, and no such sockets
            raise NotImplementedError("this platform has no sockets that keep messages apart") from error
        self._ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        self._ours.setblocking(False)
        self.theirs.setblocking(False)
        self._full: deque[bytes] = deque()  # what the socket has not taken yet

    @property
    def fd(self) -> int:
        """The descriptor to poll for room while something waits."""
        return self._ours.fileno()

    @property
    def waiting(self) -> bool:
        """Whether the socket has still to take something."""
        return bool(self._full)

    def put(self, message: bytes) -> None:
        """Send a message, or keep it until the socket takes it."""
        self._full.append(message)
        self.flush()

    def flush(self) -> None:
        """Send what the socket takes."""
        with contextlib.suppress(OSError):  # full; or all workers are gone, which the pool notices by itself
            while self._full:
                self._ours.send(self._full[0])
                self._full.popleft()

    def queued(self) -> list[bytes]:
        """Return the messages that no worker has taken yet; they stay in the queue."""
        taken = iter(lambda: take(self.theirs), None)
        self._full = deque([*taken, *self._full])
        messages = list(self._full)
        self.flush()
        return messages

    def close(self) -> None:
        """Close both ends."""
        self._ours.close()
        self.theirs.close()


def take(theirs: socket.socket) -> bytes | None:
    """Return the next message, or None if another worker was faster or there is none."""
    try:
        return theirs.recv(MAX_TASK_BYTES) or None
    except OSError:
        return None
