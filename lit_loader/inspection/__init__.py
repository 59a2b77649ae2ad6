"""Inspection of data sets before training: defects, pictures, statistics, and pages that show them."""

from __future__ import annotations

from lit_loader.inspection.findings import Finding, Findings, Severity
from lit_loader.inspection.page import Page

__all__ = ["Finding", "Findings", "Page", "Severity"]
