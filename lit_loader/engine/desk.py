"""What each worker process is at, for the main process to see: since when, and where in its code.

Problem: a worker that hangs cannot say so. Mechanism: one number a worker in anonymous shared memory, written before
each sample (a word of eight bytes, aligned, is written in one go); and a file for the stacks that faulthandler writes
in the worker, which may not have the main process's standard error.

Owns: two files without a name, and a mapping of one.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from collections.abc import Callable
from multiprocessing import reduction
from typing import Any, Final

__all__ = ["Desk"]

_ITEM_BYTES: Final = 8


class Desk:
    """What the workers of a pool are at; pickles while a process is being started.

    Args:
        num_workers: How many write.

    Attributes:
        stacks_fd: Where a worker's stacks are written.
    """

    def __init__(self, num_workers: int) -> None:
        fd = _nameless_file()
        os.ftruncate(fd, num_workers * _ITEM_BYTES)
        self._open(fd, _nameless_file())

    def _open(self, fd: int, stacks_fd: int) -> None:
        self._fd, self.stacks_fd = fd, stacks_fd
        self._memory = mmap.mmap(fd, 0)
        self._since = memoryview(self._memory).cast("d")

    @classmethod
    def _of(cls, duplicate: Any, stacks: Any) -> Desk:
        desk = cls.__new__(cls)
        desk._open(duplicate.detach(), stacks.detach())
        return desk

    def __reduce__(self) -> tuple[Callable[[Any, Any], Desk], tuple[Any, Any]]:
        return Desk._of, (reduction.DupFd(self._fd), reduction.DupFd(self.stacks_fd))

    def begin(self, worker: int) -> None:
        """Note that a worker begins with something that may take long."""
        self._since[worker] = time.monotonic()

    def rest(self, worker: int) -> None:
        """Note that a worker has nothing in hand."""
        self._since[worker] = 0.0

    def since(self, worker: int) -> float:
        """Return when a worker began with what it is at, in its monotonic seconds; 0: it rests."""
        return self._since[worker]

    def clear_stacks(self) -> None:
        """Make room for the stacks of a worker."""
        os.ftruncate(self.stacks_fd, 0)
        os.lseek(self.stacks_fd, 0, os.SEEK_SET)  # the workers' place too: they have the same open file

    def read_stacks(self) -> str:
        """Return the stacks that were written until now."""
        return os.pread(self.stacks_fd, os.fstat(self.stacks_fd).st_size, 0).decode(errors="replace")

    def close(self) -> None:
        """Let go of the memory."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._since.release()
            self._memory.close()
            os.close(fd)
            os.close(self.stacks_fd)


def _nameless_file() -> int:
    create = getattr(os, "memfd_create", None)
    if create is not None:
        fd: int = create("lit_loader desk", os.MFD_CLOEXEC)
        return fd
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
