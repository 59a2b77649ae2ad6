"""Reading the host: cores, control groups, memory, and the ranks that share them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from lit_loader.resources.cgroups import read_cgroup_limits
from lit_loader.resources.decision import Resources

__all__ = ["count_cores", "count_ranks", "read_resources"]

_LAUNCHERS: Final = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
"""Where launchers say how many processes they started on this host: torchrun, Open MPI, Intel MPI."""


def count_cores() -> int:
    """Return how many cores this process may run on, by its affinity where the system has one."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def count_ranks(environ: Mapping[str, str]) -> int:
    """Return how many training processes a launcher started on this host; 1 if none says so.

    Slurm's number counts only inside of a task: in an interactive allocation it is set for a shell too.
    """
    for name in _LAUNCHERS:
        if (ranks := _positive(environ.get(name, ""))) is not None:
            return ranks
    return _slurm_tasks(environ) or 1


def read_resources(
    *,
    ranks_on_host: int | None = None,
    has_accelerator: bool = False,
    environ: Mapping[str, str] | None = None,
    root: Path = Path("/"),
) -> Resources:
    """Read what this process may use.

    Args:
        ranks_on_host: Training processes on this host, where the caller knows (a trainer's devices); a launcher
            that says more is believed. None: as the launcher says.
        has_accelerator: Whether the training step runs on an accelerator.
        environ: Environment variables; None: this process's.
        root: Where ``proc`` and ``sys`` lie; another one for tests.
    """
    environ = os.environ if environ is None else environ
    limits = read_cgroup_limits(root)
    left = [size for size in (_available_bytes(root), limits.memory_left_bytes) if size is not None]
    ranks = max(count_ranks(environ), ranks_on_host or 1)
    of_slurm = _slurm_tasks(environ) == ranks
    return Resources(
        num_cores=count_cores(),
        quota_cores=limits.cores,
        cores_per_rank=_positive(environ.get("SLURM_CPUS_PER_TASK", "")) if of_slurm else None,
        available_bytes=min(left, default=None),
        ranks_on_host=ranks,
        has_accelerator=has_accelerator,
    )


def _slurm_tasks(environ: Mapping[str, str]) -> int | None:
    """Return the tasks of a Slurm job on this host, if this process is one of them."""
    if "SLURM_PROCID" not in environ or environ.get("SLURM_JOB_NAME") in ("bash", "interactive"):
        return None
    return _positive(environ.get("SLURM_NTASKS_PER_NODE", ""))


def _available_bytes(root: Path) -> int | None:
    """Return what the kernel says can be taken without swapping; None: it does not say."""
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return None


def _positive(word: str) -> int | None:
    return int(word) if word.isdigit() and int(word) > 0 else None
