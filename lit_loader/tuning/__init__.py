"""Tuning of worker settings: candidates, a meter, a search, and verdicts on what limits the rate."""

from __future__ import annotations

from lit_loader.tuning.candidates import (
    INLINE,
    METHODS,
    Candidate,
    coarse_grid,
    default_method,
    full_grid,
    neighbours,
)
from lit_loader.tuning.diagnosis import Verdict, diagnose
from lit_loader.tuning.figures import Figures, Host, typical
from lit_loader.tuning.meter import LoaderMeter
from lit_loader.tuning.plot import save_plot
from lit_loader.tuning.search import Measure, Tuned, pick, search_settings

__all__ = [
    "Candidate",
    "Figures",
    "Host",
    "INLINE",
    "LoaderMeter",
    "METHODS",
    "Measure",
    "Tuned",
    "Verdict",
    "coarse_grid",
    "default_method",
    "diagnose",
    "full_grid",
    "neighbours",
    "pick",
    "save_plot",
    "search_settings",
    "typical",
]
