"""Memory mapped into this process: shared with others, touched in time, given back, or made this process's own.

``mmap.mmap`` keeps a descriptor of its own for every mapping, so the system calls are made here.

Runs in: every process. Linux; elsewhere, or in a C library without these calls, no memory can be mapped here.
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
    if not all(hasattr(libc, name) for name in ("mmap", "mremap", "munmap", "madvise")):
        return None
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
        offset: Where it begins in the file.
        num_bytes: Its length.

    Raises:
        OSError: If this process may not map so much.

    Owns: the mapping, until it is collected.
    """

    def __init__(self, fd: int, offset: int, num_bytes: int) -> None:
        self.offset, self.num_bytes = offset, num_bytes
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

    def make_private(self, fd: int, stretches: Iterable[tuple[int, int]]) -> None:
        """Turn stretches into memory of this process alone, at the same addresses and with the same contents.

        NOTE [Private without a lost write]
            The stretch is mapped a second time, copied on write, and the new mapping is moved to the place of the old
            one. That is one step for every other thread: what they wrote before is in the file, which both mappings
            show, and what they write afterwards is copied first. Then every page is copied at once, so that the
            file's may be used for something else. Kernels before 5.14 cannot be asked to do so; there one byte of
            each page is written to itself, and a write of another thread to that byte in this very instant is lost.

        Args:
            fd: The file.
            stretches: Start and end of each, in bytes.

        Raises:
            MemoryError: If there is no memory for the copy. The contents are the same, and writes are private, but
                the file's pages must not be written to for as long as this process or a fork of it lives. A stretch
                for which there is not even a mapping stays shared.
        """
        shortage = ""
        for first, last in _pages(stretches):  # all of them, though one fails
            size, target = last - first, self.address + first
            try:
                private = _map(size, mmap.MAP_PRIVATE, fd, self.offset + first)
            except OSError as error:
                shortage = f"{size} bytes of a batch cannot be mapped: {error.strerror}"
                continue
            if _libc.mremap(private, size, size, _MREMAP_MAYMOVE_FIXED, target) == _FAILED:
                shortage = f"{size} bytes of a batch cannot be moved: {os.strerror(ctypes.get_errno())}"
                _munmap(private, size)
            elif _libc.madvise(target, size, _MADV_POPULATE_WRITE) != 0:
                if ctypes.get_errno() in _NO_MEMORY:
                    shortage = f"no memory for a copy of {size} bytes of a batch"
                    continue
                for page in range(target, target + size, mmap.PAGESIZE):
                    ctypes.memmove(page, page, 1)
        if shortage:
            raise MemoryError(shortage)

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
    if _libc is None:
        raise OSError(errno.ENOSYS, "this platform cannot share memory as batches need it")
    address = _libc.mmap(None, num_bytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, offset)
    if address == _FAILED:
        code = ctypes.get_errno()
        raise OSError(code, f"{num_bytes} bytes cannot be mapped: {os.strerror(code)}")
    return int(address)
