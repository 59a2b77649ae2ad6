"""Cores and memory that this process may use on its host, and the number of workers that fit.

NOTE [Control groups]
    A process is in one group of each hierarchy of control groups (version 1, version 2, or both). Every group above its
    own limits it, too, so the tightest limit counts. ``/proc/self/mountinfo`` says where a hierarchy is mounted, and
    which part of it: in a container, the root of the mount is often the container's own group, while
    ``/proc/self/cgroup`` may contain its path on the host.

This module imports no torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final, TypeVar

from lit_loader.foundation.counts import counted

__all__ = [
    "MAX_WORKERS",
    "PROCESS_BYTES",
    "Resources",
    "THREAD_BYTES",
    "TICKS_A_SECOND",
    "count_cores",
    "count_ranks",
    "decide_num_workers",
    "read_busy_s",
    "read_cgroup_limits",
    "read_counters",
    "read_resources",
    "read_text",
    "read_throttled_s",
]

NumberT = TypeVar("NumberT", int, float)

PROCESS_BYTES: Final = 512 << 20
"""Estimated memory of a worker process: interpreter, torch, and its batches in progress."""

THREAD_BYTES: Final = 128 << 20
"""Estimated memory of a worker thread, which shares everything except its batches."""

TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
"""Unit of CPU times in ``/proc``."""

MAX_WORKERS: Final = 16
"""Upper limit of ``"auto"`` per rank: more workers seldom help, and each costs memory and time to start."""

_MEMORY_SHARE: Final = 0.5
"""Fraction of the available memory that workers may take; the model and the file cache need the rest."""

_NO_LIMIT: Final = 1 << 60
"""Bytes from which a limit means none: version 1 reports the largest multiple of a page."""

_LAUNCHERS: Final = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
"""Variables of torchrun, Open MPI and Intel MPI for the number of processes that they started on this host."""


@dataclass(frozen=True, kw_only=True)
class Resources:
    """Cores and memory that the ranks on this host share.

    Attributes:
        num_cores: Number of cores that this process may run on.
        quota_cores: CPU seconds per second that its control groups allow all ranks together; None without a quota.
        cores_per_rank: Number of cores that a batch system reserved for each rank; None if ranks share ``num_cores``.
        available_bytes: Memory that all ranks together may still allocate; None if the kernel does not report it.
        ranks_on_host: Number of training processes on this host, including this one.
        has_accelerator: Whether the training step runs on an accelerator instead of the CPU.
    """

    num_cores: int
    quota_cores: float | None = None
    cores_per_rank: int | None = None
    available_bytes: int | None = None
    ranks_on_host: int = 1
    has_accelerator: bool = False

    @property
    def cores(self) -> float:
        """Number of cores that all ranks together can keep busy."""
        return self.num_cores if self.quota_cores is None else min(self.num_cores, self.quota_cores)

    def max_workers(self, worker_bytes: int = PROCESS_BYTES) -> int | None:
        """Return how many workers of a rank fit into half of its share of the memory, or None if that is unknown."""
        if self.available_bytes is None:
            return None
        return int(self.available_bytes * _MEMORY_SHARE / self.ranks_on_host / worker_bytes)


def decide_num_workers(resources: Resources, *, worker_bytes: int = PROCESS_BYTES) -> tuple[int, str]:
    """Decide how many workers a rank should have, and return the number and the reason in one line.

    A rank has its share of the cores, or of the quota if that is smaller. Without an accelerator, the training step
    needs one of them. Workers take at most half of the rank's share of the memory. With 0, batches are made in the
    training process, because a worker would only compete with it for a core, or would not fit.

    Args:
        resources: Resources of the host.
        worker_bytes: Estimated memory of one worker.
    """
    ranks = resources.ranks_on_host
    share, why = _cores_per_rank(resources)
    if resources.has_accelerator:
        why += ", the training step runs on an accelerator"
    else:
        share -= 1
        why += ", of which the training step keeps one"
    # 3 * (1 / 3) cores are a whole one, also after rounding.
    number = max(0, int(share + 1e-9))
    max_workers = resources.max_workers(worker_bytes)
    if max_workers is not None and max_workers < number:
        number = max_workers
        memory = f"{(resources.available_bytes or 0) / 2**30:.1f} GiB of memory"
        why += f", {memory} for {counted(ranks, 'rank')}, half of it at {worker_bytes >> 20} MiB a worker"
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
    """Read the resources that this process may use.

    Args:
        ranks_on_host: Number of training processes on this host, or None for the launcher's number; if they differ,
            the larger one counts.
        has_accelerator: Whether the training step runs on an accelerator.
        environ: Environment variables; None reads this process's own.
        root: Folder that contains ``proc`` and ``sys``, for tests.
    """
    environ = os.environ if environ is None else environ
    # The host's free memory and the group's limit are independent: either may be the tighter one.
    quota_cores, group_bytes = read_cgroup_limits(root)
    host_kib = read_counters(root / "proc/meminfo").get("MemAvailable:")
    host_bytes = None if host_kib is None else host_kib << 10
    ranks = max(count_ranks(environ), ranks_on_host or 1)
    # Slurm's cores per task apply only if its tasks are the ranks. One task may also start several ranks.
    is_rank_per_task = _slurm_tasks(environ) == ranks
    return Resources(
        num_cores=count_cores(),
        quota_cores=quota_cores,
        cores_per_rank=_positive(environ.get("SLURM_CPUS_PER_TASK", "")) if is_rank_per_task else None,
        available_bytes=_smallest((host_bytes, group_bytes)),
        ranks_on_host=ranks,
        has_accelerator=has_accelerator,
    )


def count_cores() -> int:
    """Return how many cores this process may run on, according to its CPU affinity if the system has one."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def count_ranks(environ: Mapping[str, str]) -> int:
    """Return how many training processes a launcher started on this host, or 1 without a launcher.

    Slurm's number counts only inside a task, because an interactive allocation sets it for the shell as well.
    """
    counts = (_positive(environ.get(name, "")) for name in _LAUNCHERS)
    return next((count for count in counts if count is not None), _slurm_tasks(environ) or 1)


