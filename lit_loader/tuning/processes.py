"""What processes have used so far, as the kernel tells it under ``/proc``; elsewhere nothing is told."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["Used", "busy_cores_s", "descendants", "memory_bytes", "used_by"]

_TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


@dataclass(frozen=True)
class Used:
    """Totals since the start of one process, or the sum of several.

    Attributes:
        cpu_s: CPU seconds, in user and kernel mode.
        major_faults: Page faults that waited for storage.
        read_bytes: Bytes fetched from storage.
    """

    cpu_s: float = 0.0
    major_faults: int = 0
    read_bytes: int = 0

    def __add__(self, other: Used) -> Used:
        return Used(
            self.cpu_s + other.cpu_s,
            self.major_faults + other.major_faults,
            self.read_bytes + other.read_bytes,
        )

    def __sub__(self, other: Used) -> Used:
        return Used(
            self.cpu_s - other.cpu_s,
            self.major_faults - other.major_faults,
            self.read_bytes - other.read_bytes,
        )


def used_by(pids: Iterable[int], *, proc: Path = Path("/proc")) -> Used:
    """Return what processes have used; one that is gone adds nothing."""
    return sum((_used_by(proc / str(pid)) for pid in pids), Used())


def memory_bytes(pids: Iterable[int], *, proc: Path = Path("/proc")) -> int | None:
    """Return the memory of processes, each page divided by how many processes share it; None: not told."""
    sizes = [_proportional_bytes(proc / str(pid)) for pid in pids]
    told = [size for size in sizes if size is not None]
    return sum(told) if told else None


def descendants(pid: int, *, proc: Path = Path("/proc")) -> set[int]:
    """Return the processes that a process started, and those that these started, as long as they live."""
    parents: dict[int, int] = {}
    for folder in proc.glob("[0-9]*"):
        words = _stat(folder)
        if words:
            parents[int(folder.name)] = int(words[1])
    found: set[int] = set()
    new = {pid}
    while new:
        new = {child for child, parent in parents.items() if parent in new} - found
        found |= new
    return found


def busy_cores_s(*, proc: Path = Path("/proc")) -> float | None:
    """Return the seconds for which the cores of this host have been busy, all together; None: not told."""
    for line in _text(proc / "stat").splitlines():
        if line.startswith("cpu "):
            ticks = [int(word) for word in line.split()[1:9]]  # what guests used is in the first two
            user_to_steal, idle_and_waiting = sum(ticks), sum(ticks[3:5])
            return (user_to_steal - idle_and_waiting) / _TICKS_A_SECOND
    return None


def _used_by(folder: Path) -> Used:
    words = _stat(folder)
    if not words:
        return Used()
    read = [line for line in _text(folder / "io").splitlines() if line.startswith("read_bytes:")]
    ticks = int(words[11]) + int(words[12])
    return Used(ticks / _TICKS_A_SECOND, int(words[9]), int(read[0].split()[1]) if read else 0)


def _proportional_bytes(folder: Path) -> int | None:
    for name in ("smaps_rollup", "smaps"):
        shares = [line for line in _text(folder / name).splitlines() if line.startswith("Pss:")]
        if shares:
            return sum(int(line.split()[1]) << 10 for line in shares)
    return None


def _stat(folder: Path) -> list[str]:
    """Return the fields of ``stat`` that stand behind the name, which may hold anything; the first is the state."""
    return _text(folder / "stat").rpartition(")")[2].split()


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # gone, or another user's
        return ""
