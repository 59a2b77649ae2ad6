"""Worker settings to try, and what was measured of them."""

from __future__ import annotations

import math
import multiprocessing
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

__all__ = [
    "Candidate",
    "Host",
    "INLINE",
    "METHODS",
    "Measurement",
    "coarse_grid",
    "default_method",
    "full_grid",
    "median",
    "neighbours",
]

METHODS: Final = ("thread", *multiprocessing.get_all_start_methods())
"""Worker threads, and worker processes by their start method."""

_USUAL_PREFETCH: Final = 2  # torch's default
_MAX_PREFETCH: Final = 16


@dataclass(frozen=True, order=True)
class Candidate:
    """One choice of worker settings.

    Attributes:
        num_workers: Workers, or 0 if batches are made in the main process.
        method: ``inline`` for 0 workers, else one of `METHODS`.
        prefetch_factor: Batches that each worker makes ahead; 0 for 0 workers.
    """

    num_workers: int
    method: str
    prefetch_factor: int

    @property
    def is_threaded(self) -> bool:
        """Whether its workers are threads."""
        return self.method == "thread"

    def settings(self) -> dict[str, Any]:
        """Return its values as a data module's worker settings."""
        if self.num_workers == 0:
            return {"num_workers": 0, "prefetch_factor": None}
        return {
            "num_workers": self.num_workers,
            "worker_method": "thread" if self.is_threaded else "multiprocessing",
            "multiprocessing_context": None if self.is_threaded else self.method,
            "prefetch_factor": self.prefetch_factor,
        }

    def __str__(self) -> str:
        if self.num_workers == 0:
            return "inline"
        return f"{self.num_workers} {self.method}, prefetch {self.prefetch_factor}"


INLINE: Final = Candidate(0, "inline", 0)


def default_method() -> str:
    """Return the platform's default start method."""
    return multiprocessing.get_all_start_methods()[0]


def coarse_grid(*, num_cores: int, methods: Sequence[str], max_workers: int) -> list[Candidate]:
    """Return the first candidates, the most promising first, since a short budget may not last for all.

    Args:
        num_cores: Available cores.
        methods: Worker methods, of `METHODS`.
        max_workers: Most workers to try.

    Returns:
        Inline, then for every method powers of two up to twice the cores, and numbers around the cores.
    """
    counts = {2**power for power in range(1 + int(math.log2(2 * num_cores)))}
    counts |= {max(1, num_cores - 1), num_cores, num_cores + num_cores // 2}
    kept = [count for count in counts if count <= max_workers]
    kept.sort(key=lambda count: (abs(math.log(count / num_cores)), count))
    return [INLINE, *(Candidate(count, method, _USUAL_PREFETCH) for count in kept for method in methods)]


def full_grid(
    *, num_workers: Sequence[int], methods: Sequence[str], prefetch_factors: Sequence[int]
) -> list[Candidate]:
    """Return inline and every combination."""
    return [
        INLINE,
        *(Candidate(n, method, p) for n in num_workers if n for method in methods for p in prefetch_factors),
    ]


def neighbours(candidate: Candidate, *, max_workers: int, share: float = 0.25) -> list[Candidate]:
    """Return candidates that differ from one by one step in one setting, the most promising first.

    Args:
        candidate: The one whose neighbours are wanted.
        max_workers: Most workers to try.
        share: A step in the number of workers, as a share of it; at least one.
    """
    if candidate.num_workers == 0:
        return []
    n, method, prefetch = candidate.num_workers, candidate.method, candidate.prefetch_factor
    step = max(1, round(share * n))
    found = [
        Candidate(n, method, 2 * prefetch),
        Candidate(n + step, method, prefetch),
        Candidate(n - step, method, prefetch),
        Candidate(2 * n, method, prefetch),
        Candidate(n, method, prefetch // 2),
    ]
    return [
        near
        for near in dict.fromkeys(found)
        if 1 <= near.num_workers <= max_workers and 1 <= near.prefetch_factor <= _MAX_PREFETCH
    ]


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One measurement of worker settings, or the medians of several.

    Attributes:
        candidate: The settings.
        samples_per_s: Samples that arrived in a second.
        cpu_s_per_sample: CPU seconds of the main process and its workers.
        main_cpu_s_per_sample: Those of the main process alone; worker threads are part of it.
        start_s: From making the loader to its first batch.
        wall_s: Duration of the measurement.
        memory_bytes: Proportional share of the memory of the main process and its workers while their batches
            ahead are ready, a shared page divided by the number of its processes, or None if the kernel does not
            report it.
        major_faults_per_sample: Page faults that waited for storage.
        read_bytes_per_sample: Bytes fetched from storage, not from the file cache.
        throttled_s: Seconds for which a CPU quota held the processes back.
        other_cores: Cores that other processes on this host kept busy, or None if the kernel does not report it.
    """

    candidate: Candidate
    samples_per_s: float
    cpu_s_per_sample: float
    main_cpu_s_per_sample: float
    start_s: float
    wall_s: float
    memory_bytes: float | None = None
    major_faults_per_sample: float = 0.0
    read_bytes_per_sample: float = 0.0
    throttled_s: float = 0.0
    other_cores: float | None = None

    @property
    def cores_used(self) -> float:
        """CPU seconds per second, of all processes."""
        return self.cpu_s_per_sample * self.samples_per_s

    @property
    def main_cores_used(self) -> float:
        """CPU seconds per second, of the main process."""
        return self.main_cpu_s_per_sample * self.samples_per_s

    @property
    def cores_per_worker(self) -> float:
        """CPU seconds per second of each worker; of threads, the main thread's work is counted with theirs."""
        own = self.cores_used if self.candidate.is_threaded else self.cores_used - self.main_cores_used
        return own / max(1, self.candidate.num_workers)


@dataclass(frozen=True, kw_only=True)
class Host:
    """The cores of this machine that can be used.

    Attributes:
        num_cores: Cores that the process may run on.
        quota_cores: CPU seconds per second that its control groups allow, or None without a quota.
        num_threads: Threads of one operator of torch's in the main process.
    """

    num_cores: int
    quota_cores: float | None = None
    num_threads: int = 1

    @property
    def cores(self) -> float:
        """Cores that can be kept busy."""
        return self.num_cores if self.quota_cores is None else min(self.num_cores, self.quota_cores)


def median(measured: Sequence[Measurement]) -> Measurement:
    """Return the median of every figure over measurements of the same settings.

    Raises:
        ValueError: If there are none.
    """
    if not measured:
        raise ValueError("there are no measurements to take medians of")
    medians: dict[str, Any] = {"candidate": measured[0].candidate}
    for item in fields(Measurement):
        if item.name != "candidate":
            known = [value for each in measured if (value := getattr(each, item.name)) is not None]
            medians[item.name] = statistics.median(known) if known else None
    return Measurement(**medians)
