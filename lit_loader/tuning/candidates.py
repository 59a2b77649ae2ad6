"""Worker settings that can be tried: a coarse grid, and what lies beside a promising one."""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["Candidate", "INLINE", "METHODS", "coarse_grid", "default_method", "full_grid", "neighbours"]

METHODS: Final = ("thread", *multiprocessing.get_all_start_methods())
"""Worker threads, and worker processes by their start method."""

_USUAL_PREFETCH: Final = 2  # torch's default
_MAX_PREFETCH: Final = 16


@dataclass(frozen=True, order=True)
class Candidate:
    """One choice of worker settings.

    Attributes:
        num_workers: Workers; 0: batches are made in the main process.
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
    """Return the start method that this platform uses unasked."""
    return multiprocessing.get_all_start_methods()[0]


def coarse_grid(*, num_cores: int, methods: Sequence[str], max_workers: int) -> list[Candidate]:
    """Return what is tried first, the most promising first, since a short budget may not last for all.

    Args:
        num_cores: Cores that there are.
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
    """Return what differs from a candidate by one step in one setting, the most promising first.

    Args:
        candidate: Where to look around.
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
