"""A file of anonymous shared memory, cut into slots: the memory that batches are written to.

NOTE [One file, far apart]
    All slots of a pool lie in one file, so that a pool costs each process one descriptor however many batches are out.
    They begin so far apart that a batch of any size has room; pages that nobody wrote to take no memory. It needs
    neither /dev/shm nor a name, so nothing is left when all processes are gone, however they went.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from multiprocessing import reduction
from typing import Any

from lit_loader.transport.frames import memory_for
from lit_loader.transport.mapping import Mapping

__all__ = ["MAX_SLOTS", "MemoryFile", "WINDOW_BYTES"]

MAX_SLOTS = 1 << 12
WINDOW_BYTES = 1 << 32
"""What a process maps of a slot, and so how much of a batch can be in it."""

_DISTANCE = 1 << 36


class MemoryFile:
    """Anonymous shared memory.

    Pickles while a process is being started, and is open there.

    Raises:
        OSError: If the platform has no such files, or limits them.

    Owns: its descriptor, until `close` or until it is collected.
    """

    def __init__(self) -> None:
        create = getattr(os, "memfd_create", None)
        if create is None:
            raise OSError("this platform has no anonymous files in memory")
        self._fd: int = create("lit_loader", os.MFD_CLOEXEC)
        os.ftruncate(self._fd, MAX_SLOTS * _DISTANCE)

    @classmethod
    def _of(cls, duplicate: Any) -> MemoryFile:
        file = cls.__new__(cls)
        file._fd = duplicate.detach()
        return file

    def __reduce__(self) -> tuple[Callable[[Any], MemoryFile], tuple[Any]]:
        return MemoryFile._of, (reduction.DupFd(self._fd),)

    def map(self, slot: int) -> Mapping:
        """Map a slot into this process.

        Raises:
            OSError: If this process may not map so much.
        """
        return Mapping(self._fd, slot * _DISTANCE, WINDOW_BYTES)

    def make_private(self, mapping: Mapping, stretches: Iterable[tuple[int, int]]) -> None:
        """Turn stretches of a slot that `map` mapped into memory of this process: see `Mapping.make_private`.

        Raises:
            MemoryError: If there is no memory for the copy, or the file is closed.
        """
        mapping.make_private(self._fd, stretches)

    def read(self, slot: int, offset: int, num_bytes: int) -> memoryview:
        """Return a copy of bytes of a slot.

        Raises:
            OSError: If the file is closed.
            MemoryError: If there is no memory for the copy.
        """
        copy = memoryview(memory_for(num_bytes))
        done = 0
        while done < num_bytes:  # one call takes 2 GiB at most
            done += os.preadv(self._fd, [copy[done:]], slot * _DISTANCE + offset + done)
        return copy

    def close(self) -> None:
        """Close the descriptor; mappings stay."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            os.close(self._fd)
