"""Worker settings to try, what was measured of them, and the search for the fastest.

A coarse grid is measured once, then the best settings and what lies beside them again and again, half of them each
time. A machine is noisy, so that no measurement is believed alone: survivors take turns, a slow minute hits all of
them, and the median of a candidate's measurements is its rate.
"""

from __future__ import annotations

import math
import multiprocessing
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

__all__ = [
    "Candidate",
    "INLINE",
    "INLINE_MARGIN",
    "METHODS",
    "Measure",
    "Measurement",
    "TIE",
    "TuningResult",
    "coarse_grid",
    "is_measured_enough",
    "median",
    "neighbours",
    "pick",
    "search_settings",
]

METHODS: Final = ("thread", *multiprocessing.get_all_start_methods())
"""Worker threads, and worker processes by their start method, the platform's default first."""

_USUAL_PREFETCH: Final = 2  # torch's default
_MAX_PREFETCH: Final = 16

_COARSE_SHARE: Final = 0.15
"""Share of the budget for the coarse grid; the rest is for measuring the best again."""

_WINDOW_S: Final = (0.25, 3.0)
"""Shortest and longest measurement."""

_ROUNDS: Final = 25
"""Rounds after the coarse grid; more would hardly change the medians."""

_STEPS: Final = (0.25, 0.125, 0.0625)
"""Steps in the number of workers, in the rounds in which neighbours of the best join."""

_NEW: Final = 3
"""How many neighbours join in each of these rounds."""

_SURVIVORS: Final = 4
"""How many go on after the coarse grid, and how few are left at last."""

TIE: Final = 0.02
"""Rates closer than this are taken for equal, and fewer workers win."""

INLINE_MARGIN: Final = 0.03
"""Inline is chosen only if it is so much faster than any worker: a worker works on during the training step."""


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