def read_cgroup_limits(root: Path = Path("/")) -> tuple[float | None, int | None]:
    """Return the tightest limits of the process's control groups and of all groups above them.

    Args:
        root: Folder that contains ``proc`` and ``sys``, for tests.

    Returns:
        CPU seconds per second, and the bytes that the process may still allocate before it reaches a limit (including
        memory that the kernel can reclaim from the group's file cache); each None without a limit. Unreadable files
        (another operating system, a hidden ``/sys``) count as no limit.
    """
    quota = _smallest(map(_quota, _group_folders(root, "cpu")))
    return quota, _smallest(map(_available_bytes, _group_folders(root, "memory")))


def _smallest(limits: Iterable[NumberT | None]) -> NumberT | None:
    return min((limit for limit in limits if limit is not None), default=None)


def read_throttled_s(root: Path = Path("/")) -> float | None:
    """Return for how many seconds a quota has throttled this process's groups, or None if it is not reported."""
    # Version 2 counts microseconds, version 1 nanoseconds.
    units = {"throttled_usec": 1e6, "throttled_time": 1e9}
    stats = [read_counters(folder / "cpu.stat") for folder in _group_folders(root, "cpu")]
    return max((stat[name] / unit for stat in stats for name, unit in units.items() if name in stat), default=None)


def read_busy_s(root: Path = Path("/")) -> float | None:
    """Return the busy seconds of all cores of this host together, or None if the kernel does not report them."""
    # The first line is "cpu" and the ticks of all cores: user, nice, system, idle, iowait, irq, softirq, steal. The
    # ticks of guests follow, and user and nice include them.
    words = read_text(root / "proc/stat").partition("\n")[0].split()
    ticks = [int(word) for word in words[1:9]]
    idle = sum(ticks[3:5])
    return (sum(ticks) - idle) / TICKS_A_SECOND if ticks else None


