"""Monitoring of a run: the times of waiting, transfer and steps, and the stage that limits the rate."""

from __future__ import annotations

from lit_loader.monitoring.diagnosis import Cause, Verdict, diagnose
from lit_loader.monitoring.loop import LoopMonitor, LoopTotals, StepRecord
from lit_loader.monitoring.ranks import gather_reports
from lit_loader.monitoring.report import DataReport, Headroom, LoaderSettings
from lit_loader.monitoring.timeline import save_timeline

__all__ = [
    "Cause",
    "DataReport",
    "Headroom",
    "LoaderSettings",
    "LoopMonitor",
    "LoopTotals",
    "StepRecord",
    "Verdict",
    "diagnose",
    "gather_reports",
    "save_timeline",
]
