"""The search: a coarse grid once, then the best and what lies beside them, again and again, half of them each time.

A machine is noisy, so that no measurement is believed alone. Survivors take turns, a slow minute hits all of
them, and the median of a candidate's measurements is its rate.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from lit_loader.tuning.candidates import (
    INLINE,
    Candidate,
    Measurement,
    coarse_grid,
    median,
    neighbours,
)

__all__ = ["Measure", "TuningResult", "pick", "search_settings"]

Measure = Callable[[Candidate, float], Measurement]
"""Measures settings for about so many seconds; raises if the settings cannot be used."""

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

_TIE: Final = 0.02
"""Rates closer than this are taken for equal, and fewer workers win."""

_INLINE_MARGIN: Final = 0.03
"""Inline is chosen only if it is so much faster than any worker: a worker works on during the training step."""


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
        ValueError: If the budget is not positive.
        Exception: What inline raises: then the data cannot be read at all.
    """
    if not budget_s > 0:
        raise ValueError(f"budget_s={budget_s} must be above 0 seconds")
    grid = coarse_grid(num_cores=num_cores, methods=methods, max_workers=max_workers)
    shortest, longest = _WINDOW_S
    window = min(longest, max(shortest, _COARSE_SHARE * budget_s / len(grid)))
    run = _Run(measure, window, clock, clock() + budget_s, clock(), progress)
    for candidate in grid:
        run.try_one(candidate)
    survivors = run.ranked()[:_SURVIVORS]
    for number in range(_ROUNDS):
        if number < len(_STEPS):
            beside = neighbours(survivors[0], max_workers=max_workers, share=_STEPS[number])
            new = [near for near in beside if near not in run.measured and near not in run.refused]
            survivors += new[:_NEW]
        turn = survivors if number % 2 == 0 else survivors[::-1]
        if not all(run.try_one(candidate) for candidate in turn):
            break  # the time is up
        ranked = [candidate for candidate in run.ranked() if candidate in survivors]
        survivors = ranked[: max(_SURVIVORS, math.ceil(len(survivors) / 2))]
    return TuningResult(pick(run.measured), run.measured, run.refused)


def pick(measured: Mapping[Candidate, Sequence[Measurement]]) -> Candidate:
    """Return the settings to use: of the fastest, those with the fewest workers.

    Settings that were measured half as often as the most often measured ones, or less, are left out: the best of
    many single measurements is a lucky one.

    Raises:
        ValueError: If nothing was measured.
    """
    often = max((len(each) for each in measured.values()), default=0)
    found = [median(each) for each in measured.values() if 2 * len(each) > often]
    if not found:
        raise ValueError("nothing was measured, so that nothing can be picked")
    with_workers = [figures for figures in found if figures.candidate != INLINE]
    if not with_workers:
        return INLINE
    best = max(figures.samples_per_s for figures in with_workers)
    if INLINE in measured and median(measured[INLINE]).samples_per_s > best * (1 + _INLINE_MARGIN):
        return INLINE
    equal = [figures for figures in with_workers if figures.samples_per_s >= best * (1 - _TIE)]
    return min(equal, key=lambda each: (each.candidate.num_workers, each.cpu_s_per_sample)).candidate


@dataclass
class _Run:
    """Measurements under way, within their time."""

    measure: Measure
    window_s: float
    clock: Callable[[], float]
    deadline: float
    begun: float
    progress: Callable[[Candidate, float], None]
    measured: dict[Candidate, list[Measurement]] = field(default_factory=dict)
    refused: dict[Candidate, str] = field(default_factory=dict)
    took_s: dict[str, float] = field(default_factory=dict)

    def try_one(self, candidate: Candidate) -> bool:
        """Measure a candidate once more; return whether there was time for it."""
        if candidate in self.refused:
            return True
        start = self.clock()
        expected = self.took_s.get(candidate.method, max(self.took_s.values(), default=0.0))
        if self.took_s and start + expected > self.deadline:
            return False
        self.progress(candidate, start - self.begun)
        try:
            figures = self.measure(candidate, self.window_s)
        except Exception as error:
            if candidate == INLINE:
                raise
            self.refused[candidate] = _in_a_line(error)
        else:
            self.measured.setdefault(candidate, []).append(figures)
        self.took_s[candidate.method] = self.clock() - start
        return True

    def ranked(self) -> list[Candidate]:
        """Return all that was measured, the highest median first."""
        rates = {candidate: median(each).samples_per_s for candidate, each in self.measured.items()}
        return sorted(rates, key=lambda candidate: -rates[candidate])


def _in_a_line(error: Exception) -> str:
    """Return an error's message; of one that came from a worker with its traceback, the last line of that."""
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)  # not its repr
    lines = text.strip().splitlines()
    if not lines:
        return type(error).__name__
    return lines[-1] if "Traceback" in text else f"{type(error).__name__}: {lines[0]}"
