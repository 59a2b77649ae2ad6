"""What this process may use of its host, and how many workers that is. Nothing here imports torch."""

from __future__ import annotations

from lit_loader.resources.cgroups import CgroupLimits, read_cgroup_limits, read_throttled_s
from lit_loader.resources.decision import (
    MAX_WORKERS,
    PROCESS_BYTES,
    THREAD_BYTES,
    Resources,
    decide_num_workers,
)
from lit_loader.resources.host import count_cores, count_ranks, read_resources

__all__ = [
    "CgroupLimits",
    "MAX_WORKERS",
    "PROCESS_BYTES",
    "Resources",
    "THREAD_BYTES",
    "count_cores",
    "count_ranks",
    "decide_num_workers",
    "read_cgroup_limits",
    "read_resources",
    "read_throttled_s",
]
