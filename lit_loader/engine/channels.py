"""Pipes between the main process and its workers: frames, a queue that workers share, and waiting for both.

A frame is a list of buffers: on a pipe ``count (u32), lengths (u64 each), bytes``. When a pipe is full or empty, writer
and reader keep the unfinished part of a frame and continue later. So a worker that stops in the middle of a frame
cannot block the reader.

Runs in: the main process (with non-blocking descriptors) and the threads of worker processes.
Owns: the sockets of a `TaskQueue`. Other descriptors belong to the code that opened them.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import struct
import threading
from collections import deque
from collections.abc import Sequence
from typing import TypeAlias

from lit_loader.memory import Buffer, memory_for

Frame: TypeAlias = list[memoryview]

MAX_TASK_BYTES = 1 << 16  # the largest message that a `TaskQueue` takes
_COUNT = struct.Struct("<I")
_LENGTH = struct.Struct("<Q")
_CHUNK_BYTES = 1 << 16  # size of a read at the start of a frame: a pipe's default capacity
_QUEUE_BYTES = 1 << 20  # a request; the kernel may allow less
_MAX_IOV = 512  # buffers per system call; IOV_MAX is larger on every Linux


class FrameWriter:
    """Write frames to a descriptor, each whole and in the order of `send`.

    Any thread may call `send`, and so may a finalizer that runs in the middle of a `flush`: one atomic append queues a
    frame, and only one caller writes at a time. An exception from a signal handler may lose the frame that is being
    sent, but never truncates or repeats one.

    Args:
        fd: The descriptor. If it is non-blocking, bytes that do not fit wait for the next `flush`.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        # For each frame: its unwritten views at some time, and the number of bytes of every write since then.
        self._frames: deque[tuple[Frame, list[int]]] = deque()
        self._lock = threading.RLock()
        self._writing = False

    @property
    def waiting(self) -> bool:
        """True if bytes of earlier frames are still unwritten."""
        return bool(self._frames)

    def send(self, buffers: Sequence[Buffer]) -> None:
        """Write a frame, and queue the bytes that do not fit into the pipe.

        Raises:
            BrokenPipeError: If the reading end was closed.
        """
        views = [memoryview(buffer).cast("B") for buffer in buffers]
        header = _COUNT.pack(len(views)) + b"".join(_LENGTH.pack(view.nbytes) for view in views)
        self._frames.append(([memoryview(header), *(view for view in views if view.nbytes)], []))
        self.flush()

    def flush(self) -> None:
        """Write queued bytes until the pipe is full."""
        # A finalizer may add a frame during a write, so look again after each.
        while self._frames:
            with self._lock:
                if self._writing:
                    # A finalizer has interrupted this thread's own write, which will find the frame.
                    return
                try:
                    self._writing = True
                    if not self._write():
                        return
                finally:
                    self._writing = False

    def _write(self) -> bool:
        """Write the queued frames; return False if the pipe is full."""
        while self._frames:
            views, counts = self._frames[0]
            if counts:
                views = _without_first(views, sum(counts))
                counts = []
                # Replace both in one step: an interruption in between would count the bytes twice.
                self._frames[0] = (views, counts)
            if not views:
                self._frames.popleft()
                continue
            try:
                # The interpreter runs a signal handler before or after this line, never between writing and counting.
                # `defer_interrupts` would take 10 us here, a tenth of the time of a small batch, and defer only Ctrl-C.
                counts.extend(map(os.writev, (self.fd,), (views[:_MAX_IOV],)))
            except BlockingIOError:
                return False
        return True


