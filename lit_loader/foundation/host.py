"""What this process may use of its host, and how many workers that is. Nothing here imports torch.

Limits of control groups, of version 1, version 2, or both at once: a process is in one group of each hierarchy, and
every group above it limits it too, so that the tightest of them counts. ``/proc/self/mountinfo`` tells where a
hierarchy is mounted, and which part of it: in a container the mount often shows the container's own group as its root,
while ``/proc/self/cgroup`` may name it by its path on the host.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

__all__ = [
    "MAX_WORKERS",
    "PROCESS_BYTES",
    "Resources",
    "THREAD_BYTES",
    "count_cores",
    "count_ranks",
    "decide_num_workers",
    "read_cgroup_limits",
    "read_counters",
    "read_resources",
    "read_text",
    "read_throttled_s",
]

PROCESS_BYTES: Final = 512 << 20
"""Estimate of the memory that a worker process takes: interpreter, torch, its batches under way."""

THREAD_BYTES: Final = 128 << 20
"""The same for a worker thread, which shares everything but its batches."""

MAX_WORKERS: Final = 16
"""Most workers that a rank gets from ``"auto"``: beyond it, more seldom pay, and they cost memory and time to start."""

_MEMORY_SHARE: Final = 0.5
"""Share of the available memory that workers may take; the rest is the model's and the file cache's."""

_NO_LIMIT: Final = 1 << 60
"""Bytes above which version 1 means no limit: it writes the largest multiple of a page."""

_LAUNCHERS: Final = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
"""Variables in which torchrun, Open MPI and Intel MPI give the number of processes that they started on this host."""


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What there is to share between the ranks on this host.

    Attributes:
        num_cores: Cores that this process may run on.
        quota_cores: CPU seconds a second that its control groups allow, to all ranks together, or None without a
            quota.
        cores_per_rank: Cores that a batch system gave to each rank for itself, or None if ranks share ``num_cores``.
        available_bytes: Memory that all ranks together may still take, or None if the kernel does not report it.
        ranks_on_host: Training processes on this host, this one included.
        has_accelerator: Whether the training step runs on an accelerator, not on the CPU.
    """

    num_cores: int
    quota_cores: float | None = None
    cores_per_rank: int | None = None
    available_bytes: int | None = None
    ranks_on_host: int = 1
    has_accelerator: bool = False

    @property
    def cores(self) -> float:
        """Cores that all ranks together can keep busy."""
        return self.num_cores if self.quota_cores is None else min(self.num_cores, self.quota_cores)

    def max_workers(self, worker_bytes: int = PROCESS_BYTES) -> int | None:
        """Return how many workers of a rank fit into half of its share of the memory, or None if that is not known."""
        if self.available_bytes is None:
            return None
        return int(self.available_bytes * _MEMORY_SHARE / self.ranks_on_host / worker_bytes)


def decide_num_workers(resources: Resources, *, worker_bytes: int = PROCESS_BYTES) -> tuple[int, str]:
    """Return how many workers a rank should have, and why, in one line.

    A rank has its share of the cores, or of the quota if that is less; without an accelerator one of them is
    the training step's. Workers take at most half of the rank's share of the memory. With 0 batches are made in the
    training process, because a worker would only compete with it for a core, or would not fit.

    Args:
        resources: What there is.
        worker_bytes: Estimate of the memory of one worker.
    """
    ranks = resources.ranks_on_host
    share, why = _cores_of_a_rank(resources)
    if resources.has_accelerator:
        why += ", the training step runs on an accelerator"
    else:
        share -= 1
        why += ", of which the training step keeps one"
    number = max(0, int(share + 1e-9))
    fitting = resources.max_workers(worker_bytes)
    if fitting is not None and fitting < number:
        number = fitting
        left = f"{(resources.available_bytes or 0) / 2**30:.1f} GiB of memory"
        why += f", {left} for {_counted(ranks, 'rank')}, half of it at {worker_bytes >> 20} MiB a worker"
    if number > MAX_WORKERS:
        number = MAX_WORKERS
        why += f", at most {MAX_WORKERS} (lit-loader tune measures whether more pay)"
    return number, f"num_workers='auto' is {number}: {why}"


def read_resources(
    *,
    ranks_on_host: int | None = None,
    has_accelerator: bool = False,
    environ: Mapping[str, str] | None = None,
    root: Path = Path("/"),
) -> Resources:
    """Read what this process may use.

    Args:
        ranks_on_host: Training processes on this host, or None for the launcher's number; the larger one counts.
        has_accelerator: Whether the training step runs on an accelerator.
        environ: Environment variables, or None for this process's.
        root: Where ``proc`` and ``sys`` lie; another one for tests.
    """
    environ = os.environ if environ is None else environ
    quota_cores, memory_left = read_cgroup_limits(root)
    free = read_counters(root / "proc/meminfo").get("MemAvailable:")
    left = [size for size in (None if free is None else free << 10, memory_left) if size is not None]
    ranks = max(count_ranks(environ), ranks_on_host or 1)
    of_slurm = _slurm_tasks(environ) == ranks
    return Resources(
        num_cores=count_cores(),
        quota_cores=quota_cores,
        cores_per_rank=_positive(environ.get("SLURM_CPUS_PER_TASK", "")) if of_slurm else None,
        available_bytes=min(left, default=None),
        ranks_on_host=ranks,
        has_accelerator=has_accelerator,
    )


