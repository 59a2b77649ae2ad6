"""The memory of a worker process: freed images are kept for the next ones, and what was inherited is left alone.

NOTE [Freed memory]
    glibc maps a large block afresh each time, and gives the end of the heap back to the system as soon as a batch of
    images is freed: every page of the next batch is then a fault. A worker makes images of much the same size again
    and again, so it keeps what it has; its memory stays at its peak. Who sets one of glibc's own variables for this in
    the environment (`_KNOBS`, or a ``glibc.malloc`` tunable) has decided otherwise, and the allocator is left alone.

NOTE [Inherited memory]
    A forked worker shares the memory of the main process until one of them writes to it. A garbage collection writes to
    every object that it looks at, so those that were there before the worker began are none of its business.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys

__all__ = ["keep_freed_memory", "leave_inherited_memory"]

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MMAP_BYTES = 32 << 20  # the most that glibc takes
_TRIM_BYTES = (1 << 31) - 1
_KNOBS = (
    "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TOP_PAD_",
)  # trailing underscores are glibc's


def keep_freed_memory() -> None:
    """Have this process keep memory that is freed, where its C library can be told to and the user has not told it."""
    if sys.platform != "linux" or _is_set_by_user():
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # not in every C library
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)


def _is_set_by_user() -> bool:
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    return any(name in os.environ for name in _KNOBS) or "glibc.malloc." in tunables


def leave_inherited_memory() -> None:
    """Have garbage collections pass over all objects that are there now."""
    gc.freeze()
