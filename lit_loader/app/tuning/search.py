"""Search for the fastest worker settings: candidates, their measurements, and the choice.

A coarse grid is measured once. Then the best settings and their neighbours are measured again and again, half as many
each round. Machines are noisy, so no single measurement counts: the survivors take turns, so a slow minute hits all of
them, and the rate of a candidate is the median of its measurements.
"""

from __future__ import annotations

import math
import multiprocessing
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
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
"""Worker threads, and the start methods of worker processes, the platform's default first."""

_USUAL_PREFETCH: Final = 2  # torch's default
_MAX_PREFETCH: Final = 16

# Share of the budget for the coarse grid; the rest is for measuring the best candidates again.
_COARSE_SHARE: Final = 0.15

# Shortest and longest measurement, in seconds.
_WINDOW_S: Final = (0.25, 3.0)

# Rounds after the coarse grid; more rounds would hardly change the medians.
_ROUNDS: Final = 25

# Relative steps in the number of workers, one for each round in which neighbours of the best candidate join.
_STEPS: Final = (0.25, 0.125, 0.0625)

# Number of neighbours that join in each of these rounds.
_NEW: Final = 3

# Number of candidates that survive the coarse grid, and the smallest number that survives a round.
_SURVIVORS: Final = 4

# Rates that differ by less than this share count as equal, and the candidate with fewer workers wins.
TIE: Final = 0.02

# Inline must be faster by this share to be chosen, since workers continue during a training step.
INLINE_MARGIN: Final = 0.03