def count_cores() -> int:
    """Return how many cores this process may run on, by its affinity where the system has one."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def count_ranks(environ: Mapping[str, str]) -> int:
    """Return how many training processes a launcher started on this host, or 1 without a launcher.

    Slurm's number counts only inside of a task: in an interactive allocation it is set for a shell too.
    """
    given = (_positive(environ.get(name, "")) for name in _LAUNCHERS)
    return next((ranks for ranks in given if ranks is not None), _slurm_tasks(environ) or 1)


def read_cgroup_limits(root: Path = Path("/")) -> tuple[float | None, int | None]:
    """Return the tightest limits on the way from the process's own groups up to the mounts.

    Args:
        root: Where ``proc`` and ``sys`` lie; another one for tests.

    Returns:
        CPU seconds a second, and the bytes that the process may still take before a limit is reached, memory that the
        kernel can reclaim from the group's file cache included; each None without a limit. What cannot be read
        (another system, a hidden ``/sys``) limits nothing.
    """
    quotas = [quota for folder in _folders(root, "cpu") if (quota := _quota(folder)) is not None]
    left = [size for folder in _folders(root, "memory") if (size := _memory_left(folder)) is not None]
    return min(quotas, default=None), min(left, default=None)


def read_throttled_s(root: Path = Path("/")) -> float | None:
    """Return the seconds for which a quota has held this process's groups back, or None if it is not reported."""
    units = {"throttled_usec": 1e6, "throttled_time": 1e9}  # of version 2 and of version 1
    stats = [read_counters(folder / "cpu.stat") for folder in _folders(root, "cpu")]
    return max(
        (stat[name] / unit for stat in stats for name, unit in units.items() if name in stat), default=None
    )


def _cores_of_a_rank(resources: Resources) -> tuple[float, str]:
    """Return the cores of one rank, and where they come from."""
    ranks, given, cores = resources.ranks_on_host, resources.cores_per_rank, resources.cores
    quota = resources.quota_cores
    if given is not None and given <= resources.num_cores and (quota is None or given * ranks <= quota):
        return float(given), f"{_counted(given, 'core')} for each rank on this host"
    why = _counted(resources.num_cores, "core")
    if cores < resources.num_cores:
        why = f"a quota of {cores:g} of {why}"
    return cores / ranks, why if ranks == 1 else f"{why} shared by {ranks} ranks"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _slurm_tasks(environ: Mapping[str, str]) -> int | None:
    """Return the tasks of a Slurm job on this host, if this process is one of them."""
    if "SLURM_PROCID" not in environ or environ.get("SLURM_JOB_NAME") in ("bash", "interactive"):
        return None
    return _positive(environ.get("SLURM_NTASKS_PER_NODE", ""))


def _quota(folder: Path) -> float | None:
    names = (
        "cpu.max",
        "cpu.cfs_quota_us",
        "cpu.cfs_period_us",
    )  # the first is of version 2, which has no other
    words = "".join(read_text(folder / name) for name in names).split()
    quota, period = map(_positive, [*words, "", ""][:2])
    return quota / period if quota and period else None


def _memory_left(folder: Path) -> int | None:
    names = ("memory.max", "memory.high", "memory.limit_in_bytes")
    sizes = (_positive(read_text(folder / name)) for name in names)
    limit = min((size for size in sizes if size is not None), default=_NO_LIMIT)
    if limit >= _NO_LIMIT:
        return None
    used = _positive(read_text(folder / "memory.current") or read_text(folder / "memory.usage_in_bytes")) or 0
    stat = read_counters(folder / "memory.stat")
    return max(0, limit - max(0, used - stat.get("total_inactive_file", stat.get("inactive_file", 0))))


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of a controller's groups, from the process's own upwards, of every hierarchy."""
    groups: dict[str, PurePosixPath] = {}  # by controller; "" is version 2
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, controllers, group = [*line.split(":", 2), "", ""][:3]
        groups |= {name: PurePosixPath(group or "/") for name in controllers.split(",")}
    for line in read_text(root / "proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        kind, *_, options = [*right.split(), "", ""][:3]
        words = left.split()
        own = groups.get({"cgroup": controller, "cgroup2": ""}.get(kind, "none"))
        if own is None or len(words) < 5 or (kind == "cgroup" and controller not in options.split(",")):
            continue
        shown, place = (word.replace("\\040", " ") for word in words[3:5])
        mount = folder = root / place.lstrip("/")
        if own.is_relative_to(shown) and ".." not in own.parts:
            folder = mount / own.relative_to(shown)
        yield from (
            each for each in (folder, *folder.parents) if each.is_relative_to(mount) and each.is_dir()
        )


def read_counters(path: Path) -> dict[str, int]:
    """Return the lines ``NAME NUMBER ...`` of a file; nothing of one that cannot be read."""
    pairs = (line.split()[:2] for line in read_text(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _positive(text: str) -> int | None:
    return int(text) if text.strip().isdigit() and int(text) > 0 else None


def read_text(path: Path) -> str:
    """Return a file's text, empty if it cannot be read: gone, another user's, or of another system."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
