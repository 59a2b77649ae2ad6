"""Memory of a process and its children: proportional shares, so that what they share counts once."""

from __future__ import annotations

import psutil

__all__ = ["pss_bytes"]


def pss_bytes() -> int:
    """Return what this process and its children have now."""
    total = 0
    this = psutil.Process()
    for process in (this, *this.children(recursive=True)):
        try:
            total += process.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return total
