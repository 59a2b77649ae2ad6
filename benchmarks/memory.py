"""Memory of a process and its children: proportional shares, so that what they share counts once."""

from __future__ import annotations

import threading
from collections.abc import Callable

import psutil

__all__ = ["peak_bytes", "pss_bytes"]


def peak_bytes(work: Callable[[], object], *, every_s: float = 0.05) -> int:
    """Return by how many bytes this process and its children grow, at most, while ``work`` runs.

    Args:
        work: Called once. What it starts for good is counted too.
        every_s: How often memory is looked at; the peak is that of the looks.
    """
    before = peak = pss_bytes()
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(every_s):
            peak = max(peak, pss_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        work()
    finally:
        done.set()
        watcher.join()
    return peak - before


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
