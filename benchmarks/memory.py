"""Memory of a process and its children as proportional set size, which counts shared memory once."""

from __future__ import annotations

import psutil

__all__ = ["pss_bytes"]


def pss_bytes() -> int:
    """Return the current memory of this process and its children in bytes."""
    total = 0
    own_process = psutil.Process()
    for process in (own_process, *own_process.children(recursive=True)):
        try:
            total += process.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return total
