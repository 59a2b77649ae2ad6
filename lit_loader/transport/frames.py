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
from collections.abc import Generator, Sequence
from typing import TypeAlias

__all__ = ["Buffer", "Frame", "FrameReader", "FrameWriter"]

Buffer: TypeAlias = bytes | bytearray | memoryview
Frame: TypeAlias = list[memoryview]

_COUNT = struct.Struct("<I")
_LENGTH = struct.Struct("<Q")
_MAX_IOV = 512  # below IOV_MAX of every Linux; one system call takes this many buffers


class FrameWriter:
    """Writes frames to a descriptor, each whole and in the order of `send`.

    `send` may be called from any thread, and by a finalizer that runs in the middle of a `flush`: a frame is
    queued by one atomic append, and only one caller writes at a time.

    Args:
        fd: The descriptor. If it is non-blocking, what does not fit waits for the next `flush`.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._frames: deque[list[memoryview]] = deque()
        self._begun: deque[memoryview] = deque()  # what is left of the frame being written
        self._writing = threading.Lock()

    @property
    def waiting(self) -> bool:
        """Whether bytes of earlier frames are still to be written."""
        return bool(self._begun or self._frames)

    def send(self, buffers: Sequence[Buffer]) -> None:
        """Write a frame, or queue what the pipe does not take now.

        Raises:
            BrokenPipeError: If nobody reads the pipe any more.
        """
        views = [memoryview(buffer).cast("B") for buffer in buffers]
        header = _COUNT.pack(len(views)) + b"".join(_LENGTH.pack(view.nbytes) for view in views)
        self._frames.append([memoryview(header), *(view for view in views if view.nbytes)])
        self.flush()

    def flush(self) -> None:
        """Write as much as the pipe takes."""
        while self.waiting and self._writing.acquire(blocking=False):
            # whoever holds the lock looks again after giving it back, so no frame is left behind
            try:
                if not self._write():
                    return
            finally:
                self._writing.release()

    def _write(self) -> bool:
        """Write what is queued; return whether the pipe took it all."""
        while True:
            if not self._begun:
                try:
                    self._begun.extend(self._frames.popleft())
                except IndexError:
                    return True
            batch = [self._begun[i] for i in range(min(len(self._begun), _MAX_IOV))]
            try:
                written = os.writev(self.fd, batch)
            except BlockingIOError:
                return False
            while written:
                head = self._begun[0]
                if written < head.nbytes:
                    self._begun[0] = head[written:]
                    break
                written -= head.nbytes
                self._begun.popleft()


class FrameReader:
    """Reads frames from a descriptor, each buffer into memory of its own.

    Args:
        fd: The descriptor. If it is non-blocking, an unfinished frame is taken up by the next `receive`.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._begin()

    def _begin(self) -> None:
        self._parser = _parse_frame()
        self._aim(next(self._parser))

    def _aim(self, num_bytes: int) -> None:
        self._target = memoryview(bytearray(num_bytes))
        self._filled = 0

    def receive(self) -> Frame | None:
        """Return the next frame, or None if the pipe holds no complete one yet.

        Raises:
            EOFError: If the writing end was closed.
        """
        while True:
            while self._filled < self._target.nbytes:
                try:
                    got = os.readv(self.fd, [self._target[self._filled :]])
                except BlockingIOError:
                    return None
                if got == 0:
                    raise EOFError("the pipe was closed by the other side")
                self._filled += got
            try:
                self._aim(self._parser.send(self._target))
            except StopIteration as done:
                self._begin()
                frame: Frame = done.value
                return frame


def _parse_frame() -> Generator[int, memoryview, Frame]:
    """Yield how many bytes come next, take them, and return the frame when it is whole."""
    (count,) = _COUNT.unpack((yield _COUNT.size))
    lengths = [length for (length,) in _LENGTH.iter_unpack((yield count * _LENGTH.size))]
    frame: Frame = []
    for length in lengths:
        frame.append((yield length))
    return frame
