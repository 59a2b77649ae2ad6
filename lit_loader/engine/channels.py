"""Pipes between the main process and its workers: frames, a queue that workers share, and waiting for both.

A frame is a list of buffers: on a pipe ``count (u32), lengths (u64 each), bytes``. Writer and reader keep the rest of a
frame when a pipe is full or empty and continue later, so a worker that stops in the middle of a frame cannot block the
reader.

Runs in: the main process (with non-blocking descriptors) and the threads of worker processes.
Owns: the sockets of a `TaskQueue`; other descriptors belong to the code that opened them.
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
_CHUNK_BYTES = 1 << 16  # read at a time where frames begin; what a pipe holds by default
_QUEUE_BYTES = 1 << 20  # requested; the kernel may allow less
_MAX_IOV = 512  # buffers for one system call, below IOV_MAX of every Linux


class FrameWriter:
    """Writes frames to a descriptor, each whole and in the order of `send`.

    `send` may be called from any thread, and by a finalizer that runs in the middle of a `flush`: a frame is
    queued by one atomic append, and only one caller writes at a time. An exception from a signal handler may lose the
    frame that is being sent, and never cuts or repeats one.

    Args:
        fd: The descriptor. If it is non-blocking, what does not fit waits for the next `flush`.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        # of each frame what was left at one time, and how many bytes every write has taken since
        self._frames: deque[tuple[Frame, list[int]]] = deque()
        self._lock, self._writing = threading.RLock(), False

    @property
    def waiting(self) -> bool:
        """Whether bytes of earlier frames are still to be written."""
        return bool(self._frames)

    def send(self, buffers: Sequence[Buffer]) -> None:
        """Write a frame, or queue what the pipe does not take now.

        Raises:
            BrokenPipeError: If the reading end was closed.
        """
        views = [memoryview(buffer).cast("B") for buffer in buffers]
        header = _COUNT.pack(len(views)) + b"".join(_LENGTH.pack(view.nbytes) for view in views)
        self._frames.append(([memoryview(header), *(view for view in views if view.nbytes)], []))
        self.flush()

    def flush(self) -> None:
        """Write as much as the pipe takes."""
        # checked again after each write, because a finalizer may have added a frame meanwhile
        while self._frames:
            with self._lock:
                if self._writing:
                    return  # called during this thread's own write, which will find the frame
                try:
                    self._writing = True
                    if not self._write():
                        return
                finally:
                    self._writing = False

    def _write(self) -> bool:
        """Write what is queued; return whether the pipe took it all."""
        while self._frames:
            views, counts = self._frames[0]
            if counts:
                views, counts = _without_first(views, sum(counts)), []
                self._frames[0] = views, counts  # in one step, so that no bytes are counted twice
            if not views:
                self._frames.popleft()
                continue
            try:
                # One step for the interpreter, so that an exception from a signal handler comes before or after it.
                counts.extend(map(os.writev, (self.fd,), (views[:_MAX_IOV],)))
            except BlockingIOError:
                return False
        return True


class FrameReader:
    """Reads frames from a descriptor, each buffer into memory of its own.

    Small frames are read many at a time; what is missing of a large one is read straight into its buffers.

    Args:
        fd: The descriptor. If it is non-blocking, an unfinished frame is taken up by the next `receive`.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._read = memoryview(b"")  # bytes that were read and do not belong to a frame yet
        self._frame: Frame | None = None  # the frame that is being read
        self._missing: Frame = []  # the parts of its buffers that are not filled yet

    def receive(self) -> Frame | None:
        """Return the next frame, or None if the pipe holds no complete one yet.

        Raises:
            EOFError: If the writing end was closed.
            MemoryError: If there is no memory for it; what follows cannot be read then.
        """
        try:
            while self._frame is None and not self._begin_frame():
                if not (more := os.read(self.fd, _CHUNK_BYTES)):
                    raise EOFError("the pipe was closed by the other side")
                self._read = memoryview(bytes(self._read) + more)
            while self._missing:
                if not (got := os.readv(self.fd, self._missing[:_MAX_IOV])):
                    raise EOFError("the pipe was closed by the other side")
                self._missing = _without_first(self._missing, got)
        except BlockingIOError:
            return None
        frame, self._frame = self._frame, None
        return frame

    def _begin_frame(self) -> bool:
        """Make the next frame's buffers and fill them with what was read; return False if too little was."""
        data = self._read
        if data.nbytes < _COUNT.size:
            return False
        at = _COUNT.size + _COUNT.unpack_from(data)[0] * _LENGTH.size
        if data.nbytes < at:
            return False
        self._frame = []
        for (length,) in _LENGTH.iter_unpack(data[_COUNT.size : at]):
            part = data[at : at + length]
            at += part.nbytes
            if part.nbytes == length:
                self._frame.append(memoryview(bytearray(part)))
            else:  # incomplete, like all buffers after it
                buffer = memoryview(memory_for(length))
                buffer[: part.nbytes] = part
                self._frame.append(buffer)
                self._missing.append(buffer[part.nbytes :])
        self._read = data[at:]
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
    """Return the frame that `pack_frame` packed, in writable memory, because an index may be a tensor."""
    return [memoryview(bytearray(buffer)) for buffer in pickle.loads(message)]


class TaskQueue:
    """The main process's end of a queue that any idle worker process takes from.

    Problem: the main process is busy with its training step when a worker becomes idle, and cannot send it a task.
    Mechanism: tasks wait in a socket that keeps message boundaries (``SOCK_SEQPACKET``), whose other end all workers
    share; the kernel gives each message to exactly one of them. Not covered: platforms without such sockets, and tasks
    larger than `MAX_TASK_BYTES`; the main process sends those to one worker.

    Attributes:
        theirs: The workers' end.

    Raises:
        AttributeError, OSError: If the platform has no such sockets.

    Owns: both ends; workers have copies of theirs.
    """

    def __init__(self) -> None:
        self._ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _QUEUE_BYTES)
        self._ours.setblocking(False)
        self.theirs.setblocking(False)
        self._full: deque[bytes] = deque()  # messages that the socket has not accepted yet

    @property
    def fd(self) -> int:
        """The descriptor to poll for writing while messages wait."""
        return self._ours.fileno()

    @property
    def waiting(self) -> bool:
        """Whether messages wait because the socket is full."""
        return bool(self._full)

    def put(self, message: bytes) -> None:
        """Send a message, or keep it until the socket accepts it."""
        self._full.append(message)
        self.flush()

    def flush(self) -> None:
        """Send as many messages as the socket accepts."""
        # full, or all workers have ended, which the backend notices by itself
        with contextlib.suppress(OSError):
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
    """Return the next message of a `TaskQueue`, or None if there is none."""
    try:
        return theirs.recv(MAX_TASK_BYTES) or None
    except OSError:
        return None
