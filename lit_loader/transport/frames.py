"""Frames on a pipe: lists of buffers, written and read without ever blocking the main process.

A frame is ``count (u32), lengths (u64 each), bytes``. Both ends keep what a full or empty pipe left
unfinished and go on from there, so a worker that stops in the middle of a frame cannot hang the reader.

Runs in: main process (non-blocking descriptors) and worker threads (blocking descriptors).
Owns: nothing; whoever opened a descriptor closes it.
"""

from __future__ import annotations

import os
import struct
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

__all__ = ["Buffer", "Frame", "FrameReader", "FrameWriter", "memory_for"]

Buffer: TypeAlias = bytes | bytearray | memoryview
Frame: TypeAlias = list[memoryview]

_COUNT = struct.Struct("<I")
_LENGTH = struct.Struct("<Q")
_CHUNK_BYTES = 1 << 16  # read at a time where frames begin; what a pipe holds by default
_MAX_IOV = 512  # below IOV_MAX of every Linux; one system call takes this many buffers


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
        self._frames: deque[_Outgoing] = deque()
        self._lock, self._writing = threading.RLock(), False

    @property
    def waiting(self) -> bool:
        """Whether bytes of earlier frames are still to be written."""
        return bool(self._frames)

    def send(self, buffers: Sequence[Buffer]) -> None:
        """Write a frame, or queue what the pipe does not take now.

        Raises:
            BrokenPipeError: If nobody reads the pipe any more.
        """
        views = [memoryview(buffer).cast("B") for buffer in buffers]
        header = _COUNT.pack(len(views)) + b"".join(_LENGTH.pack(view.nbytes) for view in views)
        self._frames.append(_Outgoing([memoryview(header), *(view for view in views if view.nbytes)]))
        self.flush()

    def flush(self) -> None:
        """Write as much as the pipe takes."""
        while self.waiting:  # looked at again at the end, so that no frame is left behind
            with self._lock:
                if self._writing:
                    return  # in the middle of this thread's own write, which will find the frame
                try:
                    self._writing = True
                    if not self._write():
                        return
                finally:
                    self._writing = False

    def _write(self) -> bool:
        """Write what is queued; return whether the pipe took it all."""
        while self._frames:
            frame = self._frames[0]
            if not (views := frame.left()):
                self._frames.popleft()
                continue
            try:
                # one step for the interpreter: an exception from a signal handler comes before it or after it
                frame.counts.extend(map(os.writev, (self.fd,), (views[:_MAX_IOV],)))
            except BlockingIOError:
                return False
        return True


class _Outgoing:
    """A frame on its way: what was left of it at a time, and how many bytes each write took since."""

    __slots__ = ("_state",)

    def __init__(self, views: list[memoryview]) -> None:
        self._state: tuple[list[memoryview], list[int]] = (views, [])

    @property
    def counts(self) -> list[int]:
        return self._state[1]

    def left(self) -> list[memoryview]:
        """Return what is still to be written."""
        views, counts = self._state
        if counts:
            views = _after(views, sum(counts))
            self._state = (views, [])  # both at once: see `FrameWriter._write`
        return views


class FrameReader:
    """Reads frames from a descriptor, each buffer into memory of its own.

    Small frames are read many at a time; what is missing of a large one is read straight into its buffers.

    Args:
        fd: The descriptor. If it is non-blocking, an unfinished frame is taken up by the next `receive`.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._read = memoryview(b"")  # read and not yet taken apart
        self._frame: Frame | None = None  # the one begun
        self._missing: list[memoryview] = []  # what is still to be read of it

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
                self._missing = _after(self._missing, got)
        except BlockingIOError:
            return None
        frame, self._frame = self._frame, None
        return frame

    def _begin_frame(self) -> bool:
        """Make the next frame's buffers and fill them with what was read; return False if too little was."""
        data = self._read
        if data.nbytes < _COUNT.size:
            return False
        (count,) = _COUNT.unpack_from(data)
        at = _COUNT.size + count * _LENGTH.size
        if data.nbytes < at:
            return False
        self._frame = []
        for (length,) in _LENGTH.iter_unpack(data[_COUNT.size : at]):
            part = data[at : at + length]
            at += part.nbytes
            if part.nbytes == length:
                self._frame.append(memoryview(bytearray(part)))
            else:  # and so it is with all buffers that follow
                memory = memory_for(length)
                buffer = memoryview(memory)
                buffer[: part.nbytes] = part
                self._frame.append(buffer)
                self._missing.append(buffer[part.nbytes :])
        self._read = data[at:]
        return True


def memory_for(num_bytes: int) -> Any:
    """Return an array of bytes; unlike a bytearray it is not filled with zeros first.

    Raises:
        MemoryError: With how much was wanted.
    """
    try:
        return np.empty(num_bytes, np.uint8)
    except MemoryError as error:
        raise MemoryError(
            f"the main process has no memory for {num_bytes} bytes of a batch that a worker sent; keep fewer batches, "
            "lower batch_size, num_workers or prefetch_factor, or raise the limit (ulimit -v)"
        ) from error


def _after(views: list[memoryview], num_bytes: int) -> list[memoryview]:
    """Return a row of views without its first bytes."""
    for n, view in enumerate(views):
        if num_bytes < view.nbytes:
            return [view[num_bytes:], *views[n + 1 :]]
        num_bytes -= view.nbytes
    return []
