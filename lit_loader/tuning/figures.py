"""What was measured of worker settings, and what is typical of several measurements of the same."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from lit_loader.tuning.candidates import Candidate

__all__ = ["Figures", "Host", "typical"]


@dataclass(frozen=True, kw_only=True)
class Figures:
    """One measurement, or the medians of several.

    Attributes:
        candidate: The settings.
        samples_per_s: Samples that arrived in a second.
        cpu_s_per_sample: CPU seconds of the main process and its workers.
        main_cpu_s_per_sample: Those of the main process alone; worker threads are part of it.
        start_s: From asking for a loader to its first batch.
        wall_s: How long was measured.
        memory_bytes: Proportional share of the memory of the main process and its workers while their batches
            ahead are ready, shared pages divided by who shares them; None: the kernel does not tell.
        major_faults_per_sample: Page faults that waited for storage.
        read_bytes_per_sample: Bytes fetched from storage, not from the file cache.
        throttled_s: Seconds for which a CPU quota held the processes back.
        other_cores: Cores that other processes on this host kept busy; None: the kernel does not tell.
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
        """CPU seconds a second, of all processes."""
        return self.cpu_s_per_sample * self.samples_per_s

    @property
    def main_cores_used(self) -> float:
        """CPU seconds a second, of the main process."""
        return self.main_cpu_s_per_sample * self.samples_per_s

    @property
    def cores_per_worker(self) -> float:
        """CPU seconds a second of each worker; of threads, the main thread's work is counted with theirs."""
        own = self.cores_used if self.candidate.is_threaded else self.cores_used - self.main_cores_used
        return own / max(1, self.candidate.num_workers)


@dataclass(frozen=True, kw_only=True)
class Host:
    """What there is to use.

    Attributes:
        num_cores: Cores that the process may run on.
        quota_cores: CPU seconds a second that its control groups allow; None: no quota.
        num_threads: Threads of one operator of torch's in the main process.
    """

    num_cores: int
    quota_cores: float | None = None
    num_threads: int = 1

    @property
    def cores(self) -> float:
        """Cores that can be kept busy."""
        return self.num_cores if self.quota_cores is None else min(self.num_cores, self.quota_cores)


def typical(measured: Sequence[Figures]) -> Figures:
    """Return the median of every figure over measurements of the same settings.

    Raises:
        ValueError: If there are none.
    """
    if not measured:
        raise ValueError("there are no measurements to take medians of")
    medians: dict[str, Any] = {"candidate": measured[0].candidate}
    for item in fields(Figures):
        if item.name != "candidate":
            told = [value for figures in measured if (value := getattr(figures, item.name)) is not None]
            medians[item.name] = statistics.median(told) if told else None
    return Figures(**medians)
