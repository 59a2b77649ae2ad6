"""Memory mapped into this process: shared with others, touched in time, given back, or made this process's own.

``mmap.mmap`` keeps a descriptor of its own for every mapping, so the system calls are made here.

Runs in: every process. Linux; elsewhere nothing here is called.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
from collections.abc import Iterable
from typing import Any

__all__ = ["CHUNK_BYTES", "Mapping"]

CHUNK_BYTES = 1 << 18
"""Memory is touched for the first time in pieces of this size."""

_FAILED = ctypes.c_void_p(-1).value
_MADV_REMOVE, _MADV_POPULATE_WRITE = 9, 23
_MREMAP_MAYMOVE_FIXED = 1 | 2
_NO_MEMORY = {errno.EFAULT, errno.ENOMEM, errno.ENOSPC}  # the first where a page fault would raise SIGBUS


def _find_libc() -> Any:
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    address, size, flag = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    libc.mmap.restype = libc.mremap.restype = address
    libc.mmap.argtypes = (address, size, flag, flag, flag, ctypes.c_int64)
    libc.mremap.argtypes = (address, size, size, flag, address)
    libc.munmap.argtypes = (address, size)
    libc.madvise.argtypes = (address, size, flag)
    return libc


_libc: Any = _find_libc()
_munmap: Any = (
    None if _libc is None else _libc.munmap
)  # still there when an interpreter that ends clears modules


class Mapping:
    """A part of a file of shared memory.

    Args:
        fd: The file; it need not stay open.
        offset: Where the part begins, in whole pages.
        num_bytes: Its length. Only pages that are written to take memory.

    Attributes:
        address: Where it lies in this process.
        num_bytes: Its length.

    Raises:
        OSError: If this process may not map so much.

    Owns: the mapping, until it is collected.
    """

    def __init__(self, fd: int, offset: int, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self.address = _map(num_bytes, mmap.MAP_SHARED, fd, offset)
        self._touched = bytearray(num_bytes // CHUNK_BYTES)

    def touch(self, start: int, num_bytes: int) -> bool:
        """Bring a stretch into this process's page tables, many pages at a time, if that was not done before.

        Returns:
            False if there is no memory for it: to write there would end the process (SIGBUS).
        """
        first, end = start // CHUNK_BYTES, -(-(start + num_bytes) // CHUNK_BYTES)
        new = self._touched.find(0, first, end)
        if new < 0:
            return True
        # advice: a kernel that does not know it leaves it to the single page faults
        advised = _libc.madvise(
            self.address + new * CHUNK_BYTES, (end - new) * CHUNK_BYTES, _MADV_POPULATE_WRITE
        )
        if advised != 0 and ctypes.get_errno() in _NO_MEMORY:
            return False
        self._touched[new:end] = b"\1" * (end - new)
        return True

    def give_back(self) -> None:
        """Free the memory of the file behind this mapping, whoever else has it mapped; it reads as zeros then."""
        _libc.madvise(self.address, self.num_bytes, _MADV_REMOVE)
        self._touched = bytearray(len(self._touched))

    def make_private(self, stretches: Iterable[tuple[int, int]]) -> None:
        """Turn stretches into memory of this process alone, at the same addresses and with the same contents.

        What another thread writes to them in this very moment may be lost.

        Args:
            stretches: Start and end of each, in bytes.

        Raises:
            MemoryError: If there is no memory for the copy.
        """
        for first, last in _pages(stretches):
            size, target = last - first, self.address + first
            try:
                copy = _map(size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
            except OSError as error:
                raise MemoryError(
                    f"no memory for a copy of {size} bytes of a batch: {error.strerror}"
                ) from error
            ctypes.memmove(copy, target, size)
            # one step for every other thread: they see the shared pages or the copy
            if _libc.mremap(copy, size, size, _MREMAP_MAYMOVE_FIXED, target) == _FAILED:
                code = ctypes.get_errno()
                _munmap(copy, size)
                raise MemoryError(f"a batch of {size} bytes cannot be moved: {os.strerror(code)}")

    def __del__(self) -> None:
        if (address := getattr(self, "address", None)) is not None and _munmap is not None:
            _munmap(address, self.num_bytes)


def _pages(stretches: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return start and end of all pages that stretches touch, each page once."""
    page = mmap.PAGESIZE
    found: list[tuple[int, int]] = []
    for start, end in sorted(stretches):
        if start == end:
            continue
        first, last = start // page * page, -(-end // page) * page
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return found


def _map(num_bytes: int, flags: int, fd: int, offset: int) -> int:
    address = _libc.mmap(None, num_bytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, offset)
    if address == _FAILED:
        code = ctypes.get_errno()
        raise OSError(code, f"{num_bytes} bytes cannot be mapped: {os.strerror(code)}")
    return int(address)
