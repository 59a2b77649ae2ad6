"""Tuning of worker settings: candidates, a meter, a search, and verdicts on what limits the rate."""

from __future__ import annotations

from lit_loader.tuning.candidates import (
    INLINE,
    METHODS,
    Candidate,
    Host,
    Measurement,
    coarse_grid,
    default_method,
    full_grid,
    median,
    neighbours,
)
from lit_loader.tuning.meter import LoaderMeter
from lit_loader.tuning.report import Verdict, diagnose, save_plot
from lit_loader.tuning.search import Measure, TuningResult, pick, search_settings

__all__ = [
    "Candidate",
    "Host",
    "INLINE",
    "LoaderMeter",
    "METHODS",
    "Measure",
    "Measurement",
    "TuningResult",
    "Verdict",
    "coarse_grid",
    "default_method",
    "diagnose",
    "full_grid",
    "median",
    "neighbours",
    "pick",
    "save_plot",
    "search_settings",
]
