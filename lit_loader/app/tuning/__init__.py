"""Tuning of worker settings: a search over candidates, a meter, and verdicts on what limits the rate."""

from __future__ import annotations

from lit_loader.app.tuning.meter import LoaderMeter
from lit_loader.app.tuning.search import (
    INLINE,
    METHODS,
    Candidate,
    Measure,
    Measurement,
    TuningResult,
    coarse_grid,
    median,
    neighbours,
    pick,
    search_settings,
)
from lit_loader.app.tuning.verdicts import diagnose, explain_choice

__all__ = [
    "Candidate",
    "INLINE",
    "LoaderMeter",
    "METHODS",
    "Measure",
    "Measurement",
    "TuningResult",
    "coarse_grid",
    "diagnose",
    "explain_choice",
    "median",
    "neighbours",
    "pick",
    "search_settings",
]