@dataclass(frozen=True, order=True)
class Candidate:
    """One choice of worker settings.

    Attributes:
        num_workers: Number of workers, or 0 if the main process loads the batches.
        method: ``inline`` for 0 workers, else one of `METHODS`.
        prefetch_factor: Batches that each worker loads ahead; 0 for 0 workers.
    """

    num_workers: int
    method: str
    prefetch_factor: int

    @property
    def is_threaded(self) -> bool:
        """True if the workers are threads."""
        return self.method == "thread"

    def settings(self) -> dict[str, Any]:
        """Return the worker settings of a data module."""
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
    """Return the first candidates, the most promising first, since a short budget may not cover all.

    Args:
        num_cores: Available cores.
        methods: Worker methods, of `METHODS`.
        max_workers: Largest number of workers to try.

    Returns:
        Inline, then for every method powers of two up to twice the cores, and numbers close to the cores.
    """
    # Powers of two show how the rate scales; numbers close to the cores are usually best.
    counts = {2**power for power in range(1 + int(math.log2(2 * num_cores)))}
    counts |= {max(1, num_cores - 1), num_cores, num_cores + num_cores // 2}
    allowed_counts = [count for count in counts if count <= max_workers]
    allowed_counts.sort(key=lambda count: (abs(math.log(count / num_cores)), count))
    candidates = (Candidate(count, method, _USUAL_PREFETCH) for count in allowed_counts for method in methods)
    return [INLINE, *candidates]


def neighbours(candidate: Candidate, *, max_workers: int, share: float = 0.25) -> list[Candidate]:
    """Return the candidates that are one step away in one setting, the most promising first.

    Args:
        candidate: The candidate to start from.
        max_workers: Largest number of workers to try.
        share: Step in the number of workers, as a share of that number; at least one worker.
    """
    count = candidate.num_workers
    prefetch = candidate.prefetch_factor
    if count == 0:
        return []
    step = max(1, round(share * count))
    # A longer queue is cheap and evens out slow samples, so it comes first.
    settings = [
        (count, 2 * prefetch),
        (count + step, prefetch),
        (count - step, prefetch),
        (2 * count, prefetch),
        (count, prefetch // 2),
    ]
    return [
        Candidate(num_workers, candidate.method, prefetch_factor)
        for num_workers, prefetch_factor in dict.fromkeys(settings)
        if 1 <= num_workers <= max_workers and 1 <= prefetch_factor <= _MAX_PREFETCH
    ]


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One measurement of worker settings, or the medians of several.

    Attributes:
        candidate: The settings.
        samples_per_s: Samples per second.
        cpu_s_per_sample: CPU seconds of the main process and its workers per sample.
        main_cpu_s_per_sample: CPU seconds of the main process per sample; worker threads are part of it.
        start_s: Seconds from building the loader to its first batch.
        wall_s: Duration of the measurement.
        memory_bytes: Memory of the main process and its workers while the batches ahead are ready, each shared page
            divided by the number of processes that share it, or None if the kernel does not report it.
        read_bytes_per_sample: Bytes per sample read from storage rather than from the file cache.
        throttled_s: Seconds for which a CPU quota stopped the processes.
        other_cores: Cores that other processes of this host used, or None if the kernel does not report it.
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
        """CPU seconds per second of all processes."""
        return self.cpu_s_per_sample * self.samples_per_s

    @property
    def main_cores_used(self) -> float:
        """CPU seconds per second of the main process."""
        return self.main_cpu_s_per_sample * self.samples_per_s

    @property
    def cores_per_worker(self) -> float:
        """CPU seconds per second of each worker; for threads, this includes the work of the main thread."""
        worker_cores = self.cores_used
        if not self.candidate.is_threaded:
            worker_cores -= self.main_cores_used
        return worker_cores / max(1, self.candidate.num_workers)


Measure = Callable[[Candidate, float], Measurement]
"""Function that measures settings for about the given seconds; it raises if the settings cannot be used."""


def median(measured: Sequence[Measurement]) -> Measurement:
    """Return the median of every figure over one or more measurements of the same settings."""
    medians: dict[str, Any] = {"candidate": measured[0].candidate}
    for name in [figure.name for figure in fields(Measurement) if figure.name != "candidate"]:
        values = [getattr(measurement, name) for measurement in measured]
        reported = [value for value in values if value is not None]
        # A kernel may report a figure in some measurements only, for example while a process starts.
        medians[name] = statistics.median(reported) if reported else None
    return Measurement(**medians)


@dataclass(frozen=True)
class TuningResult:
    """The result of a search.

    Attributes:
        best: The settings to use.
        measured: All measurements by settings, in the order of the first measurement.
        refused: Settings that cannot be used, with the reason.
    """

    best: Candidate
    measured: Mapping[Candidate, Sequence[Measurement]]
    refused: Mapping[Candidate, str]

    def medians(self) -> list[Measurement]:
        """Return the medians of all settings, sorted by workers, method and prefetch factor."""
        return [median(self.measured[candidate]) for candidate in sorted(self.measured)]


@dataclass(kw_only=True)
class _Session:
    """The measurements of a search, and the time that is left for more.

    Attributes:
        measure: Measures one candidate.
        window_s: Duration of a measurement.
        budget_s: Duration of all measurements.
        clock: Returns the time in seconds.
        progress: Called before each measurement with the candidate and the elapsed seconds.
        measured: All measurements by settings.
        refused: Settings that cannot be used, with the reason.
        durations_s: Duration of the last measurement, by method.
        start_s: Start of the search on the clock.
    """

    measure: Measure
    window_s: float
    budget_s: float
    clock: Callable[[], float]
    progress: Callable[[Candidate, float], None]
    measured: dict[Candidate, list[Measurement]] = field(default_factory=dict)
    refused: dict[Candidate, str] = field(default_factory=dict)
    durations_s: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.start_s = self.clock()

    def try_once(self, candidate: Candidate) -> bool:
        """Measure a candidate once more; return False if the time does not suffice."""
        if candidate in self.refused:
            return True
        start_s = self.clock()
        # The start of workers dominates a short measurement, and it depends on the method.
        expected_s = self.durations_s.get(candidate.method, max(self.durations_s.values(), default=0.0))
        if self.durations_s and start_s + expected_s > self.start_s + self.budget_s:
            return False
        self.progress(candidate, start_s - self.start_s)
        try:
            self.measured.setdefault(candidate, []).append(self.measure(candidate, self.window_s))
        except Exception as error:
            # If inline fails, the data cannot be read at all, whatever the workers are.
            if candidate == INLINE:
                raise
            # Settings with an error are out, even if they worked before.
            del self.measured[candidate]
            self.refused[candidate] = _in_a_line(error)
        self.durations_s[candidate.method] = self.clock() - start_s
        return True

    def ranked(self) -> list[Candidate]:
        """Return the measured candidates, the highest median rate first."""
        return sorted(self.measured, key=lambda candidate: -median(self.measured[candidate]).samples_per_s)


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
        max_workers: Largest number of workers to try.
        budget_s: Duration of the search in seconds. A measurement is skipped if it would probably end too late, judged
            by the previous ones; inline is always measured.
        clock: Returns the time in seconds.
        progress: Called before each measurement with the candidate and the elapsed seconds.

    Raises:
        Exception: The error of an inline measurement, which means that the data cannot be read.
    """
    grid = coarse_grid(num_cores=num_cores, methods=methods, max_workers=max_workers)
    shortest_s, longest_s = _WINDOW_S
    window_s = min(longest_s, max(shortest_s, _COARSE_SHARE * budget_s / len(grid)))
    session = _Session(measure=measure, window_s=window_s, budget_s=budget_s, clock=clock, progress=progress)
    for candidate in grid:
        session.try_once(candidate)
    survivors = session.ranked()[:_SURVIVORS]
    for number in range(_ROUNDS):
        if number < len(_STEPS):
            nearby = neighbours(survivors[0], max_workers=max_workers, share=_STEPS[number])
            untried = [near for near in nearby if near not in {*session.measured, *session.refused}]
            survivors += untried[:_NEW]
        # Every other round runs backwards, so that a machine that slows down does not favour the first ones.
        turn = survivors if number % 2 == 0 else survivors[::-1]
        if not all(map(session.try_once, turn)):
            break
        ranked_survivors = [candidate for candidate in session.ranked() if candidate in survivors]
        survivors = ranked_survivors[: max(_SURVIVORS, math.ceil(len(survivors) / 2))]
    return TuningResult(pick(session.measured), session.measured, session.refused)


def pick(measured: Mapping[Candidate, Sequence[Measurement]]) -> Candidate:
    """Return the settings to use: among the fastest, those with the fewest workers.

    Settings that were measured at most half as often as the most often measured ones are ignored: the best of many
    single measurements is a lucky one.

    Args:
        measured: One or more measurements by settings.
    """
    medians = [median(runs) for candidate, runs in measured.items() if is_measured_enough(candidate, measured)]
    with_workers = [figures for figures in medians if figures.candidate != INLINE]
    best = max((figures.samples_per_s for figures in with_workers), default=0.0)
    if INLINE in measured and median(measured[INLINE]).samples_per_s > best * (1 + INLINE_MARGIN):
        return INLINE
    fastest = [figures for figures in with_workers if figures.samples_per_s >= best * (1 - TIE)]
    return min(fastest, key=lambda figures: (figures.candidate.num_workers, figures.cpu_s_per_sample)).candidate


def is_measured_enough(candidate: Candidate, measured: Mapping[Candidate, Sequence[Measurement]]) -> bool:
    """Return True if settings were measured more than half as often as the most often measured ones."""
    return 2 * len(measured[candidate]) > max(map(len, measured.values()))


def _in_a_line(error: Exception) -> str:
    """Return an error's message in one line; for a worker's error, the last line of its traceback."""
    # The text of a KeyError is the repr of its message.
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    lines = text.strip().splitlines() or [""]
    return lines[-1] if "Traceback" in text else f"{type(error).__name__}: {lines[0]}"