def _cores_per_rank(resources: Resources) -> tuple[float, str]:
    """Return the number of cores of one rank, and the reason."""
    ranks = resources.ranks_on_host
    reserved = resources.cores_per_rank
    quota = resources.quota_cores
    # A reservation that exceeds the affinity or the quota is not one that this process can use.
    if reserved is not None and reserved <= resources.num_cores and (quota is None or reserved * ranks <= quota):
        return float(reserved), f"{counted(reserved, 'core')} for each rank on this host"
    why = counted(resources.num_cores, "core")
    if resources.cores < resources.num_cores:
        why = f"a quota of {resources.cores:g} of {why}"
    return resources.cores / ranks, why if ranks == 1 else f"{why} shared by {ranks} ranks"


def _slurm_tasks(environ: Mapping[str, str]) -> int | None:
    """Return the number of tasks of a Slurm job on this host if this process is one of them, else None."""
    if "SLURM_PROCID" not in environ or environ.get("SLURM_JOB_NAME") in ("bash", "interactive"):
        return None
    return _positive(environ.get("SLURM_NTASKS_PER_NODE", ""))


def _quota(folder: Path) -> float | None:
    # Without a quota the file says "max" or -1, which is no positive number.
    # Version 2 has a single file "QUOTA PERIOD", version 1 one file for each number.
    names = ("cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us")
    words = "".join(read_text(folder / name) for name in names).split()
    quota, period = map(_positive, [*words, "", ""][:2])
    return quota / period if quota and period else None


def _available_bytes(folder: Path) -> int | None:
    # Version 2 has a hard and a soft limit, version 1 the last one.
    names = ("memory.max", "memory.high", "memory.limit_in_bytes")
    sizes = (_positive(read_text(folder / name)) for name in names)
    limit = min((size for size in sizes if size is not None), default=_NO_LIMIT)
    if limit >= _NO_LIMIT:
        return None
    used = _positive(read_text(folder / "memory.current") or read_text(folder / "memory.usage_in_bytes")) or 0
    stat = read_counters(folder / "memory.stat")
    # The file cache counts as used, but the kernel frees its inactive part before the limit is reached.
    reclaimable = stat.get("total_inactive_file", stat.get("inactive_file", 0))
    return max(0, limit - max(0, used - reclaimable))


def _group_folders(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of a controller's groups in every hierarchy, from the process's own group upwards.

    See NOTE [Control groups].
    """
    # Path of the process's group per controller; the controller of version 2 is "".
    groups: dict[str, PurePosixPath] = {}
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, controllers, group = [*line.split(":", 2), "", ""][:3]
        groups |= {name: PurePosixPath(group or "/") for name in controllers.split(",")}
    for line in read_text(root / "proc/self/mountinfo").splitlines():
        mount_fields, _, filesystem_fields = line.partition(" - ")
        kind, *_, options = [*filesystem_fields.split(), "", ""][:3]
        fields = mount_fields.split()
        group_path = groups.get({"cgroup": controller, "cgroup2": ""}.get(kind, "none"))
        if group_path is None or len(fields) < 5:
            continue
        if kind == "cgroup" and controller not in options.split(","):
            continue
        mount_root, mount_point = (field.replace("\\040", " ") for field in fields[3:5])
        mount = root / mount_point.lstrip("/")
        folder = mount
        # Outside the mounted part the group's path cannot be resolved; the root of the mount still limits it.
        if group_path.is_relative_to(mount_root) and ".." not in group_path.parts:
            folder = mount / group_path.relative_to(mount_root)
        for ancestor in (folder, *folder.parents):
            if ancestor.is_relative_to(mount) and ancestor.is_dir():
                yield ancestor


def read_counters(path: Path) -> dict[str, int]:
    """Return the lines ``NAME NUMBER ...`` of a file as a dict, which is empty if the file cannot be read."""
    pairs = (line.split()[:2] for line in read_text(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _positive(text: str) -> int | None:
    return int(text) if text.strip().isdigit() and int(text) > 0 else None


def read_text(path: Path) -> str:
    """Return a file's text, or an empty string if it does not exist or cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