class FrameReader:
    """Read frames from a descriptor, each buffer into memory of its own.

    One read takes many small frames. The rest of a large frame is read directly into its buffers.

    Args:
        fd: The descriptor. If it is non-blocking, the next `receive` continues an unfinished frame.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        # Bytes of the frames after the present one.
        self._unparsed = memoryview(b"")
        self._frame: Frame | None = None  # the present frame
        # Parts of its buffers that are not filled yet.
        self._missing: Frame = []

    def receive(self) -> Frame | None:
        """Return the next frame, or None if the pipe holds no complete one yet.

        Raises:
            EOFError: If the writing end was closed.
            MemoryError: If the frame does not fit into memory. Later frames cannot be read then.
        """
        try:
            while self._frame is None and not self._begin_frame():
                if not (chunk := os.read(self.fd, _CHUNK_BYTES)):
                    raise EOFError("the pipe was closed by the other side")
                self._unparsed = memoryview(bytes(self._unparsed) + chunk)
            while self._missing:
                if not (num_bytes := os.readv(self.fd, self._missing[:_MAX_IOV])):
                    raise EOFError("the pipe was closed by the other side")
                self._missing = _without_first(self._missing, num_bytes)
        except BlockingIOError:
            return None
        frame = self._frame
        self._frame = None
        return frame

    def _begin_frame(self) -> bool:
        """Create the next frame's buffers from the bytes read so far; return False if its header is incomplete."""
        data = self._unparsed
        if data.nbytes < _COUNT.size:
            return False
        offset = _COUNT.size + _COUNT.unpack_from(data)[0] * _LENGTH.size
        if data.nbytes < offset:
            return False
        self._frame = []
        for (length,) in _LENGTH.iter_unpack(data[_COUNT.size : offset]):
            part = data[offset : offset + length]
            offset += part.nbytes
            if part.nbytes == length:
                self._frame.append(memoryview(bytearray(part)))
            else:
                # The bytes end within this buffer, so all buffers after it are empty.
                buffer = memoryview(memory_for(length))
                buffer[: part.nbytes] = part
                self._frame.append(buffer)
                self._missing.append(buffer[part.nbytes :])
        self._unparsed = data[offset:]
        return True


def _without_first(views: Frame, num_bytes: int) -> Frame:
    """Return a list of views without its first bytes."""
    for n, view in enumerate(views):
        if num_bytes < view.nbytes:
            return [view[num_bytes:], *views[n + 1 :]]
        num_bytes -= view.nbytes
    return []


def pack_frame(buffers: Sequence[Buffer]) -> bytes:
    """Return a small frame as one message for a `TaskQueue`."""
    return pickle.dumps([bytes(buffer) for buffer in buffers])


def unpack_frame(message: bytes) -> Frame:
    """Return the frame in a message of `pack_frame`, in writable memory, because an index may be a tensor."""
    return [memoryview(bytearray(buffer)) for buffer in pickle.loads(message)]


class TaskQueue:
    """The main process's end of a queue from which any idle worker process takes tasks.

    Problem: the main process is busy with its training step when a worker becomes idle, and cannot send it a task.
    Mechanism: tasks wait in a socket that keeps message boundaries (``SOCK_SEQPACKET``). All workers share its other
    end, and the kernel gives each message to exactly one of them. Not covered: platforms without such sockets, and
    tasks larger than `MAX_TASK_BYTES`, which the main process sends to one worker.

    Attributes:
        theirs: The workers' end.

    Raises:
        AttributeError, OSError: If the platform has no such sockets.

    Owns: both ends. Each worker has a copy of the workers' end.
    """

    def __init__(self) -> None:
        self._ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _QUEUE_BYTES)
        self._ours.setblocking(False)
        self.theirs.setblocking(False)
        self._unsent: deque[bytes] = deque()  # messages that wait because the socket is full

    @property
    def fd(self) -> int:
        """The descriptor to poll for writing while messages wait."""
        return self._ours.fileno()

    @property
    def waiting(self) -> bool:
        """True if messages wait because the socket is full."""
        return bool(self._unsent)

    def put(self, message: bytes) -> None:
        """Send a message, now or when the socket has room."""
        self._unsent.append(message)
        self.flush()

    def flush(self) -> None:
        """Send as many messages as the socket accepts."""
        # The socket is full, or all workers have ended, which the backend will notice.
        with contextlib.suppress(OSError):
            while self._unsent:
                self._ours.send(self._unsent[0])
                self._unsent.popleft()

    def queued(self) -> list[bytes]:
        """Return the messages that no worker has taken yet; they stay in the queue."""
        in_socket = iter(lambda: take(self.theirs), None)
        self._unsent = deque([*in_socket, *self._unsent])
        messages = list(self._unsent)
        self.flush()
        return messages

    def close(self) -> None:
        """Close both ends."""
        self._ours.close()
        self.theirs.close()


def take(theirs: socket.socket) -> bytes | None:
    """Take the next message of a `TaskQueue`, or return None if there is none."""
    try:
        return theirs.recv(MAX_TASK_BYTES) or None
    except OSError:
        return None
