"""Anonymous shared memory: a file of slots, and one slot of it mapped into this process.

NOTE [One file, slots far apart]
    All slots of a backend are in one file, so that each process needs one descriptor for any number of batches. The
    slots start so far apart that a batch of any size fits; pages that were never written take no memory. The file
    needs neither /dev/shm nor a name, so the kernel frees it with the last process, however that one ends.

NOTE [Page locks and mappings]
    If memory is unmapped while it is registered with a device, the next mapping at its address counts as page-locked,
    and the device copies from the old pages: wrong data without an error. So a mapping that may still be locked is
    never unmapped. It is parked (`_parked`), and `unmap_parked` tries again.

``mmap.mmap`` duplicates the descriptor for every mapping, so this module makes the system calls itself.

Runs in: every process. Linux; elsewhere `MemoryFile` raises OSError.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from multiprocessing import reduction
from typing import Any, Protocol

import numpy as np

from lit_loader.foundation.interrupts import defer_interrupts

MAX_SLOTS = 1 << 12
WINDOW_BYTES = 1 << 32  # size of a mapping, and so of the largest batch
CHUNK_BYTES = 1 << 18  # pages are brought into a process's page tables in pieces of this size
ALIGNMENT = 64  # every tensor in a slot starts at a multiple of this

_SLOT_DISTANCE = 1 << 36  # bytes from the start of a slot to the start of the next one
_FAILED = ctypes.c_void_p(-1).value
_MADV_REMOVE = 9
_MADV_POPULATE_WRITE = 23
_MREMAP_MAYMOVE_FIXED = 1 | 2
_NO_MEMORY = {errno.EFAULT, errno.ENOMEM, errno.ENOSPC}  # EFAULT: where a page fault would raise SIGBUS


def _load_libc() -> Any:
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    address = ctypes.c_void_p
    size = ctypes.c_size_t
    flag = ctypes.c_int
    libc.mmap.restype = libc.mremap.restype = address
    libc.mmap.argtypes = (address, size, flag, flag, flag, ctypes.c_int64)
    libc.mremap.argtypes = (address, size, size, flag, address)
    libc.munmap.argtypes = (address, size)
    libc.madvise.argtypes = (address, size, flag)
    return libc


_libc: Any = _load_libc()
# Functions that unlock and unmap each parked mapping: see NOTE [Page locks and mappings].
_parked: deque[tuple[Callable[[], bool], Callable[[], Any]]] = deque()


class PageLock(Protocol):
    """Page-locks memory of this process, so that a device can copy from it asynchronously."""

    def lock(self, address: int, num_bytes: int) -> bool:
        """Page-lock memory; return False if that is not possible now."""

    def unlock(self, address: int) -> bool:
        """Undo `lock` before the memory is unmapped or moved; return False if it may still be locked."""


class MemoryFile:
    """Anonymous shared memory, divided into slots: see NOTE [One file, slots far apart].

    It can be pickled only while a process is started, which then has its own descriptor.

    Args:
        duplicate: The duplicated descriptor of a file that was pickled, or None to create a file.

    Raises:
        OSError: If the platform has no such files, or limits them.

    Attributes:
        fd: The descriptor, or -1 after `close`.

    Owns: its descriptor, until `close` or until it is collected.
    """

    fd = -1

    def __init__(self, duplicate: Any = None) -> None:
        if duplicate is not None:
            self.fd = duplicate.detach()
            return
        if _libc is None or not hasattr(os, "memfd_create"):
            raise OSError("this platform has no memfd_create, and so no anonymous files in memory")
        self.fd = os.memfd_create("lit_loader", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, MAX_SLOTS * _SLOT_DISTANCE)

    def __reduce__(self) -> tuple[type[MemoryFile], tuple[Any]]:
        return MemoryFile, (reduction.DupFd(self.fd),)

    def read(self, slot: int, offset: int, num_bytes: int) -> memoryview:
        """Return a copy of bytes of a slot.

        Raises:
            OSError: If the file is closed.
            MemoryError: If there is not enough memory for the copy.
        """
        # The file is read and not mapped, because mapping may be what has failed.
        copy = memoryview(memory_for(num_bytes))
        num_read = 0
        # The kernel reads at most 2 GiB per call.
        while num_read < num_bytes:
            num_read += os.preadv(self.fd, [copy[num_read:]], slot * _SLOT_DISTANCE + offset + num_read)
        return copy

    def close(self) -> None:
        """Close the descriptor; existing mappings stay valid."""
        # Forgotten before it is closed: `__del__` calls this again, and the number may belong to another file by then.
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


class Mapping:
    """A slot mapped into this process, `WINDOW_BYTES` long; only written pages take memory.

    Attributes:
        address: Address of its first byte.
        locked: Start and end of the byte range that is page-locked, or may be; None without one.

    Raises:
        OSError: If this process is not allowed to map so much.

    Owns: the mapping and its page lock, until it is collected; see NOTE [Page locks and mappings].
    """

    def __init__(self, file: MemoryFile, slot: int) -> None:
        self._file = file
        self._offset = slot * _SLOT_DISTANCE
        # 1 for each chunk that `touch` has brought in.
        self._touched = bytearray(WINDOW_BYTES // CHUNK_BYTES)
        # For `__del__`: at the interpreter's exit the names of this module may be None.
        self._is_finalizing = sys.is_finalizing
        self._page_lock: PageLock | None = None
        self.locked: tuple[int, int] | None = None
        # Last, because `__del__` unmaps whatever has an address. Ctrl-C between the call and the assignment leaves an
        # address range mapped, which is too rare to hold it back for every new slot.
        self.address = _map(WINDOW_BYTES, mmap.MAP_SHARED, file.fd, self._offset)

    def touch(self, start: int, num_bytes: int) -> bool:
        """Bring pages into this process's page tables, many per system call, unless they are there already.

        Returns:
            False if there is not enough memory. Writing there would kill the process by SIGBUS.
        """
        first = start // CHUNK_BYTES
        end = -(-(start + num_bytes) // CHUNK_BYTES)
        # Chunks before the first missing one were brought in by an earlier call.
        first = self._touched.find(0, first, end)
        if first < 0:
            return True
        address = self.address + first * CHUNK_BYTES
        advised = _libc.madvise(address, (end - first) * CHUNK_BYTES, _MADV_POPULATE_WRITE)
        # Kernels before 5.14 refuse this advice with EINVAL. There each page costs a page fault when it is written.
        if advised != 0 and ctypes.get_errno() in _NO_MEMORY:
            return False
        self._touched[first:end] = b"\1" * (end - first)
        return True

    def lock(self, page_lock: PageLock, start: int, num_bytes: int) -> None:
        """Page-lock a byte range of the slot if that is possible; no other range may be locked."""
        self._page_lock = page_lock
        # Recorded before the call: after an exception from a signal handler the range may be locked.
        self.locked = (start, start + num_bytes)
        if not page_lock.lock(self.address + start, num_bytes):
            self.locked = None

    def unlock(self) -> bool:
        """Undo `lock`; return False if the bytes may still be locked."""
        if self.locked is None or self._page_lock is None:
            return True
        # Cleared after the call, for the same reason. Unlocking twice is harmless.
        if not self._page_lock.unlock(self.address + self.locked[0]):
            return False
        self.locked = None
        return True

    def free_pages(self) -> None:
        """Free the slot's memory in all processes that have it mapped; it reads as zeros afterwards."""
        _libc.madvise(self.address, WINDOW_BYTES, _MADV_REMOVE)
        self._touched = bytearray(len(self._touched))

    def make_private(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Turn byte ranges into memory of this process alone, at the same addresses and with the same contents.

        NOTE [Private without a lost write]
            Each range is mapped a second time, copied on write, and ``mremap`` moves the new mapping over the old one.
            For other threads that is atomic: their earlier writes are in the file, which both mappings show, and
            their later writes go to a private copy. Then every page is copied at once, so that the file's pages may be
            used for another batch.

        Args:
            ranges: Start and end of each range, in bytes.

        Raises:
            MemoryError: If there is not enough memory for the copy, or the file is closed. The contents stay the same
                and writes are private, but the file's pages must not be written to for as long as this process or a
                fork of it lives. A range that could not be mapped again stays shared.
        """
        shortage = ""
        page = mmap.PAGESIZE
        # Whole pages. Ranges that share one are merged, because it can be moved only once.
        pages = ((start // page * page, -(-end // page) * page) for start, end in ranges if start < end)
        # After a failure the loop continues, because the other ranges can still be made private.
        for start, end in merge_ranges(pages, gap=1):
            size = end - start
            target = self.address + start
            try:
                private = _map(size, mmap.MAP_PRIVATE, self._file.fd, self._offset + start)
            except OSError as error:
                shortage = f"{size} bytes of a batch cannot be mapped: {error.strerror}"
                continue
            if _libc.mremap(private, size, size, _MREMAP_MAYMOVE_FIXED, target) == _FAILED:
                shortage = f"{size} bytes of a batch cannot be moved: {os.strerror(ctypes.get_errno())}"
                _libc.munmap(private, size)
            elif _libc.madvise(target, size, _MADV_POPULATE_WRITE) != 0:
                if ctypes.get_errno() in _NO_MEMORY:
                    shortage = f"no memory for a copy of {size} bytes of a batch"
                    continue
                # Kernels before 5.14 have no such call. One byte of each page is written with its own value instead; if
                # another thread writes to that byte at the same time, its write is lost.
                for address in range(target, target + size, page):
                    ctypes.memmove(address, address, 1)
        if shortage:
            raise MemoryError(shortage)

    def __del__(self) -> None:
        # Without an address the slot could not be mapped.
        if not hasattr(self, "address") or self._is_finalizing():
            return
        with defer_interrupts(in_callback=True):
            unmap = partial(_libc.munmap, self.address, WINDOW_BYTES)
            if self.unlock():
                unmap()
            elif self.locked is not None and self._page_lock is not None:
                _parked.append((partial(self._page_lock.unlock, self.address + self.locked[0]), unmap))


def unmap_parked() -> None:
    """Try again to unlock and unmap parked mappings: see NOTE [Page locks and mappings]."""
    for _ in range(len(_parked)):
        # Between `popleft` and `unmap` only this function knows the mapping, so Ctrl-C has to wait.
        with defer_interrupts():
            try:
                # Removed first: no other thread may unmap the address as well.
                unlock, unmap = _parked.popleft()
            except IndexError:
                return
            if unlock():
                unmap()
            else:
                _parked.append((unlock, unmap))


class Lease(ctypes.Array[ctypes.c_uint8]):
    """The bytes of a mapped slot as a buffer, created by ``Lease.from_address(mapping.address)``.

    Every tensor and array in the slot refers to this object, so it is deleted with the last of them.

    Attributes:
        mapping: Keeps the slot mapped.
        ticket: Keeps the slot from being used again; None in a worker and after the memory was made private.
        ranges: Start and end of the byte ranges that the batch uses.
    """

    _type_ = ctypes.c_uint8
    _length_ = WINDOW_BYTES
    mapping: Mapping
    ticket: Any = None
    ranges: list[tuple[int, int]]


def memory_for(num_bytes: int) -> Any:
    """Return an uninitialised array of bytes, which is faster than a bytearray, whose bytes are set to zero.

    Raises:
        MemoryError: With the number of bytes and the remedy.
    """
    try:
        return np.empty(num_bytes, np.uint8)
    except MemoryError as error:
        raise MemoryError(
            f"the main process has no memory for {num_bytes} bytes of a batch that a worker sent; keep fewer batches, "
            "lower batch_size, num_workers or prefetch_factor, or raise the limit (ulimit -v)"
        ) from error


def merge_ranges(ranges: Iterable[tuple[int, int]], *, gap: int) -> list[tuple[int, int]]:
    """Sort ranges (start, end) and merge those that are less than ``gap`` bytes apart."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if merged and start < merged[-1][1] + gap:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def _map(num_bytes: int, flags: int, fd: int, offset: int) -> int:
    address = _libc.mmap(None, num_bytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, offset)
    if address == _FAILED:
        code = ctypes.get_errno()
        raise OSError(code, f"{num_bytes} bytes cannot be mapped: {os.strerror(code)}")
    return int(address)