def neighbours(candidate: Candidate, *, max_workers: int, share: float = 0.25) -> list[Candidate]:
    """Return candidates that differ from one by one step in one setting, the most promising first.

    Args:
        candidate: The one whose neighbours are wanted.
        max_workers: Most workers to try.
        share: A step in the number of workers, as a share of it; at least one.
    """
    n, prefetch = candidate.num_workers, candidate.prefetch_factor
    step = max(1, round(share * n))
    more, fewer = [(n, 2 * prefetch), (n + step, prefetch)], [(n - step, prefetch), (2 * n, prefetch)]
    return [
        Candidate(workers, candidate.method, ahead)
        for workers, ahead in dict.fromkeys([*more, *fewer, (n, prefetch // 2)])
        if n and 1 <= workers <= max_workers and 1 <= ahead <= _MAX_PREFETCH
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


Measure = Callable[[Candidate, float], Measurement]
"""Measures settings for about so many seconds; raises if the settings cannot be used."""


def median(measured: Sequence[Measurement]) -> Measurement:
    """Return the median of every figure over measurements of the same settings, one at least."""
    medians: dict[str, Any] = {"candidate": measured[0].candidate}
    for name in (item.name for item in fields(Measurement) if item.name != "candidate"):
        reported = [value for each in measured if (value := getattr(each, name)) is not None]
        medians[name] = statistics.median(reported) if reported else None
    return Measurement(**medians)


@dataclass(frozen=True)
class TuningResult:
    """The result of a search.

    Attributes:
        best: The settings to use.
        measured: All measurements, by settings, in the order of their first one.
        refused: Settings that cannot be used, and why.
    """

    best: Candidate
    measured: Mapping[Candidate, Sequence[Measurement]]
    refused: Mapping[Candidate, str]

    def medians(self) -> list[Measurement]:
        """Return the medians of all settings, in the order of workers, method, prefetch factor."""
        return [median(self.measured[candidate]) for candidate in sorted(self.measured)]


def search_settings(
    measure: Measure,
    *,
    num_cores: int,
    methods: Sequence[str],
    max_workers: int,
    budget_s: float,
    clock: Callable[[], float] = time.monotonic,
    progress: Callable[[Candidate, float], None] = lambda candidate, elapsed_s: None,
) -> TuningResult:
    """Find the settings with the highest rate.

    Args:
        measure: Measures one candidate.
        num_cores: Available cores.
        methods: Worker methods to try.
        max_workers: Most workers to try.
        budget_s: Seconds that all may take. A measurement is not begun when, by what the last ones took, it would
            not end in time; inline is measured in any case.
        clock: Returns the time in seconds.
        progress: Called before each measurement with its candidate and the seconds gone so far.

    Raises:
        Exception: What inline raises: then the data cannot be read at all.
    """
    grid = coarse_grid(num_cores=num_cores, methods=methods, max_workers=max_workers)
    shortest, longest = _WINDOW_S
    window_s = min(longest, max(shortest, _COARSE_SHARE * budget_s / len(grid)))
    measured: dict[Candidate, list[Measurement]] = {}
    refused: dict[Candidate, str] = {}
    took_s: dict[str, float] = {}
    begun = clock()

    def try_one(candidate: Candidate) -> bool:
        """Measure a candidate once more; return whether there was time for it."""
        if candidate in refused:
            return True
        start = clock()
        expected = took_s.get(candidate.method, max(took_s.values(), default=0.0))
        if took_s and start + expected > begun + budget_s:
            return False
        progress(candidate, start - begun)
        try:
            measured.setdefault(candidate, []).append(measure(candidate, window_s))
        except Exception as error:
            if candidate == INLINE:
                raise
            del measured[candidate]
            refused[candidate] = _in_a_line(error)
        took_s[candidate.method] = clock() - start
        return True

    def ranked() -> list[Candidate]:
        """Return all that was measured, the highest median first."""
        return sorted(measured, key=lambda candidate: -median(measured[candidate]).samples_per_s)

    for candidate in grid:
        try_one(candidate)
    survivors = ranked()[:_SURVIVORS]
    for number in range(_ROUNDS):
        if number < len(_STEPS):
            beside = neighbours(survivors[0], max_workers=max_workers, share=_STEPS[number])
            survivors += [near for near in beside if near not in {*measured, *refused}][:_NEW]
        turn = survivors if number % 2 == 0 else survivors[::-1]
        if not all(map(try_one, turn)):
            break  # the time is up
        kept = [candidate for candidate in ranked() if candidate in survivors]
        survivors = kept[: max(_SURVIVORS, math.ceil(len(survivors) / 2))]
    return TuningResult(pick(measured), measured, refused)


def pick(measured: Mapping[Candidate, Sequence[Measurement]]) -> Candidate:
    """Return the settings to use: of the fastest, those with the fewest workers.

    Settings that were measured half as often as the most often measured ones, or less, are left out: the best of
    many single measurements is a lucky one.

    Args:
        measured: Measurements by settings, one at least.
    """
    medians = [median(each) for name, each in measured.items() if is_measured_enough(name, measured)]
    with_workers = [figures for figures in medians if figures.candidate != INLINE]
    best = max((figures.samples_per_s for figures in with_workers), default=0.0)
    if INLINE in measured and median(measured[INLINE]).samples_per_s > best * (1 + INLINE_MARGIN):
        return INLINE
    equal = [figures for figures in with_workers if figures.samples_per_s >= best * (1 - TIE)]
    return min(equal, key=lambda each: (each.candidate.num_workers, each.cpu_s_per_sample)).candidate


def is_measured_enough(candidate: Candidate, measured: Mapping[Candidate, Sequence[Measurement]]) -> bool:
    """Return whether settings were measured more than half as often as the most often measured ones."""
    return 2 * len(measured[candidate]) > max(map(len, measured.values()))


def _in_a_line(error: Exception) -> str:
    """Return an error's message; of one that came from a worker with its traceback, the last line of that."""
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)  # not its repr
    lines = text.strip().splitlines() or [""]
    return lines[-1] if "Traceback" in text else f"{type(error).__name__}: {lines[0]}"
