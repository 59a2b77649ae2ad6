"""How many workers a host has room for: a pure function of what was read from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["MAX_WORKERS", "PROCESS_BYTES", "Resources", "THREAD_BYTES", "decide_num_workers"]

PROCESS_BYTES: Final = 512 << 20
"""Estimate of the memory that a worker process takes: interpreter, torch, its batches under way."""

THREAD_BYTES: Final = 128 << 20
"""The same for a worker thread, which shares everything but its batches."""

MAX_WORKERS: Final = 16
"""Most workers a rank gets unasked: beyond it, more seldom pay, and they cost memory and time to start."""

_MEMORY_SHARE: Final = 0.5
"""Share of the available memory that workers may take; the rest is the model's and the file cache's."""


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What there is to share between the ranks on this host.

    Attributes:
        num_cores: Cores that this process may run on.
        quota_cores: CPU seconds a second that its control groups allow, to all ranks together; None: no quota.
        cores_per_rank: Cores that a batch system gave to each rank for itself; None: ranks share ``num_cores``.
        available_bytes: Memory that all ranks together may still take; None: not known.
        ranks_on_host: Training processes on this host, this one included.
        has_accelerator: Whether the training step runs on an accelerator, not on the CPU.
    """

    num_cores: int
    quota_cores: float | None = None
    cores_per_rank: int | None = None
    available_bytes: int | None = None
    ranks_on_host: int = 1
    has_accelerator: bool = False


def decide_num_workers(resources: Resources, *, worker_bytes: int = PROCESS_BYTES) -> tuple[int, str]:
    """Return how many workers a rank should have, and why, in one line.

    A rank has its share of the cores, or of the quota if that is less; without an accelerator one of them is
    the training step's. Workers take at most half of the rank's share of the memory. 0: batches are made in the
    training process, because a worker would only compete with it for a core, or would not fit.

    Args:
        resources: What there is.
        worker_bytes: Estimate of the memory of one worker.

    Raises:
        ValueError: If a number is out of range.
    """
    ranks = resources.ranks_on_host
    if resources.num_cores < 1 or ranks < 1 or worker_bytes < 1:
        raise ValueError(
            f"num_cores={resources.num_cores}, ranks_on_host={ranks} and worker_bytes={worker_bytes} "
            "must be at least 1"
        )
    share, said = _cores_of_a_rank(resources)
    if resources.has_accelerator:
        said += ", the training step runs on an accelerator"
    else:
        share -= 1
        said += ", of which the training step keeps one"
    found = max(0, int(share + 1e-9))
    if resources.available_bytes is not None:
        room = int(resources.available_bytes * _MEMORY_SHARE / ranks / worker_bytes)
        if room < found:
            found = room
            left = f"{resources.available_bytes / 2**30:.1f} GiB of memory"
            said += f", {left} for {_counted(ranks, 'rank')}, half of it at {worker_bytes >> 20} MiB a worker"
    if found > MAX_WORKERS:
        found = MAX_WORKERS
        said += f", at most {MAX_WORKERS} unasked (lit-loader tune measures whether more pay)"
    return found, f"num_workers='auto' is {found}: {said}"


def _cores_of_a_rank(resources: Resources) -> tuple[float, str]:
    """Return the cores of one rank, and where they come from."""
    ranks, cores, quota = resources.ranks_on_host, float(resources.num_cores), resources.quota_cores
    given = resources.cores_per_rank
    if given is not None and given <= cores and (quota is None or given * ranks <= quota):
        return float(given), f"{_counted(given, 'core')} for each rank on this host"
    said = _counted(resources.num_cores, "core")
    if quota is not None and quota < cores:
        cores, said = quota, f"a quota of {quota:g} of {said}"
    return cores / ranks, said if ranks == 1 else f"{said} shared by {ranks} ranks"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
